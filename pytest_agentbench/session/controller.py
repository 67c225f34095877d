"""The controller: hooks of pytest and xdist in the process that the user started, and the lines of the session header.

It also reports mistakes in options that are found after the session has started.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.errors import MissingError
from pytest_agentbench.gate.exit_status import FAILED, INTERRUPTED, USAGE_ERROR
from pytest_agentbench.lib import codec, options
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.kept_values import ALL, CALLS
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.rollouts.questions_of_tests import PoolAddress, WorkerInput
from pytest_agentbench.runs.journal import summarize_damage
from pytest_agentbench.session.discovery import replaced_thresholds, unknown_marks, worker_suite
from pytest_agentbench.session.pytest_reports import (
    BELOW,
    QUARANTINED,
    Causes,
    Outcomes,
    WorkflowCommands,
    escape_report,
    is_reporter_replaced,
    mark_crash,
)
from pytest_agentbench.session.settings import DEFAULT_CONCURRENCY, RERUNS_ADVICE, Settings, advise, reruns_requested
from pytest_agentbench.session.setup import (
    Setup,
    Workers,
    choose_workers,
    find_suites,
    make_setup,
    refuse_misspelt_hooks,
    refuse_remote_workers,
    refuse_short_memory,
    shortage_as_usage_error,
)
from pytest_agentbench.suites.arms import concurrencies

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.session.finish import Finish
    from pytest_agentbench.session.open_session import OpenSession
    from pytest_agentbench.session.results import SessionFindings


def header(setup: Setup, opened: OpenSession | None, workers: Workers, left_out: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the session header. `left_out`: a line for each arm (setting under comparison) that cannot run."""
    for line in (*_header_lines(setup, opened, workers), *left_out):
        yield f"agentbench: {line}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _header_lines(setup: Setup, opened: OpenSession | None, workers: Workers) -> Iterator[str]:
    backend, settings = setup.backend, setup.settings
    suites = ", ".join(f"{name} ({_count(len(suite.scenarios), 'scenario')})" for name, suite in setup.suites.items())
    yield f"backend {backend.name}{f' - {backend.note}' if backend.note else ''}"
    yield f"suites {suites or 'none (no suite could be loaded)'}"
    for compiled in setup.discovered.compiled:
        yield from compiled.suite.notes
        if replaced := replaced_thresholds(compiled, backend.thresholds, backend.name):
            yield replaced
    if opened is not None:
        inline = "one rollout at a time, in pytest's own process (--agentbench-inline)"
        flight = inline if settings.inline else f"{_count(setup.concurrency, 'rollout')} in flight"
        yield f"{flight}, run directory {setup.shown(opened.directory)}"
        yield from opened.sentences
        if settings.keep in KEEPS:
            yield KEEPS[settings.keep]
        yield from opened.redactor.advice
    if workers.sentence:
        yield workers.sentence
    if setup.gate is not None:
        yield from setup.gate.warnings(setup.discovered.compiled, settings.limit, settings.rounds)
    if opened is not None and opened.number > 1:
        yield from _resume_lines(opened)


#: Value of --agentbench-keep -> the line of the header that says what is written.
KEEPS = {
    ALL: f"keeping all requests and replies in {MESSAGES} (--agentbench-keep)",
    CALLS: f"keeping requests and replies of agents, without tools, in {MESSAGES} (--agentbench-keep)",
}


def _resume_lines(opened: OpenSession) -> Iterator[str]:
    """Yields the header lines of a resumed run: how much of earlier sessions is reused."""
    stored, index = opened.recorder.stored, opened.recorder.journal.index
    removed = f"; an incomplete last record of {index.truncated:,} bytes was removed" if index.truncated else ""
    reused = f"reusing {len(stored.kept)} rollouts; {len(stored.again)} failed ones will run again if a test needs them"
    yield f"session {opened.number} of this run: {reused}{removed}"
    yield from summarize_damage(index.damaged)


def nothing_selected_lines(setup: Setup, directory: Path) -> Iterator[str]:
    """Yields the summary lines of a session without rollouts.

    They say that the run directory named in the header was removed (not under -q, which hides the header), and name unknown words of -m.
    """
    if setup.config.get_verbosity() >= 0:
        yield f"agentbench: no rollout was requested, so the run directory {setup.shown(directory)} was removed"
    known = ", ".join(sorted(name for name, _ in setup.discovered.markers))
    for word in unknown_marks(setup.config.getoption("markexpr", ""), setup.config.getini("markers")):
        yield f"agentbench: -m: {word!r} is neither a suite of this session nor a registered marker; suites: {known}"


#: Options with which pytest only inspects tests, so that nothing boots.
LOOKING = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")


class Controller:
    """The pytest plugin in the process that the user started; one per session. Each of three stages has an attribute, None at first:

    1. `setup` (pytest_sessionstart): suites, backend and gate are chosen and checked. Sessions that only inspect tests, as with
       --collect-only, stop here.
    2. `opened` (`_open`): the run directory exists. The backend, the tap (the proxy that records LLM calls) and the pool (the process that
       runs rollouts) start in the background.
    3. `finish` (pytest_sessionfinish): the services end, the journal is read, and the run and its exit status are computed. `_close`
       writes the reports.

    If the command line leads to no suite, all three stay None. `_close` is a pytest cleanup: it runs even if a later hook fails.
    """

    def __init__(self, config: pytest.Config, settings: Settings, workers: Sequence[str]) -> None:
        self.config, self.settings, self.workers = config, settings, workers
        self.started = Workers(workers)
        self.concurrency = max(concurrencies(settings.ab).values(), default=settings.concurrency or len(workers) or DEFAULT_CONCURRENCY)
        self.started_at = datetime.now().astimezone()
        self.causes, self.outcomes, self.commands = Causes(), Outcomes(config.rootpath), WorkflowCommands()
        self.left_out: Sequence[str] = ()  # A sentence for each arm that cannot run on this machine
        self.setup: Setup | None = None
        self.opened: OpenSession | None = None
        self.finish: Finish | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        with shortage_as_usage_error():
            self._start()

    def _start(self) -> None:
        discovered = find_suites(self.config, self.settings)
        if not discovered.folders:
            return
        refuse_remote_workers(self.workers)
        self.started = choose_workers(self.config, discovered, self.workers, self.settings.workers)
        if self.started.specs != self.workers:
            self.config.option.tx = self.started.specs  # xdist creates its workers later in this hook.
        refuse_misspelt_hooks(self.config)
        if reruns_requested(self.config):
            advise(self.config, RERUNS_ADVICE)
        self.setup = make_setup(self.config, self.settings, self.concurrency, discovered, self.started_at)
        if self.setup.suites and not any(getattr(self.config.option, name, False) for name in LOOKING):
            self._open(self.setup)
            # Objects loaded by now stay alive, and pytest collects garbage several times when a session ends.
            gc.freeze()

    @pytest.hookimpl(trylast=True)
    def pytest_agentbench_make_backend(self, name: str, changes: Sequence[tuple[str, Any]]) -> Backend:
        """Returns the backend of a backend.yaml or a URL. Called only if no other plugin returned a backend."""
        from pytest_agentbench.backends.per_node import PER_NODE, OnNodes
        from pytest_agentbench.backends.spec import SessionTerms, load_backend

        settings = self.settings
        spec = load_backend(name, self.config.rootpath, changes)
        terms = SessionTerms(settings.keep_backend, settings.gpu_wait, self.concurrency, settings.budgets["connect"])
        backend = spec.make(terms)
        if spec.placement == PER_NODE:
            backend = OnNodes(backend, spec.model, name, changes, terms)
        backend.nodes = spec.nodes
        return backend

    def _open(self, setup: Setup) -> None:
        refuse_short_memory()
        from pytest_agentbench.session.open_session import open_session

        try:
            self.left_out = setup.backend.leave_out()
        except MissingError as error:
            raise pytest.UsageError(str(error)) from error
        self.opened = open_session(setup)
        self.config.add_cleanup(self._close)  # Unlike a hook, a cleanup runs even if something fails before it.
        if self.opened.metrics_server is not None:
            from pytest_agentbench.session.run_metrics import RunMetrics

            self.opened.metrics_server.serve(RunMetrics(self.opened).text)
        if self.opened.rounds is not None:
            self.config.pluginmanager.register(self.opened.rounds, "agentbench-rounds")

    @property
    def worker_input(self) -> WorkerInput:
        """Returns the data that test processes need: suites, options, and the port and token of the pool."""
        setup = self.setup
        services = self.opened.services if self.opened else None
        return WorkerInput(
            suites={str(each.folder): worker_suite(each) for each in setup.discovered.compiled} if setup else {},
            unavailable={str(folder): suite for folder, suite in setup.discovered.unavailable.items()} if setup else {},
            limit=self.settings.limit,
            scenarios=self.settings.scenarios,
            gated={group: tuple(scores) for group, scores in setup.gate.compared.items()} if setup and setup.gate else {},
            pool=PoolAddress(services.port, services.token) if services else None,
            inline=self.settings.inline,
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Adds the data that test processes need to the input of an xdist worker. xdist calls this before the worker starts."""
        node.workerinput["agentbench"] = json.dumps(codec.plain(self.worker_input))

    def pytest_report_header(self) -> str | None:
        if self.setup is None:
            return None
        return "\n".join(map(one_line, header(self.setup, self.opened, self.started, self.left_out)))

    @pytest.hookimpl(tryfirst=True)  # Escape the report before a plugin prints it.
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._escape(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test report, shortens it if the test had nothing to judge, and escapes control characters and workflow commands.

        If -x or --maxfail ends the session, tests in other workers stop waiting for rollouts at once.
        """
        self.causes.shorten(report)
        self.outcomes.add(report)
        self.causes.summarize(report)
        self._escape(report)
        maxfail = self.config.getoption("maxfail", 0)
        if report.failed and self.opened and self.outcomes.failed == maxfail:
            self.opened.services.cancel(f"the session stops after {maxfail} failed test{'s' * (maxfail > 1)}")

    def _escape(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self.setup is not None:  # Reports of sessions without suites stay unchanged.
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            escape_report(report, colours=terminal is not None and bool(terminal._tw.hasmarkup))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Gives excused failures a letter and a word of their own in pytest's output.

        They are failures in quarantined scenarios, and scores below a threshold that the gate compares with a baseline.
        """
        if hasattr(report, QUARANTINED):
            return "quarantined", "q", ("QUARANTINED", {"yellow": True})
        return ("below", "b", ("BELOW", {"yellow": True})) if hasattr(report, BELOW) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Reports the test that a crashed worker was running as an ERROR, because that test judged nothing. Called by xdist."""
        file = self.config.rootpath / report.location[0]
        if self.setup is not None and any(folder in file.parents for folder in self.setup.discovered.folders):
            mark_crash(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Runs pytest's test loop. If memory, threads or open files run out, waiting tests fail and the session ends with a usage error."""
        if self.opened is None:
            return (yield)
        try:
            with shortage_as_usage_error():
                return (yield)
        except pytest.UsageError as error:
            self.opened.services.fail(str(error))
            raise

    @pytest.hookimpl(wrapper=True, trylast=True)  # Runs inside the terminal reporter's wrapper, which prints the results.
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Ends the services and reads the journal. With xdist a thread does this while the workers end, because both take a while."""
        if self.opened is None:
            return (yield)
        from pytest_agentbench.session.finish import Finish
        from pytest_agentbench.session.results import gather, test_outcomes

        self.finish = Finish(self.opened, self.outcomes, session)
        gathered: Callable[[], SessionFindings] = functools.partial(gather, self.opened, test_outcomes(self.opened, self.outcomes))
        with ExitStack() as threads:
            if self.workers:
                from concurrent.futures import ThreadPoolExecutor

                gathered = threads.enter_context(ThreadPoolExecutor(1, "agentbench-end")).submit(gathered).result
            try:
                return (yield)
            finally:
                self.finish.end(gathered)
                if is_reporter_replaced(self.config):
                    self.pytest_terminal_summary(pytest.TerminalReporter(self.config, sys.stdout))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.opened is None or self.finish is None:
            return
        if self.finish.discarded:
            for line in nothing_selected_lines(self.opened.setup, self.opened.directory):
                terminalreporter.write_line(one_line(line), yellow=True)
        if count := self.opened.services.leftovers:
            terminalreporter.write_line(f"agentbench: ended {count} process{'es' * (count > 1)} that agents left running", yellow=True)
        if self.finish.run is None:
            return
        from pytest_agentbench.reports.sections import document
        from pytest_agentbench.reports.terminal import write_run
        from pytest_agentbench.reports.view import RunView

        directory = self.opened.directory
        with self.opened.losses.step("the summary on the terminal is incomplete"):
            report = document(RunView(self.finish.run, directory, self.opened.setup.shown(directory)))
            width = terminalreporter._tw.fullwidth
            write_run(terminalreporter, report, self.config.get_verbosity(), width, self.finish.lines)

    def _close(self) -> None:
        """Writes the reports. The exit status is final only now: any plugin may have changed it after the tests."""
        from pytest_agentbench.session.finish import Finish

        assert self.opened is not None
        finish = self.finish or Finish(self.opened, self.outcomes, None)
        finish.close(sys.exception())


STACK = "it applies to stacks, and this backend is not a stack; leave it out"
GATE = "it applies to gates, and this session has no rule and no baseline; leave it out, or add --agentbench-gate"
POOL = "it applies to rollouts in the pool, and --agentbench-inline runs them in the tests; leave it out"

#: Option -> the context that it needs to have an effect.
CONTEXTS = {
    "keep-backend": STACK,
    "gpu-wait": STACK,
    "inconclusive": GATE,
    "verdict": GATE,
    **dict.fromkeys(("concurrency", "retries", "time-limit", "budget-rollout", "log-level"), POOL),
    **dict.fromkeys(("budget-connect", "budget-first-token", "budget-idle", "budget-call"), POOL),
}

READ_VARIABLES = f"known variables: {', '.join(sorted(options.READ))}; set options on the command line or in the ini file"


class Mistakes:
    """A pytest plugin in the controller that warns about options and environment variables without effect.

    It also sets the exit status of a usage error if the only errors are suites that cannot be loaded.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._interrupted = False  # Whether the user or pytest.exit ended the session

    @pytest.hookimpl(trylast=True)  # The controller has chosen backend and gate by then.
    def pytest_sessionstart(self) -> None:
        setup = self._controller.setup
        if setup is not None:
            # A suite that cannot be loaded may name any variable as a key, so nothing can be called unread.
            broken = setup.discovered.broken
            for name in () if broken else options.unread(os.environ, setup.secret_names):
                advise(setup.config, f"the environment variable {name} is set, but agentbench does not read it; {READ_VARIABLES}")
            present = [name for name in CONTEXTS if setup.config.getoption(f"agentbench_{name.replace('-', '_')}", None) is not None]
            absent = {
                STACK: not setup.backend.waits,
                GATE: setup.gate is None,
                POOL: setup.settings.inline,
            }
            for name in present:
                if absent[CONTEXTS[name]]:
                    advise(setup.config, f"--agentbench-{name} has no effect: {CONTEXTS[name]}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        file = self._controller.config.rootpath / report.nodeid.partition("::")[0]
        setup = self._controller.setup
        wrong = setup.discovered.broken if setup else []
        self._controller.outcomes.wrong_files += report.failed and any(folder in file.parents for folder in wrong)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest raises Session.Interrupted itself after a collection error.
        self._interrupted = not issubclass(excinfo.type, pytest.Session.Interrupted)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sets the exit status of a usage error if nothing ran and every failure is a suite that cannot be loaded.

        If rollouts ran, `gate/exit_status` decides instead.
        """
        only_wrong_files = 0 < self._controller.outcomes.wrong_files == session.testsfailed
        opened = self._controller.opened
        ran = opened is not None and opened.recorder.planned_keys > 0
        if only_wrong_files and not self._interrupted and not ran and session.exitstatus in (FAILED, INTERRUPTED):
            session.exitstatus = USAGE_ERROR
