"""`Launcher`, the interface through which a session starts node workers, and what they are told at their start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class WorkerTerms:
    """What every node worker of a session is told at its start."""

    session: str  # name of the run, which job names and labels contain
    join: str  # HOST:PORT at which other machines reach the session
    join_here: str  # HOST:PORT at which this machine reaches it
    token: str = field(repr=False)  # token of the session for node workers
    token_file: Path  # file of this machine that has the token and that only its owner can read; removed at the end of the session
    trust: tuple[str, ...]  # options that name the session's certificate; empty without TLS
    concurrency: int  # rollouts in flight on all node workers together
    logs: Path  # folder of this machine for logs of node workers; the launcher creates it

    def options(self, slots: int, *, here: bool = False, file: str = "-") -> Iterator[str]:
        """Yields the arguments of `agentbench worker`.

        Args:
            slots: Number of rollouts that it runs at the same time.
            here: Whether it runs on the session's machine.
            file: File on its machine that contains the token. With `-`, the launcher writes the token and a line feed to its stdin.
        """
        yield from ("--join", self.join_here if here else self.join, "--token-file", file, *self.trust, "--slots", str(slots))

    def slots(self, count: int) -> int:
        """Returns how many slots each of `count` node workers needs, so that all rollouts in flight have one."""
        return -(-self.concurrency // count)


def each_with(slots: int) -> str:
    """Returns the end of `Launcher.sentence`: `each with 4 slots`."""
    return f"each with {slots} slot{'s' * (slots > 1)}"


@dataclass(frozen=True)
class LaunchState:
    """What is known of the node workers that a launcher has started."""

    id: str = ""  # what they are started as, such as `job 17`; empty if nothing has a name
    waiting: str = ""  # why not all of them have a machine yet, such as `PENDING (Resources)`; empty if they have, or if it is over
    problem: str = ""  # what the user should know, such as `job 17 was cancelled`; shown once, decides nothing


class Launcher(ABC):
    """Starts the node workers of a session and ends them. It decides nothing about rollouts, because the pool sees each loss itself.

    The session calls `check`, and then `start`, `state` every two seconds, and `stop` from a thread of its own. `stop` is called in any
    case, also if `start` has failed. `text` can be called without any of them.
    """

    settings_class: ClassVar[type[BaseModel]]  # the keys of `nodes: {NAME: ...}`
    is_local: ClassVar[bool] = False  # whether all node workers are on the session's machine

    @abstractmethod
    def __init__(self, argument: str, settings: Any) -> None:
        """Takes what follows the name in `--agentbench-nodes`, and a `settings_class`. Raises ConfigError if the argument is wrong."""

    @abstractmethod
    def text(self, terms: WorkerTerms) -> str:
        """Returns what `start` submits, as the user would type it or write it in a file: a job script, a manifest, commands.

        It does not contain the token.
        """

    @abstractmethod
    def sentence(self, terms: WorkerTerms) -> str:
        """Returns the header's line, which follows "node workers: ", such as `3 on this machine, each with 4 slots`."""

    def check(self) -> None:  # noqa: B027 - a launcher that needs nothing inherits it
        """Raises ConfigError if this machine lacks something that `start` needs. Does not wait for other machines."""

    @abstractmethod
    def start(self, terms: WorkerTerms) -> None:
        """Starts the node workers, or requests machines for them. Raises BackendError if they are refused."""

    def state(self) -> LaunchState:
        """Returns what is known of the node workers. Raises BackendError if none of them will ever run; then the session ends."""
        return LaunchState()

    @abstractmethod
    def stop(self) -> None:
        """Ends all that `start` has started, and returns when it has ended. Does nothing if there is nothing to end.

        Raises BackendError if something cannot be ended; the user is told.
        """
