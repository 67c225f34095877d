"""What a session is asked to do: its suites, its backend and its gate, settled before anything boots."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.session.backend_choice import make_backend
from pytest_agentbench.session.discovery import (
    DiscoveredSuite,
    SuiteHead,
    find,
    in_arms,
    is_left_out,
    merged_thresholds,
    suite_folders,
    with_sound_code,
)
from pytest_agentbench.session.refusals import meant_elsewhere, refuse_marks, refuse_twins
from pytest_agentbench.session.settings import Settings, advise
from pytest_agentbench.suites.arms import CARRY, concurrencies
from pytest_agentbench.suites.suite import Suite

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.session.gate import Gate


@dataclass(frozen=True)
class Setup:
    """Of a session whose command line leads to suites. Nothing of it changes."""

    config: pytest.Config
    settings: Settings
    started_at: datetime
    concurrency: int  # rollouts in flight at most
    discovered: Sequence[DiscoveredSuite]  # suites, those that cannot run included
    backend: Backend
    gate: Gate | None

    @property
    def suites(self) -> Mapping[str, Suite]:
        """Those that can run, by their names."""
        return {each.suite.name: each.suite for each in self.discovered if each.suite}

    @property
    def command(self) -> tuple[str, ...]:
        return ("pytest", *map(str, self.config.invocation_params.args))

    @property
    def identity(self) -> Json:
        """The backend's, how its cache is made ready, and how many rollouts each arm has in flight where arms differ in that."""
        policy, own = self.settings.cache, concurrencies(self.settings.ab)
        return {**self.backend.identity, **({} if policy == CARRY else {"prefix_cache": policy}), **({"concurrency": own} if own else {})}

    @property
    def in_blocks(self) -> bool:
        """Whether rollouts run in blocks, between which nothing runs."""
        return bool(self.settings.ab) or self.settings.cache != CARRY

    @property
    def insists(self) -> bool:
        """Whether somebody asked for this backend, or for a verdict: then a test that cannot run is an ERROR, no SKIP."""
        chosen = self.config.getoption("agentbench_backend", None) is not None or bool(self.settings.ab)
        return chosen or self.settings.insists

    @property
    def model_warnings(self) -> list[str]:
        """A sentence for each model that a suite asks for and the backend, which has started, does not list."""
        from pytest_agentbench.suites.models import unlisted

        agents = {RolloutKey(each.name, "", variant).group: each.suite.agent_of(variant)
                  for each in self.discovered if each.suite for variant in each.variants}  # fmt: skip
        models = {group: str(agent["model"]) for group, agent in agents.items() if agent.get("model")}
        return unlisted(models, self.backend.models)

    @property
    def secret_names(self) -> frozenset[str]:
        """The environment variables that suites and backend name as the places of keys."""
        from pytest_agentbench.lib.redact import named_secrets

        suites = [(suite.agent, suite.variants, suite.roles, suite.scorers) for suite in self.suites.values()]
        return frozenset(named_secrets((self.backend.description, suites)))

    def shown(self, path: Path) -> str:
        """A path as the user can open it from where pytest was started."""
        return os.path.relpath(path, self.config.invocation_params.dir) if path.is_relative_to(self.config.rootpath) else str(path)


def find_suites(config: pytest.Config, settings: Settings) -> list[DiscoveredSuite]:
    """Loads the suites that the command line leads to, and registers their markers."""
    folders = suite_folders(config.args, config.rootpath, config.getini("norecursedirs"))
    marks = meant_elsewhere(config)
    loaded = _load(config, settings, folders)
    suites = [refuse_marks(each, marks) for each in with_sound_code(loaded)]
    refuse_twins(suites)
    for suite in (each for each in suites if each.marks):
        config.addinivalue_line("markers", f"{suite.name}: tests of the agentbench suite in {suite.folder.name}/")
    return suites


def _load(config: pytest.Config, settings: Settings, folders: Sequence[Path]) -> list[DiscoveredSuite]:
    """What the command line says of suites is for those whose tests run: an agent, a setting, a variant or an arm may be none of others."""
    heads = [*map(SuiteHead.of, folders)]
    own = dataclasses.replace(settings, agent=None, changes={}, variants=("default",), ab=())
    left_out = _left_out(config, [head.name for head in heads])
    return [_find(config, own if head.name in left_out else settings, head) for head in heads]


def _left_out(config: pytest.Config, names: Collection[str]) -> set[str]:
    """The names of suites that no test runs of, by -m."""
    marks = config.getoption("markexpr", "")
    return {name for name in names if marks and is_left_out(name, marks, names)}


def _find(config: pytest.Config, settings: Settings, head: SuiteHead) -> DiscoveredSuite:
    if why := head.not_named(config.args, config.getoption("markexpr", "")):
        return DiscoveredSuite(head.folder, None, {}, (), 1, why, skip=True)
    changes, insists = settings.suite_changes, settings.insists
    discovered = in_arms(find(head.folder, changes, settings.variants, settings.trials, settings.agent, insists=insists), settings.ab)
    if discovered.skip:
        advise(config, discovered.error)
    return discovered


def settle(
    config: pytest.Config, settings: Settings, concurrency: int, discovered: Sequence[DiscoveredSuite], started_at: datetime
) -> Setup:
    """Chooses backend and gate; raises pytest.UsageError where one cannot be had."""
    from pytest_agentbench.session.gate import make_gate
    from pytest_agentbench.session.roles import with_roles_played

    try:
        backend = make_backend(config, settings)
        limits, left_out = backend.thresholds, _left_out(config, [each.name for each in discovered])
        limited = [
            dataclasses.replace(each, thresholds=merged_thresholds(each, limits, {} if each.name in left_out else settings.thresholds))
            if each.suite
            else each
            for each in discovered
        ]
        limited = [with_roles_played(each, backend.description, keys=not config.getoption("collectonly")) for each in limited]
        return Setup(config, settings, started_at, concurrency, limited, backend, make_gate(limited, settings))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
