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
from tests.rollouts.pool.test_scheduler import INTERRUPTED, OK, FakeRollouts, keys, settle

pytestmark = pytest.mark.timeout(60)


class FakeSwitch:
    """Small letters are one arm, capital ones the other; every change of block is written down among what began."""

    def __init__(self, fake: FakeRollouts, size: int = 2) -> None:
        self.fake, self.size = fake, size
        self.story: list[str] = []
        self.own: dict[str, int] = {}  # arm -> rollouts in flight
        self.pauses = False  # each block's rollouts wait until they are told to end
        self.unavailable: dict[str, str | Exception] = {}  # arm -> why it cannot run
        self.holds_in_between = False  # whether a part goes away while a block is left
        self.open = asyncio.Event()  # blocks are entered from now on
        self.open.set()
        fake.scheduler.block_switch = self

    def arrange(self, keys: Sequence[RolloutKey]) -> list[Block]:
        parts = [keys[start : start + self.size] for start in range(0, len(keys), self.size)]
        arms = ["low" if part[0].scenario.islower() else "high" for part in parts]
        return [
            Block(arm, tuple(part), self.own.get(arm, self.fake.scheduler.settings.concurrency))
            for arm, part in zip(arms, parts, strict=True)
        ]

    async def enter(self, block: Block) -> str:
        await self.open.wait()
        assert 0 == self.fake.running
        if self.pauses:
            self.fake.go.clear()
        self.story.append(f"{block.arm}:{''.join(key.scenario for key in block.keys)}")
        why = self.unavailable.get(block.arm, "")
        if isinstance(why, Exception):
            raise why
        return why

    async def leave(self) -> None:
        assert 0 == self.fake.running
        self.story.append("end")
        if self.holds_in_between:
            self.fake.scheduler.hold("tap")


def fake_with_switch(*, concurrency: int = 8, retries: int = 0) -> tuple[FakeRollouts, FakeSwitch]:
    fake = FakeRollouts(concurrency=concurrency, retries=retries)
    return fake, FakeSwitch(fake)


async def test_nothing_runs_between_blocks() -> None:
    """A block begins when the one before it has ended, to its last retry; the last one is left as well."""
    fake, turns = fake_with_switch(retries=1)
    fake.ends["b"] = ["infra_error", "ok"]
    fake.go.set()
    fake.scheduler.plan(keys("abCDe"))
    fake.scheduler.start()

    assert [OK] * 5 == await fake.outcomes("abCDe")
    await fake.scheduler.drained()
    assert ["low:ab", "end", "high:CD", "end", "low:e", "end"] == turns.story
    assert "abbCDe" == fake.begun


async def test_each_block_runs_at_its_own_concurrency() -> None:
    """Of one arm three rollouts are in flight, of the other one at a time, and three again."""
    fake, turns = fake_with_switch(concurrency=3)
    turns.size, turns.own = 3, {"high": 1}
    turns.pauses = True
    running = []
    fake.scheduler.plan(keys("abcDEFghi"))
    fake.scheduler.start()

    for begun in (3, 4, 7):
        await fake.until_begun(begun)
        await settle()
        running.append(fake.running)
        fake.go.set()

    assert [OK] * 9 == await fake.outcomes("abcDEFghi")
    assert [3, 1, 3] == running


async def test_an_arm_that_is_not_there() -> None:
    """Its rollouts are refused with the reason, those of the other arm run; so it is when the way to a block fails."""
    for why in ("it did not boot", InfraError("the tap is gone"), ValueError("x")):
        fake, turns = fake_with_switch()
        turns.unavailable["high"] = why
        fake.go.set()
        fake.scheduler.plan(keys("abCDe"))
        fake.scheduler.start()

        first, refused, last = [await fake.outcomes(names) for names in ("ab", "CD", "e")]
        assert [OK] * 3 == [*first, *last]
        expected = f"the pool failed between blocks: {cause(why)}" if isinstance(why, ValueError) else str(why)
        assert [Outcome("infra_error", expected)] * 2 == refused


async def test_a_tap_that_dies_between_blocks() -> None:
    """The block is entered anew when the tap is there again, and no rollout is refused."""
    fake, turns = fake_with_switch()
    turns.open.clear()
    turns.unavailable["high"] = Interrupted(Rollout("shop", "C", "default", 1, status="infra_error", reason="the tap is gone"))
    fake.go.set()
    fake.scheduler.plan(keys("CD"))
    fake.scheduler.start()
    await settle()
    fake.scheduler.hold("tap")
    turns.open.set()
    await settle()
    turns.unavailable.clear()
    fake.scheduler.hold("")

    assert [OK] * 2 == await fake.outcomes("CD")
    assert ["high:CD", "high:CD"] == turns.story[:2]


async def test_a_hold_between_two_blocks() -> None:
    """If a part goes away while a block is left, the next one is not entered before the hold ends, and not at all after a stop."""
    for is_stopped in (False, True):
        fake, turns = fake_with_switch()
        turns.holds_in_between = True
        fake.go.set()
        fake.scheduler.plan(keys("abCD"))
        fake.scheduler.start()
        assert [OK] * 2 == await fake.outcomes("ab")
        await settle()
        assert ["low:ab", "end"] == turns.story

        if is_stopped:
            fake.scheduler.stop("the tap is gone", "infra_error")
            await fake.scheduler.drained()
        turns.holds_in_between = False
        fake.scheduler.hold("")

        assert [Outcome("infra_error", "the tap is gone") if is_stopped else OK] * 2 == await fake.outcomes("CD")
        await fake.scheduler.drained()
        assert ["low:ab", "end", *([] if is_stopped else ["high:CD", "end"])] == turns.story


async def test_an_arm_that_goes() -> None:
    """What of it has not begun is refused, now and later; what runs may end, and the other arm's blocks come."""
    fake, _ = fake_with_switch(concurrency=1)
    fake.scheduler.plan(keys("abCDef"))
    fake.scheduler.start()
    await fake.until_begun(1)

    fake.scheduler.drop("low", "it died")

    assert [Outcome("infra_error", "it died")] * 3 == await fake.outcomes("bef")
    fake.go.set()
    assert [OK] * 3 == await fake.outcomes("aCD")
    assert "aCD" == fake.begun


async def test_an_arm_that_goes_while_the_queue_is_held() -> None:
    """An attempt that was interrupted ends as it is, with the reason as its cause; the other arm goes on."""
    fake, _ = fake_with_switch(concurrency=1)
    fake.ends["a"] = [INTERRUPTED]
    fake.scheduler.plan(keys("abCD"))
    fake.scheduler.start()
    await fake.until_begun(1)

    fake.scheduler.hold("new.server")
    fake.go.set()
    await settle()
    fake.scheduler.drop("low", "it stays away")
    fake.scheduler.hold("")

    tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="it stays away")
    assert [tried, Outcome("infra_error", "it stays away"), OK, OK] == await fake.outcomes("abCD")
    assert "aCD" == fake.begun


async def test_stopping_answers_those_of_later_blocks() -> None:
    """A stop, or a cancellation in the middle of a change of arms, answers everybody who waits, and ends."""
    for how in ("stop", "cancel"):
        fake, turns = fake_with_switch()
        turns.open.clear()
        fake.go.set()
        fake.scheduler.plan(keys("abCD"))
        fake.scheduler.start()
        requests = fake.request("abCD")
        await asyncio.sleep(0)

        if how == "stop":
            fake.scheduler.stop("time is up", "cancelled")
            turns.open.set()
        else:
            fake.scheduler.cancel("time is up")
        await fake.scheduler.drained()

        assert [Outcome("cancelled", "time is up")] * 4 == await asyncio.gather(*requests)
        assert "" == fake.begun


async def test_a_service_that_is_back_starts_nothing_early() -> None:
    """While the next arm is made ready nothing begins, whatever else happens: a service that was away is there again."""
    fake, turns = fake_with_switch()
    turns.open.clear()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await settle()

    fake.scheduler.hold("")
    await settle()
    assert "" == fake.begun

    turns.open.set()
    fake.go.set()
    assert [OK, OK] == await fake.outcomes("ab")


async def test_what_was_in_no_plan_has_a_block_of_its_own() -> None:
    """A rollout that somebody asks for later waits for its turn, so that it never runs on the other arm."""
    fake, turns = fake_with_switch()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await fake.until_begun(2)
    (requests,) = fake.request("X")
    await asyncio.sleep(0)
    assert "ab" == fake.begun

    fake.go.set()

    assert OK == await requests
    assert ["low:ab", "end", "high:X"] == turns.story[:3]
