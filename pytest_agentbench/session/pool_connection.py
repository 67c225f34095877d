"""The connection of a test process to the pool."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import OtherVersion
from pytest_agentbench.rollouts.questions_of_tests import PoolAddress, PoolAnswer_co, PoolQuestion, QuestionRefused, read_answer

POOLS = 1000  # Number of pools that may die before one question is given up


class PoolLost(InfraError):
    """The pool is lost for good, so no later question of this session can be answered."""


class PoolConnection:
    """Sends the questions of one test process to the pool. It connects when the first question is sent, and stays connected.

    If a pool dies before it has answered, the controller starts another one on the same port, and the question is sent again.
    """

    def __init__(self, address: PoolAddress, failure: Callable[[], str]) -> None:
        """`failure` returns the reason why the session's services have failed, or an empty text if this process does not know it."""
        self._address, self._failure = address, failure
        self._socket: socket.socket | None = None

    def ask(self, question: PoolQuestion[PoolAnswer_co], body: bytes = b"") -> tuple[PoolAnswer_co, bytes]:
        """Sends a question with its body (further bytes, such as a record). Returns the pool's answer and the body of the answer.

        Raises:
            MissingError: The pool refuses the question, because this machine lacks something that the backend needs.
            InfraError: The pool refuses it for another reason, or its answer cannot be read.
            PoolLost: There is no pool, or the pool has another version.
        """
        try:
            header, content = self._exchanged(question, body)
            answer = read_answer(question, header)
        except OtherVersion as error:
            raise PoolLost(str(error)) from error
        except OSError as error:
            raise PoolLost(self._failure() or f"the pool is gone ({error}); see backend/pool.log in the run directory") from error
        except ValueError as error:
            raise InfraError(
                f"the pool's answer to {type(question).__name__} cannot be read: {error}; see backend/pool.log in the run directory"
            ) from error
        if isinstance(answer, QuestionRefused):
            raise (MissingError if answer.status == "missing" else InfraError)(answer.reason)
        return answer, content

    def _exchanged(self, question: PoolQuestion[PoolAnswer_co], body: bytes) -> wire.Packet:
        """Returns the packet that answers a question. Raises OSError if no connection is possible, or if POOLS pools died in succession."""
        for _ in range(POOLS):
            if self._socket is None:
                self._socket = wire.connect(self._address.port, self._address.token, "test")
            try:
                with suppress(OSError):  # A pool of another version closes the connection at once, and its refusal can still be read.
                    wire.send(self._socket, question, body)
                return wire.receive(self._socket)
            except OSError as error:
                self.close()
                last = error
        raise last

    def close(self) -> None:
        """Closes the connection. A later question opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
