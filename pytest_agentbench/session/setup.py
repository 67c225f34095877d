"""Sets up a session before anything boots: chooses its suites, xdist workers, backend and gate.

It also refuses sessions that cannot work, for example because of too little memory.

One xdist worker is enough for the tests of a suite, which usually only read rollouts. Measured with the banking suite: collecting takes a
worker 0.9 s of CPU, and each test 5 ms (10 ms if it fails). The controller needs as much for each test's record and report, so a second
worker would only wait for it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import resource
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy
import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.error_texts import address_space, shortage
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.session.discovery import (
    DiscoveredSuites,
    SuiteHead,
    argument_path,
    discover,
    is_left_out,
    merged_thresholds,
    suite_folders,
    unavailable_suite,
)
from pytest_agentbench.session.settings import Settings, advise
from pytest_agentbench.suites.arms import BACKEND, CARRY, concurrencies, share_server
from pytest_agentbench.suites.suite import SUITE_FILE, Suite

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.rollouts.compile import CompiledSuite
    from pytest_agentbench.session.gate import Gate
    from pytest_agentbench.session.settings import Settings


#: Marks with a meaning for pytest or for widespread plugins, and operators of `-m`. Plugins count even if they are not installed, because
#: they may be installed later.
MARKS = frozenset(
    [
        *("skip", "skipif", "xfail", "parametrize", "parameterize", "parametrise", "parameterise", "usefixtures", "filterwarnings"),
        *("tryfirst", "trylast", "hookwrapper", "optionalhook", "pytester_example_path", "and", "or", "not"),
        *("asyncio", "anyio", "trio", "timeout", "flaky", "repeat", "xdist_group", "benchmark", "order", "run", "dependency"),
        *("django_db", "urls", "vcr", "freeze_time", "hypothesis", "no_cover", "enable_socket", "disable_socket", "allow_hosts"),
    ]
)

#: The marker lines of the user's ini file. Declaring a marker gives it no effect, so a suite may have its name.
DECLARED = pytest.StashKey[tuple[str, ...]]()


def refuse_remote_workers(workers: Sequence[str]) -> None:
    """Raises pytest.UsageError for workers on other machines, because the pool listens only on loopback."""
    for spec in workers:
        if not spec.startswith("popen") or "via=" in spec:
            raise pytest.UsageError(f"agentbench needs workers on this machine, not {spec}; use -n or --tx popen")


def refuse_misspelt_hooks(config: pytest.Config) -> None:
    """Raises pytest.UsageError for implementations of hooks that do not exist.

    Pytest checks this when it collects. With xdist only the workers collect, and their failure need not fail the session.
    """
    try:
        config.pluginmanager.check_pending()
    except pluggy.PluginValidationError as error:
        raise pytest.UsageError(str(error)) from error


def remember_declared_markers(config: pytest.Config) -> None:
    """Stores the markers of the ini file. Called before plugins and conftest files add theirs."""
    config.stash[DECLARED] = tuple(config.getini("markers"))


def reserved_marks(config: pytest.Config) -> frozenset[str]:
    """Returns the marker names that a suite must not have: those of pytest, and of each plugin and conftest.py of this session."""
    lines = set(config.getini("markers")) - {*config.stash.get(DECLARED, ())}
    return MARKS | {line.partition(":")[0].partition("(")[0].strip() for line in lines}


def refuse_reserved_names(suites: DiscoveredSuites, marks: Collection[str]) -> DiscoveredSuites:
    """Returns the suites, with those whose name is one of `marks` marked as unavailable.

    A suite's name is a marker of its tests. If it were `xfail`, for example, all its tests would be expected to fail. A suite that cannot
    be loaded has its folder's name, which is not used as a marker if it is one of `marks`.
    """
    unavailable = {
        folder: dataclasses.replace(each, marks=each.name not in marks and not each.name.startswith("_"))
        for folder, each in suites.unavailable.items()
    }
    for each in suites.compiled:
        if each.name in marks:
            where = f"{each.folder / SUITE_FILE}: name: {each.name!r} is a mark that pytest or a plugin acts upon"
            sentence = f"{where}, and a suite's name marks its tests; take another name, such as {each.name}_suite"
            unavailable[each.folder] = dataclasses.replace(unavailable_suite(each.folder, sentence), marks=False)
    return DiscoveredSuites([each for each in suites.compiled if each.name not in marks], unavailable)


def refuse_duplicate_names(compiled: Sequence[CompiledSuite]) -> None:
    """Raises pytest.UsageError if two suites have the same name, because it is their marker and part of each rollout's key."""
    folders: dict[str, Path] = {}
    for each in compiled:
        if (other := folders.setdefault(each.name, each.folder)) != each.folder:
            files = f"{other / 'suite.yaml'} and {each.folder / 'suite.yaml'}"
            raise pytest.UsageError(f"two suites are named {each.name!r}: {files}; rename one of them")


#: Bytes of address space that a session needs after its suites are loaded, for threads and reports.
HEADROOM = 192 << 20


@contextmanager
def shortage_as_usage_error() -> Iterator[None]:
    """Turns an error caused by too little memory or too few threads or open files into a pytest.UsageError."""
    try:
        yield
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not (reason := shortage(error)):
            raise
        raise pytest.UsageError(f"agentbench cannot run: {reason}") from None


def refuse_short_memory() -> None:
    """Raises pytest.UsageError if the limit of address space (`ulimit -v`) is too low for the rest of the session."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    needed = address_space() + HEADROOM
    if limit < needed:
        raise pytest.UsageError(
            f"this session needs {needed >> 20} MiB of address space in a process, but only {limit >> 20} MiB are allowed; "
            "raise the limit (`ulimit -v`), or load fewer plugins with -p no:NAME"
        )


@dataclass(frozen=True)
class Setup:
    """The setup of a session whose command line leads to suites. It is immutable."""

    config: pytest.Config
    settings: Settings
    started_at: datetime
    concurrency: int  # largest number of rollouts in flight
    discovered: DiscoveredSuites
    backend: Backend
    gate: Gate | None

    @property
    def suites(self) -> Mapping[str, Suite]:
        """The suites that can run, by name."""
        return {each.name: each.suite for each in self.discovered.compiled}

    @property
    def command(self) -> tuple[str, ...]:
        return ("pytest", *map(str, self.config.invocation_params.args))

    @property
    def identity(self) -> Json:
        """What a resumed run must not change: backend, cache policy, and concurrency if arms (settings under comparison) differ in it."""
        policy, own = self.settings.cache, concurrencies(self.settings.ab)
        return {**self.backend.identity, **({} if policy == CARRY else {"prefix_cache": policy}), **({"concurrency": own} if own else {})}

    @property
    def in_blocks(self) -> bool:
        """Whether rollouts run in blocks of one arm (a setting under comparison), with nothing running between two blocks."""
        return bool(self.settings.ab) or self.settings.cache != CARRY

    @property
    def insists(self) -> bool:
        """Whether options name the backend or request a verdict. Tests that cannot run are then an ERROR instead of a SKIP."""
        chosen = self.config.getoption("agentbench_backend", None) is not None or bool(self.settings.ab)
        return chosen or self.settings.insists

    @property
    def model_warnings(self) -> list[str]:
        """A sentence for each model of a suite that the backend does not list. Available after the backend has started."""
        from pytest_agentbench.runs.provenance import unlisted_models

        agents = {RolloutKey(each.name, "", variant).group: each.suite.agent_of(variant)
                  for each in self.discovered.compiled for variant in each.variants}  # fmt: skip
        models = {group: str(agent["model"]) for group, agent in agents.items() if agent.get("model")}
        return unlisted_models(models, self.backend.models)

    @property
    def secret_names(self) -> frozenset[str]:
        """The environment variables that suites and backend name as sources of API keys."""
        from pytest_agentbench.lib.redact import named_secrets

        suites = [(suite.agent, suite.variants, suite.roles, suite.scorers) for suite in self.suites.values()]
        return frozenset(named_secrets((self.backend.description, suites)))

    def shown(self, path: Path) -> str:
        """Returns a path relative to the folder where pytest was started, or absolute if it is outside of the rootdir."""
        return os.path.relpath(path, self.config.invocation_params.dir) if path.is_relative_to(self.config.rootpath) else str(path)


def _refuse_misspelt_suites(config: pytest.Config) -> None:
    """Raises pytest.UsageError for a path that does not exist and is almost that of a suite. Pytest reports other missing paths."""
    missing = [] if config.getoption("pyargs") else [path for path in map(argument_path, config.args) if not path.exists()]
    if missing:
        from pytest_agentbench.suites.folder import meant_suite

        for path in map(_shown, missing):
            if hint := meant_suite(Path(path)):
                raise pytest.UsageError(f"file or directory not found: {path}{hint}")


def find_suites(config: pytest.Config, settings: Settings) -> DiscoveredSuites:
    """Loads and returns the suites that belong to the command line's paths, and registers their markers."""
    folders = suite_folders(config.args, config.rootpath, config.getini("norecursedirs"))
    _refuse_misspelt_suites(config)
    if not folders:
        return DiscoveredSuites((), {})
    marks = reserved_marks(config)
    suites = refuse_reserved_names(_compile(config, settings, [*map(SuiteHead.of, folders)]), marks)
    refuse_duplicate_names(suites.compiled)
    for name, folder in suites.markers:
        config.addinivalue_line("markers", f"{name}: tests of the agentbench suite in {folder.name}/")
    return suites


def _compile(config: pytest.Config, settings: Settings, heads: Sequence[SuiteHead]) -> DiscoveredSuites:
    """Reads and checks the suites, and returns them, including those that do not run.

    Options that change a suite (agent, setting, variant or arm) apply only to suites whose tests run, because others may not have that
    agent, setting, variant or arm.
    """
    from pytest_agentbench.rollouts.compile import CompileOptions

    chosen = CompileOptions(settings.suite_changes, settings.agent, settings.variants, settings.ab, settings.trials)
    left_out = _left_out(config, [head.name for head in heads])
    options = {head.name: CompileOptions(trials=settings.trials) if head.name in left_out else chosen for head in heads}
    marks = config.getoption("markexpr", "")
    reasons = {head.folder: why for head in heads if (why := head.not_named(config.args, marks))}
    discovered = discover([head for head in heads if head.folder not in reasons], options, insists=settings.insists)
    skipped = {folder: unavailable_suite(folder, why, skip=True) for folder, why in reasons.items()}
    for each in discovered.unavailable.values():
        if each.skip:  # Its data are missing.
            advise(config, each.reason)
    return DiscoveredSuites(discovered.compiled, {**discovered.unavailable, **skipped})


def _left_out(config: pytest.Config, names: Collection[str]) -> set[str]:
    """Returns the names of suites that -m excludes."""
    marks = config.getoption("markexpr", "")
    return {name for name in names if marks and is_left_out(name, marks, names)}


def make_setup(config: pytest.Config, settings: Settings, concurrency: int, discovered: DiscoveredSuites, started_at: datetime) -> Setup:
    """Returns the setup: chooses backend and gate, and checks suites against the backend. Raises pytest.UsageError for invalid options."""
    from pytest_agentbench.backends.per_node import refuse_placement
    from pytest_agentbench.session.gate import make_gate
    from pytest_agentbench.session.roles import playable_suites

    try:
        backend = make_backend(config, settings)
        refuse_placement(backend, settings.ab, settings.cache, uses_nodes=settings.uses_nodes)
        left_out = _left_out(config, discovered.names)
        compiled = [
            dataclasses.replace(
                each, thresholds=merged_thresholds(each, backend.thresholds, {} if each.name in left_out else settings.thresholds)
            )
            for each in discovered.compiled
        ]
        suites = playable_suites(
            DiscoveredSuites(compiled, discovered.unavailable), backend.description, keys=not config.getoption("collectonly")
        )
        return Setup(config, settings, started_at, concurrency, suites, backend, make_gate(suites.compiled, settings))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


class Workers(NamedTuple):
    """The xdist workers of a session."""

    specs: Sequence[str]  # the --tx spec of each worker
    reason: str = ""  # reason for their number; empty if --tx names each of them, or if there are none

    @property
    def sentence(self) -> str:
        """The header line about the workers, or an empty text if `reason` is empty."""
        count = len(self.specs)
        return f"{count} xdist worker{' starts' if count == 1 else 's start'}: {self.reason}" if self.reason else ""


def choose_workers(config: pytest.Config, discovered: DiscoveredSuites, typed: Sequence[str], requested: int | None) -> Workers:
    """Returns the workers to start. `typed` has the --tx specs of the command line, `requested` is --agentbench-workers.

    Without --agentbench-workers the number is the largest of these: `xdist_workers` of each suite (default: 1), and the number of -n if a
    path is not in the folder of a suite.
    """
    if not typed or not config.getoption("numprocesses", None):  # --tx without -n names each worker.
        return Workers(typed)
    if requested is not None:
        return Workers([typed[0]] * requested, "set by --agentbench-workers")
    if config.getoption("dist") == "each":
        return Workers(typed, "set by -n; with --dist=each every worker runs all tests")
    reasons = {1: "every path is in the folder of a suite (--agentbench-workers=N starts N)"}
    marks, names = config.getoption("markexpr", ""), discovered.names
    for each in (each for each in discovered.compiled if not is_left_out(each.name, marks, names)):
        if each.suite.xdist_workers:
            reasons[each.suite.xdist_workers] = f"set by xdist_workers in {_shown(each.folder / SUITE_FILE)}"
    folders = {*discovered.folders}
    for path in map(argument_path, config.args):
        if folders.isdisjoint((path, *path.parents)):
            reasons[len(typed)] = f"set by -n, because {_shown(path)} is not in the folder of a suite (--agentbench-workers=N starts N)"
    count = max(reasons)
    return Workers([typed[0]] * count, reasons[count])


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def make_backend(config: pytest.Config, settings: Settings) -> Backend:
    """Returns the backend from the first hook that accepts its name, or a backend for each arm if the arms differ in it.

    Raises ConfigError if no hook accepts the name.
    """

    def make(name: str, changes: Sequence[tuple[str, Any]] = ()) -> Backend:
        changes = (*settings.backend_changes, *changes)
        backend: Backend = config.hook.pytest_agentbench_make_backend(config=config, name=name, changes=changes)
        return backend

    if not settings.ab or share_server(settings.ab):
        return make(settings.backend)
    from pytest_agentbench.backends.ab import Arms

    return Arms(
        {
            arm.name: functools.partial(make, arm.backend if arm.kind == BACKEND else settings.backend, arm.backend_changes)
            for arm in settings.ab
        }
    )
