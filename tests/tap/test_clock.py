"""Kernel timestamps, converted to the monotonic clock."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from pytest_agentbench.tap.clock import ANCILLARY, APART, HOLDS, SO_TIMESTAMPNS, TIMESPEC, KernelClock, enable_timestamps

MS = 1_000_000  # nanoseconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the stamps of Linux")

Pair = tuple[socket.socket, socket.socket]
Ancillary = list[tuple[int, int, bytes]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a connection. The kernel timestamps data that arrives at the second one."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        receiver, _ = listener.accept()
        with receiver:
            assert enable_timestamps(receiver)
            stamped = False
            while not stamped:  # The kernel starts timestamps a moment after the first socket has enabled them.
                sender.send(b"x")
                stamped = bool(received(receiver)[0])
            yield sender, receiver


def received(receiver: socket.socket) -> tuple[Ancillary, int]:
    _, ancillary, _, _ = receiver.recvmsg(16, ANCILLARY)
    return ancillary, time.monotonic_ns()


def stamped(ago_ns: int) -> Ancillary:
    """Returns the ancillary data of a packet that the kernel timestamped `ago_ns` before now."""
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, TIMESPEC.pack(*divmod(time.time_ns() - ago_ns, 1_000_000_000)))]


def test_bytes_that_lay_in_the_kernel(pair: Pair) -> None:
    """The timestamp is between the send and the time after it, however late the data is read."""
    sender, receiver = pair
    clock = KernelClock()
    before = time.monotonic_ns()
    sender.send(b"x")
    after = time.monotonic_ns()
    time.sleep(0.05)
    ancillary, read_ns = received(receiver)
    lag = clock.lag(ancillary, read_ns)

    assert lag is not None
    assert lag >= 49 * MS
    assert before - 2 * APART <= read_ns - lag
    assert read_ns - lag < after + 49 * MS


def test_reads_that_have_no_stamp(pair: Pair) -> None:
    """Without the socket option there are no timestamps."""
    sender, receiver = pair
    clock = KernelClock()
    receiver.send(b"x")

    assert clock.lag(*received(sender)) is None
    assert clock.lag([(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\0" * 16)], time.monotonic_ns()) is None


@pytest.mark.parametrize("step_ns", [-3_600_000 * MS, -50 * MS, 50 * MS, 3_600_000 * MS])
def test_a_step_of_the_realtime_clock(step_ns: int) -> None:
    """The first read after a step has no reliable timestamp. Later reads have one."""
    clock = KernelClock()
    clock.offset -= step_ns

    assert clock.lag(stamped(10 * MS), time.monotonic_ns()) is None
    lag = clock.lag(stamped(10 * MS), time.monotonic_ns())
    assert lag is not None
    assert lag > 9 * MS
    assert 1 == clock.steps


def test_slewing_is_followed() -> None:
    """A drift within 500 ppm is not a step. The offset is measured again after a while, and timestamps are used."""
    clock = KernelClock()
    now = time.monotonic_ns()
    clock.paired_ns, truth = now - 10 * HOLDS, clock.offset
    clock.offset -= 3 * MS  # 300 ppm of 10 s

    assert clock.lag(stamped(10 * MS), time.monotonic_ns()) is not None
    assert 0 == clock.steps
    assert clock.paired_ns >= now
    assert abs(clock.offset - truth) < MS


@pytest.mark.parametrize("ahead_ns", [5 * MS, 1_000 * MS])
def test_stamps_of_the_future(ahead_ns: int) -> None:
    """A timestamp far after the read of its data is not used."""
    assert KernelClock().lag(stamped(-ahead_ns), time.monotonic_ns()) is None


def test_sockets_that_cannot() -> None:
    """Timestamps cannot be enabled on a closed socket."""
    sock = socket.socket()
    sock.close()

    assert not enable_timestamps(sock)
