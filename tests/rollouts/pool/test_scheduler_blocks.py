"""A scheduler whose rollouts run in blocks: nothing runs between two of them, and whatever goes wrong there reaches the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.blocks import Block
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted
from pytest_agentbench.rollouts.pool.scheduler import Outcome
from tests.rollouts.pool.test_scheduler import INTERRUPTED, OK, Floor, keys, settle

pytestmark = pytest.mark.timeout(60)


class Turns:
    """Small letters are one arm, capital ones the other; every change of block is written down among what began."""

    def __init__(self, floor: Floor, size: int = 2) -> None:
        self.floor, self.size = floor, size
        self.story: list[str] = []
        self.own: dict[str, int] = {}  # arm -> rollouts in flight
        self.pauses = False  # each block's rollouts wait until they are told to end
        self.away: dict[str, str | Exception] = {}  # arm -> why it cannot run
        self.holds_in_between = False  # whether a part goes away while a block is left
        self.open = asyncio.Event()  # blocks are entered from now on
        self.open.set()
        floor.scheduler.block_switch = self

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]:
        parts = [keys[start : start + self.size] for start in range(0, len(keys), self.size)]
        arms = ["low" if part[0].scenario.islower() else "high" for part in parts]
        return [
            Block(arm, tuple(part), self.own.get(arm, self.floor.scheduler.settings.concurrency))
            for arm, part in zip(arms, parts, strict=True)
        ]

    async def enter(self, block: Block) -> str:
        await self.open.wait()
        assert 0 == self.floor.running
        if self.pauses:
            self.floor.go.clear()
        self.story.append(f"{block.arm}:{''.join(key.scenario for key in block.keys)}")
        why = self.away.get(block.arm, "")
        if isinstance(why, Exception):
            raise why
        return why

    async def leave(self) -> None:
        assert 0 == self.floor.running
        self.story.append("end")
        if self.holds_in_between:
            self.floor.scheduler.hold("tap")


def floor_with_turns(*, concurrency: int = 8, retries: int = 0) -> tuple[Floor, Turns]:
    floor = Floor(concurrency=concurrency, retries=retries)
    return floor, Turns(floor)


async def test_nothing_runs_between_blocks() -> None:
    """A block begins when the one before it has ended, to its last retry; the last one is left as well."""
    floor, turns = floor_with_turns(retries=1)
    floor.ends["b"] = ["infra_error", "ok"]
    floor.go.set()
    floor.scheduler.plan(keys("abCDe"))
    floor.scheduler.start()

    assert [OK] * 5 == await floor.outcomes("abCDe")
    await floor.scheduler.drained()
    assert ["low:ab", "end", "high:CD", "end", "low:e", "end"] == turns.story
    assert "abbCDe" == floor.begun


async def test_each_block_runs_at_its_own_concurrency() -> None:
    """Of one arm three rollouts are in flight, of the other one at a time, and three again."""
    floor, turns = floor_with_turns(concurrency=3)
    turns.size, turns.own = 3, {"high": 1}
    turns.pauses = True
    running = []
    floor.scheduler.plan(keys("abcDEFghi"))
    floor.scheduler.start()

    for begun in (3, 4, 7):
        await floor.until_begun(begun)
        await settle()
        running.append(floor.running)
        floor.go.set()

    assert [OK] * 9 == await floor.outcomes("abcDEFghi")
    assert [3, 1, 3] == running


async def test_an_arm_that_is_not_there() -> None:
    """Its rollouts are refused with the reason, those of the other arm run; so it is when the way to a block fails."""
    for why in ("it did not boot", InfraError("the tap is gone"), ValueError("x")):
        floor, turns = floor_with_turns()
        turns.away["high"] = why
        floor.go.set()
        floor.scheduler.plan(keys("abCDe"))
        floor.scheduler.start()

        first, refused, last = [await floor.outcomes(names) for names in ("ab", "CD", "e")]
        assert [OK] * 3 == [*first, *last]
        expected = f"the pool failed between blocks: {cause(why)}" if isinstance(why, ValueError) else str(why)
        assert [Outcome("infra_error", expected)] * 2 == refused


async def test_a_tap_that_dies_between_blocks() -> None:
    """The block is entered anew when the tap is there again, and no rollout is refused."""
    floor, turns = floor_with_turns()
    turns.open.clear()
    turns.away["high"] = Interrupted(Rollout("shop", "C", "default", 1, status="infra_error", reason="the tap is gone"))
    floor.go.set()
    floor.scheduler.plan(keys("CD"))
    floor.scheduler.start()
    await settle()
    floor.scheduler.hold("tap")
    turns.open.set()
    await settle()
    turns.away.clear()
    floor.scheduler.hold("")

    assert [OK] * 2 == await floor.outcomes("CD")
    assert ["high:CD", "high:CD"] == turns.story[:2]


async def test_a_hold_between_two_blocks() -> None:
    """If a part goes away while a block is left, the next one is not entered before the hold ends, and not at all after a stop."""
    for is_stopped in (False, True):
        floor, turns = floor_with_turns()
        turns.holds_in_between = True
        floor.go.set()
        floor.scheduler.plan(keys("abCD"))
        floor.scheduler.start()
        assert [OK] * 2 == await floor.outcomes("ab")
        await settle()
        assert ["low:ab", "end"] == turns.story

        if is_stopped:
            floor.scheduler.stop("the tap is gone", "infra_error")
            await floor.scheduler.drained()
        turns.holds_in_between = False
        floor.scheduler.hold("")

        assert [Outcome("infra_error", "the tap is gone") if is_stopped else OK] * 2 == await floor.outcomes("CD")
        await floor.scheduler.drained()
        assert ["low:ab", "end", *([] if is_stopped else ["high:CD", "end"])] == turns.story


async def test_an_arm_that_goes() -> None:
    """What of it has not begun is refused, now and later; what runs may end, and the other arm's blocks come."""
    floor, _ = floor_with_turns(concurrency=1)
    floor.scheduler.plan(keys("abCDef"))
    floor.scheduler.start()
    await floor.until_begun(1)

    floor.scheduler.drop("low", "it died")

    assert [Outcome("infra_error", "it died")] * 3 == await floor.outcomes("bef")
    floor.go.set()
    assert [OK] * 3 == await floor.outcomes("aCD")
    assert "aCD" == floor.begun


async def test_an_arm_that_goes_while_the_queue_is_held() -> None:
    """An attempt that was interrupted ends as it is, with the reason as its cause; the other arm goes on."""
    floor, _ = floor_with_turns(concurrency=1)
    floor.ends["a"] = [INTERRUPTED]
    floor.scheduler.plan(keys("abCD"))
    floor.scheduler.start()
    await floor.until_begun(1)

    floor.scheduler.hold("new.server")
    floor.go.set()
    await settle()
    floor.scheduler.drop("low", "it stays away")
    floor.scheduler.hold("")

    tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="it stays away")
    assert [tried, Outcome("infra_error", "it stays away"), OK, OK] == await floor.outcomes("abCD")
    assert "aCD" == floor.begun


async def test_stopping_answers_those_of_later_blocks() -> None:
    """A stop, or a cancellation in the middle of a change of arms, answers everybody who waits, and ends."""
    for how in ("stop", "cancel"):
        floor, turns = floor_with_turns()
        turns.open.clear()
        floor.go.set()
        floor.scheduler.plan(keys("abCD"))
        floor.scheduler.start()
        asked = floor.asked("abCD")
        await asyncio.sleep(0)

        if how == "stop":
            floor.scheduler.stop("time is up", "cancelled")
            turns.open.set()
        else:
            floor.scheduler.cancel("time is up")
        await floor.scheduler.drained()

        assert [Outcome("cancelled", "time is up")] * 4 == await asyncio.gather(*asked)
        assert "" == floor.begun


async def test_a_service_that_is_back_starts_nothing_early() -> None:
    """While the next arm is made ready nothing begins, whatever else happens: a service that was away is there again."""
    floor, turns = floor_with_turns()
    turns.open.clear()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await settle()

    floor.scheduler.hold("")
    await settle()
    assert "" == floor.begun

    turns.open.set()
    floor.go.set()
    assert [OK, OK] == await floor.outcomes("ab")


async def test_what_was_in_no_plan_has_a_block_of_its_own() -> None:
    """A rollout that somebody asks for later waits for its turn, so that it never runs on the other arm."""
    floor, turns = floor_with_turns()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await floor.until_begun(2)
    (asked,) = floor.asked("X")
    await asyncio.sleep(0)
    assert "ab" == floor.begun

    floor.go.set()

    assert OK == await asked
    assert ["low:ab", "end", "high:X"] == turns.story[:3]
