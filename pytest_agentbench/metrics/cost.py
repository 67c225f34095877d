"""What tokens cost. The tap computes it as well, so that nothing here may load pydantic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenPrices:
    """Prices of a million tokens each, in one currency."""

    currency: str  # ISO 4217
    input: float  # prompt tokens
    output: float
    cached_input: float | None = None  # prompt tokens that came from the prefix cache; None: as the others

    def of(self, prompt: int, cached: int, output: int) -> float:
        """Returns what so many prompt tokens, `cached` of them from the prefix cache, and so many output tokens cost."""
        cached_input = self.input if self.cached_input is None else self.cached_input
        return float((prompt - cached) * self.input + cached * cached_input + output * self.output) / 1e6
