"""The worker: creates tests from scenarios, sends the plan of selected rollouts to the pool, and waits for the rollout of each test.

It reads no YAML and no data set, and imports neither asyncio nor an HTTP library.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, assert_never

import pytest

from pytest_agentbench.errors import InfraError, MissingError, RolloutFailed, ScorerFailed
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.foreign import Sizes, one_line
from pytest_agentbench.records import Rollout, RolloutKey, Scale, Score
from pytest_agentbench.reports.failure_section import brief, properties, rollout_section
from pytest_agentbench.rollouts.questions_of_tests import (
    GetRollout,
    PlanSelected,
    RecordedRollout,
    UnavailableSuite,
    UnrecordedRollout,
    WorkerInput,
    WorkerSuite,
)
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.session.discovery import first_scenarios
from pytest_agentbench.session.pool_connection import PoolConnection, PoolLost
from pytest_agentbench.session.pytest_reports import APPLIED, BELOW, CAUSE, IN_QUARANTINE, JUDGED, OVER, QUARANTINED, UNMEASURED
from pytest_agentbench.session.rollout_tests import (
    KEY,
    ROLLOUT,
    TROUBLE,
    Unmeasured,
    excuse,
    has_key,
    is_left_to_gate,
    is_skipped,
    reads_thresholds,
    refuse,
    rollout_key,
    suite_keys,
    wants_rollout,
)
from pytest_agentbench.suites.suite import is_task_directory

if TYPE_CHECKING:
    from pytest_agentbench.session.open_session import OpenSession


PytestReport = pytest.TestReport

UNJUDGED = ("infra_error", "cancelled")  # Statuses of rollouts that a test cannot judge


class InlineController(Protocol):
    """The part of the controller that a worker in the same process uses."""

    @property
    def worker_input(self) -> WorkerInput: ...

    @property
    def opened(self) -> OpenSession | None:
        """The open session, or None if no rollouts run."""


class Worker:
    """The pytest plugin in each process that runs tests. Without xdist this is the process of the controller.

    1. Collection: `pytest_generate_tests` parametrizes tests with the rollouts of their suite.
    2. `pytest_runtestloop` sends the keys of all selected rollouts to the pool, in the order of the tests.
    3. `pytest_runtest_protocol` waits for a test's rollout before the test starts. The test reads it through the `rollout` fixture.

    With --agentbench-inline there is no waiting: the rollout runs in the fixture.
    """

    def __init__(self, config: pytest.Config, source: InlineController | WorkerInput) -> None:
        self.config, self._source = config, source
        self._stop_reason = ""  # Reason why no later test of this session can have anything to judge
        self._faults: dict[str, str] = {}  # reason why a suite cannot run -> test file whose collection error has it
        if isinstance(source, WorkerInput):
            for suite in (each for each in self.suites.values() if each.marks):
                config.addinivalue_line("markers", f"{suite.name}: tests of an agentbench suite")

    @cached_property
    def input(self) -> WorkerInput:
        """The input from the controller. In the controller's own process it is available after the session has started."""
        return self._source if isinstance(self._source, WorkerInput) else self._source.worker_input

    @cached_property
    def suites(self) -> Mapping[str, WorkerSuite | UnavailableSuite]:
        return self.input.every_suite

    @cached_property
    def pool(self) -> PoolConnection:
        """The connection to the pool. If there is no pool, reading it fails the test."""
        if self.input.pool is None:
            pytest.fail("no backend was started: no suite of this session can be loaded; see the collection errors", pytrace=False)
        return PoolConnection(self.input.pool, self._failure)

    def suite_of(self, path: Path) -> WorkerSuite | UnavailableSuite | None:
        """Returns the suite whose folder contains a file, or None."""
        return next((self.suites[str(folder)] for folder in path.parents if str(folder) in self.suites), None)

    def pytest_sessionstart(self) -> None:
        """Keeps the garbage collector of a worker process from examining the objects that exist now (`gc.freeze`).

        The controller does the same after it has opened its session.
        """
        if isinstance(self._source, WorkerInput) and self.suites:
            gc.freeze()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if KEY not in metafunc.fixturenames:
            return
        suite = self.suite_of(metafunc.definition.path)
        if suite is None:  # A fixture of another project has this name.
            return
        reason = self._skip_reason(suite, metafunc.definition.path)
        if reason or isinstance(suite, UnavailableSuite):
            key = RolloutKey(suite.name, "not_run")
            metafunc.parametrize(KEY, [pytest.param(key, marks=pytest.mark.skip(reason))], indirect=True, ids=[key.id])
            return
        keys = suite_keys(suite)
        marks = {scenario: (pytest.mark.skip(reason),) for scenario, reason in suite.unsupported.items()}
        parameters = [pytest.param(key, marks=marks.get(key.scenario, ())) for key in keys]
        metafunc.parametrize(KEY, parameters, indirect=True, ids=[one_line(key.id) for key in keys])

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignores test files in the folders of tasks. They belong to the task's verifier, which runs in the sandbox."""
        return True if is_task_directory(collection_path) and self.suite_of(collection_path) is not None else None

    def _skip_reason(self, suite: WorkerSuite | UnavailableSuite, test_file: Path) -> str:
        """Returns why the tests of a file are skipped, or an empty text if they run.

        If a suite cannot run, its first file gets the reason as a collection error, and the others are skipped with a reference to it.
        """
        if isinstance(suite, UnavailableSuite) and suite.skip:
            return suite.reason
        fault = suite.reason if isinstance(suite, UnavailableSuite) else self._misplaced_hook(test_file)
        if not fault:
            return ""
        if fault in self._faults:
            return f"the suite {suite.name} cannot run: see the error of {self._faults[fault]}"
        self._faults[fault] = test_file.name
        raise pytest.Collector.CollectError(fault)

    def _misplaced_hook(self, test_file: Path) -> str:
        """Returns an error if a conftest.py below the rootdir implements a hook of this package, or an empty text.

        The controller may not load such a file, and would then never call the hook.
        """
        for plugin in self.config.pluginmanager.get_plugins():
            conftest = Path(getattr(plugin, "__file__", None) or "")
            hooks = [name for name in dir(plugin) if name.startswith("pytest_agentbench_")] if conftest.name == "conftest.py" else []
            if hooks and conftest.parent in test_file.parents and not self.config.rootpath.is_relative_to(conftest.parent):
                place = self.config.rootpath / "conftest.py"
                return f"{conftest}: {hooks[0]} runs in the controller, which may not load this file; move it to {place}"
        return ""

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Marks the tests of a suite with its name, once for each file."""
        if isinstance(collector, pytest.File) and (suite := self.suite_of(collector.path)) is not None and suite.marks:
            collector.add_marker(suite.name)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # Runs after all other plugins have deselected tests, --lf and --sw included.
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Applies --agentbench-scenarios and --agentbench-limit to the tests that are still selected.

        All workers of a session select the same tests.
        """
        result = yield
        if self.input.scenarios:
            only = {*self.input.scenarios}
            self._deselect([item for item in items if has_key(item) and rollout_key(item).scenario not in only], items)
        if self.input.limit is not None:
            keys = {item: rollout_key(item) for item in items if has_key(item)}
            ids = {suite.name: suite.info.ids if isinstance(suite, WorkerSuite) else () for suite in self.suites.values()}
            first = first_scenarios(keys.values(), ids, self.input.limit)
            self._deselect([item for item, key in keys.items() if (key.group, key.scenario) not in first], items)
        return result

    def _deselect(self, deselected: list[pytest.Item], items: list[pytest.Item]) -> None:
        """Removes tests from `items`, and reports them to pytest as deselected."""
        if deselected:
            self.config.hook.pytest_deselected(items=deselected)
            left_out = set(deselected)
            items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Sends the keys of the selected rollouts to the pool, in the order of the tests."""
        if self.input.pool is None or (session.testsfailed and not self.config.getoption("continue_on_collection_errors")):
            return  # In the second case pytest is about to stop because some files could not be collected.
        items = [item for item in session.items if wants_rollout(item)]
        selected: dict[str, int] = {}
        for item in items:
            selected[rollout_key(item).group] = selected.get(rollout_key(item).group, 0) + 1
        if selected:
            self._plan([rollout_key(item) for item in items if not is_skipped(item)], selected)

    def _plan(self, keys: list[RolloutKey], selected: dict[str, int]) -> None:
        if self.input.inline:  # The pool does not run these rollouts, so they are counted here.
            recorder = self._opened_here().recorder
            recorder.planned(len(set(keys)), len(recorder.stored.kept.keys() & set(keys)), selected)
        else:
            with suppress(InfraError):  # The tests get the reason when they request their rollouts.
                self.pool.ask(PlanSelected(tuple(keys), selected))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Waits for the rollout before the test starts, so that the wait counts neither as test time nor for the test's timeout."""
        if wants_rollout(item) and not is_skipped(item) and self.input.pool and not self.input.inline:
            self._wait(item)
            self._stop_early(item)
        try:
            return (yield)
        finally:
            if ROLLOUT in item.stash:
                del item.stash[ROLLOUT]  # Free memory: pytest keeps every item until the end of the session.

    def rollout(self, item: pytest.Item) -> Rollout:
        """Returns the rollout of a test. Ends the test as an ERROR or a SKIP if there is nothing to judge."""
        if ROLLOUT not in item.stash and TROUBLE not in item.stash:
            (self._run_here if self.input.inline else self._wait)(item)
        if TROUBLE in item.stash:
            refuse(*item.stash[TROUBLE], str(rollout_key(item)))
        return item.stash[ROLLOUT]

    def _run_here(self, item: pytest.Item) -> None:
        """Runs the rollout of a test in this process, and stores it, and the reason if there is nothing to judge, in the item's stash."""
        from pytest_agentbench.session.inline import run_inline

        opened = self._opened_here()
        try:
            sizes = codec.read(Sizes, opened.setup.settings.sizes)
            rollout = run_inline(item, self.pool, opened.recorder, opened.setup.suites, rollout_key(item), sizes)
            self._keep(item, rollout, rollout.reason)
        except MissingError as error:
            item.stash[TROUBLE] = str(error), "missing"
        except InfraError as error:
            item.stash[TROUBLE] = str(error), "infra_error"

    def _wait(self, item: pytest.Item) -> None:
        """Waits until the pool has run the rollout of a test, and stores it, or the reason why there is none, in the item's stash."""
        try:
            answer, line = self.pool.ask(GetRollout(rollout_key(item)))
        except InfraError as error:
            item.stash[TROUBLE] = str(error), "infra_error"
            self._stop_reason = one_line(brief(str(error))) if isinstance(error, PoolLost) else self._stop_reason
            return
        match answer:
            case RecordedRollout():
                reason = self._read(item, line, answer.shared_cause)
            case UnrecordedRollout(status, reason):
                item.stash[TROUBLE] = reason, status
            case _:
                assert_never(answer)
        if answer.over:
            self._stop_reason = one_line(brief(answer.shared_cause or reason))

    def _read(self, item: pytest.Item, line: bytes, shared_cause: str | None) -> str:
        """Parses a line of the journal and stashes its rollout. Returns the reason of its status, or why the line cannot be read."""
        try:
            rollout = rollout_of(line)
        except ValueError as error:
            reason = f"the record of {rollout_key(item)} cannot be read: {error}"
            item.stash[TROUBLE] = reason, "infra_error"
            return reason
        self._keep(item, rollout, shared_cause or rollout.reason)
        return rollout.reason

    def _keep(self, item: pytest.Item, rollout: Rollout, cause: str) -> None:
        item.stash[ROLLOUT] = rollout
        if rollout.status in UNJUDGED:
            item.stash[TROUBLE] = cause, rollout.status

    def _stop_early(self, item: pytest.Item) -> None:
        """Ends the session after this test if nothing more can run. If any test of the session reads no rollout, all tests run."""
        if self._stop_reason and all(map(wants_rollout, item.session.items)):
            item.session.shouldfail = f"agentbench: nothing more can run: {self._stop_reason}"

    def _opened_here(self) -> OpenSession:
        """Returns the open session of an inline run, which is in this process."""
        assert not isinstance(self._source, WorkerInput)
        assert self._source.opened is not None
        return self._source.opened

    def _failure(self) -> str:
        """Returns why the session's services have failed, if they run in this process."""
        opened = None if isinstance(self._source, WorkerInput) else self._source.opened
        return opened.services.failure if opened else ""

    def _scales(self, rollout: Rollout) -> Mapping[str, Scale]:
        """Returns the scale of each score of a rollout."""
        return next((each.scales for each in self.input.suites.values() if each.name == rollout.suite), {})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, PytestReport, PytestReport]:
        report = yield
        rollout = item.stash.get(ROLLOUT, None)
        error = call.excinfo.value if report.failed and call.excinfo is not None else None
        if isinstance(error, (Unmeasured, ScorerFailed)):
            report.when = "setup"  # Nothing was judged. pytest, JUnit and other tools show a failed setup as an ERROR.
            setattr(report, UNMEASURED, True)
        if isinstance(error, (Unmeasured, ScorerFailed, RolloutFailed)):
            setattr(report, CAUSE, [error.outcome, error.cause])
        if rollout is not None and call.when == "call":
            report.duration += rollout.duration_s
        if call.when != "setup" or report.failed:  # JUnit reads the properties from the teardown, other tools from the failure.
            trouble = item.stash.get(TROUBLE, None)
            report.user_properties.extend(
                properties(rollout, self._scales(rollout)) if rollout else [("status", trouble[1])] if trouble else []
            )
        if rollout is not None and report.failed:
            report.sections.append((f"agentbench {rollout.key}", rollout_section(rollout)))
        if report.failed and wants_rollout(item):
            setattr(report, JUDGED, str(rollout_key(item)))
        if self._stop_reason and item.session.shouldfail:
            setattr(report, OVER, True)
        quarantined = self._quarantined(item)
        if quarantined and (call.when == "call" or (call.when == "setup" and report.failed)):
            setattr(report, IN_QUARANTINE, [rollout_key(item).group, rollout_key(item).scenario])
        if report.when == "call" and reads_thresholds(item):
            self._judge(item, report, error, quarantined)
        return report

    def _judge(self, item: pytest.Item, report: PytestReport, error: BaseException | None, quarantined: str) -> None:
        """Marks the report of a test that compared a score with a threshold.

        A failure is excused if the scenario is in quarantine, or if the gate compares the score with a baseline.
        """
        if not quarantined:
            setattr(report, APPLIED, rollout_key(item).group)
        if isinstance(error, AssertionError):
            if quarantined:
                excuse(report, QUARANTINED, quarantined, error)
            elif self._is_left_to_gate(item, error):
                excuse(report, BELOW, "below its threshold, the gate decides", error)

    def _is_left_to_gate(self, item: pytest.Item, error: AssertionError) -> bool:
        """Returns whether a failed test is about scores that the gate compares with a baseline."""
        rollout, compared = item.stash.get(ROLLOUT, None), self.input.gated.get(rollout_key(item).group, ())
        return rollout is not None and is_left_to_gate(item, error, rollout, self._scales(rollout), compared)

    def _quarantined(self, item: pytest.Item) -> str:
        """Returns owner, reason and last day of the quarantine of the scenario whose rollout a test reads, or an empty text without one."""
        suite = self.suite_of(item.path) if wants_rollout(item) else None
        return suite.info.quarantined.get(rollout_key(item).scenario, "") if isinstance(suite, WorkerSuite) else ""

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """Adds the score's explanation to the failure of `assert rollout.score("tsq") >= 0.5`."""
        for score in (left, right):
            if isinstance(score, Score) and score.explanation:
                return [f"{left!r} {op} {right!r}", one_line(score.explanation)]
        return None

    def pytest_sessionfinish(self) -> None:
        if "pool" in vars(self):  # The connection was used.
            self.pool.close()
