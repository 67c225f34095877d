"""`python -m pytest_agentbench.backends.stack.stack_daemon`: the process that owns a stack. It starts, watches and stops the services.

A session or command that uses the stack (a holder) has a connection to the daemon's socket. The stack is stopped when the last connection
is closed, or its process has died, even by SIGKILL. A kept stack first waits for another holder until its time is over. The services are
children of the daemon, and it holds the locks of their GPUs, so no other process has to keep track of them.
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
from pytest_agentbench.backends.stack.placed import has_notes
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
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import Refused, read_config, serving

FIRST_HOLDER = 20.0  # seconds that the starter of the stack daemon has to connect
PROGRESS_EVERY = 0.5  # seconds between two BootProgress messages

FACTS = "stack.json"  # in the stack's folder; contains StackFacts
SOCKET = "control"
DAEMON_LOG = "stack_daemon.log"


class StackDaemon:
    """The server in the stack daemon. It boots one stack, answers its holders (processes that use it), and stops it in the end.

    `outcome` is None during the boot, then StackReady or BootFailed, and StackEnded if the stack dies or is stopped. Each new outcome is
    sent to all holders, and a new holder gets the current one. `ending` is set when the stack has to stop; from then on no new holder is
    accepted. A stack without holders ends at once if it has failed after it had a holder. Otherwise it ends at the time `_until`: when
    the time for the first holder to connect is over, or the time for which the stack is kept.
    """

    def __init__(self, config: StackDaemonConfig) -> None:
        self.home, self.logs = config.home, config.logs
        self._redactor = Redactor()
        self._lock = config.lock  # Other processes see from this lock that the stack has a daemon.
        os.set_inheritable(self._lock, False)  # Services must not inherit the lock.
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
        self.outcome: StackOutcome | None = None  # the latest one
        self.ending = threading.Event()
        self._changed = threading.Condition()
        self._holders: dict[socket.socket, str] = {}
        self._was_held = False
        self._sending, self._writing = threading.Lock(), threading.Lock()
        self._until = time.monotonic() + FIRST_HOLDER  # when it ends without a holder; time.monotonic()

    def live(self) -> None:
        """Runs the daemon until the stack is no longer needed, then stops all services and removes the stack's folder."""
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
        if not has_notes(self.home):  # Otherwise a cluster still runs something, which the next session ends.
            shutil.rmtree(self.home, ignore_errors=True)
        os.close(self._lock)

    def _boot(self) -> None:
        try:
            endpoint = self.stack.boot()
        except AgentbenchError as error:
            self._set_outcome(BootFailed(str(error), missing=isinstance(error, MissingError)))
            return
        except Exception as error:  # A bug of the daemon: the holders must not wait forever.
            self._set_outcome(BootFailed(f"the stack daemon failed: {error!r}; see {DAEMON_LOG}", missing=False))
            raise
        boot = self.stack.facts
        self._write_facts(lambda facts: replace(facts, state="ready", url=endpoint.url, model=endpoint.model, boot=boot))
        self._set_outcome(StackReady(endpoint, boot, self.stack.metrics()))
        self.stack.failed.wait()
        if not self.stack.stopping.is_set():
            self._set_outcome(StackEnded(self.stack.failure))

    def _set_outcome(self, outcome: StackOutcome) -> None:
        """Sets `outcome`, and sends it to all holders."""
        self.outcome = outcome
        self._send_all(outcome)
        with self._changed:
            self._changed.notify_all()

    def _wait_until_unused(self) -> None:
        """Blocks until `ending` is set, or until the stack has no holder and either has failed or has used up its time without one."""
        with self._changed:
            while not self.ending.is_set():
                failed = self._was_held and isinstance(self.outcome, BootFailed | StackEnded)
                if not self._holders and (failed or time.monotonic() >= self._until):
                    self.ending.set()  # No new holder is accepted from now on.
                    return
                self._changed.wait(None if self._holders else max(0.0, self._until - time.monotonic()))

    def _watch_starter(self) -> None:
        """Ends the stack if the process that started this daemon dies before it has become a holder. The end of stdin shows that."""
        while os.read(sys.stdin.fileno(), 4096):
            pass
        with self._changed:
            if not self._was_held:
                self._until = time.monotonic()
                self._changed.notify_all()

    def end(self, why: str) -> None:
        self.log(f"stopping: {why}")
        self.ending.set()
        self.stack.stopping.set()  # A boot in progress gives up.
        self.stack.failed.set()
        self._set_outcome(StackEnded(f"the stack was stopped: {why}"))

    def _accept_connection(self, listener: socket.socket) -> None:
        with suppress(OSError):  # The listener is closed at the end.
            while True:
                connection, _ = listener.accept()
                daemon(self._serve, connection, name="serve")

    def _serve(self, connection: socket.socket) -> None:
        """Handles the messages of one holder until its connection is closed or its process has ended."""
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
        finally:  # No error here may keep an unused stack up.
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
                self.end(f"requested by pid {who}")
            case _:
                assert_never(message)

    def _add_holder(self, connection: socket.socket, who: int, *, alone: bool) -> bool:
        """Registers a connection as a holder. Returns False if the daemon is stopping, or if `alone` is set and the stack is in use."""
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
        self.log(f"{who} has disconnected{f'; kept for {keep:g} s' if keep and alone else ''}")
        if alone:
            self._write_facts(lambda facts: replace(facts, until=time.time() + keep))

    def _send_progress(self) -> None:
        while self.outcome is None and not self.ending.wait(PROGRESS_EVERY):
            if text := self.stack.status():
                for connection in self._readers():
                    self._send(connection, BootProgress(text))

    def _readers(self) -> list[socket.socket]:
        """Returns the connections of holders to which a message can be sent without blocking.

        A holder that is suspended by Ctrl-Z must not delay the others.
        """
        with suppress(OSError, ValueError):  # One of them has just disconnected.
            return select.select([], list(self._holders), [], 0)[1]
        return []

    def _send_restarts(self) -> None:
        """Tells all holders which services are being restarted. Notes it in `stack.json`, so that no session reuses the stack meanwhile."""
        self._write_facts(lambda facts: replace(facts, state="restarting" if self.stack.restarting else "ready"))
        self._send_all(ServicesRestarting(tuple(sorted(self.stack.restarting)), self.stack.restarts()))

    def _send_all(self, message: StackOutcome | ServicesRestarting) -> None:
        for connection in list(self._holders):
            self._send(connection, message)

    def _send(self, connection: socket.socket, message: FromDaemon | Refused) -> None:
        with self._sending, suppress(OSError):  # The holder has disconnected; `_serve` removes it.
            wire.send(connection, message)

    def log(self, text: str) -> None:
        with suppress(OSError), (self.logs / DAEMON_LOG).open("a") as file:  # A full disk must not prevent the stop.
            now = datetime.now().astimezone().isoformat(timespec="milliseconds")
            file.write(f"{now} {block(self._redactor.plain(text))}\n")

    def _write_facts(self, change: Callable[[StackFacts], StackFacts]) -> None:
        with self._writing, suppress(OSError):  # On a full disk the facts become outdated, but the stack can still be stopped.
            self.facts = change(self.facts)
            write_whole(self.home / FACTS, json.dumps(codec.plain(self.facts)))


def _wait_for_message(connection: socket.socket, pid: int) -> bool:
    """Waits until a holder sends a message. Returns False if its process has ended, even if a fork of it has the connection."""
    try:
        process = os.pidfd_open(pid) if pid else -1
    except ProcessLookupError:
        return False
    except OSError:  # Kernels or sandboxes without pidfd: only the end of the connection is noticed.
        process = -1
    try:
        waited = [connection.fileno(), *([process] if process >= 0 else [])]
        ready, _, _ = select.select(waited, [], [])
        return connection.fileno() in ready
    finally:
        if process >= 0:
            os.close(process)


def peer(connection: socket.socket) -> int:
    """Returns the process id at the other end of a connection, or 0 if the system does not support that."""
    if not hasattr(socket, "SO_PEERCRED") or not hasattr(os, "pidfd_open"):
        return 0
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The holder handles Ctrl-C.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gc.freeze()  # Imported objects stay alive, so garbage collections need not visit them.
    daemon = StackDaemon(read_config(StackDaemonConfig))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=daemon.end, args=("SIGTERM",)).start())
    daemon.live()
    return 0


if __name__ == "__main__":
    sys.exit(main())
