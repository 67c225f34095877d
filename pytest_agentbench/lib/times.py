"""Times as options and YAML files write them."""

from __future__ import annotations

import re


def seconds(text: str) -> float:
    """Seconds of a time such as `200ms`, `90s`, `150m` or `2h`; a number alone is seconds. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not match:
        raise ValueError("a time such as 90s, 150m or 2h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]
