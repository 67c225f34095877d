"""The queue that spreads work over rounds of the event loop."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest

from pytest_agentbench.tap.cpu_turns import FairQueue


async def test_sockets_are_read_between_two_turns() -> None:
    """However much work is queued, a socket with data is read after one or two pieces of work. The order of the work is kept."""
    turns, done, over = FairQueue(), list[str](), asyncio.Event()
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    with near, far:
        far.send(b"x")
        loop.add_reader(near, lambda: done.append(f"read {near.recv(9)!r}"))
        for number in range(9):
            turns.take(partial(done.append, str(number)))
        turns.take(over.set)
        await over.wait()
        loop.remove_reader(near)

    assert [str(number) for number in range(9)] == [each for each in done if not each.startswith("read")]
    assert done.index("read b'x'") <= 2


async def test_the_first_turn_of_a_round() -> None:
    """The first piece of work in a round runs at once, later ones do not."""
    turns, done, over = FairQueue(), list[str](), asyncio.Event()

    turns.take(partial(done.append, "first"))
    turns.take(partial(done.append, "second"))
    turns.take(over.set)
    assert ["first"] == done
    await over.wait()
    await asyncio.sleep(0)
    turns.take(partial(done.append, "third"))

    assert ["first", "second", "third"] == done


async def test_a_turn_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a piece of work is reported to the loop, and the next piece still runs."""
    turns, over, faults = FairQueue(), asyncio.Event(), list[object]()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", lambda context: faults.append(context["exception"]))

    def fail() -> None:
        turns.take(over.set)
        raise ValueError("no")

    turns.take(fail)
    await over.wait()

    assert ["no"] == [str(fault) for fault in faults]
