"""The messages of test processes (pytest itself, or the workers of xdist) from the controller, and to and from the pool.

The controller gives each test process a `WorkerInput` when the process starts. Under xdist it travels as JSON in `workerinput`.

A test process connects to the pool as a `test` and sends questions, one at a time. The pool answers each question before it reads the
next one. The class of a question names the class of its answer; every question may be answered with `QuestionRefused` instead. Tests that
call a model in their own process also send the questions of `inline_protocol`.

A test process imports this module before it runs tests, so it imports no asyncio, no HTTP library and no suites.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.records import Endpoint, Json, RolloutKey, Scale


@dataclass(frozen=True)
class SuiteInfo:
    """Facts about a suite, which its tests get as the fixture `suite`."""

    name: str
    description: str
    ids: tuple[str, ...]  # ids of all scenarios of the data set
    variants: tuple[str, ...]  # names of the variants that run
    trials: int
    thresholds: Mapping[str, float]  # score -> threshold in force
    scorers: tuple[str, ...]  # names of the scores; the first one is the main score
    label_source: str  # source of the labels: `hand`, `heuristic-v1`, ...
    quarantined: Mapping[str, str]  # scenario -> sentence with owner, reason and last day


PoolAnswer_co = TypeVar("PoolAnswer_co", covariant=True)


@dataclass(frozen=True)
class PoolAddress:
    """The port of a session's pool, and the token that connections present."""

    port: int  # on 127.0.0.1
    token: str = field(repr=False)  # token of the session


@dataclass(frozen=True)
class WorkerSuite:
    """The data of a running suite that test processes need, without its scenarios."""

    info: SuiteInfo
    sizes: Mapping[str, int]  # variant -> number of scenarios that it runs, from the first one on
    scales: Mapping[str, Scale]  # score -> its scale
    unsupported: Mapping[str, str]  # scenario -> why it cannot run

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def marks(self) -> bool:
        """Whether the suite's name is a pytest mark of its tests. Always True, because a suite whose name cannot be a mark does not run."""
        return True


@dataclass(frozen=True)
class UnavailableSuite:
    """A suite that does not run, with the reason that its tests get."""

    name: str  # name of the suite, or of its folder if the suite could not be loaded
    marks: bool  # whether its name is a mark of its tests
    reason: str
    skip: bool  # whether its tests are skipped, because the reason is not a fault; otherwise they fail with an error


@dataclass(frozen=True)
class WorkerInput:
    """The data that the controller sends to a test process. If the controller does not use this plugin, all fields have their defaults."""

    suites: Mapping[str, WorkerSuite] = field(default_factory=dict)  # folder -> suite
    unavailable: Mapping[str, UnavailableSuite] = field(default_factory=dict)  # folder -> suite
    limit: int | None = None  # scenarios of each suite and variant that run; None: all that are selected
    # group of rollouts -> the scores whose thresholds the gate checks instead of tests, because it compares them with a baseline
    gated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pool: PoolAddress | None = None  # None: this session runs no rollouts
    inline: bool = False  # whether rollouts run in their tests
    scenarios: tuple[str, ...] = ()  # ids of the only scenarios that run; empty: all do

    @property
    def every_suite(self) -> dict[str, WorkerSuite | UnavailableSuite]:
        """All suites, running or not: folder -> suite."""
        return {**self.suites, **self.unavailable}


class PoolQuestion(Generic[PoolAnswer_co]):
    """Base class of messages from a test process to the pool, which answers with a message of the type argument, or `QuestionRefused`."""


@dataclass(frozen=True)
class QuestionRefused:
    """The answer to a question that the pool cannot answer. The test process fails or skips the test."""

    reason: str
    status: str  # `missing` if this machine lacks something that the backend needs; otherwise the status of rollouts that cannot run


@dataclass(frozen=True)
class PlanAccepted:
    """The answer to `PlanSelected`: the controller knows which rollouts the tests need, and the rollouts are queued."""


@dataclass(frozen=True)
class PlanSelected(PoolQuestion[PlanAccepted]):
    """Tells the pool which rollouts the selected tests need. Every test process sends this when its run loop starts.

    All test processes of a session select the same tests, so the pool uses the first plan only.
    """

    keys: tuple[RolloutKey, ...]  # in the order of the tests; a rollout that several tests read occurs several times
    selected: Mapping[str, int]  # group of rollouts -> number of its selected tests, including skipped ones


@dataclass(frozen=True)
class RecordedRollout:
    """The answer to `GetRollout` for a rollout that ran. The frame's body is its redacted line in the journal."""

    shared_cause: str | None  # why it and other rollouts are infra_error; None if no others have this cause
    over: bool  # whether tests are left, and all of them would get the same cause


@dataclass(frozen=True)
class UnrecordedRollout:
    """The answer to `GetRollout` for a rollout that did not run, or could not be recorded. Its test has nothing to judge."""

    status: str  # infra_error, missing or cancelled
    reason: str
    shared_cause: str | None  # why no further rollout of its group runs; None if only this rollout is affected
    over: bool  # whether tests are left, and all of them would get the same cause


@dataclass(frozen=True)
class GetRollout(PoolQuestion[RecordedRollout | UnrecordedRollout]):
    """Requests a rollout before its test begins. The pool answers when it has ended. A rollout that was not planned is queued."""

    key: RolloutKey


@dataclass(frozen=True)
class FoundScenario:
    """The answer to `GetScenario`: the scenario."""

    scenario: Json  # an encoded Scenario, so that test processes import suites only if tests read scenarios


@dataclass(frozen=True)
class GetScenario(PoolQuestion[FoundScenario]):
    """Requests the scenario of a test. The pool answers at once."""

    key: RolloutKey  # any rollout of the scenario


@dataclass(frozen=True)
class BackendReady:
    """The answer to `GetBackend`: the backend answers, and this is its endpoint."""

    endpoint: Endpoint  # without key and headers, which stay in the pool


@dataclass(frozen=True)
class GetBackend(PoolQuestion[BackendReady]):
    """Requests the backend's endpoint. A backend that boots on demand boots now. The pool answers when the backend is ready."""


WorkerQuestion = PlanSelected | GetRollout | GetScenario | GetBackend
WorkerAnswer = PlanAccepted | RecordedRollout | UnrecordedRollout | FoundScenario | BackendReady | QuestionRefused


def read_answer(question: PoolQuestion[PoolAnswer_co], header: object) -> PoolAnswer_co | QuestionRefused:
    """Parses the answer to a question from the header of a frame, and returns it.

    Raises:
        ValueError: The header is not an answer to this question.
        OtherVersion: The pool uses another version of the protocol.
    """
    kind: Any = type(question)
    answer: PoolAnswer_co | QuestionRefused = _answers(kind).read(header)
    return answer


@functools.cache
def _answers(kind: type[PoolQuestion[Any]]) -> Messages[Any]:
    """Returns the parser of answers to a class of questions. The class's type argument names the possible answers."""
    (base,) = vars(kind)["__orig_bases__"]
    (answers,) = typing.get_args(base)
    return Messages(answers | QuestionRefused)
