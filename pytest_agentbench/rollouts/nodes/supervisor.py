"""The supervisor of a node worker (`agentbench worker`): joins a session, again and again until it is over.

It runs no code of a suite and no event loop, so it answers the session even while agents keep the machine busy.
"""

from __future__ import annotations

import secrets
import threading
import time

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.rollouts.nodes.connection import NodeConnection
from pytest_agentbench.rollouts.nodes.membership import LOST, REFUSED, JoinTerms, Membership, Say

AGAIN = 0.5  # seconds between two attempts to join, doubled after each one that fails
LONGEST = 8.0  # seconds between two attempts to join at most
UNANSWERED = 3  # connections in a row that are closed without an answer, after which the token counts as wrong


class Supervisor:
    """Joins a session again and again, until it is over or the node worker is not needed. `leave` may be called from any thread."""

    def __init__(self, terms: JoinTerms, say: Say) -> None:
        self._terms, self._say = terms, say
        self._instance = secrets.token_hex(8)
        self._membership: Membership | None = None
        self._left = ""
        self._leaving = threading.Event()
        self._unanswered = 0  # connections in a row that were closed without an answer

    def run(self) -> int:
        """Returns the exit status: OVER, LOST or REFUSED."""
        until, pause, was_member = time.monotonic() + self._terms.patience_s, AGAIN, False
        while not self._left:
            is_gone = False
            try:
                status, problem = self._join()
            except ConfigError as error:
                status, problem = REFUSED, ""
                self._say(str(error))
            except OSError as error:
                status, problem = None, f"no session answers at {self._terms.at}: {error}"
                is_gone = was_member and isinstance(error, ConnectionRefusedError)  # It has closed its socket.
            if status is not None:
                return status
            if not problem:
                until, pause, was_member = time.monotonic() + self._terms.patience_s, AGAIN, True
            elif (is_gone or time.monotonic() > until) and not self._left:
                self._say(problem)
                return LOST
            self._leaving.wait(pause)
            pause = min(2 * pause, LONGEST) if problem else AGAIN
        self._say(f"left the session: {self._left}")
        return LOST

    def _join(self) -> tuple[int | None, str]:
        """Joins once, and waits until that has ended. Returns the exit status, or None and why the session cannot use this node worker.

        Raises OSError if nothing answers, and ConfigError if the session's certificate is not accepted.
        """
        connection = NodeConnection.connect(self._terms.host, self._terms.port, self._terms.token, self._terms.trust)
        self._membership = membership = Membership(self._terms, self._instance, connection, self._say)
        if self._left:
            membership.end(self._left)
        membership.run()
        self._unanswered = 0 if membership.was_answered else self._unanswered + 1
        if self._unanswered >= UNANSWERED and not self._left:
            self._say(
                f"{self._terms.at} closes each connection without an answer; the token is not that of the session, or the session uses TLS "
                "(--tls-ca)"
            )
            return REFUSED, ""
        return membership.status, membership.problem

    def leave(self, reason: str) -> None:
        """Gives the leases back and ends. Returns at once, so that a signal handler may call it in a thread that holds locks."""
        self._left = reason
        daemon(self._end, reason, name="leave")

    def _end(self, reason: str) -> None:
        self._leaving.set()
        if self._membership is not None:
            self._membership.end(reason)
