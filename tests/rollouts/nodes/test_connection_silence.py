"""When a connection counts as lost, and when not, because this side itself was stopped."""

from __future__ import annotations

import pytest

from pytest_agentbench.rollouts.nodes import connection
from pytest_agentbench.rollouts.nodes.connection import SILENCE, VARIABLE, Silence, silence_limit


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection, "time", clock)
    return clock


def silent_for(silence: Silence, clock: Clock, seconds: int) -> list[int]:
    """Lets time pass, with a call each second. Returns after how many seconds the other side had been silent for too long."""
    found = []
    for second in range(1, seconds + 1):
        clock.now += 1
        if silence.is_too_long():
            found.append(second)
    return found


def test_silence(clock: Clock) -> None:
    """The other side is given up after more than the limit without a message. A message begins the count anew."""
    silence = Silence(5)
    silent_for(silence, clock, 5)
    silence.end()

    assert [6, 7] == silent_for(silence, clock, 7)
    assert 7 == silence.seconds


def test_this_side_was_stopped(clock: Clock) -> None:
    """If this side was stopped for longer than the limit, the count begins anew, and so the other side is not given up at once."""
    silence = Silence(5)
    silent_for(silence, clock, 2)
    clock.now += 60

    assert [7] == silent_for(silence, clock, 7)


def test_only_once(clock: Clock) -> None:
    """Between two messages the count begins anew once only, so a side that is late again and again notices the loss, too."""
    silence = Silence(5)
    found = []
    for _ in range(6):
        clock.now += 3
        found.append(silence.is_too_long())

    assert [False, False, True, True, True, True] == found
    silence.end()
    clock.now += 60
    assert not silence.is_too_long()


def test_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 25 s, or what an environment variable says."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert 25.0 == silence_limit() == SILENCE
    monkeypatch.setenv(VARIABLE, "1.5")
    assert 1.5 == silence_limit()
