"""Which failed attempts count as interrupted, and when the controller is asked."""

from __future__ import annotations

import asyncio

import pytest

from pytest_agentbench.records import LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool.failed_attempts import UNANSWERED, Outages
from pytest_agentbench.rollouts.protocol import CheckProcesses, PoolNote
from tests.tap.peers import until

pytestmark = pytest.mark.timeout(60)  # A forgotten waiter fails the test instead of hanging it.

SHOP, HOT, BANK = RolloutKey("shop", "a"), RolloutKey("shop", "a", "hot"), RolloutKey("bank", "a")
ANSWERED = LLMCall(0, 1, 2, http_status=500, error_kind="server_error")
CUT = LLMCall(0, 1, 2, error_kind="cut")


class Controller:
    """Outages, and the questions that they send."""

    def __init__(self) -> None:
        self.notes: list[PoolNote] = []
        self.outages = Outages(self.notes.append)

    def explains(self, *calls: LLMCall, key: RolloutKey = SHOP, before: int = 0) -> asyncio.Task[bool]:
        """Returns a task in which a failed attempt with these calls waits to learn whether it was interrupted."""
        return asyncio.create_task(self.outages.explain(key, calls, before))

    async def is_asked(self, times: int = 1) -> None:
        """Waits until so many questions have been sent in total."""
        await until(lambda: len(self.notes) >= times, "a question")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Returns the outages that count for rollouts of `shop`, of its variant `hot`, and of `bank`."""
        return self.outages.count(SHOP), self.outages.count(HOT), self.outages.count(BANK)


async def settle() -> None:
    """Runs the event loop until no callback is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_outage_counts_for_rollouts_that_use_the_part() -> None:
    """An outage of a part that all rollouts use counts for each of them, one of a group's part only for that group."""
    controller = Controller()
    outages = controller.outages
    assert (0, 0, 0) == controller.counts

    outages.update({"tap": ""})
    assert (1, 1, 1) == controller.counts

    outages.update({"tap": "", "template of shop": "shop", "template of shop-hot": "shop-hot"})
    assert (2, 2, 1) == controller.counts

    outages.update({"template of shop": "shop"})
    outages.update({})
    assert (2, 2, 1) == controller.counts


def test_each_absence_counts_once() -> None:
    """A part that is still unavailable is not counted again, unless it has served in between."""
    controller = Controller()
    outages = controller.outages
    outages.add("template of shop", "shop")
    outages.update({"template of shop": "shop"})
    outages.add("tap", "")
    outages.update({"template of shop": "shop", "tap": ""})
    assert (2, 1, 1) == controller.counts

    outages.update({"tap": ""})
    outages.add("template of shop", "shop")
    assert (3, 1, 1) == controller.counts


async def test_calls_that_were_all_answered() -> None:
    """If all calls were answered, the controller is not asked, and only known outages count."""
    controller = Controller()
    assert not await controller.explains(ANSWERED)

    controller.outages.add("tap", "")
    assert await controller.explains(ANSWERED)
    assert not await controller.explains(ANSWERED, before=1)
    assert [] == controller.notes


@pytest.mark.parametrize("calls", [[], *([ANSWERED, LLMCall(0, 1, 2, error_kind=kind)] for kind in UNANSWERED)])
@pytest.mark.parametrize(("away", "is_interrupted"), [({}, False), ({"tap": ""}, True), ({"template of bank": "bank"}, False)])
async def test_a_call_without_an_answer(calls: list[LLMCall], away: dict[str, str], is_interrupted: bool) -> None:
    """If a call was not answered, or there is none, the controller is asked. Deaths known by its answer count."""
    controller = Controller()
    waiting = controller.explains(*calls)
    await controller.is_asked()
    assert [CheckProcesses()] == controller.notes
    assert not waiting.done()

    controller.outages.update(away)
    controller.outages.answer()

    assert is_interrupted == await waiting


async def test_attempts_that_fail_together_ask_once() -> None:
    """Attempts that fail together share one question, and each compares its own count.

    A later failure asks again and waits for that answer.
    """
    controller = Controller()
    early = [controller.explains(CUT), controller.explains(CUT, key=BANK), controller.explains(CUT, before=1)]
    await controller.is_asked()
    early.append(controller.explains())
    await settle()
    controller.outages.update({"template of shop": "shop"})
    controller.outages.answer()

    assert [True, False, False, True] == await asyncio.gather(*early)
    assert [CheckProcesses()] == controller.notes

    late = controller.explains(CUT, before=1)
    await controller.is_asked(2)
    await settle()
    assert not late.done()

    controller.outages.answer()
    assert not await late
    assert [CheckProcesses()] * 2 == controller.notes


async def test_an_attempt_that_is_cancelled_while_it_waits() -> None:
    """If an attempt is cancelled while it waits, the others still get their answer."""
    controller = Controller()
    first, second = controller.explains(CUT), controller.explains(CUT)
    await controller.is_asked()
    first.cancel()
    await settle()
    controller.outages.answer()

    assert not await second
    assert first.cancelled()


@pytest.mark.parametrize("is_asked", [True, False])
async def test_the_end_of_the_controller(is_asked: bool) -> None:
    """The end of the controller ends all waits, whether the question was already sent or not. No question is sent after it."""
    controller = Controller()
    waiting = [controller.explains(CUT), controller.explains(CUT)]
    if is_asked:
        await controller.is_asked()
    else:
        await settle()
    controller.outages.end()

    async with asyncio.timeout(20):
        assert [False, False] == await asyncio.gather(*waiting)
    controller.outages.add("tap", "")
    assert await controller.explains(CUT)
    assert [CheckProcesses()] * is_asked == controller.notes
