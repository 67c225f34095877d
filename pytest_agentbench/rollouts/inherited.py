"""Messages by which the controller follows the state of a pool, and the state that the next pool inherits if this one dies."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_agentbench.records import Attempt, Endpoint, Rollout, RolloutKey


@dataclass
class RolloutTally:
    """Numbers of rollouts that a stack was told of, of all pools of a session together."""

    labelled: int = 0  # attempts whose calls got a label; each has an id of its own
    announced: int = 0  # of them, those that the stack has seen, where it tells; elsewhere those with a call that was answered
    released: int = 0
    failed: int = 0  # releases that failed when their rollout ended; some may have worked at the session's end
    bypassed: int = 0  # releases that were answered like any call: by something that does not know of rollouts
    left: int = 0  # not released when the session ended


@dataclass(frozen=True)
class RolloutEnd:
    """The end of a rollout that does not run again, because of what it does to the session."""

    key: RolloutKey
    status: str  # one of STATUSES
    reason: str
    log: str = ""  # what its attempt had printed


@dataclass(frozen=True)
class OpenLabel:
    """An id by which a stack knows a rollout, and the endpoint that has to be told when the rollout is over."""

    id: str
    endpoint: Endpoint


@dataclass(frozen=True)
class OpenToken:
    """A token of the tap that a pool has opened. It stays open when the pool dies."""

    token: str = field(repr=False)
    key: RolloutKey  # of the rollout whose calls are made under it
    lent: bool  # whether a test process calls under it, which outlives the pool and closes it itself
    label: OpenLabel | None  # None if the stack is not told of rollouts


@dataclass(frozen=True)
class RolloutRead:
    """Sent when a test gets its rollout. The next pool need not run it for that test."""

    key: RolloutKey


@dataclass(frozen=True)
class AttemptBegun:
    """Sent when an attempt begins. From then on the rollout is in flight, and counts as suspect if a part of the session dies."""

    key: RolloutKey


@dataclass(frozen=True)
class AttemptFailed:
    """Sent for an attempt that is followed by another one. The next pool continues with the following attempt."""

    key: RolloutKey
    attempt: Attempt
    interrupted: bool  # whether it failed because a part of the session died, which costs the rollout no retry


@dataclass(frozen=True)
class TokenOpened:
    """Sent before a token is opened at the taps. If the pool dies, the next one closes the token."""

    opened: OpenToken
    tally: RolloutTally


@dataclass(frozen=True)
class TokenClosed:
    """Sent when a token was closed at the taps. Until `LabelReleased` the next pool would have to release its label."""

    token: str = field(repr=False)
    calls: int  # LLM calls that the taps have told of
    unreleased: bool  # whether the stack is still to be told that the rollout is over
    tally: RolloutTally


@dataclass(frozen=True)
class LabelReleased:
    """Sent when the stack was told that a rollout is over."""

    id: str
    tally: RolloutTally


#: Messages from the pool to the controller, which notes them in `session/handover` and does not answer.
StateNote = RolloutRead | AttemptBegun | AttemptFailed | TokenOpened | TokenClosed | LabelReleased


@dataclass(frozen=True)
class InterruptedRollout:
    """A rollout that ran when its pool died."""

    key: RolloutKey
    began_ns: int  # when its attempt began, monotonic nanoseconds of this host


@dataclass(frozen=True)
class Inherited:
    """State that a new pool inherits from one that died, according to the messages of the dead pool."""

    why: str  # how it ended
    plan: tuple[RolloutKey, ...] | None  # rollouts that tests have still to ask for, once for each test; None before there is a plan
    round: tuple[RolloutKey, ...]  # trials that no test asks for, and that are not known to be over
    alone: tuple[RolloutKey, ...]  # rollouts beside which nothing else runs
    ends: tuple[RolloutEnd, ...]
    unscored: tuple[Rollout, ...]  # rollouts that end as they are here, but for the calls of their scorers
    in_flight: tuple[InterruptedRollout, ...]
    attempts: tuple[AttemptFailed, ...]  # of rollouts that have not ended
    tokens: tuple[OpenToken, ...]
    labels: tuple[OpenLabel, ...]  # of rollouts that are over, and of which the stack has not been told that yet
    tally: RolloutTally
