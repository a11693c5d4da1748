"""One headline from several validation sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import add

from ..errors import InputError
from .profile import AcceptanceProfile

__all__ = ["mix_profiles"]


def mix_profiles(profiles: Mapping[str, AcceptanceProfile], weights: Mapping[str, float]) -> AcceptanceProfile:
    """The profile of traffic in which set s makes the share ``weights[s]`` of the generated tokens.

    Rounds add up, so the accept length of the mix is the weighted harmonic mean of the sets' accept lengths (2 and 4 in
    equal shares make 2.67, not 3). The sets are independent; block g of the mix joins their blocks g.

    Args:
        profiles: by name of the set; same steps, depths, blocks and mode.
        weights: positive, by the same names; they are normalised.
    """
    if not profiles or set(profiles) != set(weights):
        raise InputError("weights", sorted(weights), f"must name the sets {sorted(profiles)}")
    for name, weight in weights.items():
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
            raise InputError(f"weights[{name!r}]", weight, "must be a finite number above 0")
        if not profiles[name].counts.tokens.any():
            raise InputError(f"profiles[{name!r}].tokens", 0, "must be positive to be weighted")
    first = next(iter(profiles.values()))
    modes = sorted({p.mode for p in profiles.values()})
    if len(modes) > 1:
        raise InputError("profiles", modes, "must be of one sampling mode")
    total = math.fsum(weights.values())
    # Of the counts, not p.tokens: those of a set that is a mix itself are no whole numbers.
    tokens = {name: float(p.counts.tokens.sum()) for name, p in profiles.items()}
    whole = math.fsum(tokens.values())
    scaled = [p.counts.scaled(weights[name] / total * whole / tokens[name]) for name, p in profiles.items()]
    coverage_known = all(p.coverage_known for p in profiles.values())
    return AcceptanceProfile(reduce(add, scaled), first.mode, first.level, coverage_known)
