"""One pool as the controller holds it: the process, the line to it, and what it said last."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.messages import OtherVersion
from pytest_agentbench.lib.process import SESSION, Child
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.pool_config import FROM_PIPE, BlockedBy, PoolConfig
from pytest_agentbench.rollouts.protocol import TO_CONTROLLER, ShowUser, ToController, ToPool

Hear = Callable[["PoolProcess", ToController, bytes], None]


HELD_OPEN = 1.0  # seconds for a pipe that something which the pool's agents have left behind holds open


class PoolProcess:
    """Started at once; `begin` has somebody listen to it."""

    def __init__(self, config: Callable[[int], PoolConfig], listener: socket.socket, log: Path, mark: str) -> None:
        """`config` is called with the file descriptor of the pipe that the pool writes its last words to.

        The pool serves on `listener`, which stays open here for the next pool. `mark` is in the environment of all processes that
        agents start.
        """
        self._words, theirs = os.pipe()
        try:
            settings, inherited = config(theirs), (listener.fileno(), theirs)
            self.child = Child("pytest_agentbench.rollouts.pool", settings, log, pass_fds=inherited, variables={SESSION: mark})
        except BaseException:
            os.close(self._words)
            raise
        finally:
            os.close(theirs)
        self.last_words: Rollout | None = None  # how the rollout ends over which a pool ended itself
        self.fault = ""  # why the controller has ended it; empty for a pool that ended otherwise
        self._line = wire.connect(listener.getsockname()[1], settings.token, "controller")
        self._sending = threading.Lock()

    def begin(self, hear: Hear, died: Callable[[PoolProcess, bool], None]) -> None:
        """`hear` gets what the pool tells; `died` is called when all was heard and it is dead, with whether it ever served."""
        listening = daemon(self._listen, hear, name="pool")
        self._reading = daemon(self._read_words, hear, name="pool-words")
        daemon(self._watch, listening, died, name="watch-pool")

    def send(self, message: ToPool, body: bytes = b"") -> bool:
        """Whether it could be told."""
        with self._sending:
            try:
                wire.send(self._line, message, body)
            except OSError:
                return False
            return True

    def obituary(self, why: str) -> str:
        """Returns what `Child.obituary` does, with the reason if the controller has ended it."""
        return self.child.obituary(f"{why}: {self.fault}", by_us=True) if self.fault else self.child.obituary(why)

    def close(self) -> None:
        """Nobody listens any more."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # whoever reads from it is woken

    def _listen(self, hear: Hear) -> None:
        try:
            while True:
                header, body = wire.receive(self._line)
                hear(self, TO_CONTROLLER.read(header), body)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, OtherVersion):
                return  # it is dead, or about to be
            self.fault = f"the controller failed on what the pool sent, and has ended it: {cause(error)}"
            self.child.process.kill()  # it would wait for an answer for ever; the next one is heard again
            raise

    def _watch(self, listening: threading.Thread, died: Callable[[PoolProcess, bool], None]) -> None:
        assert self.child.process.stdout is not None
        has_served = bool(self.child.process.stdout.readline())
        self.child.process.wait()
        if not has_served:
            self.close()  # nobody has taken it up
        listening.join()
        self._reading.join(HELD_OPEN)
        died(self, has_served)
        self._line.close()
        self.child.close_pipes()

    def _read_words(self, hear: Hear) -> None:
        """What it says while its event loop stands still."""
        with os.fdopen(self._words, "rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # its end came in the middle of it
                    return
                try:
                    message = FROM_PIPE.read(json_text.loads(line))
                except ValueError as error:
                    message = ShowUser(f"what the pool says while its event loop is blocked cannot be read: {error}")
                match message:
                    case ShowUser():
                        hear(self, message, b"")
                    case BlockedBy(rollout):
                        self.last_words = rollout
