"""Messages that a test process gets: its input from the controller, and the answers of the pool to what tests ask.

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

from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.records import Endpoint, Json, RolloutKey
from pytest_agentbench.suites.suite_info import SuiteInfo

PoolAnswer_co = TypeVar("PoolAnswer_co", covariant=True)


@dataclass(frozen=True)
class PoolAddress:
    """Where the pool of a session listens."""

    port: int  # on 127.0.0.1
    token: str = field(repr=False)  # of the session


@dataclass(frozen=True)
class WorkerSuite:
    """A suite that runs: all that test processes need of it, without its data."""

    info: SuiteInfo
    sizes: Mapping[str, int]  # variant -> how many scenarios it takes, from the first one on
    scales: Mapping[str, str]  # score -> its scale in words
    unsupported: Mapping[str, str]  # scenario -> why it cannot run

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.info.name

    @property
    def marks(self) -> bool:
        """Whether the suite's name is a mark of its tests. A suite whose name cannot be one does not run."""
        return True


@dataclass(frozen=True)
class UnavailableSuite:
    """A suite that does not run."""

    name: str  # its folder's if the suite could not be loaded
    marks: bool  # whether its name is a mark of its tests
    reason: str
    skip: bool  # whether its tests are skipped, because the reason is not a fault; otherwise they are errors


@dataclass(frozen=True)
class WorkerInput:
    """All that the controller tells a test process. If the controller does not use this plugin, the fields keep their defaults."""

    suites: Mapping[str, WorkerSuite] = field(default_factory=dict)  # folder -> suite
    unavailable: Mapping[str, UnavailableSuite] = field(default_factory=dict)  # folder -> suite
    limit: int | None = None  # scenarios of each suite and variant that run; None: all that are selected
    gated: tuple[str, ...] = ()  # groups of rollouts whose gate decides about thresholds
    pool: PoolAddress | None = None  # None: this session runs no rollouts
    inline: bool = False  # whether rollouts run in their tests

    @property
    def every_suite(self) -> dict[str, WorkerSuite | UnavailableSuite]:
        """Folder -> suite."""
        return {**self.suites, **self.unavailable}


class PoolQuestion(Generic[PoolAnswer_co]):
    """A message from a test process to the pool, which answers it with its type argument or with `QuestionRefused`."""


@dataclass(frozen=True)
class QuestionRefused:
    """The answer to a question that the pool cannot answer. The test process ends the test that asked, or skips it."""

    reason: str
    status: str  # missing: this machine lacks something that the backend needs; otherwise the status of rollouts that cannot run


@dataclass(frozen=True)
class PlanAccepted:
    """The answer to `PlanSelected`: the controller knows the plan, and its rollouts are queued."""


@dataclass(frozen=True)
class PlanSelected(PoolQuestion[PlanAccepted]):
    """The rollouts that the selected tests read. Every test process sends it when its run loop starts.

    All test processes of a session select the same tests, so the pool takes the first plan and answers later ones without using them.
    """

    keys: tuple[RolloutKey, ...]  # in the order of the tests; a rollout that several tests read occurs several times
    selected: Mapping[str, int]  # group of rollouts -> its selected tests, with those that are skipped


@dataclass(frozen=True)
class RecordedRollout:
    """The answer to `GetRollout` for a rollout that ran. The frame's body is its line in the journal, redacted."""

    shared_cause: str | None  # why it and other rollouts are infra_error; None if the cause is its own
    over: bool  # whether tests are left, and the pool can only give all of them the same cause


@dataclass(frozen=True)
class UnrecordedRollout:
    """The answer to `GetRollout` for a rollout that did not run, or could not be recorded. Its test has nothing to judge."""

    status: str  # infra_error, missing or cancelled
    reason: str
    shared_cause: str | None  # why nothing more of its group runs; None if this rollout alone is concerned
    over: bool  # whether tests are left, and the pool can only give all of them the same cause


@dataclass(frozen=True)
class GetRollout(PoolQuestion[RecordedRollout | UnrecordedRollout]):
    """Asks for a rollout before its test begins. The pool answers when it has ended; one that was not planned is queued first."""

    key: RolloutKey


@dataclass(frozen=True)
class FoundScenario:
    """The answer to `GetScenario`."""

    scenario: Json  # a Scenario; the test process decodes it, so that it imports suites only for tests that read scenarios


@dataclass(frozen=True)
class GetScenario(PoolQuestion[FoundScenario]):
    """Asks for the scenario of a test. The pool answers at once."""

    key: RolloutKey


@dataclass(frozen=True)
class BackendReady:
    """The answer to `GetBackend`."""

    endpoint: Endpoint  # without a key and headers, which stay in the pool


@dataclass(frozen=True)
class GetBackend(PoolQuestion[BackendReady]):
    """Asks where the backend answers. The pool answers when the backend is ready; one that boots on demand boots now."""


WorkerQuestion = PlanSelected | GetRollout | GetScenario | GetBackend
WorkerAnswer = PlanAccepted | RecordedRollout | UnrecordedRollout | FoundScenario | BackendReady | QuestionRefused


def read_answer(question: PoolQuestion[PoolAnswer_co], header: object) -> PoolAnswer_co | QuestionRefused:
    """Returns the answer to a question from the header of a frame.

    Raises:
        ValueError: The header is not an answer to this question.
        OtherVersion: The pool speaks another protocol.
    """
    kind: Any = type(question)
    answer: PoolAnswer_co | QuestionRefused = _answers(kind).read(header)
    return answer


@functools.cache
def _answers(kind: type[PoolQuestion[Any]]) -> Messages[Any]:
    """Returns the reader of the answers that a class of questions names."""
    (base,) = vars(kind)["__orig_bases__"]
    (answers,) = typing.get_args(base)
    return Messages(answers | QuestionRefused)
