"""Messages between the pool of a session and its node workers (`agentbench worker --join`), which make attempts on other machines.

A node worker connects to the socket for nodes, and sends `Hello` with the role `node` and the token for nodes, and then `Join`. The pool
answers with `Welcome` or `NotAdmitted`. The node worker starts its processes and sends `Joined`. The pool sends `PointNode`. The node
builds the images that its tasks need, and the answer `NodePointed` says that it can call the backend and has what rollouts need. Then the
pool gives it leases, at most `slots` of them at a time. A lease is the permission to make one attempt of one rollout. Its number is never
used again. The pool ignores an `AttemptEnded` whose lease is not open on the connection that it comes from.

    node worker                         pool
      |-- Hello, Join ------------------->|
      |<- Welcome, files of the suites ---|
      |-- Joined ------------------------>|  tap and runner serve
      |<- PointNode ----------------------|  again for each block of an A/B session, and if the endpoint changes
      |-- NodePointed ------------------->|
      |<- GiveLease ----------------------|
      |-- AttemptStarted ---------------->|  the controller gets AttemptBegun
      |-- AttemptEnded, record ---------->|  the record is moved to the controller's clock, and goes to the journal as any other
      |<- Tick ---------------------------|  once a second; shows to each side that the other one is alive, and compares the clocks
      |-- Tock -------------------------->|
      |<- Bye ----------------------------|  the session is over; without it, the node worker tries to join again

On the node, a supervisor has this connection. It starts the tap and the runner process, and forwards messages between runner and pool. The
runner gets the connection to the supervisor as an inherited socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.backends.per_node import NodeBackend
from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.records import Endpoint, RolloutKey
from pytest_agentbench.rollouts.protocol import PoolSettings, ShowUser, TemplateLost, TemplateServes, TemplateVerdict
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, LabelReleased
from pytest_agentbench.suites.suite import Task
from pytest_agentbench.tap.protocol import Budgets, TapPorts

ROLE = "node"  # role of a node worker in `Hello`


@dataclass(frozen=True)
class Join:
    """Sent after `Hello`. The pool compares the versions, and answers with `Welcome` or `NotAdmitted`."""

    node: str  # name of the machine, for reports
    instance: str  # random text, different for each start of a node worker
    pid: int
    slots: int  # maximum number of attempts at the same time
    cores: int
    niceness: int  # the supervisor's nice value, which its processes inherit
    package: str  # hash of the Python files of this package
    python: str  # version of Python without the patch number, such as 3.11


@dataclass(frozen=True)
class Joined:
    """Sent when the tap and the runner of the node serve. Before that, the pool sends neither `PointNode` nor leases."""


@dataclass(frozen=True)
class NodePointed:
    """The answer to `PointNode`: calls of this node go to the endpoint now, or cannot."""

    number: int  # number of the `PointNode`
    connect_ms: float | None  # time that connecting to the backend took; None if it failed
    problem: str = ""  # why the node cannot run rollouts, for example because it cannot call the backend; empty if it can


@dataclass(frozen=True)
class AttemptStarted:
    """Sent when the setup and the sandbox of an attempt are ready. The pool tells the controller `AttemptBegun`."""

    lease: int
    node_ns: int  # time of sending on the node's clock, monotonic nanoseconds


@dataclass(frozen=True)
class AttemptEnded:
    """Sent when an attempt has ended. The body has the line of its record, and then the lines for messages.jsonl to which it refers."""

    lease: int
    node_ns: int  # time of sending on the node's clock, monotonic nanoseconds
    interrupted: bool  # whether the death of a process on the node interrupted the attempt, so it is repeated without counting as a retry
    is_lost: bool = False  # whether that process was the tap, with which the node worker is lost


@dataclass(frozen=True)
class Tock:
    """The answer to `Tick`, sent at once."""

    pool_ns: int  # copied from the `Tick`
    node_ns: int  # time of sending on the node's clock, monotonic nanoseconds


@dataclass(frozen=True)
class NodeSample:
    """Sent once a second while attempts run. Shows whether the node itself was too busy to measure."""

    lag_ms: float  # the longest that a timer of the runner was late since the last sample
    cpu: Mapping[str, tuple[tuple[int, int, float], ...]]  # process -> (start and end on the node's clock in ns, share of one core)


@dataclass(frozen=True)
class TemplateLostOnNode:
    """Sent when a template process of the node has died. Sent before the ends of the attempts that this interrupts.

    `TemplateLost` of rollouts/protocol follows when it is known how the process died. The pool answers with `TemplateVerdict`. When another
    process serves, or none will, `TemplateServes` follows. Until then the pool gives no leases.
    """

    name: str  # name of the template process
    group: str  # suite and variant that it runs


@dataclass(frozen=True)
class GroupGivenUp:
    """Sent if the code of a suite and variant cannot run on the node, because its template process died too often there."""

    group: str  # suite and variant
    reason: str


@dataclass(frozen=True)
class Leaving:
    """Sent if the node worker ends, or one of its processes has died. The pool gives its leases to others. Also the answer to `Bye`."""

    reason: str
    leftovers: int = 0  # processes that agents had left running, and that were ended after `Bye`


@dataclass(frozen=True)
class Welcome:
    """The answer to `Join`. The node worker starts its processes. The body has the files of the suites (`suite_files.pack`)."""

    name: str  # name of the node worker in this session, such as w3; never used twice
    settings: PoolSettings  # paths and the number of sandboxes are those of the controller's host
    budgets: Budgets  # time limits for parts of an LLM call
    taps: int  # number of tap processes
    sandboxes: int | None  # maximum number of open sandboxes on a node; None: by its cores
    backend: NodeBackend | None  # the backend of which the node boots a copy; None: it calls that of `PointNode`
    silence_s: float  # seconds without a message after which each side gives up the connection


@dataclass(frozen=True)
class NotAdmitted:
    """The answer to `Join` of a node worker that cannot take part. The pool closes the connection."""

    reason: str
    again: bool  # whether joining later may help


@dataclass(frozen=True)
class PointNode:
    """Sent after `Joined`, before each block of an A/B session, and if the endpoint or the node's share of its rate limit changes."""

    number: int  # increases with each change of the endpoint
    endpoint: Endpoint  # without secrets, if the connection is not encrypted and leads to another machine
    salt: str  # text before the system prompts of agents
    images: tuple[Task, ...] = ()  # one task for each image that the node needs; only before its first answer


@dataclass(frozen=True)
class GiveLease:
    """Sent to have the node make one attempt of one rollout."""

    lease: int
    key: RolloutKey


@dataclass(frozen=True)
class RevokeLease:
    """Sent to cancel an attempt. The node sends nothing more about it."""

    lease: int


@dataclass(frozen=True)
class Tick:
    """Sent once a second. The node worker answers with `Tock` at once."""

    pool_ns: int  # time of sending on the controller's clock, monotonic nanoseconds


@dataclass(frozen=True)
class Bye:
    """The last message to a node worker. It ends its processes and itself."""

    reason: str  # why it is not needed any more


FromTemplates = TemplateLostOnNode | TemplateLost | TemplateServes | GroupGivenUp
FromAddresses = AddressOpened | AddressClosed | LabelReleased
FromRunner = NodePointed | AttemptStarted | AttemptEnded | FromTemplates | FromAddresses | ShowUser | NodeSample
FromNode = Join | Joined | Leaving | Tock | FromRunner
ToRunner = PointNode | GiveLease | RevokeLease | TemplateVerdict
ToNode = Welcome | NotAdmitted | Tick | Bye | ToRunner

FROM_NODE: Messages[FromNode] = Messages(FromNode)
TO_NODE: Messages[ToNode] = Messages(ToNode)
TO_RUNNER: Messages[ToRunner] = Messages(ToRunner)


@dataclass(frozen=True)
class RunnerConfig:
    """The first line that a supervisor writes to the stdin of its runner. The runner writes `RunnerServes`."""

    connection: int  # file descriptor of the socket to the supervisor, inherited from it
    pipe: int  # file descriptor of the pipe for `FromPipe` of rollouts/protocol, inherited from the supervisor
    node: str  # name of the machine
    folder: Path  # gets files of the runner
    settings: PoolSettings  # with the paths and the number of sandboxes of this host
    taps: TapPorts
    endpoint: Endpoint | None  # the backend of this node; None: that of `PointNode`
    secret: str = field(repr=False)  # for the tokens of addresses at the taps


@dataclass(frozen=True)
class RunnerServes:
    """The first line that a runner writes to stdout: it has connected to the taps."""
