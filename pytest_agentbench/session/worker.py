"""The worker's role: it makes tests of scenarios, sends the plan of selected rollouts, and waits for them on a test's behalf.

It reads no YAML and no data set, and imports no asyncio and no HTTP library.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, assert_never

import pytest

from pytest_agentbench.errors import InfraError, MissingError, ScorerFailed
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.foreign import Sizes, one_line
from pytest_agentbench.records import Rollout, RolloutKey, Score
from pytest_agentbench.reports.failure_section import brief, properties, rollout_section
from pytest_agentbench.rollouts.worker_protocol import (
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
from pytest_agentbench.session.pytest_reports import APPLIED, BELOW, IN_QUARANTINE, OVER, QUARANTINED, UNMEASURED
from pytest_agentbench.suites.suite import is_task_directory

if TYPE_CHECKING:
    from pytest_agentbench.session.open_session import OpenSession

KEY = "_rollout_key"  # the fixture that parametrizes a test with rollouts

PytestReport = pytest.TestReport

UNJUDGED = ("infra_error", "cancelled")  # statuses of rollouts that a test cannot judge

ROLLOUT = pytest.StashKey[Rollout]()
TROUBLE = pytest.StashKey[tuple[str, str]]()  # why there is nothing to judge, and the status


class Unmeasured(pytest.fail.Exception):  # type: ignore[name-defined, misc]  # pytest declares it as a variable
    """Ends a test as an ERROR: there is nothing to judge. Tests that fail for one reason have the same `cause`."""

    def __init__(self, cause: str, outcome: str = "") -> None:
        """`outcome` says what became of which rollout."""
        super().__init__(f"{outcome}: {cause}" if outcome else cause, pytrace=False)
        self.cause, self.outcome = cause, outcome


Unmeasured.__module__ = "builtins"  # as those of pytest have it, so that summaries name it without its place


class InlineController(Protocol):
    """The controller, where tests run in its own process."""

    @property
    def worker_input(self) -> WorkerInput: ...

    @property
    def opened(self) -> OpenSession | None:
        """The session, where it runs rollouts."""


class Worker:
    """A pytest plugin: one in each process that runs tests."""

    def __init__(self, config: pytest.Config, source: InlineController | WorkerInput) -> None:
        self.config, self._source = config, source
        self._stop_reason = ""  # why no test of this session will have anything to judge any more
        self._faults: dict[str, str] = {}  # why a suite cannot run -> the test file whose collection error says so
        if isinstance(source, WorkerInput):
            for suite in (each for each in self.suites.values() if each.marks):
                config.addinivalue_line("markers", f"{suite.name}: tests of an agentbench suite")

    @cached_property
    def input(self) -> WorkerInput:
        """What the controller says; in its own process it is asked when the session has started."""
        return self._source if isinstance(self._source, WorkerInput) else self._source.worker_input

    @cached_property
    def suites(self) -> Mapping[str, WorkerSuite | UnavailableSuite]:
        """Folder -> suite."""
        return self.input.every_suite

    @cached_property
    def pool(self) -> PoolConnection:
        """The connection to the pool. Without a pool it fails the test that asks."""
        if self.input.pool is None:
            pytest.fail("no backend was started: no suite of this session can be loaded", pytrace=False)
        return PoolConnection(self.input.pool, self._failure)

    def suite_of(self, path: Path) -> WorkerSuite | UnavailableSuite | None:
        """The suite whose folder a file lies in."""
        return next((self.suites[str(folder)] for folder in path.parents if str(folder) in self.suites), None)

    def pytest_sessionstart(self) -> None:
        """A controller does the same when it has opened its session."""
        if isinstance(self._source, WorkerInput) and self.suites:
            gc.freeze()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if KEY not in metafunc.fixturenames:
            return
        suite = self.suite_of(metafunc.definition.path)
        if suite is None:  # somebody else's parameter has this name
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
        """Test files of a task are its verifier's, and run where it is carried out."""
        return True if is_task_directory(collection_path) and self.suite_of(collection_path) is not None else None

    def _skip_reason(self, suite: WorkerSuite | UnavailableSuite, test_file: Path) -> str:
        """Returns why the tests of a file are skipped, or an empty text if they run.

        Raises why a suite cannot run as the collection error of the first file that asks. The others are told where it stands.
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
        """A hook of ours in a conftest.py that the controller may never load is never called; this says where it belongs."""
        for plugin in self.config.pluginmanager.get_plugins():
            conftest = Path(getattr(plugin, "__file__", None) or "")
            hooks = [name for name in dir(plugin) if name.startswith("pytest_agentbench_")] if conftest.name == "conftest.py" else []
            if hooks and conftest.parent in test_file.parents and not self.config.rootpath.is_relative_to(conftest.parent):
                place = self.config.rootpath / "conftest.py"
                return f"{conftest}: {hooks[0]} runs in the controller, which need not load this file; move it to {place}"
        return ""

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """A suite's name marks its tests, once for all tests of a file."""
        if isinstance(collector, pytest.File) and (suite := self.suite_of(collector.path)) is not None and suite.marks:
            collector.add_marker(suite.name)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # when all others have selected, --lf and --sw included
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Takes the first scenarios of what is left; every test process of a session comes to the same ones."""
        result = yield
        if self.input.limit is not None:
            keys = {item: rollout_key(item) for item in items if has_key(item)}
            ids = {suite.name: suite.info.ids if isinstance(suite, WorkerSuite) else () for suite in self.suites.values()}
            first = first_scenarios(keys.values(), ids, self.input.limit)
            deselected = [item for item, key in keys.items() if (key.group, key.scenario) not in first]
            if deselected:
                self.config.hook.pytest_deselected(items=deselected)
                left_out = set(deselected)
                items[:] = [item for item in items if item not in left_out]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Tells the pool what is wanted, in the order of the tests."""
        if self.input.pool is None or (session.testsfailed and not self.config.getoption("continue_on_collection_errors")):
            return  # in the second case pytest is about to stop: some files could not be collected
        items = [item for item in session.items if wants_rollout(item)]
        selected: dict[str, int] = {}
        for item in items:
            selected[rollout_key(item).group] = selected.get(rollout_key(item).group, 0) + 1
        if selected:
            self._plan([rollout_key(item) for item in items if not is_skipped(item)], selected)

    def _plan(self, keys: list[RolloutKey], selected: dict[str, int]) -> None:
        if self.input.inline:  # the pool runs none of them, but they are counted as if it did
            recorder = self._opened_here().recorder
            recorder.planned(len(set(keys)), len(recorder.stored.kept.keys() & set(keys)), selected)
        else:
            with suppress(InfraError):  # the tests are told why when they ask for their rollouts
                self.pool.ask(PlanSelected(tuple(keys), selected))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Waits before the test begins, so that the wait is nobody's test time and no timeout of a test sees it."""
        if wants_rollout(item) and not is_skipped(item) and self.input.pool and not self.input.inline:
            self._wait(item)
            self._stop_early(item)
        try:
            return (yield)
        finally:
            if ROLLOUT in item.stash:
                del item.stash[ROLLOUT]  # pytest keeps every item to the end of the session

    def rollout(self, item: pytest.Item) -> Rollout:
        """The rollout of a test; ends the test as an ERROR when there is nothing to judge."""
        if ROLLOUT not in item.stash and TROUBLE not in item.stash:
            (self._run_here if self.input.inline else self._wait)(item)
        if TROUBLE in item.stash:
            refuse(*item.stash[TROUBLE], str(rollout_key(item)))
        return item.stash[ROLLOUT]

    def _run_here(self, item: pytest.Item) -> None:
        """Runs the rollout of a test in this process, and keeps it or why there is none."""
        from pytest_agentbench.session.inline import run_inline

        opened = self._opened_here()
        try:
            sizes = codec.read(Sizes, opened.setup.settings.sizes)
            rollout = run_inline(self.pool, opened.recorder, opened.setup.suites, rollout_key(item), sizes)
            self._keep(item, rollout, rollout.reason)
        except MissingError as error:
            item.stash[TROUBLE] = str(error), "missing"
        except InfraError as error:
            item.stash[TROUBLE] = str(error), "infra_error"

    def _wait(self, item: pytest.Item) -> None:
        """Waits until the pool has run the rollout of a test, and keeps it or why there is none."""
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
        """Keeps the rollout in a line of the journal; returns its reason."""
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
        """Ends the session with this test, where all that are left could only say the same; tests without a rollout are run."""
        if self._stop_reason and all(map(wants_rollout, item.session.items)):
            item.session.shouldfail = f"agentbench: nothing more can run: {self._stop_reason}"

    def _opened_here(self) -> OpenSession:
        """The session that runs rollouts in its tests: there are no other processes for them then."""
        assert not isinstance(self._source, WorkerInput)
        assert self._source.opened is not None
        return self._source.opened

    def _failure(self) -> str:
        """Returns why the session's services have failed, if they run in this process."""
        opened = None if isinstance(self._source, WorkerInput) else self._source.opened
        return opened.services.failure if opened else ""

    def _scales(self, rollout: Rollout) -> Mapping[str, str]:
        """Score of a rollout -> its scale in words."""
        return next((each.scales for each in self.input.suites.values() if each.name == rollout.suite), {})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, PytestReport, PytestReport]:
        report = yield
        rollout = item.stash.get(ROLLOUT, None)
        error = call.excinfo.value if report.failed and call.excinfo is not None else None
        if isinstance(error, (Unmeasured, ScorerFailed)):
            report.when = "setup"  # what fails there is an ERROR for pytest, JUnit and everybody else: nothing was judged
            setattr(report, UNMEASURED, [error.outcome, error.cause])
        if rollout is not None and call.when == "call":
            report.duration += rollout.duration_s
        if call.when != "setup" or report.failed:  # JUnit reads the teardown's, other reports that of the failure
            trouble = item.stash.get(TROUBLE, None)
            report.user_properties.extend(
                properties(rollout, self._scales(rollout)) if rollout else [("status", trouble[1])] if trouble else []
            )
        if rollout is not None and report.failed:
            report.sections.append((f"agentbench {rollout.key}", rollout_section(rollout)))
        if self._stop_reason and item.session.shouldfail:
            setattr(report, OVER, True)
        quarantined = self._quarantined(item)
        if quarantined and (call.when == "call" or (call.when == "setup" and report.failed)):
            setattr(report, IN_QUARANTINE, [rollout_key(item).group, rollout_key(item).scenario])
        if report.when == "call" and reads_thresholds(item):
            self._judge(item, report, error, quarantined)
        return report

    def _judge(self, item: pytest.Item, report: PytestReport, error: BaseException | None, quarantined: str) -> None:
        """Marks the report of a test that compared a score with a threshold, and excuses its failure if the threshold does not decide."""
        if not quarantined:
            setattr(report, APPLIED, rollout_key(item).group)
        if isinstance(error, AssertionError):
            if quarantined:
                excuse(report, QUARANTINED, quarantined, error)
            elif rollout_key(item).group in self.input.gated:
                excuse(report, BELOW, "below its threshold, the gate decides", error)

    def _quarantined(self, item: pytest.Item) -> str:
        """Until when the scenario of a test that reads its rollout is in quarantine, and why; empty where it is not."""
        suite = self.suite_of(item.path) if wants_rollout(item) else None
        return suite.info.quarantined.get(rollout_key(item).scenario, "") if isinstance(suite, WorkerSuite) else ""

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """`assert rollout.score("tsq") >= 0.5` says what the score is made of."""
        for score in (left, right):
            if isinstance(score, Score) and score.explanation:
                return [f"{left!r} {op} {right!r}", one_line(score.explanation)]
        return None

    def pytest_sessionfinish(self) -> None:
        if "pool" in vars(self):  # something has been asked
            self.pool.close()


def reads_thresholds(item: pytest.Item) -> bool:
    """Returns whether a test compares a score with a threshold. If it fails, it does not fail for what must hold in every scenario."""
    return wants_rollout(item) and "thresholds" in getattr(item, "fixturenames", ())


def excuse(report: pytest.TestReport, mark: str, why: str, error: BaseException) -> None:
    """Makes a failure an expected one, for JUnit, --lf, -x and everybody else."""
    report.outcome = "skipped"  # with a reason it is what an expected failure is
    report.wasxfail = f"{why}: {str(error).partition(chr(10))[0]}"
    setattr(report, mark, True)


def refuse(cause: str, status: str, rollout: str = "") -> NoReturn:
    """Ends a test that cannot measure: a SKIP when this machine lacks something, else an ERROR."""
    if status == "missing":
        pytest.skip(cause)
    raise Unmeasured(cause, f"{rollout}: {status}" if rollout else "")


def suite_keys(suite: WorkerSuite) -> list[RolloutKey]:
    """The rollouts of a suite, in data set order; later trials and other variants follow."""
    return [
        RolloutKey(suite.name, scenario, variant, trial)
        for variant in suite.info.variants
        for trial in range(1, suite.info.trials + 1)
        for scenario in suite.info.ids[: suite.sizes.get(variant)]
    ]


def rollout_key(item: pytest.Item) -> RolloutKey:
    key: RolloutKey = item.callspec.params[KEY]  # type: ignore[attr-defined]  # has_key looked
    return key


def wants_rollout(item: pytest.Item) -> bool:
    """Whether a test reads a rollout; one that only looks at its scenario does not."""
    return "rollout" in getattr(item, "fixturenames", ()) and has_key(item)


def has_key(item: pytest.Item) -> bool:
    """Whether a test is one of a scenario's."""
    return KEY in getattr(getattr(item, "callspec", None), "params", ())


def is_skipped(item: pytest.Item) -> bool:
    """Whether marks say that a test will not run. A condition given as text is left to pytest."""
    return any(map(_skips, item.iter_markers()))


def _skips(mark: pytest.Mark) -> bool:
    """Whether a mark keeps a test from running: without a condition it does, of several one is enough."""
    if mark.name == "skip":
        return True
    if not (mark.name == "skipif" or (mark.name == "xfail" and mark.kwargs.get("run") is False)):
        return False
    conditions = (mark.kwargs["condition"],) if "condition" in mark.kwargs else mark.args
    return not conditions or any(bool(condition) for condition in conditions if not isinstance(condition, str))
