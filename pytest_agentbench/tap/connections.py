"""What connections to the backend are made of: its address, sockets that are read with the kernel's stamps, idle ones, and a pace.

The name service is asked once for all connections that are opened at the same time. A backend that takes so many requests a minute gets
them one by one, evenly spaced, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from aiohappyeyeballs import AddrInfoType

from pytest_agentbench.tap.clock import ANCILLARY, KernelClock

ADDRESS_HOLDS = 30.0  # seconds for which an answer is taken for true


class Lookup(NamedTuple):
    """What the name service says, or is being asked."""

    answer: asyncio.Task[list[AddrInfoType]]
    until: float  # time of the loop


class HostAddresses:
    """Of one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lookup: Lookup | None = None

    async def get(self) -> list[AddrInfoType]:
        """Raises OSError or ValueError when there are none."""
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
        return cast("list[AddrInfoType]", infos)  # the same, but for addresses of families that TCP does not have


#: Seconds for which one may lie idle. Servers close those that do (uvicorn after five seconds, Node.js too), and a request that meets
#: the close on its way is lost; nobody could then tell it from one that the backend died of.
LONGEST_IDLE = 2.0

C = TypeVar("C")


class IdleConnections(Generic[C]):
    """The newest is taken first, so that no more are kept than are needed."""

    def __init__(self, is_quiet: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """`is_quiet` tells whether a connection has nothing to read, not even the backend's close; `close` ends a connection."""
        self._is_quiet, self._close = is_quiet, close
        self._waiting: deque[tuple[float, C]] = deque()  # since when, seconds of time.monotonic(); oldest first

    def add(self, connection: C) -> None:
        self._waiting.append((time.monotonic(), connection))

    def remove(self, connection: C) -> None:
        """Forgets one that has ended; one that is not here is no matter."""
        self._waiting = deque(each for each in self._waiting if each[1] is not connection)

    def take(self) -> tuple[C | None, int]:
        """One that the backend still holds, if there is any; and how many it had closed that would have been taken before."""
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
        """Ends all of them."""
        for _, connection in self._waiting:
            self._close(connection)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - LONGEST_IDLE
        while self._waiting and self._waiting[0][0] < oldest:
            self._close(self._waiting.popleft()[1])


class RateLimiter:
    """Holds calls back. Evenly spaced ones keep every kind of limit, also one that looks at a second or at any sixty of them."""

    def __init__(self, requests_per_minute: float) -> None:
        """Raises ValueError for what is no rate."""
        if not 0 < requests_per_minute < math.inf:
            raise ValueError(f"{requests_per_minute} is no number of requests a minute")
        self._gap = 60 / requests_per_minute
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[], bool], Callable[[int], None], int]] = deque()
        self._free_at = self._loop.time()  # when the next call may go

    def take(self, is_over: Callable[[], bool], send: Callable[[int], None]) -> None:
        """Calls `send` with the nanoseconds that the call waited, unless `is_over` says by then that its answer is no longer wanted."""
        self._waiting.append((is_over, send, time.monotonic_ns()))
        if len(self._waiting) == 1:
            self._go()

    def _go(self) -> None:
        """Sends the first that waits, if it is time, and comes back for the next one."""
        while self._waiting and self._waiting[0][0]():  # its agent left, or its rollout ended
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


READ_BUFFER = memoryview(bytearray(1 << 18))  # one read; what it held is copied out before the next


class SocketReader(Protocol):
    """Who is told what happens on a socket."""

    def arrived(self, read_ns: int, lag_ns: int | None, data: bytes) -> None: ...

    def written(self, at_ns: int) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class TimestampedSocket:
    """A connected socket; it is closed when it is lost or aborted."""

    def __init__(self, sock: socket.socket, reader: SocketReader, clock: KernelClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._reader, self._clock = sock, reader, clock
        self._fd = sock.fileno()
        self._unsent: deque[memoryview] = deque()
        self._closing = self._paused = False
        self._is_broken = False  # the other side takes no more; what it said before may still be read
        self._loop.add_reader(self._fd, self._readable)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Sends what the kernel takes at once, and the rest when it can; `written` tells when all of it is out."""
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
        """Closes at once; `connection_lost` follows."""
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
        """Sends until all is out, or the kernel takes no more; whether there is nothing left to send."""
        at_ns = 0
        while self._unsent:
            at_ns = time.monotonic_ns()  # of the last bytes: the backend may have answered before `sendmsg` is back
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
