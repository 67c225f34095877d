"""Messages between the controller of a session and its pool.

The controller starts the pool with a `PoolConfig`, connects to it, sends `Hello`, and then messages of `ToPool`. The pool sends messages
of `ToController`. Most messages are notes, which are not answered. The controller answers each `ControllerQuestion` with a
`ControllerAnswer`, in the order of the questions. It writes messages that are entries of attempts.jsonl (`runs/attempts`) to that file,
where a pool that replaces this one reads them. After a message that cannot be read, the pool refuses all rollouts with a reason, so that
no test waits for ever.

The life of a rollout. Messages in lower case belong to the protocols of tests and taps:

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

The death of a pool while a test waits. The listening socket belongs to the controller, so the test reaches the new pool on the same port:

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

from pytest_agentbench.backends.per_node import NodeBackend
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.runs.attempts import EndRollout, PoolEntry, PrepareBlock, RolloutTally, RunAlone
from pytest_agentbench.runs.nodes import NodeNote
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import PoolSuite, Task
from pytest_agentbench.tap.protocol import Budgets, TapPorts

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class PlanTaken:
    """The answer to `PlanMade`. The pool queues the planned rollouts and the further ones in `beside`, and lets the tests continue."""

    beside: tuple[RolloutKey, ...]  # trials that no test requests


@dataclass(frozen=True)
class RecordLine:
    """The answer to `RolloutFinished` and `GetRecord`. The body of the frame is the rollout's redacted line in the journal."""


@dataclass(frozen=True)
class BlockNoted:
    """The answer to `BlockBegun` and `BlockEnded`: the controller has read the backend's counters, so the pool may continue."""


@dataclass(frozen=True)
class TemplateVerdict:
    """The answer to `TemplateLost`. The pool starts the process again, or gives up the rollouts of its suite and variant."""

    again: bool  # whether to start the process again


@dataclass(frozen=True)
class QuestionFailed:
    """The answer to a question that failed, for example because the disk is full. It becomes an InfraError in the pool."""

    reason: str


ControllerAnswer = PlanTaken | RecordLine | BlockNoted | TemplateVerdict | QuestionFailed


@dataclass(frozen=True)
class Start:
    """Sent when the backend is ready, and to each later pool of the session. The pool connects to the taps and begins to run rollouts."""

    endpoint: Endpoint
    known: tuple[Endpoint, ...]  # all endpoints of this session so far, where labels of earlier pools may have to be released
    taps: TapPorts  # on this host
    elapsed_s: float  # seconds since rollouts of this session could run first
    unbuilt: Mapping[str, str]  # image of a task -> why it could not be built
    images: tuple[Task, ...] = ()  # one task for each image that the planned tasks need and node workers have to build


@dataclass(frozen=True)
class TapsRestarted:
    """Sent when a tap was started again and has lost its state. The pool connects to all taps again and points them at the backend."""

    taps: TapPorts  # on this host


@dataclass(frozen=True)
class BackendMoved:
    """Sent when the backend was booted again. The pool points the taps at its new address."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Turn:
    """Sent after `PrepareBlock`, when the arm (a setting under comparison) is ready. The pool points the taps at its endpoint."""

    endpoint: Endpoint  # endpoint of the arm
    salt: str  # text before the system prompts of agents; empty if the cache policy needs none


@dataclass(frozen=True)
class NoTurn:
    """Sent after `PrepareBlock`, if the arm (a setting under comparison) cannot run. The pool refuses the rollouts of the block."""

    reason: str


@dataclass(frozen=True)
class ArmLost:
    """Sent if the backend of an arm (a setting under comparison) has died for good. The pool starts no more rollouts of this arm."""

    arm: str
    reason: str


@dataclass(frozen=True)
class HoldAttempts:
    """Sent when a part of the session has died or serves again. The pool begins no attempt while one is unavailable."""

    unavailable: Mapping[str, str]  # unavailable part -> group of the only rollouts that use it; empty string if all rollouts use it


@dataclass(frozen=True)
class AddRound:
    """Sent to run trials that no test requests. The pool queues them after all others, and sends `PlanSettled` when all have ended."""

    keys: tuple[RolloutKey, ...]


@dataclass(frozen=True)
class CatchUp:
    """Sent when a part of the session has died. When `CaughtUp` comes back, the controller has got all earlier messages of the pool."""

    number: int  # repeated in the answer


@dataclass(frozen=True)
class ProcessesChecked:
    """The answer to `CheckProcesses`: for each death so far the pool has got a `HoldAttempts`."""


@dataclass(frozen=True)
class NothingRuns:
    """Sent if no further rollout can run. The pool finishes running rollouts. Tests of all others get this status and reason."""

    reason: str
    status: str  # one of STATUSES, or `missing` if this machine lacks something


@dataclass(frozen=True)
class Cancel:
    """Sent if pytest is about to end the session early. The pool cancels its rollouts, and answers all waiting tests with the reason."""

    reason: str


@dataclass(frozen=True)
class NodesQueued:
    """Sent every few seconds while node workers wait for machines, and once when they do not wait any more.

    While they wait, the pool does not count the time without node workers.
    """

    waits: bool


@dataclass(frozen=True)
class EndSession:
    """Sent at the end of a session. The pool cancels its rollouts, tells the stack that they have ended, and sends `Drained`.

    The pool process runs until its stdin closes.
    """


#: Messages about parts of the session that have died or are not there yet, and the consequences.
Recovery = NodesQueued | TapsRestarted | BackendMoved | RunAlone | EndRollout | CatchUp | ProcessesChecked
SessionCommand = Start | Turn | NoTurn | ArmLost | HoldAttempts | AddRound | NothingRuns | Cancel | EndSession
ToPool = ControllerAnswer | SessionCommand | Recovery
TO_POOL: Messages[ToPool] = Messages(ToPool)


class ControllerQuestion(Generic[Answered]):
    """Base class of messages that the controller answers with a message of the type argument, or with `QuestionFailed`."""


@dataclass(frozen=True)
class PlanMade(ControllerQuestion[PlanTaken]):
    """Sent when the first test process has told which rollouts its tests need. The controller counts them. Its answer may add trials."""

    keys: tuple[RolloutKey, ...]  # once for each test
    stored: int  # number of the rollouts that an earlier session has recorded
    selected: Mapping[str, int]  # group of rollouts -> number of selected tests that read one, including skipped tests


@dataclass(frozen=True)
class RolloutFinished(ControllerQuestion[RecordLine]):
    """Sent when a rollout has ended. The body has the line of its record, and then the lines for messages.jsonl to which it refers.

    The controller redacts them and writes them to the journal and to messages.jsonl.
    """

    key: RolloutKey
    kind: str  # kind of the record, as in Rollout
    status: str  # one of STATUSES
    scores: Mapping[str, float]
    tokens: int  # completion tokens in all its calls
    calls: int  # calls in all attempts, including those of judges
    duration_s: float


@dataclass(frozen=True)
class GetRecord(ControllerQuestion[RecordLine]):
    """Sent when a test requests a record that the pool does not have in memory. The controller reads it from the journal."""

    key: RolloutKey


@dataclass(frozen=True)
class BlockBegun(ControllerQuestion[BlockNoted]):
    """Sent before the first rollout of a block (rollouts of one arm) runs. The taps already send calls to the arm's backend.

    The controller reads the counters of that backend.
    """

    primed: int | None  # rollouts whose first call was made before the block; None if the cache policy makes none


@dataclass(frozen=True)
class BlockEnded(ControllerQuestion[BlockNoted]):
    """Sent when the last rollout of a block (rollouts of one arm) has ended. The controller reads the backend's counters."""


@dataclass(frozen=True)
class TemplateLost(ControllerQuestion[TemplateVerdict]):
    """Sent when a template process of the pool or of a node has died. The controller decides whether another one is started."""

    name: str
    group: str  # group of rollouts that it runs
    in_flight: tuple[RolloutKey, ...] | None = None  # rollouts that ran on the node at that time; None for a process of the pool


@dataclass(frozen=True)
class CheckProcesses:
    """Sent when an attempt has failed, perhaps because a part of the session died. The controller answers with `ProcessesChecked`."""


@dataclass(frozen=True)
class CaughtUp:
    """The answer to `CatchUp`. Now the controller knows which attempts had begun."""

    number: int  # number of the `CatchUp`


@dataclass(frozen=True)
class TemplateServes:
    """Sent when a dead template process was replaced or given up. The controller no longer counts it as unavailable."""

    name: str  # name of the template process


@dataclass(frozen=True)
class StartBackend:
    """Sent when a test needs the backend. The controller boots the backend, if that happens on demand."""


@dataclass(frozen=True)
class PlanSettled:
    """Sent when all planned rollouts have ended, if trials that no test requests are among them. Also sent if the pool gives up.

    The controller may then add another round of trials.
    """

    whole: bool  # whether each rollout has a record, and more rollouts could run


@dataclass(frozen=True)
class ShowUser:
    """Sent to show a sentence to the user."""

    sentence: str


@dataclass(frozen=True)
class Drained:
    """Sent after `EndSession`, when no rollout runs and all records are in the journal. The controller then closes the pool's stdin."""

    tally: RolloutTally
    leftovers: int = 0  # ended processes that agents had left running on nodes


#: `session/processes` handles these messages, `rollouts/parts` all others.
SessionNote = StartBackend | PrepareBlock | PlanSettled | ShowUser | Drained | NodeNote
SessionQuestion = PlanMade | RolloutFinished | GetRecord | BlockBegun | BlockEnded

PoolNote = PoolEntry | SessionNote | CheckProcesses | CaughtUp | TemplateServes
ToController = PoolNote | SessionQuestion | TemplateLost
TO_CONTROLLER: Messages[ToController] = Messages(ToController)


@dataclass(frozen=True)
class Scheduling:
    """The settings with which the pool schedules rollouts: concurrency, retries, order."""

    concurrency: int  # maximum number of rollouts in flight
    retries: int  # maximum number of further attempts after infra_error
    keep_order: bool  # whether rollouts run in the order of the plan
    durations: Mapping[str, float]  # rollout -> its last duration in seconds


@dataclass(frozen=True)
class BlockSettings:
    """The settings of an A/B session, which runs its rollouts in blocks. A block has rollouts of one arm (a setting under comparison)."""

    origins: Mapping[str, VariantOrigin]  # variant -> suite's own variant and arm, in the order of the arms
    policy: str  # one of CACHE_POLICIES
    in_sequence: bool  # whether all blocks of one arm run before those of the next one
    own: Mapping[str, int]  # arm -> maximum number of rollouts in flight, for arms that have one of their own
    warm_up: bool = False  # whether first calls are made before the first block, so that it is not slower than the later ones


@dataclass(frozen=True)
class PoolSettings:
    """The settings that all pools of a session share."""

    session: int  # number of the session within its run
    rerun: tuple[str, ...]  # statuses whose rollouts of earlier sessions run again
    run: str  # unique name of the session, for sandboxes and ids of rollouts
    backend: str  # hash of the backend's identity
    suites: Mapping[str, PoolSuite]  # name -> suite
    sys_path: tuple[str, ...]  # `sys.path` of the controller: paths of this host
    log_level: str
    scheduling: Scheduling
    blocks: BlockSettings | None  # None: all rollouts are one block, without arms
    sandboxes: int  # maximum number of open sandboxes on this host
    time_limit: float | None  # seconds in which rollouts of this session may begin; None: no limit
    budget: float | None  # time limit of a rollout in seconds; None: the limit of its suite
    sizes: Sizes
    keep: str  # requests and replies that are kept for messages.jsonl: `all`, `calls` or `none`


@dataclass(frozen=True)
class NodeTerms:
    """The terms on which node workers take part in a session (see rollouts/nodes/protocol)."""

    token: str = field(repr=False)  # token that node workers present; it is valid on their socket only
    listener: int  # file descriptor of the listening socket for node workers, inherited from the controller on this host
    certificate: tuple[Path, Path] | None  # files on this host with the certificate and the key of the socket; None: no TLS
    wait_s: float  # seconds that the session waits for a node worker while there is none
    budgets: Budgets  # time limits for parts of an LLM call
    taps: int  # number of tap processes of each node
    sandboxes: int | None  # maximum number of open sandboxes of each node; None: by its cores
    backend: NodeBackend | None = None  # the backend of which each node boots a copy; None: all nodes call the same one


@dataclass(frozen=True)
class PoolConfig:
    """The first line that the controller writes to the stdin of a pool. The pool writes `Listening` and waits for a connection."""

    token: str = field(repr=False)  # token of the session, presented by each connection
    listener: int  # file descriptor of the listening socket, inherited from the controller on this host
    pipe: int  # file descriptor of the pipe for `FromPipe`, inherited from the controller on this host
    settings: PoolSettings
    number: int  # number of the pool within its session, counted from 1
    directory: Path  # run directory on this host, with the journal and attempts.jsonl
    attempts_size: int  # bytes of attempts.jsonl on this host that the pool reads; later entries that concern it are sent to it
    nodes: NodeTerms | None = None  # None: the pool itself makes the attempts


@dataclass(frozen=True)
class BlockedBy:
    """Written to the pipe by a pool that ends itself because a rollout blocked its event loop. The rollout does not run again."""

    rollout: Rollout  # its final record, as in `EndRollout`


#: Lines of JSON in the pipe. A thread of the pool writes them while the event loop is blocked. The controller reads them to the end.
FromPipe = ShowUser | BlockedBy
FROM_PIPE: Messages[FromPipe] = Messages(FromPipe)

#: Fields of messages to the pool that are valid only on the controller's host: paths, file descriptors, file offsets, loopback ports,
#: and a number that depends on the host's cores. A runner on another host needs its own value for each of them.
HOST_BOUND: tuple[tuple[type, str], ...] = (
    (PoolConfig, "listener"),
    (PoolConfig, "pipe"),
    (PoolConfig, "directory"),
    (PoolConfig, "attempts_size"),
    (NodeTerms, "listener"),
    (NodeTerms, "certificate"),
    (PoolSettings, "sys_path"),
    (PoolSettings, "sandboxes"),
    (PoolSuite, "folder"),
    (Task, "folder"),
    (Start, "taps"),
    (TapsRestarted, "taps"),
    (Endpoint, "ca_file"),
)
