"""Tool names that every API takes: OpenAI's allows 64 letters, digits, `_` and `-`, and data sets have `math.factorial`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

LENGTH = 64
_GOOD = re.compile(rf"[a-zA-Z0-9_-]{{1,{LENGTH}}}")


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """Name -> what it is called in requests: itself where the rule allows it, else one that no other tool has."""
    good = {name: name for name in names if _GOOD.fullmatch(name)}
    used = set(good)
    wire = {}
    for name in names:
        wire[name] = good.get(name) or _free(re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:LENGTH] or "_", used)
        used.add(wire[name])
    return wire


def _free(name: str, used: set[str]) -> str:
    """The name, or the first of `name_2`, `name_3`, ... that nobody has."""
    if name not in used:
        return name
    numbered = (f"{name[: LENGTH - len(end)]}{end}" for end in (f"_{number}" for number in count(2)))
    return next(each for each in numbered if each not in used)
