"""Small Python functions to complete, of our own: training prompts that look like a code benchmark's without being
any of its.
"""

from __future__ import annotations

import json
import random
from importlib import resources
from typing import Any

__all__ = ["ASK_CODE", "code_prompts"]

ASK_CODE = "Complete this function:\n```python\n{code}```"
"""How the model is asked, `{code}` being the function's head and docstring."""

_FILE = "code_functions.json"
_TYPES = ("List", "Tuple")


def code_prompts(count: int, seed: int) -> list[str]:
    """`count` prompts: every function in two wordings, without and with examples, in an order drawn by `seed`."""
    functions = json.loads((resources.files("eagle_speedup.demo") / "data" / _FILE).read_text(encoding="utf-8"))
    variants = [
        _render(f, reworded, examples) for f in functions for reworded in (False, True) for examples in (False, True)
    ]
    random.Random(seed).shuffle(variants)
    return [ASK_CODE.format(code=code) for code in variants[:count]]


def _render(function: dict[str, Any], reworded: bool, examples: bool) -> str:
    name, signature, doc = function["name"], function["signature"], function["doc"]
    if reworded:
        name = f"check_{name}" if name.startswith(("is_", "to_")) else f"get_{name}"
        doc = f"Given the input, {doc[0].lower()}{doc[1:]}"
    used = [t for t in _TYPES if f"{t}[" in signature]
    lines = [f"from typing import {', '.join(used)}", "", ""] if used else []
    lines.append(f"def {name}({signature}:")
    if not examples:
        return "\n".join([*lines, f'    """{doc}"""']) + "\n"
    lines.append(f'    """ {doc}')
    for arguments, result in function["examples"]:
        lines += [f"    >>> {name}({arguments})", f"    {result}"]
    return "\n".join([*lines, '    """']) + "\n"
