"""The first line of a pool's stdin, and the last lines that a pool writes to its pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.records import Endpoint, Rollout
from pytest_agentbench.rollouts.protocol import ShowUser, Start, TapsRestarted
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import PoolSuite


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

    sides: Mapping[str, VariantOrigin]  # variant -> what it is made of, the arms in their order
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
