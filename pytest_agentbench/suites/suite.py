"""Suites and scenarios: a folder with a suite.yaml and data becomes frozen records, or one clear sentence about what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import SAMPLING, Json
from pytest_agentbench.suites.quarantine import Quarantined

if TYPE_CHECKING:
    pass

SUITE_FILE = "suite.yaml"
QUESTION = 300  # characters of a question that reports keep

#: Fields of a suite that go to another process as they are.
AS_IT_IS = ("name", "agent", "variants", "limits", "scorers", "judge", "isolation", "thresholds", "trials", "timeout", "description")


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
    tools: tuple[Tool, ...] = ()
    expected: tuple[Json, ...] = ()  # labels: {tool, parameters, goal}, and where several values are right {tool, accepts, optional}
    metadata: Json = field(default_factory=dict)
    cluster: str | None = None  # scenarios of one cluster are not independent
    turns: tuple[tuple[Json, ...], ...] = ()  # what the user says later, each when the agent has answered what came before


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


@dataclass(frozen=True)
class Suite:
    """A named set of scenarios with its agent, scorers and thresholds."""

    name: str
    folder: Path
    scenarios: tuple[Scenario, ...]
    dataset: DatasetInfo
    agent: Json = field(default_factory=lambda: {"kind": "tool_calling"})
    variants: Mapping[str, Json] = field(default_factory=dict)  # name -> agent settings that differ
    limits: Mapping[str, int] = field(default_factory=dict)  # variant -> how many scenarios it takes, from the first one on
    scorers: Mapping[str, Json] = field(default_factory=lambda: {"tsq": {}})  # name or import path -> options
    judge: Json = field(default_factory=dict)  # url, model, api_key of the judge that scorers ask; empty: the backend under test
    isolation: str = "none"  # none | process: where the suite's own code runs
    thresholds: Mapping[str, float] = field(default_factory=dict)  # `tsq`: floor of a scenario; `tsq.mean`: a rule about the run
    gate: tuple[str, ...] = ()  # rules for a run of it, as they are written
    deterministic: bool = False  # trials of a scenario never differ, so a gate takes differences of scores as facts
    quarantine: tuple[Quarantined, ...] = ()  # scenarios that its gate leaves out; `discovery` has checked them
    trials: int = 1
    timeout: float = 600.0  # seconds for one rollout
    description: str = ""

    @property
    def score_names(self) -> tuple[str, ...]:
        """What the scores are called: a scorer's name, or of an import path the part behind the colon."""
        return tuple(map(score_name, self.scorers))

    def agent_of(self, variant: str) -> Json:
        """The agent's settings under a variant; an agent of another kind has of the suite's only the sampling parameters."""
        own, kind = self.variants.get(variant, {}), self.agent.get("kind")
        return {**(self.agent if own.get("kind", kind) == kind else _in_place_of(self.agent, str(own["kind"]))), **own}

    def to_wire(self) -> Json:
        """This suite for another process; tool sets that scenarios share are sent once."""
        toolsets: dict[int, tuple[Tool, ...]] = {}
        scenarios = []
        for scenario in self.scenarios:
            toolsets.setdefault(id(scenario.tools), scenario.tools)
            facts = (scenario.expected, scenario.metadata, scenario.cluster, scenario.turns)
            scenarios.append([scenario.id, scenario.messages, id(scenario.tools), *facts])
        return {
            **{name: getattr(self, name) for name in AS_IT_IS},
            "folder": str(self.folder),
            "dataset": asdict(self.dataset),
            "toolsets": {str(number): [vars(tool) for tool in tools] for number, tools in toolsets.items()},
            "scenarios": scenarios,
        }

    @classmethod
    def from_wire(cls, data: Json) -> Suite:
        toolsets = {int(number): tuple(Tool(**tool) for tool in tools) for number, tools in data.pop("toolsets").items()}
        scenarios = tuple(
            Scenario(id, tuple(messages), toolsets[tools], tuple(expected), metadata, cluster, tuple(map(tuple, turns)))
            for id, messages, tools, expected, metadata, cluster, turns in data.pop("scenarios")
        )
        return cls(
            **{
                **data,
                "folder": Path(data["folder"]),
                "scenarios": scenarios,
                "dataset": DatasetInfo(**data["dataset"]),
            }
        )


@dataclass(frozen=True)
class SuiteInfo:
    """What a test may know of its suite."""

    name: str
    description: str
    ids: tuple[str, ...]  # of all scenarios of the data set
    variants: tuple[str, ...]  # that run
    trials: int
    thresholds: Mapping[str, float]  # in force
    scorers: tuple[str, ...]  # names of scores, the first of which is the suite's main one
    label_source: str  # of its data: `hand`, `heuristic-v1`, ...
    quarantined: Mapping[str, str]  # scenario -> by whom, why and until when


def score_name(scorer: str) -> str:
    """`politeness` for `politeness` and for `./scorers.py:politeness`."""
    return scorer.rpartition(":")[2]


def content_text(message: Json) -> str:
    """The text of a message, whether its content is a text or a list of parts."""
    content: Any = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def question(messages: Sequence[Json]) -> str:
    """The last that the user says in the messages that start a rollout, on one line, cut where it is long; empty where he says nothing."""
    said = next((content_text(message) for message in reversed(messages) if message.get("role") == "user"), "")
    line = " ".join(said.split())
    return line if len(line) <= QUESTION else f"{line[: QUESTION - 3].rstrip()}..."


def suite_file(given: Path) -> Path:
    """The suite.yaml in a folder, or in the folder of that name under scenarios/; raises ConfigError where there is none."""
    for folder in (given, "scenarios" / given):
        if (folder / SUITE_FILE).is_file():
            return folder / SUITE_FILE
    raise ConfigError(f"there is no suite in {given}: it should be a folder with a {SUITE_FILE}, such as scenarios/banking")


def load_suite(file: Path, overrides: Sequence[tuple[str, Any]] = (), agent: str | None = None) -> Suite:
    """The suite that a suite.yaml describes, with its data; raises ConfigError with file, fault and what would work.

    `overrides` are (dotted path, value) pairs, applied before the file is checked: `("agent.temperature", 0.6)`.
    `agent` takes the place of the suite's agent, and inherits its sampling parameters. Whether there are such scorers and agents
    is not looked at; `scorers.check_scores` and `rollouts.preflight` do that.
    """
    from pytest_agentbench.lib.config import load_yaml, override, validate
    from pytest_agentbench.suites.datasets import read_dataset
    from pytest_agentbench.suites.disclosure import refuse_keys_in_names
    from pytest_agentbench.suites.spec import SuiteSpec

    data = load_yaml(file)
    if agent is not None:
        data["agent"] = _in_place_of(data.get("agent"), agent)
    spec = validate(SuiteSpec, override(data, overrides, str(file)), str(file))
    scenarios, dataset = read_dataset(file, spec.dataset)
    refuse_keys_in_names(file, (spec.name, *spec.variants), scenarios)
    return Suite(
        folder=file.parent,
        scenarios=scenarios,
        dataset=dataset,
        variants={name: variant.agent for name, variant in spec.variants.items()},
        gate=tuple(spec.gate),
        quarantine=tuple(Quarantined(**dict(each)) for each in spec.quarantine),
        limits={name: variant.limit for name, variant in spec.variants.items() if variant.limit},
        judge=spec.judge.model_dump(exclude_none=True) if spec.judge else {},
        **{
            name: getattr(spec, name)
            for name in ("name", "agent", "scorers", "isolation", "thresholds", "trials", "timeout", "description", "deterministic")
        },
    )


def _in_place_of(agent: Any, kind: str) -> Json:
    """The settings of another kind of agent, with an agent's sampling parameters."""
    sampling = {name: value for name, value in agent.items() if name in SAMPLING} if isinstance(agent, dict) else {}
    return {"kind": kind, **sampling}
