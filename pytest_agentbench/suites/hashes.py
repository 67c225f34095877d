"""Hashes of everything that a rollout depends on. A resumed run keeps a rollout only if it would run and be scored in the same way.

Options that only limit or observe a session (concurrency, budgets, retries, thresholds) are not part of the hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import texts_in
from pytest_agentbench.records import JUDGE, Json, RolloutKey
from pytest_agentbench.suites.suite import PoolSuite, Scenario, Suite, Tool, score_name


def digest(value: Any) -> str:
    """Returns the hash of a JSON value, 16 hexadecimal digits. 0 and 0.0 have the same hash."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Returns the value with all whole numbers as integers, so that 0 in a default and 0.0 in a YAML file are equal."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def file_digest(path: Path) -> str:
    """Returns the hash of a file, 16 hexadecimal digits, or `missing` if it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "missing"


def agent_identity(suite: PoolSuite, variant: str) -> Json:
    """Returns an agent's settings, its roles, tools and canned answers, and the hashes of the code files that they name."""
    settings, roles, tools = suite.agent_of(variant), _roles(suite, judges=False), suite.tools_of(variant)
    more = {"roles": roles, "tools": tools, "answers": suite.answers_of(variant)}
    return {**settings, **{name: each for name, each in more.items() if each}, **_code((settings, tools), suite.folder)}


def scoring_identity(suite: PoolSuite) -> Json:
    """Returns the scorers of a suite with their options, the judge, and the hashes of the code files that they name."""
    return {**suite.scorers, **_modes(suite), **_roles(suite, judges=True), **_code(suite.scorers, suite.folder)}


def _roles(suite: PoolSuite, *, judges: bool) -> Json:
    """Returns role -> its settings, for the judge (with `judges`) or for all other roles.

    Prices and limits are left out, because a rollout does not depend on them.
    """
    kept = {name: role for name, role in suite.roles.items() if (name == JUDGE) == judges}
    return {name: {key: value for key, value in role.items() if key not in ("prices", "limits")} for name, role in kept.items()}


def _modes(suite: PoolSuite) -> Json:
    """Returns the comparison modes of arguments under the key `arguments`, or an empty dictionary if the suite sets none."""
    return {"arguments": suite.arguments} if suite.arguments else {}


def score_hashes(suite: PoolSuite, names: Mapping[str, str]) -> dict[str, str]:
    """Returns score -> hash of its scorer, the scorer's options in the suite, the judge, and the code.

    `names` is score -> name or import path of its scorer. A scorer that is not in the suite has no options.
    """
    judge = {**_modes(suite), **_roles(suite, judges=True)}
    return {
        score: digest({name: suite.scorers.get(name, {}), **judge, **_code((name, suite.scorers.get(name)), suite.folder)})
        for score, name in names.items()
    }


def mixed_scoring(old: Json, suite: PoolSuite, names: Mapping[str, str]) -> Json:
    """Returns the scoring identity (`scoring_identity`) of a run in which only the scores in `names` were computed again.

    All other scores keep their entries in `old`, the identity before that.
    """
    kept = {name: each for name, each in old.items() if score_name(name) not in names}
    options = {name: suite.scorers.get(name, {}) for name in names.values()}
    return {**kept, **_modes(suite), **options, **_code(options, suite.folder)}


#: (suite, variant) -> hash of each text besides the scenario that the agent sends to a model, or None if the texts are unknown.
PromptSource = Callable[[PoolSuite, str], Json | None]


def suite_identity(suite: Suite, prompts: PromptSource) -> Json:
    """Returns what a run records about a suite (agents, prompts, scorers, scales), so that a later session can name what has changed."""
    variants = ("default", *suite.variants)
    return {
        "agents": {variant: agent_identity(suite, variant) for variant in variants},
        "prompts": {variant: prompts(suite, variant) for variant in variants},
        "scorers": scoring_identity(suite),
        "scales": codec.plain(suite.every_scale),
    }


def _code(value: Any, folder: Path) -> Json:
    """Returns `code of FILE` -> hash of the file, for each setting or name in `value` of the form `./file.py:object`."""
    return {f"code of {name}": file_digest(folder / name) for name in sorted({*_files(value)})}


def _files(value: Any) -> Iterator[str]:
    paths = (text.partition(":")[0] for text in texts_in(value))
    return (path for path in paths if path.endswith(".py"))


class ContentHashes:
    """Computes the hashes that the records of rollouts contain. The hash of each agent, scorer and scenario is computed once and kept."""

    def __init__(self, suites: Mapping[str, PoolSuite], backend: str, prompts: PromptSource) -> None:
        """`backend` is the hash of the backend's settings, and `prompts` returns the texts that agents send besides the scenario."""
        self._suites, self._backend, self._prompts = suites, backend, prompts
        self._scenarios: dict[tuple[str, str], Scenario] = {}
        self._known: set[str] = set()  # suites whose scenarios are in `_scenarios`
        self._parts: dict[tuple[str, ...], str] = {}
        self._scored: dict[str, dict[str, str]] = {}  # suite -> hashes of its scores
        self._tools: dict[int, str] = {}  # id() of a tuple of tools, which scenarios share -> its hash

    def of(self, key: RolloutKey) -> Json:
        """Returns the hashes for the record of a rollout: name of a part -> hash.

        If the key (suite, scenario and so on of the rollout) names no suite, a test made the calls itself. Then only the hash of
        the backend is set.
        """
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
        """Returns the cluster of a rollout's scenario: the name of a group of scenarios that are not independent, or None."""
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
        """Returns the hash of everything in a scenario that the agent sees or that scores depend on. Empty for an unknown scenario."""
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
    """Returns a text such as `temperature 0.0 is now 0.6` for each difference between two trees of settings."""
    return [f"{path} {_value_text(was)} is now {_value_text(now)}".lstrip() for path, was, now in changes(old, new)]


def changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, old, new) for each difference between two trees. A missing value is None."""
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
