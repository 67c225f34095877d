"""Messages between the controller of a session and its pool.

The controller starts the pool with a `PoolConfig` , connects to it, says `Hello`, and then sends `ToPool`.
The pool sends `ToController`. Most messages are notes, which are not answered. A `ControllerQuestion` is answered, in the order of the
questions, and the pool waits for its `ControllerAnswer`. Messages that are entries of attempts.jsonl (`runs/attempts`) are written there
by the controller, and a pool that replaces this one reads them. A message that cannot be read ends the pool's work with a sentence: no
test waits for ever.

The life of a rollout. Messages in lower case are those of tests and of taps, which have protocols of their own:

    test              pool                          controller           journal    tap
      |-- plan -------->|-- PlanMade ------------------>|                   |        |
      |<- accepted -----|<- PlanTaken ------------------|                   |        |
      |-- get rollout ->|                               |                   |        |
      |                 |<- Start ----------------------|  the backend answers       |
      |                 |-- AttemptBegun -------------->|                   |        |
      |                 |-- AddressOpened ------------->|                   |        |
      |                 |-- open the address --------------------------------------->|
      |                 |   the agent runs, and calls the model -------------------->|
      |                 |-- close the address -------------------------------------->|
      |                 |<- calls under the address ---------------------------------|
      |                 |-- AddressClosed ------------->|                   |        |
      |                 |-- RolloutFinished, record --->|-- redacted line ->|        |
      |                 |<- RecordLine, redacted line --|                   |        |
      |                 |-- RolloutRead --------------->|                   |        |
      |<- redacted line |                               |                   |        |

A pool that dies while a test waits. The listening socket is the controller's, so the test reaches the new pool on the same port:

    controller            old pool               new pool                    test
      |                      |<------------------------------- get rollout ----|
      |<- end of the line ---X--------------------------- end of the line ---->|
      |-- PoolConfig ---------------------------------->|                      |
      |                                                 |  reads rollouts.jsonl and attempts.jsonl
      |-- Hello, HoldAttempts, Start ------------------>|<---- get rollout ----|
      |<- AddressClosed, LabelReleased -----------------|  what the old pool had open
      |<- AttemptFailed, interrupted -------------------|  for each rollout that was in flight
      |<- AttemptBegun, ..., RolloutFinished -----------|  the rollout runs again
      |-- RecordLine ---------------------------------->|---- redacted line -->|
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.runs.attempts import EndRollout, PoolEntry, PrepareBlock, RolloutTally, RunAlone
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import PoolSuite
from pytest_agentbench.tap.protocol import TapPorts

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class PlanTaken:
    """Answers `PlanMade`. The pool plans the tests' rollouts and these, and lets the tests go on."""

    beside: tuple[RolloutKey, ...]  # trials that no test asks for


@dataclass(frozen=True)
class RecordLine:
    """Answers `RolloutFinished` and `GetRecord`; the body is the line as it stands in the journal, which tests get."""


@dataclass(frozen=True)
class BlockNoted:
    """Answers `BlockBegun` and `BlockEnded`, when the backend's counters are read. The pool goes on with its rollouts."""


@dataclass(frozen=True)
class TemplateVerdict:
    """Answers `TemplateLost`. The pool starts the process again, or gives up the rollouts of its suite and variant."""

    again: bool


@dataclass(frozen=True)
class QuestionFailed:
    """Answers a question that the controller could not answer: the disk is full, say. Whoever has asked in the pool gets an InfraError."""

    reason: str


ControllerAnswer = PlanTaken | RecordLine | BlockNoted | TemplateVerdict | QuestionFailed


@dataclass(frozen=True)
class Start:
    """Sent when the backend answers, to the next pool of a session as well. The pool connects to the taps and begins."""

    endpoint: Endpoint
    known: tuple[Endpoint, ...]  # all endpoints of this session so far: earlier pools may have left labels that are not released there
    taps: TapPorts  # on this host
    elapsed_s: float  # seconds in which rollouts of this session could run before
    unbuilt: Mapping[str, str]  # image of a task -> why it could not be made


@dataclass(frozen=True)
class TapsRestarted:
    """Sent when a tap has been started again, and knows nothing. The pool connects anew and points the taps at the backend."""

    taps: TapPorts  # on this host


@dataclass(frozen=True)
class BackendMoved:
    """Sent when the backend was booted again. The pool points the taps at its new address."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Turn:
    """Sent after `PrepareBlock`, when the arm is ready. The pool points the taps at it and begins the block."""

    endpoint: Endpoint
    salt: str  # before the system prompts of agents; empty if the cache needs none


@dataclass(frozen=True)
class NoTurn:
    """Sent after `PrepareBlock`, if the arm cannot run. The pool refuses the rollouts of the block."""

    reason: str


@dataclass(frozen=True)
class ArmLost:
    """Sent when the backend of an arm has died for good. The pool starts none of its rollouts any more."""

    arm: str
    reason: str


@dataclass(frozen=True)
class HoldAttempts:
    """Sent when a part of the session has died or serves again. The pool begins no attempt until all of them serve."""

    away: Mapping[str, str]  # part that does not serve -> group of the only rollouts that use it; empty if all of them do


@dataclass(frozen=True)
class AddRound:
    """Sent when trials are to run that no test asks for. The pool plans them behind all others, and says `PlanSettled` at the end."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class CatchUp:
    """Sent when a part of the session has died. The pool returns the number, behind all that it has told before."""

    number: int


@dataclass(frozen=True)
class ProcessesChecked:
    """Sent after `CheckProcesses`, when all that has died is known, and the pool was told to hold."""


@dataclass(frozen=True)
class NothingRuns:
    """Sent when nothing can run any more. The pool finishes what runs, and refuses all other rollouts with this reason."""

    reason: str
    status: str  # one of STATUSES, or `missing` if this machine lacks something


@dataclass(frozen=True)
class Cancel:
    """Sent when pytest is about to end the session. The pool ends its rollouts, and answers all tests that wait."""

    reason: str


@dataclass(frozen=True)
class EndSession:
    """Sent at the end of a session. The pool ends its rollouts, releases labels, and says `Drained`; it lives until its stdin closes."""


#: What follows from the death of a part of the session.
Recovery = TapsRestarted | BackendMoved | RunAlone | EndRollout | CatchUp | ProcessesChecked
SessionCommand = Start | Turn | NoTurn | ArmLost | HoldAttempts | AddRound | NothingRuns | Cancel | EndSession
ToPool = ControllerAnswer | SessionCommand | Recovery
TO_POOL: Messages[ToPool] = Messages(ToPool)


class ControllerQuestion(Generic[Answered]):
    """A message that the controller answers, with a message of this type or with `QuestionFailed`."""


@dataclass(frozen=True)
class PlanMade(ControllerQuestion[PlanTaken]):
    """Sent for the first plan that a test process sends. The controller counts the rollouts, and may have others run beside them."""

    keys: tuple[RolloutKey, ...]  # once for each test
    stored: int  # of the rollouts, those that an earlier session has recorded
    selected: Mapping[str, int]  # suite under a variant -> selected tests that want a rollout, skipped ones included


@dataclass(frozen=True)
class RolloutFinished(ControllerQuestion[RecordLine]):
    """Sent when a rollout is over; the body is its record as a line. The controller redacts the line and writes it to the journal."""

    key: RolloutKey
    kind: str  # as in Rollout
    status: str  # one of STATUSES
    scores: Mapping[str, float]
    tokens: int  # of completions, in all of its calls
    calls: int  # in all attempts, of judges too
    duration_s: float


@dataclass(frozen=True)
class GetRecord(ControllerQuestion[RecordLine]):
    """Sent when a test asks for a record that the pool does not have in memory. The controller reads it from the journal."""

    key: RolloutKey


@dataclass(frozen=True)
class BlockBegun(ControllerQuestion[BlockNoted]):
    """Sent when the taps point at the arm of a block. The controller reads the backend's counters."""

    primed: int | None  # rollouts whose first call was made before; None if none was to be


@dataclass(frozen=True)
class BlockEnded(ControllerQuestion[BlockNoted]):
    """Sent when the last rollout of a block has ended. The controller reads the backend's counters."""


@dataclass(frozen=True)
class TemplateLost(ControllerQuestion[TemplateVerdict]):
    """Sent when a template process of the pool has died. The controller counts the death, and decides whether it is started again."""

    name: str
    group: str  # suite under a variant whose rollouts it runs


@dataclass(frozen=True)
class CheckProcesses:
    """Sent when an attempt has failed in a way that the death of a part of the session explains. `ProcessesChecked` is the answer."""


@dataclass(frozen=True)
class CaughtUp:
    """Sent after `CatchUp`. The controller knows then which attempts have begun."""

    number: int


@dataclass(frozen=True)
class TemplateServes:
    """Sent when a template process that had died serves again, or has been given up. The controller ends the hold."""

    name: str


@dataclass(frozen=True)
class StartBackend:
    """Sent when a test needs the backend. The controller boots one that boots on demand."""


@dataclass(frozen=True)
class PlanSettled:
    """Sent when all planned rollouts are over, if trials that no test asks for are among them, and when the pool gives up.

    The controller may add another round.
    """

    whole: bool  # whether each of them has a record


@dataclass(frozen=True)
class ShowUser:
    """Sent to have the controller show a sentence to the user."""

    sentence: str


@dataclass(frozen=True)
class Drained:
    """Sent after `EndSession`, when nothing runs any more and all records are in the journal. The controller closes the pool's stdin."""

    tally: RolloutTally


#: `session/processes` takes these messages, `rollouts/parts` all others.
SessionNote = StartBackend | PrepareBlock | PlanSettled | ShowUser | Drained
SessionQuestion = PlanMade | RolloutFinished | GetRecord | BlockBegun | BlockEnded

PoolNote = PoolEntry | SessionNote | CheckProcesses | CaughtUp | TemplateServes
ToController = PoolNote | SessionQuestion | TemplateLost
TO_CONTROLLER: Messages[ToController] = Messages(ToController)


@dataclass(frozen=True)
class Scheduling:
    """How the pool orders rollouts."""

    concurrency: int  # rollouts in flight
    retries: int  # attempts after one that ended as infra_error
    keep_order: bool  # whether they run in the order of the plan
    durations: Mapping[str, float]  # rollout -> seconds that it took the last time


@dataclass(frozen=True)
class BlockSettings:
    """How a session runs its rollouts in blocks, each of one arm."""

    origins: Mapping[str, VariantOrigin]  # variant -> what it is made of, the arms in their order
    policy: str  # one of CACHE_POLICIES
    in_sequence: bool  # whether all blocks of one arm run before those of the next one
    own: Mapping[str, int]  # arm -> rollouts in flight in its blocks, if not those of the session


@dataclass(frozen=True)
class PoolSettings:
    """What all pools of a session are told alike."""

    session: int  # number of the session within its run
    rerun: tuple[str, ...]  # statuses of earlier sessions whose rollouts run again
    run: str  # the session's own name, for sandboxes and ids of rollouts; no other session has it
    backend: str  # hash of the backend's identity
    suites: Mapping[str, PoolSuite]  # by their names
    sys_path: tuple[str, ...]  # of the controller's interpreter: paths of this host
    log_level: str
    scheduling: Scheduling
    blocks: BlockSettings | None  # None: all rollouts are one block, without arms
    sandboxes: int  # that may be open at the same time on this host
    time_limit: float | None  # seconds in which rollouts of this session begin; None: no limit
    budget: float | None  # seconds for a rollout; None: those of its suite
    sizes: Sizes


@dataclass(frozen=True)
class PoolConfig:
    """The first line that the controller writes to the stdin of a pool. The pool writes `Listening` and waits for a connection."""

    token: str = field(repr=False)  # of the session: a connection begins with it
    listener: int  # file descriptor of the listening socket, inherited from the controller on this host
    pipe: int  # file descriptor of the pipe for `FromPipe`, inherited from the controller on this host
    settings: PoolSettings
    number: int  # of the pool within its session, counted from 1
    directory: Path  # of the run on this host, whose journal and attempts.jsonl the pool reads
    attempts_size: int  # bytes of attempts.jsonl on this host that the pool reads: what is written later, it is told as well


@dataclass(frozen=True)
class BlockedBy:
    """Written by a pool that ends itself, because a rollout has blocked its event loop for too long. The next pool ends it like this."""

    rollout: Rollout  # as in `EndRollout`


#: Lines of JSON in the pipe, which a thread of the pool writes while the event loop stands still. The controller reads them to the end.
FromPipe = ShowUser | BlockedBy
FROM_PIPE: Messages[FromPipe] = Messages(FromPipe)

#: Fields of messages to the pool that are true on the controller's host alone: paths, file descriptors, offsets in files, ports on
#: loopback, and a number that follows from the host's cores. A runner on another host needs a value of its own for each.
HOST_BOUND: tuple[tuple[type, str], ...] = (
    (PoolConfig, "listener"),
    (PoolConfig, "pipe"),
    (PoolConfig, "directory"),
    (PoolConfig, "attempts_size"),
    (PoolSettings, "sys_path"),
    (PoolSettings, "sandboxes"),
    (PoolSuite, "folder"),
    (Start, "taps"),
    (TapsRestarted, "taps"),
    (Endpoint, "ca_file"),
)
