"""What a suite.yaml may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat, JsonValue, field_validator

from pytest_agentbench.config import Spec
from pytest_agentbench.scenarios import score_name

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariantName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class DatasetSpec(Spec):
    """Where the scenarios are."""

    format: str
    file: str  # relative to suite.yaml
    tools: str | None = None  # a tools.json for entries that do not carry their own `available_tools`
    name: str | None = None  # what reports call the data set


class VariantSpec(Spec):
    """Agent settings that differ from the suite's own."""

    agent: dict[str, JsonValue] = {}


class SuiteSpec(Spec):
    """The keys of a suite.yaml."""

    name: Name  # also the marker: pytest -m NAME
    description: str = ""
    dataset: DatasetSpec
    agent: dict[str, JsonValue] = Field(default={}, validate_default=True)
    variants: dict[VariantName, VariantSpec] = {}
    scorers: list[str] = ["tsq"]
    thresholds: dict[str, FiniteFloat] = {}
    trials: int = Field(default=1, ge=1)
    timeout: float = Field(default=600.0, gt=0)  # seconds for one rollout

    @field_validator("agent")
    @classmethod
    def _some_kind(cls, agent: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {"kind": "tool_calling", **agent}

    @field_validator("variants")
    @classmethod
    def _default_is_taken(cls, variants: dict[str, VariantSpec]) -> dict[str, VariantSpec]:
        if "default" in variants:
            raise ValueError("the variant 'default' is the suite's own agent; give yours another name")
        return variants

    @field_validator("scorers")
    @classmethod
    def _some_scorer(cls, scorers: list[str]) -> list[str]:
        if not scorers:
            raise ValueError("a suite needs at least one scorer, for example tsq")
        names = [score_name(scorer) for scorer in scorers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two scores would be called {twice[0]!r}")
        return scorers
