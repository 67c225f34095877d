"""A TCP socket to the backend that is read with the kernel's stamps; for the rest it is what asyncio calls a transport."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pytest_agentbench.tap.clock import ANCILLARY, KernelClock

ROOM = memoryview(bytearray(1 << 18))  # one read; what it held is copied out before the next


class SocketReader(Protocol):
    """Who is told what happens on a socket."""

    def arrived(self, read_ns: int, lag_ns: int | None, data: bytes) -> None: ...

    def written(self, at_ns: int) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class StampedSocket:
    """A connected socket; it is closed when it is lost or aborted."""

    def __init__(self, sock: socket.socket, reader: SocketReader, clock: KernelClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._reader, self._clock = sock, reader, clock
        self._fd = sock.fileno()
        self._unsent: deque[memoryview] = deque()
        self._closing = self._paused = False
        self._deaf = False  # the other side takes no more; what it said before may still be read
        self._loop.add_reader(self._fd, self._readable)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Sends what the kernel takes at once, and the rest when it can; `written` tells when all of it is out."""
        if self._closing or self._deaf:
            return
        waited = bool(self._unsent)
        self._unsent.extend(memoryview(piece) for piece in pieces if piece)
        if not waited and not self._flush():
            self._loop.add_writer(self._fd, self._writable)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._unsent))

    def is_closing(self) -> bool:
        return self._closing or self._deaf

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
            size, ancillary, _, _ = self._socket.recvmsg_into([ROOM], ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        read_ns = time.monotonic_ns()
        if size:
            self._reader.arrived(read_ns, self._clock.lag(ancillary, read_ns), bytes(ROOM[:size]))
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
                self._deaf = True
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
