"""Opens a session that runs rollouts: its run directory, its journal, and the services that run in the background."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_agentbench.agents.factory import container_for_code
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.error_texts import Losses
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.user_code import search_path
from pytest_agentbench.lib.wire import check_limit
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.protocol import BlockSettings, PoolSettings, Scheduling
from pytest_agentbench.runs.attempts import AttemptLog
from pytest_agentbench.runs.directory import name_of, new_directory
from pytest_agentbench.runs.identity import environment
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.runs.nodes import NodeLog
from pytest_agentbench.runs.run_file import Environment
from pytest_agentbench.runs.sessions import Session, append_session, find_resumable, folder_of, prompt_hashes, read_sessions, resume_journal
from pytest_agentbench.sandbox.factory import TaskImages, default_count
from pytest_agentbench.session.arm_switcher import ArmSwitcher
from pytest_agentbench.session.nodes import SessionNodes
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.recorder import RunRecorder, known_durations
from pytest_agentbench.session.rounds import Rounds, refuse_endless
from pytest_agentbench.session.settings import Settings
from pytest_agentbench.session.setup import Setup
from pytest_agentbench.suites.arms import PRIMED, VariantOrigin, concurrencies, share_server
from pytest_agentbench.suites.hashes import ContentHashes, digest, suite_identity
from pytest_agentbench.suites.suite import Task, public_of
from pytest_agentbench.tap.protocol import Budgets

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Run
    from pytest_agentbench.session.metrics_server import MetricsServer


class Hooks:
    """Calls the hooks of `hookspecs` while a session runs and when it ends."""

    def __init__(self, config: pytest.Config, redactor: Redactor) -> None:
        self._config, self._redactor = config, redactor

    def redacted(self, text: str) -> str:
        """Returns a text without secrets, and without the parts that a plugin removes (`pytest_agentbench_redact`)."""
        redacted = self._redactor(text)
        hooked: str | None = self._config.hook.pytest_agentbench_redact(text=redacted)
        return redacted if hooked is None else hooked

    def rollout_finished(self, line: bytes) -> None:
        """Passes a finished rollout to plugins. `line` is its record as written to the journal."""
        if self._config.hook.pytest_agentbench_rollout_finished.get_hookimpls():
            self._config.hook.pytest_agentbench_rollout_finished(rollout=rollout_of(line))

    def update_environment(self, environment: Json) -> None:
        self._config.hook.pytest_agentbench_update_environment(environment=environment)

    def report(self, run: Run, directory: Path, losses: Losses) -> None:
        """Has each plugin write its report. If one fails, the others are still written."""
        for name, plugin in self._reporters():
            others = [other for _, other in self._reporters() if other is not plugin]
            hook = self._config.pluginmanager.subset_hook_caller("pytest_agentbench_report", others)
            with losses.step(f"the report of {name} is not written"):
                hook(run=run, directory=directory)

    def _reporters(self) -> Iterator[tuple[str, Any]]:
        for each in reversed(self._config.hook.pytest_agentbench_report.get_hookimpls()):
            yield (Path(each.plugin_name).name if each.plugin_name else "a plugin"), each.plugin


@dataclass(frozen=True)
class OpenSession:
    """A session that runs rollouts: its setup, and the objects that run and record them.

    The attributes are never replaced, but `recorder`, `services` and `losses` (steps that failed) change inside while the session runs.
    """

    setup: Setup
    directory: Path  # the run directory
    sessions: tuple[Session, ...]  # all sessions of the run, this one last
    recorder: RunRecorder
    services: Services
    rounds: Rounds | None  # None if the number of trials is fixed
    redactor: Redactor
    hooks: Hooks
    losses: Losses
    environment: Future[Environment]  # code, packages and machine of this session
    metrics_server: MetricsServer | None  # None without --agentbench-metrics-port

    @property
    def number(self) -> int:
        """The number of this session within its run, counted from 1."""
        return self.sessions[-1].number

    @property
    def sentences(self) -> Iterator[str]:
        """Yields the lines of the header about node workers and about the metrics of the run."""
        if self.services.nodes is not None:
            yield from self.services.nodes.sentences
        if self.metrics_server is not None:
            yield self.metrics_server.sentence


def open_session(setup: Setup) -> OpenSession:
    """Creates or resumes the run directory, and starts the services in the background.

    Raises:
        pytest.UsageError: Too few file descriptors for this concurrency, `auto` trials without a rule that ends them, a port for metrics
            that is in use, a run that cannot be resumed, or a reports directory that is not writable.
    """
    redactor = make_redactor(setup)
    hooks = Hooks(setup.config, redactor)
    try:
        check_limit(setup.concurrency)
        refuse_endless(setup.settings.rounds, setup.gate, plays_recording=setup.backend.description.get("kind") == "recorded")
        metrics_server = _open_metrics_server(setup)
        run = open_run(setup, hooks)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        why = f"reports cannot be written to {setup.settings.reports_directory}: {error.strerror}"
        raise pytest.UsageError(f"{why}; name another directory with --agentbench-reports") from error
    surroundings = _read_environment(setup.config.rootpath)
    notices: queue.SimpleQueue[str] = queue.SimpleQueue()
    rounds = _make_rounds(setup, run.directory, notices)
    number = run.sessions[-1].number
    log = AttemptLog(run.directory, number, hooks.redacted, notices.put)
    pool_settings = _pool_settings(setup, run.directory, number)
    budgets = _budgets(setup.settings)
    nodes = None
    if setup.settings.uses_nodes:
        nodes = _open_nodes(setup, pool_settings, run.directory, budgets, NodeLog(run.directory, hooks.redacted, notices.put))
    services = Services(
        setup.backend,
        folder_of(run.directory, number),
        pool_settings,
        setup.settings.taps,
        budgets,
        run.recorder,
        log,
        redactor,
        notices,
        ArmSwitcher(setup.backend, setup.settings.cache, notices.put) if setup.in_blocks else None,
        rounds,
        nodes,
        images=TaskImages(_tasks(setup), pool_settings.run, notices.put),
        insists=setup.insists,
        sample_interval=setup.settings.sample_interval,
    )
    losses = Losses(redactor.plain)
    if metrics_server is not None and setup.config.get_verbosity() < 0:
        notices.put(metrics_server.sentence)  # No header names the port.
    return OpenSession(
        setup, run.directory, run.sessions, run.recorder, services, rounds, redactor, hooks, losses, surroundings, metrics_server
    )


def _open_metrics_server(setup: Setup) -> MetricsServer | None:
    """Returns the server of the run's metrics, which answers from `serve` on and is closed after the reports are written."""
    if setup.settings.metrics_port is None:
        return None
    from pytest_agentbench.session.metrics_server import MetricsServer

    server = MetricsServer(setup.settings.metrics_port)
    setup.config.add_cleanup(server.close)
    setup.backend.run_metrics = server.address
    return server


def _open_nodes(setup: Setup, pool_settings: PoolSettings, directory: Path, budgets: Budgets, log: NodeLog) -> SessionNodes:
    try:
        return SessionNodes(
            setup.settings, pool_settings.suites, directory, setup.concurrency, budgets, log, setup.backend, pool_settings.session
        )
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def make_redactor(setup: Setup) -> Redactor:
    """Returns a redactor for the secrets that suites and backend name. Names, ids, tools and data of suites are never redacted."""
    return Redactor(setup.secret_names, public_of(setup.suites.values()))


class OpenRun(NamedTuple):
    """The open run directory of a session, with its recorder."""

    directory: Path
    recorder: RunRecorder
    sessions: tuple[Session, ...]  # all sessions of the run, this one last


def open_run(setup: Setup, hooks: Hooks) -> OpenRun:
    """Creates the run directory, or opens the one to resume, and adds this session to it. Returns the open run.

    Raises ConfigError if the run cannot be resumed, and OSError if the directory cannot be written.
    """
    settings, suites = setup.settings, setup.suites
    old = find_resumable(settings.resume, settings.reports_directory) if settings.resume else None
    if old and settings.name and settings.name != (name := name_of(old)):
        raise ConfigError(
            f"--agentbench-name {settings.name}: the resumed run {old.name} {f'is called {name}' if name else 'has no name'}; "
            "leave out --agentbench-name"
        )
    directory = old or new_directory(settings.reports_directory, setup.started_at, settings.name or "")
    recorder = RunRecorder(directory, hooks.redacted, hooks.rollout_finished)
    identities = {name: suite_identity(suite, prompt_hashes) for name, suite in suites.items()}
    earlier, number = read_sessions(directory), 1
    if old is not None:
        contents = ContentHashes(suites, digest(setup.identity), prompt_hashes)
        # The line of a session may be damaged, so the records count too.
        recorded = [each.session for each in recorder.journal.index.entries.values()]
        number += max([*(each.number for each in earlier), *recorded], default=1)
        recorder.stored = resume_journal(recorder.journal, number, contents, identities, setup.identity, earlier, settings.resume_rerun)
    folder_of(directory, number).mkdir(exist_ok=True)
    started_at = setup.started_at.isoformat(timespec="seconds")
    now = Session(number, started_at, setup.command, setup.concurrency, setup.identity, identities)
    append_session(directory, now, hooks.redacted)
    return OpenRun(directory, recorder, (*earlier, now))


def _make_rounds(setup: Setup, directory: Path, notices: queue.SimpleQueue[str]) -> Rounds | None:
    """Returns the trial rounds of `--agentbench-trials=auto`, or None if the number of trials is fixed."""
    if setup.gate is None or setup.settings.rounds is None:
        return None
    return Rounds(setup.gate, setup.settings.rounds, setup.suites, directory, notices)


def _read_environment(root: Path) -> Future[Environment]:
    """Starts a thread that reads facts about code and machine. It starts now, because the code may change before the session ends."""
    executor = ThreadPoolExecutor(1, "agentbench-environment")
    surroundings = executor.submit(environment, root)
    executor.shutdown(wait=False)
    return surroundings


def _tasks(setup: Setup) -> dict[tuple[str, str], Task]:
    tasks = {(suite.name, each.id): each.task for suite in setup.suites.values() for each in suite.scenarios if each.task}
    for compiled in setup.discovered.compiled:
        if container := container_for_code(compiled.agents.values()):
            tasks |= {(compiled.name, each.id): container for each in compiled.suite.scenarios}
    return tasks


def _pool_settings(setup: Setup, directory: Path, session: int) -> PoolSettings:
    settings = setup.settings
    return PoolSettings(
        session=session,
        rerun=tuple(settings.resume_rerun),
        run=f"{directory.name}-{secrets.token_hex(2)}",  # Two sessions may start in the same second.
        backend=digest(setup.identity),
        suites={name: suite.for_pool() for name, suite in setup.suites.items()},
        sys_path=tuple(search_path()),
        log_level=settings.log_level,
        scheduling=Scheduling(
            setup.concurrency,
            settings.retries,
            keep_order=bool(setup.config.getoption("maxfail", 0)),
            durations=known_durations(settings.reports_directory, settings.backend),
        ),
        blocks=_block_settings(setup) if setup.in_blocks else None,
        sandboxes=settings.sandboxes or default_count(),
        time_limit=settings.time_limit,
        budget=settings.budgets["rollout"],
        sizes=codec.read(Sizes, settings.sizes),
        keep=settings.keep,
    )


def _block_settings(setup: Setup) -> BlockSettings:
    """Returns how rollouts run in blocks (series of rollouts of one arm, which is a setting under comparison).

    In a session without arms all variants belong to one arm with an empty name. A warm-up is for arms on one server, of which the first
    would otherwise be slower. Servers of their own are equally new to each arm.
    """
    origins = {name: each.origins.get(name, VariantOrigin(name, "")) for each in setup.discovered.compiled for name in each.variants}
    settings = setup.settings
    warm_up = settings.cache != PRIMED and share_server(settings.ab) and setup.backend.description.get("kind") != "recorded"
    return BlockSettings(origins, settings.cache, setup.backend.in_sequence, concurrencies(settings.ab), warm_up=warm_up)


def _budgets(settings: Settings) -> Budgets:
    """Returns the time limits for parts of an LLM call. An inline session has no limits, because a debugger may stop the agent."""
    calls = {name: seconds for name, seconds in settings.budgets.items() if name != "rollout"}
    return Budgets() if settings.inline else Budgets(**calls)
