"""What a suite.yaml may say."""

from __future__ import annotations

from datetime import date
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, StringConstraints, field_validator, model_validator

from pytest_agentbench.lib.config import Spec
from pytest_agentbench.lib.times import seconds
from pytest_agentbench.records import MOST_TRIALS
from pytest_agentbench.suites.roles import LimitsSpec, RoleSpec, RoleSpecs
from pytest_agentbench.suites.suite import score_name
from pytest_agentbench.suites.task import DOCKER, FAIL, HARBOR

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]  # pytest has no marks that start with `_`
VariantName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
NonEmptyText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class DatasetSpec(Spec):
    """Where the scenarios are."""

    format: str  # a built-in name, or an import path such as `./reader.py:load`
    file: str | None = None  # relative to suite.yaml; of formats that read an installed package there is none
    tools: str | None = None  # a tools.json for entries that do not carry their own `available_tools`
    name: str | None = None  # what reports call the data set
    options: dict[str, JsonValue] = {}  # of the format


def _delay(value: Any) -> Any:
    """Seconds of `200ms` or 0.2; anything that is no text is left to the check."""
    if not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError("should be a time such as 200ms, 1.5s or 0.2 (seconds)") from error


class AnswerSpec(Spec):
    """How a tool's calls are answered, whatever carries the others out."""

    text: str | None = None  # that every call gets; None: what carries the tools out answers
    delay: Annotated[FiniteFloat, BeforeValidator(_delay)] = Field(default=0.0, ge=0)  # seconds before the answer
    error_rate: FiniteFloat = Field(default=0.0, ge=0, le=1)  # share of the calls that get an error in place of the answer

    @model_validator(mode="after")
    def _says_something(self) -> AnswerSpec:
        if not self.model_fields_set:
            raise ValueError("should say `text`, `delay` or `error_rate`")
        return self


#: Tool -> its answers.
Answers = dict[str, AnswerSpec]


class VariantSpec(Spec):
    """What differs from the suite's own."""

    agent: dict[str, JsonValue] = {}
    tools: dict[str, JsonValue] = {}  # in place of the suite's
    answers: Answers = {}  # in place of the suite's
    limit: int | None = Field(default=None, ge=1)  # takes so many scenarios, from the first one on


class QuarantineSpec(Spec):
    """A scenario that no gate counts for a while."""

    scenario: NonEmptyText
    owner: NonEmptyText
    reason: NonEmptyText
    expires: date  # the last day on which it holds


class VerifierSpec(Spec):
    """How what a verifier says of a task becomes its reward."""

    skipped: Literal["allow", "fail"] = "allow"  # fail: a check that was skipped makes the reward 0
    changed: Literal["allow", "fail"] = "allow"  # fail: a file that a shared verifier uses and the agent changed makes the reward 0


class SuiteSpec(Spec):
    """The keys of a suite.yaml."""

    name: Name  # also the marker: pytest -m NAME
    description: str = ""
    dataset: DatasetSpec
    agent: dict[str, JsonValue] = Field(default={}, validate_default=True)
    variants: dict[VariantName, VariantSpec] = {}
    scorers: dict[str, dict[str, JsonValue]] = {"tsq": {}}  # written as a list of names, or of {name: options}
    tools: dict[str, JsonValue] = {}  # where they are carried out; without it they are only decided on
    arguments: dict[str, dict[str, Literal["exact", "ignore", "pattern"]]] = {}  # tool -> argument -> how it is compared with labels
    answers: Answers = {}  # of tools that are answered here, late or with errors
    judge: RoleSpec | None = None  # the role of whoever scorers ask; without it they ask the backend under test
    roles: RoleSpecs = {}  # that agents ask for by name
    limits: LimitsSpec = LimitsSpec()  # of each rollout, in all roles together
    isolation: Literal["none", "process"] = "none"  # process: the suite's own code runs in processes of its own
    thresholds: dict[str, FiniteFloat] = {}
    gate: list[str] = []  # rules such as `tsq.mean >= -0.05 vs baseline`
    deterministic: bool = False  # trials of a scenario never differ, so differences of scores are facts
    quarantine: list[QuarantineSpec] = []
    sandbox: str = DOCKER  # where its tasks are carried out: docker, or harbor:NAME
    private_addresses: list[str] = []  # ranges that programs of its tasks reach beside public addresses
    verifier: VerifierSpec = VerifierSpec()  # of its tasks
    trials: int = Field(default=1, ge=1, le=MOST_TRIALS)
    timeout: FiniteFloat = Field(default=600.0, gt=0)  # seconds for one rollout
    only_when_named: bool = False  # a large suite, which a path above it does not select: only a path into it, or its marker
    xdist_workers: int | None = Field(default=None, strict=True, ge=1, le=1000)  # that start with -n; None: one

    @field_validator("sandbox")
    @classmethod
    def _some_sandbox(cls, sandbox: str) -> str:
        if sandbox != DOCKER and not (sandbox.startswith(HARBOR) and sandbox != HARBOR):
            raise ValueError(f"should be {DOCKER}, or {HARBOR}NAME for an environment of Harbor's")
        return sandbox

    @field_validator("private_addresses")
    @classmethod
    def _ranges(cls, ranges: list[str]) -> list[str]:
        for each in ranges:
            try:
                ip_network(each)
            except ValueError as error:
                raise ValueError(f"{error}; should be a list of ranges of addresses such as 10.1.0.0/16 or fd12::/64") from error
        return ranges

    @model_validator(mode="after")
    def _what_our_sandboxes_have(self) -> SuiteSpec:
        if self.private_addresses and self.sandbox != DOCKER:
            raise ValueError(f"private_addresses: are of the sandbox {DOCKER}; {self.sandbox} closes none; leave one of the two out")
        if self.verifier.changed == FAIL and self.sandbox != DOCKER:
            raise ValueError(f"verifier.changed: in {self.sandbox} no files are compared; say `allow`, or take the sandbox {DOCKER}")
        return self

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

    @field_validator("scorers", mode="before")
    @classmethod
    def _with_options(cls, scorers: Any) -> Any:
        """`[tsq, {regex: {pattern: x}}]` as one mapping; anything else is left to the check."""
        if not isinstance(scorers, list):
            return scorers
        named = [{each: {}} if isinstance(each, str) else each for each in scorers]
        if any(not isinstance(each, dict) or len(each) != 1 for each in named):
            raise ValueError("should be a list of names, or of {name: options}")
        names = [name for each in named for name in each]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two scores would be called {score_name(str(twice[0]))!r}")
        return {name: options for each in named for name, options in each.items()}

    @field_validator("scorers")
    @classmethod
    def _some_scorer(cls, scorers: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        if not scorers:
            raise ValueError("a suite needs at least one scorer, for example tsq")
        names = [score_name(scorer) for scorer in scorers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two scores would be called {twice[0]!r}")
        return scorers
