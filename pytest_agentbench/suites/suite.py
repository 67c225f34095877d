"""The frozen data classes of suites: Suite, Scenario, Tool, Task and Quarantined, with checks of quarantines and names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.key_shapes import places_of_keys
from pytest_agentbench.lib.redact import PublicText
from pytest_agentbench.records import SAMPLING, SHARED, Json, Scale, scale_in

#: One in 20 scenarios of a suite may be in quarantine, but always one. A gate that leaves out more says too little about the suite.
ONE_IN = 20


@dataclass(frozen=True)
class Quarantined:
    """An entry of `quarantine` in a suite.yaml."""

    scenario: str
    owner: str
    reason: str
    expires: date  # last day of the quarantine

    def __str__(self) -> str:
        return f"quarantined until {self.expires} ({self.owner}: {self.reason})"


def quarantine_faults(entries: Sequence[Quarantined], scenarios: Collection[str], today: date) -> Iterator[str]:
    """Yields a sentence for each entry that is unknown, duplicate or expired, and one if there are too many entries.

    `scenarios` are all ids of the suite.
    """
    counts = Counter(each.scenario for each in entries)
    for each in entries:
        if each.scenario not in scenarios:
            yield f"quarantine: the data set has no scenario {each.scenario!r}; remove the entry, or name an existing scenario"
        elif counts[each.scenario] > 1:
            yield f"quarantine: {each.scenario!r} has {counts[each.scenario]} entries; keep one of them"
        elif each.expires < today:
            yield (
                f"quarantine: the entry of {each.scenario!r} expired on {each.expires}; "
                f"its owner, {each.owner}, must remove it or change the date"
            )
    allowed, share = max(1, len(scenarios) // ONE_IN), 100 // ONE_IN
    if len(entries) > allowed:
        yield f"quarantine: {len(entries)} of {len(scenarios)} scenarios are in quarantine, more than {share} %; at most {allowed} may be"


TASK_FILE = "task.toml"

DOCKER = "docker"  # name of the built-in sandboxes
ALLOW, FAIL = "allow", "fail"  # values of `verifier.skipped` and `verifier.changed`: keep a doubtful reward, or make it 0
HARBOR = "harbor:"  # prefix of the name of a Harbor environment


@dataclass(frozen=True)
class Task:
    """A Harbor task directory: its environment, time limits, users and verification, as far as they are supported."""

    folder: str  # absolute path of the task directory with environment/, tests/ and solution/
    digest: str  # hash of all files of the task with their modes, 16 hexadecimal digits
    image: str = ""  # name of the container image; empty if it is built from environment/
    image_digest: str = ""  # hash of environment/ with modes, 16 hexadecimal digits; empty if `image` is given
    build_timeout_s: float = 600.0
    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    network: str = "public"  # public | no-network
    workdir: str | None = None  # None: working directory of the image
    env: Mapping[str, str] = field(default_factory=dict)
    agent_timeout_s: float | None = None  # None: time limit of a rollout
    agent_user: str | None = None  # None: user of the image
    verifier_timeout_s: float = 600.0
    verifier_user: str | None = None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    separate_verifier: bool = False  # whether the verifier runs in a fresh container with the artifacts
    artifacts: tuple[str, ...] = ()  # paths that a separate verifier gets
    solution_env: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = DOCKER  # `sandbox` of the suite: docker or harbor:NAME
    private_addresses: tuple[str, ...] = ()  # address ranges that the suite opens to a sandbox with the network `public`
    skipped: str = ALLOW  # `verifier.skipped` of the suite; `fail` makes the reward 0 if the verifier skipped a check
    changed: str = ALLOW  # `verifier.changed` of the suite; `fail` makes the reward 0 if the agent changed files of the verifier
    broken: str = ""  # sentence about an error in the task directory; the scenario cannot run, and its tests are errors
    unsupported: str = ""  # sentence about an unsupported feature of the task; its tests are skipped with this reason


def is_task_directory(folder: Path) -> bool:
    """Returns whether a folder is a task directory. Its tests belong to the verifier and are not collected by pytest."""
    return (folder / TASK_FILE).is_file()


SUITE_FILE = "suite.yaml"
QUESTION = 300  # maximum length of a question in reports, characters


@dataclass(frozen=True)
class Tool:
    """A tool that the model can call, and the schema from which sample responses are generated."""

    name: str
    description: str
    parameters: Json  # JSON schema of the arguments, an object
    response_schema: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """One task of a data set. Models see only `messages`, `turns` and `tools`; the labels stay in `expected` and `metadata`."""

    id: str
    messages: tuple[Json, ...]  # Chat Completions messages that start the rollout
    tools: tuple[Tool, ...] = field(default=(), metadata=SHARED)
    expected: tuple[Json, ...] = ()  # labels: {tool, parameters, goal}, or {tool, accepts, optional} if several values are right
    metadata: Json = field(default_factory=dict)
    cluster: str | None = None  # name of a group of scenarios that are not independent
    turns: tuple[tuple[Json, ...], ...] = ()  # later user messages; each turn is sent after the agent answered the one before
    task: Task | None = None  # Harbor task that runs in a sandbox
    state: Json = field(default_factory=dict)  # initial state of the tools
    final_state: Json | None = None  # label: the expected state of the tools after the rollout

    @property
    def reference(self) -> str | None:
        """The right answer as text: `answer` in the metadata, or its first item if it is a list. None if there is no answer."""
        answer = self.metadata.get("answer")
        answers = answer if isinstance(answer, list) else [answer]
        return None if not answers or answers[0] is None else str(answers[0])


@dataclass(frozen=True)
class DatasetInfo:
    """The origin of a suite's scenarios. Its hash tells different data sets apart."""

    name: str  # name in reports
    format: str
    file: str  # path relative to the suite; empty if the data come from an installed package
    sha256: str  # hash of the data file, the tools file if there is one, and the suite's own format; or of all files of a package
    label_source: str  # hand, heuristic-v1, ... ; several are joined by a comma
    size: int  # number of scenarios
    version: str = ""  # version of the package that contains the data
    left_out: Mapping[str, int] = field(default_factory=dict)  # kind of entries that the format left out on purpose -> number


def toolsets(scenarios: Iterable[Scenario]) -> Iterable[tuple[Tool, ...]]:
    """Returns the sets of tools that scenarios offer. A set that several scenarios share is returned once."""
    return {id(each.tools): each.tools for each in scenarios}.values()


@dataclass(frozen=True)
class PoolSuite:
    """The part of a suite that processes other than the controller (the pytest that the user started) need to run rollouts or load code.

    `Suite.for_pool` returns it. Processes that need no scenarios get `replace(suite, scenarios=())`.
    """

    name: str
    folder: Path
    scenarios: tuple[Scenario, ...]
    agent: Json = field(default_factory=lambda: {"kind": "tool_calling"})
    variants: Mapping[str, Json] = field(default_factory=dict)  # name -> agent settings that differ from the suite's
    scorers: Mapping[str, Json] = field(default_factory=lambda: {"tsq": {}})  # name or import path -> options
    tools: Mapping[str, Json] = field(default_factory=dict)  # variant -> settings of its tools; `default` is for all other variants
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # tool -> argument -> mode; labels contain it as `modes`
    answers: Mapping[str, Json] = field(default_factory=dict)  # variant -> tool -> text, delay, error_rate; `default`: all other variants
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> url, model, api_key, prices, limits; scorers use the role `judge`
    limits: Json = field(default_factory=dict)  # maximum `calls`, `tokens` and `cost` of an attempt in all roles together
    isolation: str = "none"  # none | process: whether the suite's own code runs in a process of its own
    timeout: float = 600.0  # time limit of a rollout, seconds

    def agent_of(self, variant: str) -> Json:
        """Returns the agent's settings under a variant. A variant with another `kind` of agent inherits only sampling parameters."""
        own, kind = self.variants.get(variant, {}), self.agent.get("kind")
        return {**(self.agent if own.get("kind", kind) == kind else in_place_of(self.agent, str(own["kind"]))), **own}

    def tools_of(self, variant: str) -> Json:
        """Returns the `tools` settings of a variant, which say what executes its tools. Empty if no tool is executed (decision-only)."""
        return self.tools.get(variant, self.tools.get("default", {}))

    def answers_of(self, variant: str) -> Json:
        """Returns tool -> its canned answer under a variant: any of `text`, `delay` in seconds and `error_rate`."""
        return self.answers.get(variant, self.answers.get("default", {}))


@dataclass(frozen=True)
class Suite(PoolSuite):
    """A named set of scenarios with its agent, scorers and thresholds."""

    dataset: DatasetInfo = field(kw_only=True)
    sizes: Mapping[str, int] = field(default_factory=dict)  # variant -> `limit`: it runs only this many scenarios, from the first on
    scales: Mapping[str, Scale] = field(default_factory=dict)  # score -> declaration of its scorer, for scorers that have been loaded
    thresholds: Mapping[str, float] = field(default_factory=dict)  # `tsq`: of each scenario; `tsq.mean`: a rule for the run
    gate: tuple[str, ...] = ()  # texts of the gate rules
    deterministic: bool = False  # whether trials of a scenario never differ, so that a gate takes differences of scores as facts
    quarantine: tuple[Quarantined, ...] = ()  # scenarios that the gate leaves out
    trials: int = 1
    xdist_workers: int | None = None  # number of xdist workers that start with -n; None: one
    description: str = ""
    notes: tuple[str, ...] = ()  # sentences for the session header about unused keys of an agent's config file

    def for_pool(self) -> PoolSuite:
        """Returns the part of this suite that other processes need."""
        return PoolSuite(**{each.name: getattr(self, each.name) for each in fields(PoolSuite)})

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores: the name of each scorer, or the part of its import path after the colon."""
        return tuple(map(score_name, self.scorers))

    def scale(self, score: str) -> Scale:
        """Returns the scale of a score: its range and unit, and whether higher or lower scores are better."""
        return scale_in(self.scales, score)

    @property
    def every_scale(self) -> dict[str, Scale]:
        """Score -> its scale (`scale`), for all scores in the order of the suite."""
        return {score: self.scale(score) for score in self.score_names}

    def with_scales(self, scales: Mapping[str, Scale]) -> Suite:
        """Returns the suite with these scales. Their thresholds apply to scores for which the suite sets none."""
        thresholds = {score: scale.threshold for score, scale in scales.items() if scale.threshold is not None}
        return replace(self, scales={**self.scales, **scales}, thresholds={**thresholds, **self.thresholds})

    @property
    def unsupported(self) -> dict[str, str]:
        """Scenario -> sentence about the unsupported features of its task. Its tests are skipped with this reason."""
        return {each.id: each.task.unsupported for each in self.scenarios if each.task and each.task.unsupported}


def score_name(scorer: str) -> str:
    """Returns the name of a scorer's score: `politeness` for `politeness` and for `./scorers.py:politeness`."""
    return scorer.rpartition(":")[2]


def content_text(message: Json) -> str:
    """Returns the text of a Chat Completions message, whose content is a text or a list of parts. Images and other parts are skipped."""
    content: Any = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def user_text(messages: Sequence[Json]) -> str:
    """Returns the text of all user messages of a conversation, joined by line breaks."""
    return "\n".join(content_text(message) for message in messages if message.get("role") == "user")


def question(messages: Sequence[Json]) -> str:
    """Returns the last user message on one line, shortened to QUESTION characters, or an empty text if there is no user message."""
    text = next((content_text(message) for message in reversed(messages) if message.get("role") == "user"), "")
    line = " ".join(text.split())
    return line if len(line) <= QUESTION else f"{line[: QUESTION - 3].rstrip()}..."


def in_place_of(agent: Any, kind: str) -> Json:
    """Returns settings for an agent of the kind `kind`, which replaces `agent` and keeps only its sampling parameters."""
    sampling = {name: value for name, value in agent.items() if name in SAMPLING} if isinstance(agent, dict) else {}
    return {"kind": kind, **sampling}


def public_of(suites: Iterable[Suite]) -> PublicText:
    """Returns the texts of suites that are not secret, so that they are not redacted: names, ids, tools and data.

    Settings may contain API keys, so they are left out.
    """
    texts, labels = [], []
    for suite in suites:
        texts.append(_json([suite.name, [*suite.variants], [*suite.scorers], codec.plain(suite.for_pool())["scenarios"]]))
        labels.append(_json([scenario.expected for scenario in suite.scenarios]))
    return PublicText("\n".join(texts), "\n".join(labels))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def keys_in_names(own: Iterable[str], scenarios: Iterable[Scenario]) -> Iterator[str]:
    """Yields a sentence for each name that looks like an API key. The sentence does not contain the name.

    `own` are the names of the suite and of its variants.
    """
    for what, name in _names(own, scenarios):
        if any(places_of_keys(name)):
            yield f"{what} looks like an API key, and reports contain names; give it another name"


def _names(own: Iterable[str], scenarios: Iterable[Scenario]) -> Iterator[tuple[str, str]]:
    """Yields (description, name) for all names of a suite and its scenarios."""
    yield from (("the name of the suite or of a variant", name) for name in own)
    seen: set[int] = set()
    for number, scenario in enumerate(scenarios, 1):
        yield f"the id of scenario {number}", scenario.id
        yield f"the cluster of scenario {number}", scenario.cluster or ""
        if id(scenario.tools) not in seen:
            seen.add(id(scenario.tools))
            yield from _names_of_tools(scenario, number)


def _names_of_tools(scenario: Scenario, number: int) -> Iterator[tuple[str, str]]:
    for place, tool in enumerate(scenario.tools, 1):
        yield f"the name of tool {place} of scenario {number}", tool.name
        for position, name in enumerate(tool.parameters.get("properties") or {}, 1):
            yield f"the name of argument {position} of tool {place} of scenario {number}", name
