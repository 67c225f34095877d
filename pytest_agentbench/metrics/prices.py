"""The token prices that a backend.yaml can contain (key `prices`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

from pytest_agentbench.lib.config import Spec, matching
from pytest_agentbench.metrics.terms import TokenPrices

Currency = Annotated[str, matching(r"^[A-Z]{3}$", "three capital letters, such as EUR")]
Price = Annotated[FiniteFloat, Field(ge=0)]  # price of a million tokens


class Prices(Spec):
    """Prices of a million tokens each, in one currency."""

    currency: Currency = Field(description="The currency: three capital letters, as in ISO 4217.")
    input: Price = Field(description="The price of a million prompt tokens.")
    cached_input: Price | None = Field(
        default=None,
        description="The price of a million prompt tokens from the prefix cache, if usage names them. The default is the price `input`.",
    )
    output: Price = Field(description="The price of a million output tokens, reasoning included.")

    @property
    def token_prices(self) -> TokenPrices:
        """The prices as a plain dataclass, which needs no pydantic."""
        return TokenPrices(self.currency, self.input, self.output, self.cached_input)
