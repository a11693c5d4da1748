"""Reference EAGLE-3 drafter (arXiv 2503.01840): verifier with feature taps, training-time test, speculative decoder."""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .data import Conversation, make_loader, prepare_features
    from .decoder import DecodeResult, greedy_decode, speculative_decode
    from .drafter import DrafterConfig, Eagle3Drafter, draft_vocabulary
    from .engine import DraftEngine
    from .lightning_module import Eagle3Module, TrainingConfig
    from .recipe import DemoRecipe
    from .smollm2 import load_smollm2
    from .ttt import TTTInputs, ttt, ttt_draft_ids
    from .verifier import LlamaVerifier, VerifierConfig

_EXPORTS = {
    "Conversation": ".data",
    "DecodeResult": ".decoder",
    "DemoRecipe": ".recipe",
    "DraftEngine": ".engine",
    "DrafterConfig": ".drafter",
    "Eagle3Drafter": ".drafter",
    "Eagle3Module": ".lightning_module",
    "LlamaVerifier": ".verifier",
    "TTTInputs": ".ttt",
    "TrainingConfig": ".lightning_module",
    "VerifierConfig": ".verifier",
    "draft_vocabulary": ".drafter",
    "greedy_decode": ".decoder",
    "load_smollm2": ".smollm2",
    "make_loader": ".data",
    "prepare_features": ".data",
    "speculative_decode": ".decoder",
    "ttt": ".ttt",
    "ttt_draft_ids": ".ttt",
}

__all__ = [
    "Conversation",
    "DecodeResult",
    "DemoRecipe",
    "DraftEngine",
    "DrafterConfig",
    "Eagle3Drafter",
    "Eagle3Module",
    "LlamaVerifier",
    "TTTInputs",
    "TrainingConfig",
    "VerifierConfig",
    "draft_vocabulary",
    "greedy_decode",
    "load_smollm2",
    "make_loader",
    "prepare_features",
    "speculative_decode",
    "ttt",
    "ttt_draft_ids",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
