"""A scheduler with blocks: nothing runs between two blocks, and faults there reach the tests."""

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
    """Small letters are one arm, capital letters the other. Every switch is recorded in `story`."""

    def __init__(self, fake: FakeRollouts, size: int = 2) -> None:
        self.fake, self.size = fake, size
        self.story: list[str] = []
        self.own: dict[str, int] = {}  # arm -> its own maximum number of rollouts in flight
        self.pauses = False  # whether the rollouts of each block wait until `go` is set
        self.unavailable: dict[str, str | Exception] = {}  # arm -> why it cannot run
        self.holds_in_between = False  # whether a part becomes unavailable while a block is left
        self.open = asyncio.Event()  # set if blocks may be entered
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
    """A block begins when the previous one has ended, including its retries. The last block is left, too."""
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
    """One arm has three rollouts in flight, the other one, and the first three again."""
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


async def test_an_arm_that_cannot_run() -> None:
    """Rollouts of an arm that cannot run are refused with the reason, also if `enter` raises. Those of the other arm run."""
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
    """The block is entered again when the tap is available, and no rollout is refused."""
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
    """If a part becomes unavailable while a block is left, the next one is entered after the hold, or never after a stop."""
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


async def test_an_arm_that_is_dropped() -> None:
    """Rollouts of a dropped arm that have not begun are refused, also later ones. Running ones end, and the other arm's blocks run."""
    fake, _ = fake_with_switch(concurrency=1)
    fake.scheduler.plan(keys("abCDef"))
    fake.scheduler.start()
    await fake.until_begun(1)

    fake.scheduler.drop("low", "it died")

    assert [Outcome("infra_error", "it died")] * 3 == await fake.outcomes("bef")
    fake.go.set()
    assert [OK] * 3 == await fake.outcomes("aCD")
    assert "aCD" == fake.begun


async def test_an_arm_that_is_dropped_during_a_hold() -> None:
    """An interrupted attempt of the dropped arm is final, with the drop as its cause. The other arm continues."""
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
    """A stop, or a cancellation during a switch of arms, answers all requests, and the scheduler drains."""
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
    """While the next arm is prepared no rollout begins, even if a service becomes available again."""
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


async def test_an_unplanned_rollout_has_a_block_of_its_own() -> None:
    """A rollout that is requested later waits for a block of its own, so that it never runs on the other arm."""
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
