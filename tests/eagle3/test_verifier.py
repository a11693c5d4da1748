import pytest
import torch

from eagle_speedup.eagle3.decoder import greedy_decode
from eagle_speedup.eagle3.linear import FewRowLinear, on_float16_grid, ranked_kernels, to_float16_grid
from eagle_speedup.eagle3.verifier import LlamaVerifier
from eagle_speedup.errors import InputError

from .conftest import EOS, VOCAB, prompts_of, tiny_hf


def logits_of(verifier, ids, cache):
    logits = verifier.forward(ids, cache).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_and_hidden_states_equal_transformers(tied, kv_heads):
    model = tiny_hf(3, tie_word_embeddings=tied, num_key_value_heads=kv_heads)
    verifier = LlamaVerifier.from_hf(model, max_positions=64)
    ids = torch.randint(0, VOCAB, (3, 17))
    with torch.inference_mode():
        theirs = model(input_ids=ids, output_hidden_states=True)
    ours = verifier.forward(ids, verifier.new_cache(3, 32), taps=(0, 1))
    torch.testing.assert_close(ours.logits, theirs.logits, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(ours.taps, torch.cat(theirs.hidden_states[1:3], -1), atol=2e-5, rtol=1e-4)


def test_cache_in_pieces_unequal_rows_and_rollback_equal_one_forward():
    verifier = LlamaVerifier.from_hf(tiny_hf(4), max_positions=64)
    ids = torch.randint(0, VOCAB, (2, 20))
    whole = logits_of(verifier, ids, verifier.new_cache(2, 20))
    cache = verifier.new_cache(2, 32)
    verifier.forward(ids[:, :9], cache)
    cache.rollback([9, 5])  # the second row falls behind
    step = torch.stack((ids[0, 9:12], ids[1, 5:8]))
    pieces = logits_of(verifier, step, cache)
    torch.testing.assert_close(pieces[0], whole[0, 9:12], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(pieces[1], whole[1, 5:8], atol=2e-5, rtol=1e-4)
    cache.rollback([10, 6])
    wrong = torch.randint(0, VOCAB, (2, 4))
    verifier.forward(wrong, cache)  # refused drafts
    cache.rollback([10, 6])
    again = logits_of(verifier, torch.stack((ids[0, 10:11], ids[1, 6:7])), cache)
    torch.testing.assert_close(again[:, 0], torch.stack((whole[0, 10], whole[1, 6])), atol=2e-5, rtol=1e-4)
    cache.keep_rows([1])
    last = logits_of(verifier, ids[1:, 7:9], cache)
    torch.testing.assert_close(last[0], whole[1, 7:9], atol=2e-5, rtol=1e-4)


def test_cache_refuses_what_it_cannot_hold():
    verifier = LlamaVerifier.from_hf(tiny_hf(4), max_positions=64)
    cache = verifier.new_cache(1, 4)
    with pytest.raises(InputError, match="sequence length = 5"):
        verifier.forward(torch.zeros(1, 5, dtype=torch.long), cache)
    with pytest.raises(InputError, match="lengths"):
        cache.rollback(1)
    with pytest.raises(InputError, match="max_positions"):
        verifier.new_cache(1, 65)


def test_float16_grid_changes_weights_once_and_all_kernels_agree():
    weight = to_float16_grid(torch.randn(40, 64))
    assert on_float16_grid(weight) and not on_float16_grid(torch.randn(40, 64))
    for rows in (1, 2, 5, 30):
        x = torch.randn(rows, 64)
        for kernel in ranked_kernels():
            torch.testing.assert_close(FewRowLinear(weight, kernel)(x), x @ weight.T, atol=1e-4, rtol=1e-4)
    assert FewRowLinear(torch.randn(40, 64)).kernel != "float16"


def test_batched_plain_decoding_equals_one_by_one(verifier):
    prompts = prompts_of(7, seed=1)
    together = greedy_decode(verifier, prompts, max_new=20, eos_id=EOS)
    alone = [greedy_decode(verifier, [p], max_new=20, eos_id=EOS).answers[0].ids for p in prompts]
    assert [a.ids for a in together.answers] == alone
    assert together.tokens == sum(len(ids) - 1 for ids in alone)
