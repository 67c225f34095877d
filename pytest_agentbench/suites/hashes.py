"""What a rollout depends on, as hashes: one that is kept is one that would be run, and scored, in the same way again.

Options that only limit or watch a session (concurrency, budgets, retries, thresholds) are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import codec
from pytest_agentbench.records import JUDGE, Json, RolloutKey
from pytest_agentbench.suites.suite import PoolSuite, Scenario, Suite, Tool, score_name


def digest(value: Any) -> str:
    """16 hexadecimal digits of anything that JSON can say. A setting that is 0 by default and one that a YAML has as 0.0 are the same."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Whole numbers as integers, however they were written."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def file_digest(path: Path) -> str:
    """The same of a file; of one that is not there, a word that says so."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "missing"


def agent_identity(suite: PoolSuite, variant: str) -> Json:
    """The settings of an agent, who plays which role for it, what carries out or answers its tools' calls, and the files' hashes."""
    settings, roles, tools = suite.agent_of(variant), _roles(suite, judges=False), suite.tools_of(variant)
    more = {"roles": roles, "tools": tools, "answers": suite.answers_of(variant)}
    return {**settings, **{name: each for name, each in more.items() if each}, **_code((settings, tools), suite.folder)}


def scoring_identity(suite: PoolSuite) -> Json:
    """How a suite scores: scorers with their options, who judges, and the hashes of the files that they name."""
    return {**suite.scorers, **_modes(suite), **_roles(suite, judges=True), **_code(suite.scorers, suite.folder)}


def _roles(suite: PoolSuite, *, judges: bool) -> Json:
    """Where roles are played and by which models, that of the judge or the others: what calls cost, or may cost, is no part of it."""
    kept = {name: role for name, role in suite.roles.items() if (name == JUDGE) == judges}
    return {name: {key: value for key, value in role.items() if key not in ("prices", "limits")} for name, role in kept.items()}


def _modes(suite: PoolSuite) -> Json:
    """How single arguments are compared, where the suite says it."""
    return {"arguments": suite.arguments} if suite.arguments else {}


def score_hashes(suite: PoolSuite, names: Mapping[str, str]) -> dict[str, str]:
    """Score -> hash of how it comes about: its scorer with the options that the suite gives it, the judge, and the code.

    `names` has the scorer of each score, by name or import path; one that the suite does not have has no options.
    """
    judge = {**_modes(suite), **_roles(suite, judges=True)}
    return {
        score: digest({name: suite.scorers.get(name, {}), **judge, **_code((name, suite.scorers.get(name)), suite.folder)})
        for score, name in names.items()
    }


def mixed_scoring(old: Json, suite: PoolSuite, names: Mapping[str, str]) -> Json:
    """How a suite was scored of which some scores, those of `names`, have come about anew."""
    kept = {name: each for name, each in old.items() if score_name(name) not in names}
    options = {name: suite.scorers.get(name, {}) for name in names.values()}
    return {**kept, **_modes(suite), **options, **_code(options, suite.folder)}


#: (suite, variant) -> hash of each text that its agent tells a model besides the scenario; None where nobody knows.
PromptSource = Callable[[PoolSuite, str], Json | None]


def suite_identity(suite: Suite, prompts: PromptSource) -> Json:
    """What is written down of a suite, so that a later session can say what has changed."""
    variants = ("default", *suite.variants)
    return {
        "agents": {variant: agent_identity(suite, variant) for variant in variants},
        "prompts": {variant: prompts(suite, variant) for variant in variants},
        "scorers": scoring_identity(suite),
        "scales": codec.plain(suite.every_scale),
    }


def _code(value: Any, folder: Path) -> Json:
    """File -> hash, of everything in settings that is written as `./file.py:object`."""
    return {f"code of {name}": file_digest(folder / name) for name in sorted({*_files(value)})}


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _files(name)
            yield from _files(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str) and value.partition(":")[0].endswith(".py"):
        yield value.partition(":")[0]


class ContentHashes:
    """The hashes of rollouts, each part of them computed once."""

    def __init__(self, suites: Mapping[str, PoolSuite], backend: str, prompts: PromptSource) -> None:
        """`backend` is its hash."""
        self._suites, self._backend, self._prompts = suites, backend, prompts
        self._scenarios: dict[tuple[str, str], Scenario] = {}
        self._known: set[str] = set()  # suites whose scenarios are in `_scenarios`
        self._parts: dict[tuple[str, ...], str] = {}
        self._scored: dict[str, dict[str, str]] = {}  # suite -> hashes of its scores
        self._tools: dict[int, str] = {}  # by identity: scenarios share them

    def of(self, key: RolloutKey) -> Json:
        """What the record of a rollout says; of calls that a test makes by hand only the backend is known."""
        if key.suite not in self._suites:
            return {"scenario": "", "agent": "", "prompts": "", "scorers": {}, "backend": self._backend}
        suite = self._suites[key.suite]
        return {
            "scenario": self._scenario(suite, key.scenario),
            "agent": self._part(("agent", key.suite, key.variant), lambda: agent_identity(suite, key.variant)),
            "prompts": self._part(("prompts", key.suite, key.variant), lambda: self._prompts(suite, key.variant)),
            "scorers": self._scores(suite),
            "backend": self._backend,
        }

    def cluster(self, key: RolloutKey) -> str | None:
        """The cluster of a rollout's scenario."""
        scenario = self._find_scenario(self._suites[key.suite], key.scenario) if key.suite in self._suites else None
        return scenario.cluster if scenario else None

    def _part(self, name: tuple[str, ...], value: Any) -> str:
        if name not in self._parts:
            self._parts[name] = digest(value())
        return self._parts[name]

    def _scores(self, suite: PoolSuite) -> dict[str, str]:
        if suite.name not in self._scored:
            self._scored[suite.name] = score_hashes(suite, {score_name(name): name for name in suite.scorers})
        return self._scored[suite.name]

    def _scenario(self, suite: PoolSuite, id: str) -> str:
        """What the agent sees and is scored by; empty for a scenario that is not there."""
        scenario = self._find_scenario(suite, id)
        if scenario is None:
            return ""
        task = (scenario.task.digest, scenario.task.sandbox, *scenario.task.private_addresses) if scenario.task else ()
        states = (scenario.state, scenario.final_state) if scenario.state or scenario.final_state is not None else ()
        content = scenario.messages, scenario.turns, scenario.expected, scenario.metadata, self._toolset(scenario.tools), *task, *states
        return self._part(("scenario", suite.name, id), lambda: content)

    def _find_scenario(self, suite: PoolSuite, id: str) -> Scenario | None:
        if suite.name not in self._known:
            self._scenarios.update(((suite.name, each.id), each) for each in suite.scenarios)
            self._known.add(suite.name)
        return self._scenarios.get((suite.name, id))

    def _toolset(self, tools: tuple[Tool, ...]) -> str:
        if id(tools) not in self._tools:
            self._tools[id(tools)] = digest(codec.plain(tools))
        return self._tools[id(tools)]


def differences(old: Any, new: Any) -> list[str]:
    """`temperature 0.0 is now 0.6` for everything that is not the same in two trees of settings."""
    return [f"{path} {_value_text(was)} is now {_value_text(now)}".lstrip() for path, was, now in changes(old, new)]


def changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, old, new) of everything that is not the same in two trees; what one of them lacks is None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from changes(old.get(name), new.get(name), f"{path}.{name}".lstrip("."))
        return
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        old, new = [*old], [*new]
    if old != new:
        yield path, old, new


def _value_text(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False, default=str)
