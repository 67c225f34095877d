"""`python -m pytest_agentbench.backends.stack.stack_daemon`: starts a stack, keeps it while it is held, and ends it, whatever happens.

Whoever wants the stack holds a connection to the stack daemon's socket. When the last one is gone (closed, or its process died,
SIGKILL included) everything is stopped; a stack that is kept waits for the next holder until its time is over.
The services are the stack daemon's children, and their GPUs are locked by it: no other process has to remember anything.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from pytest_agentbench.backends.stack.boot import Stack
from pytest_agentbench.backends.stack.protocol import (
    BootFailed,
    BootProgress,
    FromDaemon,
    HoldAccepted,
    HoldDeclined,
    HoldStack,
    KeepStack,
    ServicesRestarting,
    Serving,
    StackDaemonConfig,
    StackEnded,
    StackFacts,
    StackOutcome,
    StackReady,
    StopStack,
    ToDaemon,
    read_request,
)
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import AgentbenchError, MissingError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.foreign import block
from pytest_agentbench.lib.messages import Refused, read_config, serving
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.threads import daemon

FIRST_HOLDER = 20.0  # seconds that whoever started the stack daemon gets to connect
PROGRESS_EVERY = 0.5  # seconds between two words about a boot

FACTS = "stack.json"  # in the stack's folder: what others may know of it
SOCKET = "control"
DAEMON_LOG = "stack_daemon.log"


class StackDaemon:
    """One stack's life."""

    def __init__(self, config: StackDaemonConfig) -> None:
        self.home, self.logs = config.home, config.logs
        self._redactor = Redactor()
        self._lock = config.lock  # as long as this process has it others see that the stack has an owner
        os.set_inheritable(self._lock, False)  # services shall not keep it
        self.spec = StackSpec(**config.spec)
        self.facts = StackFacts(
            backend=self.spec.name,
            spec_hash=config.spec_hash,
            inherited=config.inherited,
            pid=os.getpid(),
            logs=self.logs,
            ready=self.spec.ready.model_dump(),
            started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
            state="booting",
        )
        self.stack = Stack(
            self.spec,
            self.home,
            self.logs,
            gpu_wait=config.gpu_wait,
            warm_up=config.warm_up,
            log=self.log,
            on_restart=self._send_restarts,
        )
        self.outcome: StackOutcome | None = None  # as holders are told
        self.ending = threading.Event()
        self._changed = threading.Condition()
        self._holders: dict[socket.socket, str] = {}
        self._was_held = False
        self._sending, self._writing = threading.Lock(), threading.Lock()
        self._until = time.monotonic() + FIRST_HOLDER  # without a holder it ends then

    def live(self) -> None:
        """From the first process to the last port."""
        self.logs.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.home / SOCKET))
        listener.listen(16)
        self._write_facts(lambda facts: facts)
        serving(Serving())
        daemon(self._accept_connection, listener, name="accept")
        daemon(self._boot, name="boot")
        daemon(self._send_progress, name="send-progress")
        daemon(self._watch_starter, name="watch-starter")
        self._wait_until_unused()
        self._write_facts(lambda facts: replace(facts, state="stopping"))
        self.stack.stop()
        listener.close()
        shutil.rmtree(self.home, ignore_errors=True)
        os.close(self._lock)

    def _boot(self) -> None:
        try:
            endpoint = self.stack.boot()
        except AgentbenchError as error:
            self._set_outcome(BootFailed(str(error), missing=isinstance(error, MissingError)))
            return
        except Exception as error:  # a fault of ours: the holders shall not wait for ever
            self._set_outcome(BootFailed(f"the stack daemon failed: {error!r}; see {DAEMON_LOG}", missing=False))
            raise
        boot = self.stack.facts
        self._write_facts(lambda facts: replace(facts, state="ready", url=endpoint.url, model=endpoint.model, boot=boot))
        self._set_outcome(StackReady(endpoint, boot, self.stack.metrics()))
        self.stack.failed.wait()
        if not self.stack.stopping.is_set():
            self._set_outcome(StackEnded(self.stack.failure))

    def _set_outcome(self, outcome: StackOutcome) -> None:
        """Those who hold it learn it now, those who come later when they come."""
        self.outcome = outcome
        self._send_all(outcome)
        with self._changed:
            self._changed.notify_all()

    def _wait_until_unused(self) -> None:
        """Until it is told to stop, or has nobody and no time left. One that failed and has nobody goes at once."""
        with self._changed:
            while not self.ending.is_set():
                failed = self._was_held and isinstance(self.outcome, BootFailed | StackEnded)
                if not self._holders and (failed or time.monotonic() >= self._until):
                    self.ending.set()  # whoever comes now comes too late
                    return
                self._changed.wait(None if self._holders else max(0.0, self._until - time.monotonic()))

    def _watch_starter(self) -> None:
        """Whoever started it and is gone before it held it wants it no more."""
        while os.read(sys.stdin.fileno(), 4096):
            pass
        with self._changed:
            if not self._was_held:
                self._until = time.monotonic()
                self._changed.notify_all()

    def end(self, why: str) -> None:
        self.log(f"stopping: {why}")
        self.ending.set()
        self.stack.stopping.set()  # a boot under way gives up
        self.stack.failed.set()
        self._set_outcome(StackEnded(f"it was stopped: {why}"))

    def _accept_connection(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                connection, _ = listener.accept()
                daemon(self._serve, connection, name="serve")

    def _serve(self, connection: socket.socket) -> None:
        """Obeys one holder until it is gone."""
        who = peer(connection)
        try:
            with connection, suppress(OSError, ValueError):
                while _wait_for_message(connection, who):
                    try:
                        message = read_request(wire.receive(connection)[0])
                    except ValueError as error:
                        self.log(f"refused pid {who}: {error}")
                        self._send(connection, Refused(str(error)))
                        return
                    self._handle(connection, message, who)
        finally:  # nothing that goes wrong here may keep a stack that nobody wants
            self._remove_holder(connection)

    def _handle(self, connection: socket.socket, message: ToDaemon, who: int) -> None:
        match message:
            case HoldStack(alone):
                accepted = self._add_holder(connection, who, alone=alone)
                self.log(f"{'held by' if accepted else 'refused'} pid {who}")
                if accepted:
                    self._write_facts(lambda facts: replace(facts, until=None))
                self._send(connection, HoldAccepted() if accepted else HoldDeclined())
                if self.outcome is not None:
                    self._send(connection, self.outcome)
            case KeepStack(seconds):
                self._write_facts(lambda facts: replace(facts, keep_s=seconds))
            case StopStack():
                self.end(f"pid {who} said so")
            case _:
                assert_never(message)

    def _add_holder(self, connection: socket.socket, who: int, *, alone: bool) -> bool:
        """Whether it is too late, or whoever wants to be alone is not; else there is one holder more."""
        with self._changed:
            if self.ending.is_set() or (alone and self._holders):
                return False
            self._holders[connection] = f"pid {who}"
            self._was_held = True
            return True

    def _remove_holder(self, connection: socket.socket) -> None:
        with self._changed:
            who = self._holders.pop(connection, None)
            if who is None:
                return
            keep, alone = self.facts.keep_s or 0.0, not self._holders
            if alone:
                self._until = time.monotonic() + keep
            self._changed.notify_all()
        self.log(f"{who} is gone{f'; kept for {keep:g} s' if keep and alone else ''}")
        if alone:
            self._write_facts(lambda facts: replace(facts, until=time.time() + keep))

    def _send_progress(self) -> None:
        while self.outcome is None and not self.ending.wait(PROGRESS_EVERY):
            if text := self.stack.status():
                for connection in self._readers():
                    self._send(connection, BootProgress(text))

    def _readers(self) -> list[socket.socket]:
        """Holders that read what they are told: one that Ctrl-Z has stopped must not fill its buffer and hold up the others."""
        with suppress(OSError, ValueError):  # one of them has just closed
            return select.select([], list(self._holders), [], 0)[1]
        return []

    def _send_restarts(self) -> None:
        """Nobody new gets a stack of which a part is away."""
        self._write_facts(lambda facts: replace(facts, state="restarting" if self.stack.restarting else "ready"))
        self._send_all(ServicesRestarting(tuple(sorted(self.stack.restarting)), self.stack.restarts()))

    def _send_all(self, message: StackOutcome | ServicesRestarting) -> None:
        for connection in list(self._holders):
            self._send(connection, message)

    def _send(self, connection: socket.socket, message: FromDaemon | Refused) -> None:
        with self._sending, suppress(OSError):  # it is gone, and `_serve` sees it
            wire.send(connection, message)

    def log(self, text: str) -> None:
        with suppress(OSError), (self.logs / DAEMON_LOG).open("a") as file:  # a full disk must not keep it from stopping
            now = datetime.now().astimezone().isoformat(timespec="milliseconds")
            file.write(f"{now} {block(self._redactor.plain(text))}\n")

    def _write_facts(self, change: Callable[[StackFacts], StackFacts]) -> None:
        with self._writing, suppress(OSError):  # on a full disk others do not see it, and it is torn down all the same
            self.facts = change(self.facts)
            write_whole(self.home / FACTS, json.dumps(codec.plain(self.facts)))


def _wait_for_message(connection: socket.socket, pid: int) -> bool:
    """Waits for the next word of a holder; False when its process is gone, even if a fork of it still has the connection."""
    try:
        process = os.pidfd_open(pid) if pid else -1
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or a sandbox without it: the end of the connection has to do
        process = -1
    try:
        waited = [connection.fileno(), *([process] if process >= 0 else [])]
        ready, _, _ = select.select(waited, [], [])
        return connection.fileno() in ready
    finally:
        if process >= 0:
            os.close(process)


def peer(connection: socket.socket) -> int:
    """Returns the process id of the other side of a connection, or 0 if the system does not tell it."""
    if not hasattr(socket, "SO_PEERCRED") or not hasattr(os, "pidfd_open"):
        return 0
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the holder's to handle
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gc.freeze()  # what is imported stays: no collection looks at it again, nor those at the interpreter's end
    daemon = StackDaemon(read_config(StackDaemonConfig))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=daemon.end, args=("SIGTERM",)).start())
    daemon.live()
    return 0


if __name__ == "__main__":
    sys.exit(main())
