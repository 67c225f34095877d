"""The keys of a suite.yaml and their checks."""

from __future__ import annotations

from datetime import date
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, JsonValue, StringConstraints, field_validator, model_validator

from pytest_agentbench.lib.config import PositiveSeconds, Seconds, Spec, matching
from pytest_agentbench.records import MOST_TRIALS
from pytest_agentbench.suites.roles import LimitsSpec, RoleSpec, RoleSpecs
from pytest_agentbench.suites.suite import DOCKER, FAIL, HARBOR, score_name

#: Names of suites are marks, and pytest has no marks that start with `_`.
Name = Annotated[str, matching(r"^[A-Za-z][A-Za-z0-9_]*$", "letters, digits and `_`, with a letter first")]
VariantName = Annotated[str, matching(r"^[a-z][a-z0-9_]*$", "lowercase letters, digits and `_`, with a letter first")]
NonEmptyText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class DatasetSpec(Spec):
    """The key `dataset`: the format and the file of the data that the scenarios of a suite come from."""

    format: str = Field(
        description="The format of the data: `agent-leaderboard`, [`hle`](hle.md), [`bfcl`](bfcl.md), which reads an installed package, "
        "[`harbor`](suites.md#harbor-tasks), which reads a folder of tasks, or the import path of "
        "[a format of your own](suites.md#a-data-format-of-your-own), such as `./reader.py:load`."
    )
    file: str | None = Field(
        default=None,
        description="The data, relative to `suite.yaml`: a JSON list, JSON lines (`.jsonl`), or a folder for the format `harbor`. "
        "A format that reads an installed package has none.",
    )
    tools: str | None = Field(default=None, description="A `tools.json` for entries without `available_tools` of their own.")
    name: str | None = Field(
        default=None, description="Reports call the data by this name. The default is the name of the file or of the package."
    )
    options: dict[str, JsonValue] = Field(
        default={},
        description="Options of the format, such as `{images: keep}` of [`hle`](hle.md#the-data). "
        "A format of your own gets them as keyword-only arguments.",
    )


class AnswerSpec(Spec):
    """A canned answer of a tool: a fixed text, a delay or a share of errors. Other tools keep their usual answers."""

    text: str | None = Field(
        default=None,
        description="Every call of the tool gets this answer. Without it, the answer comes from what carries the tool out, "
        "or is a sample if nothing does.",
    )
    delay: Seconds = Field(
        default=0.0,
        description="The answer comes after this time, such as `200ms` or `1.5s`; a number is in seconds. "
        "The time is part of the call, and so of the rollout's `tools` time.",
    )
    error_rate: FiniteFloat = Field(
        default=0.0, ge=0, le=1, description="This share of the calls, from 0 to 1, gets an error in place of the answer."
    )

    @model_validator(mode="after")
    def _has_a_key(self) -> AnswerSpec:
        if not self.model_fields_set:
            raise ValueError("must have at least one of `text`, `delay` and `error_rate`")
        return self


#: A scorer in a list, with its options: `{regex: {pattern: "..."}}`.
ScorerOptions = Annotated[dict[str, dict[str, JsonValue] | None], Field(min_length=1, max_length=1)]

#: Tool -> its answers.
Answers = dict[str, AnswerSpec]


class VariantSpec(Spec):
    """A variant of a suite: agent settings, tools and canned answers that replace those of the suite, and a limit of scenarios."""

    agent: dict[str, JsonValue] = Field(
        default={},
        description="These settings replace those of the suite's agent one by one. If they name another `kind`, only the sampling "
        "parameters of the suite's agent stay.",
    )
    tools: dict[str, JsonValue] = Field(default={}, description="These tools replace the suite's `tools`. Without it, the suite's stay.")
    answers: Answers = Field(default={}, description="These answers replace the suite's `answers`. Without it, the suite's stay.")
    limit: int | None = Field(
        default=None,
        ge=1,
        description="The variant runs only the first scenarios, this many; rules about the whole suite are then INCONCLUSIVE. "
        "The default is all scenarios.",
    )


class QuarantineSpec(Spec):
    """A scenario that the gate leaves out until a date."""

    scenario: NonEmptyText = Field(description="The id of the scenario.")
    owner: NonEmptyText = Field(description="This person or team is responsible for ending the quarantine.")
    reason: NonEmptyText = Field(description="The reason, which reports show.")
    expires: date = Field(description="The last day of the quarantine, such as `2999-12-31`. From the next day on, the suite is an error.")


class VerifierSpec(Spec):
    """The key `verifier`: when a skipped check or a changed file makes the reward of a Harbor task 0."""

    skipped: Literal["allow", "fail"] = Field(
        default="allow",
        description="With `fail`, the reward is 0 if the verifier [skipped a check](terminal-agent.md#the-verifier). "
        "With `allow`, a skipped check changes nothing.",
    )
    changed: Literal["allow", "fail"] = Field(
        default="allow",
        description="With `fail`, the reward is 0 if the agent changed files that a [shared verifier](terminal-agent.md#the-verifier) "
        "uses. With `allow`, changed files are only reported.",
    )


class SuiteSpec(Spec):
    """The keys of a suite.yaml."""

    name: Name = Field(
        description="The name of the suite and of its marker (`pytest -m NAME`): a letter, then letters, digits and `_`. "
        "It cannot be a marker that pytest, a plugin or a `conftest.py` gives a meaning, such as `xfail` or `timeout`."
    )
    description: str = Field(default="", description="A sentence about the suite. Tests read it as `suite.description`.")
    dataset: DatasetSpec = Field(
        description="The data set that the scenarios come from.", examples=["{format: agent-leaderboard, file: data.json}"]
    )
    agent: dict[str, JsonValue] = Field(
        default={"kind": "tool_calling"},
        description="The [agent and its settings](suites.md#the-agent).",
        examples=["{kind: tool_calling}"],
    )
    variants: dict[VariantName, VariantSpec] = Field(
        default={},
        description="Name -> [variant](suites.md#variants): `agent` settings, `tools` and `answers` that differ from the suite's own, "
        "and `limit`. A name has small letters, digits and `_`, and is not `default`.",
    )
    scorers: dict[str, dict[str, JsonValue]] = Field(
        default={"tsq": {}},
        description='Names of [scorers](scorers.md), or import paths, with options or without: `[tsq, {regex: {pattern: "..."}}]`. '
        "Reports sort by the first one.",
    )
    tools: dict[str, JsonValue] = Field(
        default={},
        description='[What carries out the calls of tools](tools.md), such as `{kind: python, module: "./tools.py:Shop"}` or '
        "`{kind: mcp, command: [python, server.py]}` for [an MCP server](mcp.md). Without it, calls are recorded and answered with samples "
        "(*decision-only*).",
        examples=["{kind: python, module: './tools.py:Shop'}"],
    )
    arguments: dict[str, dict[str, Literal["exact", "ignore", "pattern"]]] = Field(
        default={},
        description="Tool -> argument -> [how its value is compared](scorers.md#arguments-in-a-mode-of-their-own) with the labels: "
        "`{order_item: {note: ignore}}`. Other arguments are compared by the usual rules.",
    )
    answers: Answers = Field(
        default={},
        description="Tool -> its [canned answer](tools.md#canned-answers), late or with errors: "
        '`{find_item: {text: "three left", delay: 200ms, error_rate: 0.1}}`.',
    )
    judge: RoleSpec | None = Field(
        default=None,
        description="The [role](roles.md) of the [judge](judges.md#where-the-judge-is) that scorers ask. "
        "Without it, they ask the backend under test.",
    )
    roles: RoleSpecs = Field(
        default={},
        description="Name -> [role](roles.md): further endpoints that the agent may ask, or the name of "
        "[a file](roles.md#roles-in-a-file) that contains them.",
    )
    limits: LimitsSpec = Field(
        default=LimitsSpec(), description="[What a rollout may use](roles.md#limits) in all roles together: `calls`, `tokens`, `cost`."
    )
    isolation: Literal["none", "process"] = Field(
        default="none",
        description="With `process`, [the suite's own code runs in processes of its own](own-agents.md#a-process-for-each-rollout). "
        "With `none`, it runs in the process that runs all rollouts.",
    )
    thresholds: dict[str, FiniteFloat] = Field(
        default={},
        description="`<scorer>` is the threshold of each scenario; "
        "`<scorer>.mean` is short for the rule [`<scorer>.mean >= LIMIT of run`](gates.md#rules). Scores of the built-in scorers are "
        "between 0 and 1, those that count are 0 or more, and so are their thresholds.",
        examples=["{tsq: 0.5}"],
    )
    gate: list[str] = Field(
        default=[],
        description="[Rules](gates.md#rules) for a whole run: `[tsq.mean >= -0.05 vs baseline]`.",
        examples=["[tsq.mean >= 0.8]"],
    )
    deterministic: bool = Field(
        default=False,
        description="With `true`, trials never differ: [gates](gates.md#two-questions) take a difference of scores as a fact.",
    )
    quarantine: list[QuarantineSpec] = Field(
        default=[],
        description="Scenarios that [the gate leaves out](gates.md#quarantine) until a date: `[{scenario, owner, reason, expires}]`.",
    )
    sandbox: str = Field(
        default=DOCKER,
        description="Where [tasks](suites.md#harbor-tasks) are carried out: `docker`, [sandboxes of our own](sandboxes.md), or "
        "`harbor:NAME`, [an environment of Harbor's](harbor.md#harbors-environments-as-sandboxes).",
    )
    private_addresses: list[str] = Field(
        default=[],
        description="Ranges of private addresses, such as `[10.1.0.0/16]`, that [tasks](suites.md#harbor-tasks) with the network `public` "
        "reach beside public ones. All other private addresses [are closed](sandboxes.md#the-network).",
    )
    verifier: VerifierSpec = Field(
        default=VerifierSpec(),
        description="How the verdict of a [task](suites.md#harbor-tasks)'s verifier becomes its reward. `skipped: fail` makes the reward 0 "
        "if the verifier [skipped a check](terminal-agent.md#the-verifier), `changed: fail` if the agent changed files that a shared "
        "verifier uses. The default of both is `allow`.",
    )
    trials: int = Field(default=1, ge=1, le=MOST_TRIALS, description="Each scenario runs this many times.")
    timeout: PositiveSeconds = Field(
        default=600.0,
        description="The time limit of one rollout, such as `10m`; a number is in seconds. A rollout that takes longer ends with "
        "the status `limit`. Each scorer has as much time.",
    )
    xdist_workers: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=1000,
        description="The number of [xdist workers](running.md#workers) that start with `-n`, from 1 to 1000, if every path of the command "
        "line is in a suite's folder. The default is 1. Say more than one if the tests compute for long.",
    )
    only_when_named: bool = Field(
        default=False,
        description="For a large suite: with `true`, a path above its folder runs it as a single SKIP that says so. "
        "A path to or into its folder, or its marker in `-m`, runs it.",
    )

    @field_validator("sandbox")
    @classmethod
    def _known_sandbox(cls, sandbox: str) -> str:
        if sandbox != DOCKER and not (sandbox.startswith(HARBOR) and sandbox != HARBOR):
            raise ValueError(f"must be {DOCKER}, or {HARBOR}NAME, the name of an environment of Harbor")
        return sandbox

    @field_validator("private_addresses")
    @classmethod
    def _ranges(cls, ranges: list[str]) -> list[str]:
        for each in ranges:
            try:
                ip_network(each)
            except ValueError as error:
                raise ValueError(f"{error}; must be a list of ranges of addresses such as 10.1.0.0/16 or fd12::/64") from error
        return ranges

    @model_validator(mode="after")
    def _supported_by_sandbox(self) -> SuiteSpec:
        if self.private_addresses and self.sandbox != DOCKER:
            raise ValueError(f"private_addresses: {self.sandbox} does not support them; remove them, or use the sandbox {DOCKER}")
        if self.verifier.changed == FAIL and self.sandbox != DOCKER:
            raise ValueError(f"verifier.changed: {self.sandbox} cannot find changed files; use `allow`, or the sandbox {DOCKER}")
        return self

    @field_validator("agent")
    @classmethod
    def _with_default_kind(cls, agent: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {"kind": "tool_calling", **agent}

    @field_validator("variants")
    @classmethod
    def _default_is_reserved(cls, variants: dict[str, VariantSpec]) -> dict[str, VariantSpec]:
        if "default" in variants:
            raise ValueError("'default' is the name of the suite's own agent; give the variant another name")
        return variants

    @field_validator("scorers", mode="before", json_schema_input_type=list[str | ScorerOptions] | dict[str, dict[str, JsonValue] | None])
    @classmethod
    def _with_options(cls, scorers: Any) -> Any:
        """Converts a list such as `[tsq, {regex: {pattern: x}}]` to a mapping. A scorer without a value has no options."""
        if isinstance(scorers, dict):
            return {name: {} if options is None else options for name, options in scorers.items()}
        if not isinstance(scorers, list):
            raise ValueError("must be a list of scorers, such as [tsq], or a mapping of scorers to their options")  # noqa: TRY004
        named = [{each: {}} if isinstance(each, str) else each for each in scorers]
        if any(not isinstance(each, dict) or len(each) != 1 for each in named):
            raise ValueError("must be a list of names or of {name: options}, such as [tsq, {regex: {pattern: x}}]")
        names = [name for each in named for name in each]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two scores would be called {score_name(str(twice[0]))!r}; remove or rename one of the scorers")
        return {name: {} if options is None else options for each in named for name, options in each.items()}

    @field_validator("scorers")
    @classmethod
    def _at_least_one_scorer(cls, scorers: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        if not scorers:
            raise ValueError("a suite needs at least one scorer; add one, for example tsq")
        names = [score_name(scorer) for scorer in scorers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two scores would be called {twice[0]!r}; remove or rename one of the scorers")
        return scorers
