"""Parts of the connections to a backend: name resolution, idle connections, a rate limiter, and sockets with kernel timestamps."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from aiohappyeyeballs import AddrInfoType

from pytest_agentbench.tap.clock import ANCILLARY, KernelClock

ADDRESS_HOLDS = 30.0  # seconds for which a resolved address is reused


class Lookup(NamedTuple):
    """A lookup of the addresses of a host name, running or finished."""

    answer: asyncio.Task[list[AddrInfoType]]
    until: float  # expiry, seconds of the loop's clock


class HostAddresses:
    """The addresses of one host and port. Connections that are opened at the same time share one lookup."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lookup: Lookup | None = None

    async def get(self) -> list[AddrInfoType]:
        """Returns the addresses. Raises OSError or ValueError if there are none."""
        loop = asyncio.get_running_loop()
        if self._lookup is None or loop.time() > self._lookup.until:
            self._lookup = Lookup(loop.create_task(self._resolve()), loop.time() + ADDRESS_HOLDS)
        try:
            return await asyncio.shield(self._lookup.answer)
        except (OSError, ValueError):
            self._lookup = None
            raise

    async def _resolve(self) -> list[AddrInfoType]:
        infos = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return cast("list[AddrInfoType]", infos)  # The declared types differ only for address families without TCP.


#: Seconds for which a connection may be idle. Servers close idle connections (uvicorn and Node.js after five seconds). A request that is
#: sent at that moment is lost, and could not be told from one that made the backend crash.
LONGEST_IDLE = 2.0

C = TypeVar("C")


class IdleConnections(Generic[C]):
    """Idle connections to a backend. The newest is used first, so that connections that are not needed expire."""

    def __init__(self, is_quiet: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """`is_quiet` returns whether a connection has nothing to read, not even the backend's close; `close` ends a connection."""
        self._is_quiet, self._close = is_quiet, close
        self._waiting: deque[tuple[float, C]] = deque()  # (start of idleness in seconds of time.monotonic(), connection), oldest first

    def add(self, connection: C) -> None:
        self._waiting.append((time.monotonic(), connection))

    def remove(self, connection: C) -> None:
        """Removes a connection that has ended, if it was idle."""
        self._waiting = deque(each for each in self._waiting if each[1] is not connection)

    def take(self) -> tuple[C | None, int]:
        """Returns a pair: an idle connection (None if there is none), and how many were skipped because the backend had closed them."""
        self._drop_old()
        closed_count = 0
        while self._waiting:
            _, connection = self._waiting.pop()
            if self._is_quiet(connection):
                return connection, closed_count
            closed_count += 1
            self._close(connection)
        return None, closed_count

    def close(self) -> None:
        """Closes all idle connections."""
        for _, connection in self._waiting:
            self._close(connection)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - LONGEST_IDLE
        while self._waiting and self._waiting[0][0] < oldest:
            self._close(self._waiting.popleft()[1])


class RateLimiter:
    """Sends calls one by one, with at least a fixed interval between them, in the order in which they arrived.

    Such intervals satisfy every kind of rate limit, whether it counts per second or in a sliding minute.
    """

    def __init__(self, requests_per_minute: float) -> None:
        """Raises ValueError if the rate is not positive and finite."""
        if not 0 < requests_per_minute < math.inf:
            raise ValueError(f"{requests_per_minute} is not a valid number of requests per minute; it must be above 0 and finite")
        self._gap = 60 / requests_per_minute
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], bool], Callable[[int], None], int]] = deque()
        self._free_at = self._loop.time()  # time at which the next call may be sent, seconds of the loop's clock

    def take(self, is_over: Callable[[], bool], send: Callable[[int], None]) -> None:
        """Calls `send` as soon as the rate permits another request. Its argument is how long the request waited, in nanoseconds.

        If `is_over()` is true at that time, `send` is not called.
        """
        self._waiting.append((is_over, send, time.monotonic_ns()))
        if len(self._waiting) == 1:
            self._go()

    def _go(self) -> None:
        """Sends the first waiting call if it is time, and schedules the next one."""
        while self._waiting and self._waiting[0][0]():  # The agent disconnected, or the rollout ended.
            self._waiting.popleft()
        if not self._waiting:
            return
        early = self._free_at - self._loop.time()
        if early <= 0:
            _, send, since_ns = self._waiting.popleft()
            self._free_at, early = self._loop.time() + self._gap, self._gap
            send(time.monotonic_ns() - since_ns)
        if self._waiting:
            self._loop.call_later(early, self._go)


def acknowledge_at_once(sock: socket.socket) -> None:
    """Makes the kernel acknowledge data as soon as it is read, until data is sent again. Does nothing on other systems than Linux.

    Linux delays acknowledgements by 40 ms on a connection on which a request was sent soon after an answer. A server without TCP_NODELAY
    sends the first event of a stream only when the head before it was acknowledged (Nagle's algorithm, RFC 9293, 3.7.4), so every TTFT
    would be at least 40 ms. One call after the request is enough, measured in benchmarks/quickack-results.md.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # The connection has ended.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


READ_BUFFER = memoryview(bytearray(1 << 18))  # shared by all sockets; data is copied out after each read


class SocketReader(Protocol):
    """Receives the events of a `TimestampedSocket`.

    `lag_ns` is the time in nanoseconds from the kernel's timestamp of the data to its read, or None without a reliable timestamp.
    """

    def arrived(self, read_ns: int, lag_ns: int | None, data: bytes) -> None: ...

    def written(self, at_ns: int) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class TimestampedSocket:
    """A connected socket that is read with kernel timestamps. It has the methods of asyncio's transports that are needed here.

    After a write error (`_is_broken`) nothing more is sent, but data that the backend sent before can still be read.
    """

    def __init__(self, sock: socket.socket, reader: SocketReader, clock: KernelClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._reader, self._clock = sock, reader, clock
        self._fd = sock.fileno()
        self._unsent: deque[memoryview] = deque()
        self._closing = self._paused = False
        self._is_broken = False  # whether writing failed
        self._loop.add_reader(self._fd, self._readable)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Sends as much as the kernel accepts now, and the rest later. Calls the reader's `written` when everything is sent."""
        if self._closing or self._is_broken:
            return
        waited = bool(self._unsent)
        self._unsent.extend(memoryview(piece) for piece in pieces if piece)
        if not waited and not self._flush():
            self._loop.add_writer(self._fd, self._writable)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._unsent))

    def is_closing(self) -> bool:
        return self._closing or self._is_broken

    def pause_reading(self) -> None:
        if not (self._closing or self._paused):
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def abort(self) -> None:
        """Closes the socket at once. The reader's `connection_lost` is called soon after."""
        self._end(None)

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([READ_BUFFER], ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        read_ns = time.monotonic_ns()
        if size:
            self._reader.arrived(read_ns, self._clock.lag(ancillary, read_ns), bytes(READ_BUFFER[:size]))
        else:
            self._end(None)

    def _writable(self) -> None:
        if self._closing or self._flush():
            self._loop.remove_writer(self._fd)

    def _flush(self) -> bool:
        """Sends until everything is sent or the kernel accepts no more. Returns whether nothing is left to send."""
        at_ns = 0
        while self._unsent:
            at_ns = time.monotonic_ns()  # Before the call, because the backend may answer before `sendmsg` returns.
            try:
                sent = self._socket.sendmsg(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._is_broken = True
                self._unsent.clear()
                return True
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.popleft())
            if sent:
                self._unsent[0] = self._unsent[0][sent:]
        self._reader.written(at_ns)
        return True

    def _end(self, error: OSError | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._unsent.clear()
        self._socket.close()
        self._loop.call_soon(self._reader.connection_lost, error)
