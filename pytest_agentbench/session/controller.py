"""The controller's role: it owns the backend, the tap, the pool, the journal, the limits, the reports and the exit status."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.lib.loading import search_path
from pytest_agentbench.lib.losses import Losses
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import first_of
from pytest_agentbench.session.causes import Causes, mark_crash
from pytest_agentbench.session.discovery import Found, find, in_arms, merged_thresholds, not_named, suite_folders, with_sound_code
from pytest_agentbench.session.outcomes import Outcomes
from pytest_agentbench.session.refusals import meant_elsewhere, refuse_distant, refuse_marks, refuse_misspelt_hooks, refuse_twins
from pytest_agentbench.session.settings import DEFAULT_CONCURRENCY, RERUNS_READ, Settings, advise, reruns_asked_for
from pytest_agentbench.session.shown import Commands, escape_report
from pytest_agentbench.session.worker import BELOW, OVER, QUARANTINED, UNMEASURED
from pytest_agentbench.session.worker_count import readers, sentence
from pytest_agentbench.suites.arms import CARRY, Side

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.runs.contents import Environment, Run
    from pytest_agentbench.runs.sessions import Session
    from pytest_agentbench.session.gate import Gate
    from pytest_agentbench.session.processes import Services
    from pytest_agentbench.session.recorder import Ledger
    from pytest_agentbench.session.summary import Gathered

#: Options with which pytest only looks at tests: nothing boots.
LOOKING = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")


class Controller:
    """A pytest plugin: one per session, in the process that the user started."""

    def __init__(self, config: pytest.Config, settings: Settings, workers: Sequence[str]) -> None:
        self.config, self.settings, self.workers = config, settings, workers
        self.readers = workers  # those of them that start
        self.concurrency = settings.concurrency or len(workers) or DEFAULT_CONCURRENCY
        self.found: list[Found] = []
        self.backend: Backend | None = None
        self.services: Services | None = None
        self.ledger: Ledger | None = None
        self.directory: Path | None = None
        self.session = 1  # which of the run's sessions this is
        self.sessions: list[Session] = []  # of the run, this one last
        self.run: Run | None = None  # once the session is over
        self.over: pytest.Session | None = None  # pytest's session, when its tests are over
        self.gate: Gate | None = None
        self.failed_tests = 0
        self.unmeasured_tests = 0  # of the failed ones, those that had nothing to judge
        self.tests_below = 0  # a threshold, where the gate decides
        self.cut_short = False  # the session ends because nothing more can run
        self.causes = Causes()
        self.outcomes = Outcomes(config.rootpath)
        self.commands = Commands()
        self.started_at = datetime.now().astimezone()
        self.environment: Future[Environment] | None = None  # what this session runs on

    # -------------------------------------------------------------------------------------------------- start

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        self.find_suites()
        if not self.found:
            return
        refuse_distant(self.workers)
        self._choose_readers()
        refuse_misspelt_hooks(self.config)
        if reruns_asked_for(self.config):
            advise(self.config, RERUNS_READ)
        self._choose_backend()
        self._make_gate()
        if any(found.suite for found in self.found) and not any(getattr(self.config.option, name, False) for name in LOOKING):
            self._boot()

    def _choose_readers(self) -> None:
        """Xdist makes its workers when this hook's other implementations have run."""
        self.readers = readers(self.config, self.found, self.workers, self.settings.workers)
        if self.readers != self.workers:
            self.config.option.tx = self.readers

    def find_suites(self) -> None:
        """Loads the suites that the command line leads to, and registers their markers."""
        folders = suite_folders(self.config.args, self.config.rootpath, self.config.getini("norecursedirs"))
        taken = meant_elsewhere(self.config)
        self.found = [refuse_marks(each, taken) for each in with_sound_code([*map(self._find, folders)])]
        refuse_twins(self.found)
        for found in (each for each in self.found if each.marks):
            self.config.addinivalue_line("markers", f"{found.name}: tests of the agentbench suite in {found.folder.name}/")

    def _find(self, folder: Path) -> Found:
        settings = self.settings
        if why := not_named(folder, self.config.args, self.config.getoption("markexpr", "")):
            return Found(folder, None, {}, (), 1, why, skip=True)
        changes, insists = settings.suite_changes, settings.insists
        found = in_arms(find(folder, changes, settings.variants, settings.trials, settings.agent, insists=insists), settings.ab)
        if found.skip:
            advise(self.config, found.error)
        return found

    def _choose_backend(self) -> None:
        settings = self.settings
        try:
            self.backend = self._make_backend()
            limits = self.backend.thresholds
            self.found = [
                dataclasses.replace(each, thresholds=merged_thresholds(each, limits, settings.thresholds)) if each.suite else each
                for each in self.found
            ]
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from error

    def _make_gate(self) -> None:
        from pytest_agentbench.session.gate import make_gate

        try:
            self.gate = make_gate(self.found, self.settings)
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from error

    def _make_backend(self) -> Backend:
        """The backend under test, or two of them under one roof."""

        def make(name: str) -> Backend:
            backend: Backend = self.config.hook.pytest_agentbench_make_backend(config=self.config, name=name)
            return backend

        arms = {arm.name: functools.partial(make, arm.value) for arm in self.settings.ab if arm.kind == "backend"}
        if not arms:
            return make(self.settings.backend)
        from pytest_agentbench.backends.ab import Arms

        return Arms(arms)

    @property
    def identity(self) -> Json:
        """The backend's, and how its cache is made ready."""
        assert self.backend is not None
        policy = self.settings.cache
        return {**self.backend.identity, **({} if policy == CARRY else {"prefix_cache": policy})}

    @pytest.hookimpl(trylast=True)
    def pytest_agentbench_make_backend(self, name: str) -> Backend:
        """The built-in implementation: a backend.yaml or a URL."""
        from pytest_agentbench.backends.common_spec import Terms
        from pytest_agentbench.backends.spec import load_backend

        settings = self.settings
        spec = load_backend(name, self.config.rootpath, settings.backend_changes)
        return spec.make(Terms(settings.keep_backend, settings.gpu_wait, self.concurrency))

    def _boot(self) -> None:
        from pytest_agentbench.lib.file_limits import check_limit
        from pytest_agentbench.lib.redact import Redactor, named_secrets
        from pytest_agentbench.runs.sessions import folder_of
        from pytest_agentbench.session.block_turns import Turns
        from pytest_agentbench.session.processes import Services
        from pytest_agentbench.session.rounds import make_rounds
        from pytest_agentbench.session.start import open_run
        from pytest_agentbench.suites.disclosure import public_of

        assert self.backend is not None
        suites = [(each.suite.agent, each.suite.variants, each.suite.judge, each.suite.scorers) for each in self.found if each.suite]
        public = public_of(each.suite for each in self.found if each.suite)
        self.redactor = Redactor({*named_secrets((self.backend.description, suites))}, public)
        self.losses = Losses(self.redactor.plain)
        try:
            check_limit(self.concurrency)
            rounds = make_rounds(self)
            opened = open_run(self)
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from error
        except OSError as error:
            why = f"reports cannot be written to {self.settings.reports}: {error.strerror}; see --agentbench-reports"
            raise pytest.UsageError(why) from error
        self.directory, self.ledger, self.sessions = opened
        self.session = self.sessions[-1].number
        self._look_around()
        folder = folder_of(self.directory, self.session)
        turns = Turns(self.backend, self.settings.cache) if self._in_blocks else None
        configs = self._pool_config(), self._tap_config()
        self.services = Services(self.backend, folder, *configs, self.ledger, self.redactor, turns, rounds, insists=self._insists)
        self.config.add_cleanup(self.close)  # comes whatever fails before, unlike any hook

    def _look_around(self) -> None:
        """Begins to find out what the session runs on: the code as it is now, not as it is when the session ends."""
        from concurrent.futures import ThreadPoolExecutor

        from pytest_agentbench.runs.tally import environment

        looking = ThreadPoolExecutor(1, "agentbench-environment")
        self.environment = looking.submit(environment, self.config.rootpath)
        looking.shutdown(wait=False)

    @property
    def model_warnings(self) -> list[str]:
        """A sentence for each model that a suite asks for and the backend, which has started, does not list."""
        from pytest_agentbench.records import RolloutKey
        from pytest_agentbench.suites.models import unlisted

        agents = {RolloutKey(each.name, "", variant).group: each.suite.agent_of(variant)
                  for each in self.found if each.suite for variant in each.variants}  # fmt: skip
        asked = {group: str(agent["model"]) for group, agent in agents.items() if agent.get("model")}
        return unlisted(asked, self.backend.models if self.backend else ())

    @property
    def command(self) -> tuple[str, ...]:
        return ("pytest", *map(str, self.config.invocation_params.args))

    @property
    def _insists(self) -> bool:
        """Whether somebody asked for this backend, or for a verdict: then a test that cannot run is an ERROR, no SKIP."""
        chosen = self.config.getoption("agentbench_backend", None) is not None or bool(self.settings.ab)
        return chosen or self.settings.insists

    def _pool_config(self) -> Json:
        from pytest_agentbench.session.recorder import known_durations
        from pytest_agentbench.suites.hashes import digest

        assert self.directory is not None and self.backend is not None and self.ledger is not None
        return {
            "session": self.session,
            "turns": self._turns_config() if self._in_blocks else None,
            "backend": digest(self.identity),
            "suites": {found.suite.name: found.suite.to_wire() for found in self.found if found.suite},
            "sys_path": search_path(),
            "run": f"{self.directory.name}-{secrets.token_hex(2)}",  # two sessions may begin in the same second
            "time_limit": self.settings.time_limit,
            "budget": self.settings.budgets["rollout"],
            "patience": self.settings.budgets["connect"],
            "scheduling": {
                "concurrency": self.concurrency,
                "retries": self.settings.retries,
                "keep_order": bool(self.config.getoption("maxfail", 0)),
                "durations": known_durations(self.settings.reports, self.settings.backend),
            },
        }

    @property
    def _in_blocks(self) -> bool:
        return bool(self.settings.ab) or self.settings.cache != CARRY

    def _turns_config(self) -> Json:
        """Variants of a session without arms are all of one, which has no name."""
        assert self.backend is not None
        sides = {name: found.sides.get(name, Side(name, "")) for found in self.found for name in found.variants}
        return {"sides": sides, "policy": self.settings.cache, "in_sequence": self.backend.in_sequence}

    def _tap_config(self) -> Json:
        calls = {name: seconds for name, seconds in self.settings.budgets.items() if name != "rollout"}
        return {"processes": self.settings.taps, "budgets": {} if self.settings.inline else calls}

    @property
    def worker_input(self) -> Json:
        """What a test process has to know."""
        return {
            "suites": {str(each.folder): each.for_worker() for each in self.found},
            "limit": self.settings.limit,
            "gated": sorted(self.gate.compared) if self.gate else [],
            "port": self.services.port if self.services else None,
            "token": self.services.token if self.services else "",
            "inline": self.settings.inline,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Called by xdist for each worker that it is about to start."""
        node.workerinput["agentbench"] = json.dumps(self.worker_input)

    # -------------------------------------------------------------------------------------------------- while it runs

    def redacted(self, text: str) -> str:
        redacted = self.redactor(text)
        hooked: str | None = self.config.hook.pytest_agentbench_redact(text=redacted)
        return redacted if hooked is None else hooked

    def tell_hooks(self, line: bytes) -> None:
        if self.config.hook.pytest_agentbench_rollout_finished.get_hookimpls():
            self.config.hook.pytest_agentbench_rollout_finished(rollout=Rollout.from_json(line))

    @pytest.hookimpl(tryfirst=True)  # before anybody shows it
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._escape(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Under -x and --maxfail the session ends here, and tests that still wait are answered at once."""
        self.causes.shorten(report)
        self.outcomes.add(report)
        self.causes.summarize(report)
        self.cut_short = self.cut_short or hasattr(report, OVER)
        self._escape(report)
        maxfail = self.config.getoption("maxfail", 0)
        self.tests_below += hasattr(report, BELOW)
        self.unmeasured_tests += hasattr(report, UNMEASURED)
        if report.failed and maxfail and self.services:
            self.failed_tests += 1
            if self.failed_tests == maxfail:
                self.services.cancel(f"the session stops after {maxfail} failed test{'s' * (maxfail > 1)}")

    def _escape(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self.found:  # a session without suites is none of ours
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            escape_report(report, colours=terminal is not None and bool(terminal._tw.hasmarkup))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """A scenario below its threshold has a letter of its own where the gate decides, and one in quarantine."""
        if hasattr(report, QUARANTINED):
            return "quarantined", "q", ("QUARANTINED", {"yellow": True})
        return ("below", "b", ("BELOW", {"yellow": True})) if hasattr(report, BELOW) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Called by xdist for the test that a worker ran when it died: nothing was judged, which is an ERROR."""
        file = self.config.rootpath / report.location[0]
        if any(each.folder in file.parents for each in self.found):
            mark_crash(report)

    # -------------------------------------------------------------------------------------------------- the end

    @pytest.hookimpl(wrapper=True, trylast=True)  # within the terminal's, which prints what is found here
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Ends the services and reads the journal, while xdist ends its workers where there are some: both take a while."""
        if self.services is None:
            return (yield)
        from pytest_agentbench.session.finish import end
        from pytest_agentbench.session.summary import gather

        self.over = session
        gathered: Callable[[], Gathered] = functools.partial(gather, self)
        with ExitStack() as threads:
            if self.workers:
                from concurrent.futures import ThreadPoolExecutor

                gathered = threads.enter_context(ThreadPoolExecutor(1, "agentbench-end")).submit(gather, self).result
            try:
                return (yield)
            finally:
                end(self, session, gathered)

    def close(self) -> None:
        """Only now is it known how the session ends: any plugin may have changed the exit status when the tests were over."""
        from pytest_agentbench.session.finish import close

        close(self, sys.exception())

    def pytest_report_header(self) -> str | None:
        if self.backend is None:
            return None
        suites = ", ".join(f"{each.name} ({len(each.suite.scenarios)} scenarios)" for each in self.found if each.suite)
        note = f" - {self.backend.note}" if self.backend.note else ""
        lines = [f"agentbench: backend {self.backend.name}{note}", f"agentbench: suites {suites or 'none that can be loaded'}"]
        if self.directory:
            lines.append(f"agentbench: {self.concurrency} rollouts in flight, run directory {self._shown(self.directory)}")
            lines += [f"agentbench: {advice}" for advice in self.redactor.advice]
        if len(self.readers) < len(self.workers) and self.settings.workers is None:
            lines.append(f"agentbench: {sentence(self.workers, self.readers)}")
        if self.gate:
            lines += [f"agentbench: {doubt}" for doubt in self.gate.warnings(self.found, self.settings.limit, self.settings.rounds)]
        if self.session > 1 and self.ledger:
            stored, index = self.ledger.stored, self.ledger.journal.index
            cut = f"; a record of {index.torn:,} bytes was torn by a kill, and is cut off" if index.torn else ""
            kept = f"{len(stored.kept)} rollouts are kept, {len(stored.again)} failed and run again when a test wants them"
            lines.append(f"agentbench: session {self.session} of this run: {kept}{cut}")
            lines += [f"agentbench: {sentence}" for sentence in first_of(index.damaged)]
        return "\n".join(map(one_line, lines))

    def _shown(self, path: Path) -> str:
        """A path as the user can open it from where pytest was started."""
        return os.path.relpath(path, self.config.invocation_params.dir) if path.is_relative_to(self.config.rootpath) else str(path)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.run is not None and self.directory is not None:
            from pytest_agentbench.reports.terminal import OneLine, write_section

            with self.losses.step("the summary on the terminal is not whole"):
                shown, width = self._shown(self.directory), terminalreporter._tw.fullwidth
                write_section(OneLine(terminalreporter), self.run, self.directory, shown, self.config.get_verbosity(), width)
