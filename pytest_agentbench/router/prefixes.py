"""The sessions that a router remembers, and the work that they are expected to bring their workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from pytest_agentbench.router.constants import Constants
from pytest_agentbench.router.features import session_work


@dataclass(frozen=True)
class PrefixState:
    """A session at its worker."""

    worker: Hashable
    reuse: int  # further calls that are expected
    decode: float  # cost of an answer
    prefill: float  # cost of a prompt
    iat: float  # factor of the time between calls
    at: float  # time of the last call, seconds, on the router's clock

    @property
    def work(self) -> float:
        """The work that the session is expected to bring its worker."""
        return session_work(self.reuse, self.decode, self.prefill, self.iat)


class PrefixTable:
    """The sessions with further calls, the one that was used last at the end. Their number and their age are limited.

    The expected work of each worker is kept up to date, so that a decision takes the same time for any number of sessions.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._states: dict[str, PrefixState] = {}
        self._work: dict[Hashable, tuple[int, float]] = {}  # worker -> number of its sessions, and their work

    def __len__(self) -> int:
        return len(self._states)

    def worker(self, prefix: str) -> Hashable | None:
        """Returns the worker that a session used last, or None if it is not known."""
        state = self._states.get(prefix)
        return state.worker if state else None

    def work(self, worker: Hashable) -> float:
        """Returns the work that a worker's sessions are expected to bring."""
        return self._work.get(worker, (0, 0.0))[1]

    def set(self, prefix: str, state: PrefixState) -> None:
        """Remembers a session in its new state. Without further calls, it is forgotten."""
        self.drop(prefix)
        if not prefix or state.reuse <= 0:
            return
        self._states[prefix] = state
        self._change(state.worker, 1, state.work)
        while len(self._states) > self._constants.max_prefixes:
            self.drop(next(iter(self._states)))

    def drop(self, prefix: str) -> None:
        """Forgets a session."""
        if state := self._states.pop(prefix, None):
            self._change(state.worker, -1, -state.work)

    def expire(self, now: float) -> None:
        """Forgets the sessions whose last call was too long ago."""
        while self._states:
            prefix, state = next(iter(self._states.items()))
            if now - state.at < self._constants.prefix_ttl:
                return
            self.drop(prefix)

    def forget(self, worker: Hashable) -> None:
        """Forgets all sessions of a worker."""
        for prefix in [prefix for prefix, state in self._states.items() if state.worker == worker]:
            self.drop(prefix)

    def _change(self, worker: Hashable, sessions: int, work: float) -> None:
        count, total = self._work.get(worker, (0, 0.0))
        if count + sessions:
            self._work[worker] = (count + sessions, max(0.0, total + work))
        else:
            self._work.pop(worker, None)  # The sum begins anew, without the rounding errors of earlier sessions.
