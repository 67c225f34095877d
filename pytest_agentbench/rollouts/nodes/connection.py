"""The connection of a node worker to the pool of a session: its socket, the versions that both sides have to share, and when it is lost."""

from __future__ import annotations

import os
import platform
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.connection_security import Trust, lasts
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.rollouts.nodes.protocol import ROLE, Join
from pytest_agentbench.rollouts.nodes.suite_files import package_hash


def versions() -> tuple[str, str]:
    """Returns the hash of this package's code, and the version of Python without the patch number."""
    return package_hash(), ".".join(platform.python_version_tuple()[:2])


def join_problem(join: Join) -> str:
    """Returns why a node worker cannot take part in a session of this process, or an empty text."""
    if join.slots < 1:
        return f"it has {join.slots} slots"
    own = versions()
    if (join.package, join.python) == own:
        return ""
    return (
        f"it has package {join.package} on Python {join.python}, and the session has package {own[0]} on Python {own[1]}; "
        "install the same version of pytest-agentbench on both"
    )


PERIOD = 1.0  # seconds between two calls of `is_too_long`
LATE = 1.0  # seconds by which a call may be late without an effect

#: Seconds without a message after which a side gives up the connection. 10 s were a false alarm on a busy machine.
SILENCE = 25.0

VARIABLE = "AGENTBENCH_NODES_SILENCE"  # environment variable of a session with another limit in seconds, for tests


def silence_limit() -> float:
    """Returns the limit of a session in seconds. Its node workers get it with `Welcome`."""
    return float(os.environ.get(VARIABLE, SILENCE))


class Silence:
    """The time since the last message of the other side, as one side of a connection counts it.

    `is_too_long` has to be called every PERIOD seconds. If a call comes late, this process or its machine was stopped or too busy, which
    says nothing about the other side. So the count then begins anew, but only once between two messages. Times are those of
    `time.monotonic()` in seconds.
    """

    def __init__(self, limit: float = SILENCE) -> None:
        self.limit = limit
        self._heard = self._called = time.monotonic()
        self._has_begun_anew = False

    def end(self) -> None:
        """Notes that a message has come."""
        self._heard = time.monotonic()
        self._has_begun_anew = False

    def is_too_long(self) -> bool:
        """Returns whether the other side has been silent for longer than the limit."""
        now = time.monotonic()
        if now - self._called > PERIOD + LATE and not self._has_begun_anew:
            self._heard, self._has_begun_anew = now, True
        self._called = now
        return now - self._heard > self.limit

    @property
    def seconds(self) -> float:
        """The seconds since the last message, or since the count began anew."""
        return time.monotonic() - self._heard


CONNECT = 10.0  # seconds for connecting and for the TLS handshake
KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))  # keeps the entries of firewalls between the machines
PIECE = 1 << 14  # bytes that are sent or received at once, the size of a TLS record

Result = TypeVar("Result")


class NodeConnection:
    """A connection to the pool. One thread receives; any threads send, and each frame is sent as a whole.

    TLS of Python before 3.13 cannot receive in one thread and send in another at the same time. Therefore the socket does not block:
    a lock is held during each operation, and threads wait for the socket outside of it. `close` may be called by any thread, and ends
    operations that wait. All operations raise ConnectionError when the connection is lost or closed.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Takes a connected socket, with or without TLS, after the handshake."""
        connection.setblocking(False)
        self._socket = connection
        self._operation = threading.Lock()  # held during an operation on the socket
        self._frame = threading.Lock()  # held while a frame is sent
        self._users = 0  # threads that send or receive
        self._is_closed = False
        self.last_received = time.monotonic()  # when data arrived last, also a part of a frame

    @classmethod
    def connect(cls, host: str, port: int, token: str, trust: Trust | None = None, timeout: float = CONNECT) -> NodeConnection:
        """Connects and sends `Hello` with the role of a node worker. With `trust`, uses TLS and checks the server's certificate first.

        Raises OSError if there is no connection, and ConfigError if joining again cannot help, because the certificate is not accepted.
        """
        connection = socket.create_connection((host, port), timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if trust is not None:
                connection = _encrypted(connection, host, trust)
            connected = cls(connection)
            connected.send(Hello(token, ROLE))
        except BaseException:
            connection.close()
            raise
        return connected

    def send(self, message: Any, body: bytes = b"") -> None:
        """Sends a message. Waits while the other side does not read."""
        self._send(wire.pack(message, body))

    def send_frame(self, header: Any, body: bytes = b"") -> None:
        """Sends a frame whose header was received as JSON, to forward it without reading its message."""
        self._send(wire.framed(header, body))

    def receive(self) -> wire.Packet:
        """Returns the next frame. Raises ValueError if its header is not JSON; the connection stays usable. For one thread only."""
        with self._in_use():
            head, body = wire.sizes(self._exactly(wire.PREFIX))
            header, content = self._exactly(head), self._exactly(body)
        return json_text.loads(header), content

    def close(self) -> None:
        """Closes the connection. Threads that wait in an operation get a ConnectionError. May be called more than once."""
        with self._operation:
            if self._is_closed:
                return
            self._is_closed = True
            with suppress(OSError):  # The other side may have closed it.
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_if_unused()

    def _send(self, frame: bytes) -> None:
        with self._in_use(), self._frame:
            for start in range(0, len(frame), PIECE):
                piece = memoryview(frame)[start : start + PIECE]
                while piece:
                    piece = piece[self._wait_for(partial(self._socket.send, piece), select.POLLOUT) :]

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._wait_for(partial(self._socket.recv, min(count - len(parts), 1 << 20)), select.POLLIN)
            if not part:
                raise ConnectionError("the session closed the connection")
            self.last_received = time.monotonic()
            parts += part
        return bytes(parts)

    def _wait_for(self, operation: Callable[[], Result], event: int) -> Result:
        """Returns the result of an operation of the socket, as soon as it does not block."""
        while True:
            with self._operation:
                if self._is_closed:
                    raise ConnectionError("this side closed the connection")
                try:
                    return operation()
                except (BlockingIOError, InterruptedError):
                    wanted = event
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                except ConnectionError:
                    raise
                except OSError as error:  # of TLS, of the network, or a time limit of the kernel
                    raise ConnectionError(f"the connection to the session failed: {error}") from error
            poll = select.poll()
            poll.register(self._socket, wanted)
            # If a sender waits for data of TLS, the receiving thread may get them, so the wait has to end.
            poll.poll(None if wanted == event else 50)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._operation:
            if self._is_closed:
                raise ConnectionError("this side closed the connection")
            self._users += 1
        try:
            yield
        finally:
            with self._operation:
                self._users -= 1
                if self._is_closed:
                    self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Frees the descriptor when no thread waits for it any more; a new connection may get the same number."""
        if self._users == 0:
            self._socket.close()


def _encrypted(connection: socket.socket, host: str, trust: Trust) -> ssl.SSLSocket:
    """Returns the connection after a TLS handshake, in which the server's certificate was accepted.

    Raises ConfigError if the server has another certificate or no TLS, ConnectionError for other failures.
    """
    try:
        encrypted = trust.context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"the certificate of {host} is not accepted ({error.verify_message}): it must contain this name or address, and be signed by "
            "an authority in the PEM file that the node worker was given"
        ) from error
    except ssl.SSLError as error:
        if lasts(error):
            raise ConfigError(f"{host} does not speak TLS on this port ({error.reason}); start the node worker without it") from error
        raise ConnectionError(f"no TLS connection to {host}: {error.reason or error}") from error
    try:
        trust.check(encrypted)
    except BaseException:
        encrypted.close()
        raise
    return encrypted
