"""From TTT predictions to acceptance counts: spans, hits, the walk, and the metric that adds them up."""

from typing import TYPE_CHECKING

from .._lazy import lazy_exports
from .counts import AcceptanceCounts
from .mix import mix_profiles
from .profile import AcceptanceProfile

if TYPE_CHECKING:
    from .metric import TTTAcceptance
    from .rejection import acceptance_probability
    from .spans import spans_from_cu_seqlens, spans_from_mask, spans_from_turns
    from .vocabulary import absolute_d2t, to_verifier_ids

__all__ = [
    "AcceptanceCounts",
    "AcceptanceProfile",
    "TTTAcceptance",
    "absolute_d2t",
    "acceptance_probability",
    "mix_profiles",
    "spans_from_cu_seqlens",
    "spans_from_mask",
    "spans_from_turns",
    "to_verifier_ids",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "TTTAcceptance": ".metric",
        "absolute_d2t": ".vocabulary",
        "acceptance_probability": ".rejection",
        "spans_from_cu_seqlens": ".spans",
        "spans_from_mask": ".spans",
        "spans_from_turns": ".spans",
        "to_verifier_ids": ".vocabulary",
    },
)
