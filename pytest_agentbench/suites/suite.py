"""Suites and scenarios, frozen; the tasks that scenarios ask for, scenarios in quarantine, and what suites say to everybody who
reads them.
"""

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

ONE_IN = 20  # scenarios of a suite that may be in quarantine, but always one: a gate that looks away from more says nothing


@dataclass(frozen=True)
class Quarantined:
    """An entry of `quarantine` in a suite.yaml."""

    scenario: str
    owner: str
    reason: str
    expires: date  # the last day on which it holds

    def __str__(self) -> str:
        return f"quarantined until {self.expires} ({self.owner}: {self.reason})"


def quarantine_faults(entries: Sequence[Quarantined], scenarios: Collection[str], today: date) -> Iterator[str]:
    """Yields a sentence for each entry that is unknown, double or expired, and for too many; `scenarios` are all ids of the suite."""
    counts = Counter(each.scenario for each in entries)
    for each in entries:
        if each.scenario not in scenarios:
            yield f"quarantine: the data set has no scenario {each.scenario!r}; remove the entry, or name one that it has"
        elif counts[each.scenario] > 1:
            yield f"quarantine: {each.scenario!r} is there {counts[each.scenario]} times; keep one entry"
        elif each.expires < today:
            yield (
                f"quarantine: the entry of {each.scenario!r} expired on {each.expires}; "
                f"{each.owner}, who owns it, removes it or gives it another date"
            )
    allowed, share = max(1, len(scenarios) // ONE_IN), 100 // ONE_IN
    if len(entries) > allowed:
        yield f"quarantine: {len(entries)} of {len(scenarios)} scenarios, more than {share} % of them; at most {allowed} may be in it"


TASK_FILE = "task.toml"

DOCKER = "docker"  # a sandbox of our own
ALLOW, FAIL = "allow", "fail"  # what a suite says of that for which a reward may be doubted
HARBOR = "harbor:"  # before the name of an environment of Harbor's


@dataclass(frozen=True)
class Task:
    """A task directory as far as it is supported: what it runs in, who may take how long, and how it is verified."""

    folder: str  # absolute; has environment/, tests/ and solution/
    digest: str  # of all files in it with their modes, 16 hexadecimal digits
    image: str = ""  # to run; empty: built from environment/
    image_digest: str = ""  # of environment/ with modes, 16 hexadecimal digits; empty where `image` is given
    build_timeout_s: float = 600.0
    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    network: str = "public"  # public | no-network
    workdir: str | None = None  # None: the image's own
    env: Mapping[str, str] = field(default_factory=dict)
    agent_timeout_s: float | None = None  # None: as long as a rollout may take
    agent_user: str | None = None  # None: the image's own
    verifier_timeout_s: float = 600.0
    verifier_user: str | None = None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    separate_verifier: bool = False  # it is verified in a fresh container over the artefacts
    artifacts: tuple[str, ...] = ()  # paths that a separate verifier is given
    solution_env: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = DOCKER  # what its suite says; or harbor:NAME
    private_addresses: tuple[str, ...] = ()  # ranges that its suite opens to programs in a sandbox with the network `public`
    skipped: str = ALLOW  # what its suite says of checks that the verifier skips: `allow`, or `fail` for a reward of 0
    changed: str = ALLOW  # what its suite says of files that a verifier uses and the agent changed: `allow`, or `fail` for a reward of 0
    broken: str = ""  # what is wrong with its directory, one sentence; such a scenario cannot run, and its tests are errors
    unsupported: str = ""  # what it asks that is not supported, one sentence; such a scenario is skipped with it


def is_task_directory(folder: Path) -> bool:
    """Whether a folder is a task: its tests are those of its verifier, and none of pytest's."""
    return (folder / TASK_FILE).is_file()


SUITE_FILE = "suite.yaml"
QUESTION = 300  # characters of a question that reports keep


@dataclass(frozen=True)
class Tool:
    """A tool as the model sees it, and the schema its canned response is made from."""

    name: str
    description: str
    parameters: Json  # JSON schema of the arguments, an object
    response_schema: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """One task of a dataset. Only `messages` and `tools` ever reach a model; the labels stay in `expected` and `metadata`."""

    id: str
    messages: tuple[Json, ...]  # Chat Completions messages that start the rollout
    tools: tuple[Tool, ...] = field(default=(), metadata=SHARED)
    expected: tuple[Json, ...] = ()  # labels: {tool, parameters, goal}, and where several values are right {tool, accepts, optional}
    metadata: Json = field(default_factory=dict)
    cluster: str | None = None  # scenarios of one cluster are not independent
    turns: tuple[tuple[Json, ...], ...] = ()  # what the user says later, each when the agent has answered what came before
    task: Task | None = None  # that is carried out in a sandbox
    state: Json = field(default_factory=dict)  # that its tools begin with
    final_state: Json | None = None  # a label: what they should have made of it

    @property
    def reference(self) -> str | None:
        """The right answer as a text, where the metadata have one under `answer`; the first one of several."""
        answer = self.metadata.get("answer")
        answers = answer if isinstance(answer, list) else [answer]
        return None if not answers or answers[0] is None else str(answers[0])


@dataclass(frozen=True)
class DatasetInfo:
    """Where a suite's scenarios come from, so that nobody takes one data set for another."""

    name: str  # what reports call it
    format: str
    file: str  # relative to the suite; empty where a package brings the data
    sha256: str  # of the data file, the tools file if there is one, and a format of the suite's own; or of all files of a package
    label_source: str  # hand, heuristic-v1, ... ; several are joined by a comma
    size: int  # scenarios in it
    version: str = ""  # of the package that brings the data
    left_out: Mapping[str, int] = field(default_factory=dict)  # entries that the format left out on purpose: what they are -> how many


def toolsets(scenarios: Iterable[Scenario]) -> Iterable[tuple[Tool, ...]]:
    """The tools that scenarios offer; a set that several of them share comes once."""
    return {id(each.tools): each.tools for each in scenarios}.values()


@dataclass(frozen=True)
class PoolSuite:
    """What is sent of a suite to processes that run its rollouts or load its code.

    `Suite.for_pool` makes it. Processes that need no scenarios are sent `replace(suite, scenarios=())`.
    """

    name: str
    folder: Path
    scenarios: tuple[Scenario, ...]
    agent: Json = field(default_factory=lambda: {"kind": "tool_calling"})
    variants: Mapping[str, Json] = field(default_factory=dict)  # name -> agent settings that differ
    scorers: Mapping[str, Json] = field(default_factory=lambda: {"tsq": {}})  # name or import path -> options
    tools: Mapping[str, Json] = field(default_factory=dict)  # variant -> where its tools are carried out; `default`: of all others
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # tool -> argument -> mode, which its labels have as `modes`
    answers: Mapping[str, Json] = field(default_factory=dict)  # variant -> tool -> text, delay, error_rate; `default`: of all others
    roles: Mapping[str, Json] = field(default_factory=dict)  # role -> url, model, api_key, prices, limits; `judge`: scorers ask it
    limits: Json = field(default_factory=dict)  # of `calls`, `tokens` and `cost`, of an attempt in all roles together
    isolation: str = "none"  # none | process: where the suite's own code runs
    timeout: float = 600.0  # seconds for one rollout

    def agent_of(self, variant: str) -> Json:
        """The agent's settings under a variant; an agent of another kind has of the suite's only the sampling parameters."""
        own, kind = self.variants.get(variant, {}), self.agent.get("kind")
        return {**(self.agent if own.get("kind", kind) == kind else in_place_of(self.agent, str(own["kind"]))), **own}

    def tools_of(self, variant: str) -> Json:
        """Where the tools of a variant are carried out; empty: nowhere, they are only decided on."""
        return self.tools.get(variant, self.tools.get("default", {}))

    def answers_of(self, variant: str) -> Json:
        """Tool -> its canned answer under a variant: any of `text`, `delay` in seconds and `error_rate`."""
        return self.answers.get(variant, self.answers.get("default", {}))


@dataclass(frozen=True)
class Suite(PoolSuite):
    """A named set of scenarios with its agent, scorers and thresholds."""

    dataset: DatasetInfo = field(kw_only=True)
    sizes: Mapping[str, int] = field(default_factory=dict)  # variant -> how many scenarios it takes, from the first one on
    scales: Mapping[str, Scale] = field(default_factory=dict)  # score -> what its scorer declares, as far as it has been read
    thresholds: Mapping[str, float] = field(default_factory=dict)  # `tsq`: floor of a scenario; `tsq.mean`: a rule about the run
    gate: tuple[str, ...] = ()  # rules for a run of it, as they are written
    deterministic: bool = False  # trials of a scenario never differ, so a gate takes differences of scores as facts
    quarantine: tuple[Quarantined, ...] = ()  # scenarios that its gate leaves out
    trials: int = 1
    xdist_workers: int | None = None  # xdist workers that start with -n; None: one
    description: str = ""
    notes: tuple[str, ...] = ()  # sentences for the header of a session: keys of a file that are not used

    def for_pool(self) -> PoolSuite:
        """Returns what is sent of this suite to other processes."""
        return PoolSuite(**{each.name: getattr(self, each.name) for each in fields(PoolSuite)})

    @property
    def score_names(self) -> tuple[str, ...]:
        """What the scores are called: a scorer's name, or of an import path the part behind the colon."""
        return tuple(map(score_name, self.scorers))

    def scale(self, score: str) -> Scale:
        """Returns what the scorer of a score declares."""
        return scale_in(self.scales, score)

    @property
    def every_scale(self) -> dict[str, Scale]:
        """Score -> its scale, of all scores in their order."""
        return {score: self.scale(score) for score in self.score_names}

    def with_scales(self, scales: Mapping[str, Scale]) -> Suite:
        """Returns the suite with these declarations, and with their thresholds if the suite does not set its own."""
        thresholds = {score: scale.threshold for score, scale in scales.items() if scale.threshold is not None}
        return replace(self, scales={**self.scales, **scales}, thresholds={**thresholds, **self.thresholds})

    @property
    def unsupported(self) -> dict[str, str]:
        """Scenario -> what it asks for that is not supported; its tests are skipped with that."""
        return {each.id: each.task.unsupported for each in self.scenarios if each.task and each.task.unsupported}


def score_name(scorer: str) -> str:
    """`politeness` for `politeness` and for `./scorers.py:politeness`."""
    return scorer.rpartition(":")[2]


def content_text(message: Json) -> str:
    """The text of a message, whether its content is a text or a list of parts."""
    content: Any = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def user_text(messages: Sequence[Json]) -> str:
    """What the user says in a conversation, a line or more of each message."""
    return "\n".join(content_text(message) for message in messages if message.get("role") == "user")


def question(messages: Sequence[Json]) -> str:
    """The last that the user says in the messages that start a rollout, on one line, cut where it is long; empty where he says nothing."""
    text = next((content_text(message) for message in reversed(messages) if message.get("role") == "user"), "")
    line = " ".join(text.split())
    return line if len(line) <= QUESTION else f"{line[: QUESTION - 3].rstrip()}..."


def in_place_of(agent: Any, kind: str) -> Json:
    """The settings of another kind of agent, with an agent's sampling parameters."""
    sampling = {name: value for name, value in agent.items() if name in SAMPLING} if isinstance(agent, dict) else {}
    return {"kind": kind, **sampling}


def public_of(suites: Iterable[Suite]) -> PublicText:
    """Names, ids, tools and data of suites; their settings are none of it, for they may hold keys."""
    texts, labels = [], []
    for suite in suites:
        texts.append(_json([suite.name, [*suite.variants], [*suite.scorers], codec.plain(suite.for_pool())["scenarios"]]))
        labels.append(_json([scenario.expected for scenario in suite.scenarios]))
    return PublicText("\n".join(texts), "\n".join(labels))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def keys_in_names(own: Iterable[str], scenarios: Iterable[Scenario]) -> Iterator[str]:
    """Yields a sentence, without the key, for each name with the shape of a key. `own` are names of the suite itself."""
    for what, name in _names(own, scenarios):
        if any(places_of_keys(name)):
            yield f"{what} has the shape of a key, and names are in every report; give it another name"


def _names(own: Iterable[str], scenarios: Iterable[Scenario]) -> Iterator[tuple[str, str]]:
    """What it is, and the name."""
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
