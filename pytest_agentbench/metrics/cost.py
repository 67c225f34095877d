"""What tokens cost, by prices as JSON has them: the tap reckons with it, which loads no pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def cost_of(prices: Mapping[str, Any], prompt: int, cached: int, output: int) -> float:
    """What so many prompt tokens, `cached` of them from the prefix cache, and so many output tokens cost; prices are of a million."""
    cached_input = prices["input"] if prices.get("cached_input") is None else prices["cached_input"]
    return float((prompt - cached) * prices["input"] + cached * cached_input + output * prices["output"]) / 1e6
