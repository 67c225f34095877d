"""The limit of the number of sandboxes on a machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox import factory
from pytest_agentbench.sandbox.factory import Slots


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))


async def test_sessions_share_the_slots() -> None:
    """Sessions share the slots. If all are taken, a sandbox waits until any session releases one."""
    one, other = Slots(2, print), Slots(2, print)
    first, second = await one.take(), await other.take()
    third = asyncio.create_task(one.take())
    await asyncio.sleep(0.3)
    waited = not third.done()
    second.release()
    second.release()
    held = await third
    fourth = asyncio.create_task(other.take())
    await asyncio.sleep(0.3)

    assert waited
    assert not fourth.done()
    first.release()
    (await fourth).release()
    held.release()


async def test_the_notice_about_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rollout waits for long, the user gets one notice per session, with the option to change."""
    monkeypatch.setattr(factory, "_NOTICE_AFTER", 0.0)
    sentences: list[str] = []
    session = Slots(1, sentences.append)
    for _ in range(2):
        slot = await session.take()
        waiting = asyncio.create_task(session.take())
        await asyncio.sleep(0.3)
        slot.release()
        (await waiting).release()

    assert ["a rollout waits, because at most 1 sandbox runs at once on this machine; --agentbench-sandboxes=N changes this"] == sentences


async def test_locks_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If locks cannot be used, no sandbox is opened."""
    monkeypatch.setenv("AGENTBENCH_LOCKS", f"{__file__}/locks")

    with pytest.raises(InfraError, match=r"the lock folder .*locks cannot be created: .*; set AGENTBENCH_LOCKS to another"):
        await Slots(1, print).take()


def test_the_default() -> None:
    """The default number of slots is two for each core, at least 2 and at most 24."""
    assert 2 <= factory.default_count() <= 24
