"""The one error that bad input gets."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """Input that is refused: names the field, the value and the rule, in one line.

    >>> str(InputError("full_acc[1]", 1.2, "must lie in [0, 1]"))
    'full_acc[1] = 1.2: must lie in [0, 1]'
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field = field
        self.value = value
        self.rule = rule
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(" ".join(f"{field} = {shown}: {rule}".split()))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str]]:
        # BaseException would be rebuilt from the message alone, which fails across process boundaries.
        return type(self), (self.field, self.value, self.rule)
