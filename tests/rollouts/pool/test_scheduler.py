"""Which rollout runs next, how many at the same time, and what is done about those that did not work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, RetryPolicy
from pytest_agentbench.rollouts.pool.scheduler import KEPT, Outcome, Scheduler, longest_first
from pytest_agentbench.rollouts.protocol import Scheduling

pytestmark = pytest.mark.timeout(60)  # a scheduler that forgets somebody is a failure instead of a hang

OK = Outcome("ok", recorded=True)
INTERRUPTED = "interrupted"  # how an attempt ends that raises Interrupted
CALL = LLMCall(received_ns=0, sent_ns=0, ended_ns=1, error_kind="server_error")
JUDGED = LLMCall(received_ns=1, sent_ns=1, ended_ns=2)
WORK: dict[str, Any] = {"ended_ns": 2_000_000_000, "calls": (CALL,), "other_calls": (JUDGED,)}  # of every attempt


def keys(names: str) -> list[RolloutKey]:
    """A key for every letter."""
    return [RolloutKey("shop", name) for name in names]


class Floor:
    """What a scheduler works on: rollouts that end when they are told to, and a journal."""

    def __init__(
        self, *, concurrency: int = 8, retries: int = 0, keep_order: bool = False, durations: dict[str, float] | None = None
    ) -> None:
        self.begun = ""  # the letters of rollouts, in the order in which they began
        self.peak = self.running = 0
        self.begins = asyncio.Condition()
        self.go = asyncio.Event()  # rollouts end from now on
        self.open_journal = asyncio.Event()  # the journal takes records from now on
        self.open_journal.set()
        self.journal: list[Rollout] = []
        self.refused = ""  # letters that the journal cannot take
        self.ends: dict[str, list[str | BaseException]] = {}  # letter -> how its attempts end, the last one again and again
        settings = Scheduling(concurrency, retries, keep_order, durations or {})
        self.scheduler = Scheduler(self._run, self._record, settings, RetryPolicy(retries, {}))

    async def _run(self, key: RolloutKey) -> Rollout:
        async with self.begins:
            self.begun += key.scenario
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.begins.notify_all()
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        ends = self.ends.get(key.scenario, ["ok"])
        end = ends.pop(0) if ends[1:] else ends[0]
        if isinstance(end, BaseException):
            raise end
        if end == INTERRUPTED:
            raise Interrupted(Rollout(*key, status="infra_error", reason="infra_error: why", **WORK))
        return Rollout(*key, status=end, reason="" if end == "ok" else f"{end}: why", **WORK)

    async def _record(self, rollout: Rollout) -> bytes:
        await self.open_journal.wait()
        if rollout.scenario in self.refused:
            raise InfraError("the disk is full")
        self.journal.append(rollout)
        return f"line of {rollout.scenario}".encode()

    async def until_begun(self, count: int) -> None:
        """Waits until so many rollouts have begun."""
        async with self.begins:
            await self.begins.wait_for(lambda: len(self.begun) >= count)

    async def outcomes(self, names: str) -> list[Outcome]:
        return [await self.scheduler.outcome(key) for key in keys(names)]

    def asked(self, names: str) -> list[asyncio.Task[Outcome]]:
        """Tests that wait."""
        return [asyncio.create_task(self.scheduler.outcome(key)) for key in keys(names)]


async def settle() -> None:
    """Lets everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_rollout_runs_once() -> None:
    """However often a rollout is planned and asked for, before, while and after it runs, it runs once and everybody gets its end."""
    floor = Floor()
    early = floor.asked("aa")
    floor.scheduler.plan(keys("abab"))
    floor.scheduler.plan(keys("bc"))
    floor.scheduler.start()
    await floor.until_begun(3)
    middle = floor.asked("ab")
    floor.go.set()

    assert [OK] * 4 == await asyncio.gather(*early, *middle)
    assert [OK] * 3 == await floor.outcomes("abc")
    assert "abc" == "".join(sorted(floor.begun))
    assert "abc" == "".join(sorted(rollout.scenario for rollout in floor.journal))


async def test_nothing_runs_before_the_start() -> None:
    """A plan waits for the backend, and so does a rollout that was in no plan."""
    floor = Floor()
    floor.go.set()
    floor.scheduler.plan(keys("ab"))
    asked = floor.asked("z")
    await settle()

    assert "" == floor.begun

    floor.scheduler.start()

    assert [OK] == await asyncio.gather(*asked)
    assert "zab" == floor.begun


async def test_what_comes_after_the_start_begins_at_once() -> None:
    """A plan, or a rollout that is in none, finds the backend answering and places free."""
    floor = Floor()
    floor.go.set()
    floor.scheduler.start()
    floor.scheduler.plan(keys("ab"))
    await floor.scheduler.drained()

    assert "ab" == floor.begun
    assert [OK] == await floor.outcomes("z")


async def test_the_concurrency_is_reached_and_never_exceeded() -> None:
    """As many rollouts run at once as are allowed, until fewer are left."""
    floor = Floor(concurrency=3)
    floor.scheduler.plan(keys("abcdefgh"))
    floor.scheduler.start()
    await floor.until_begun(3)
    await settle()

    assert ("abc", 3) == (floor.begun, floor.running)

    floor.go.set()
    await floor.scheduler.drained()

    assert ("abcdefgh", 3, 0) == (floor.begun, floor.peak, floor.running)


async def test_a_recording_holds_its_place() -> None:
    """A rollout counts as running until it is in the journal, so that a slow journal slows the pool down."""
    floor = Floor(concurrency=1)
    floor.go.set()
    floor.open_journal.clear()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await settle()

    assert "a" == floor.begun

    floor.open_journal.set()
    await floor.scheduler.drained()

    assert "ab" == floor.begun


@pytest.mark.parametrize(
    ("durations", "keep_order", "order"),
    [
        ({}, False, "abcd"),
        ({"shop[b]": 1.0, "shop[d]": 3.0, "shop[c]": 2.0, "shop[a]": 1.0}, False, "dcab"),
        ({"shop[b]": 1.0, "shop[d]": 3.0}, False, "acdb"),
        ({"bank[d]": 3.0}, False, "abcd"),
        ({"shop[b]": 1.0, "shop[d]": 3.0}, True, "abcd"),
    ],
)
async def test_the_order(durations: dict[str, float], keep_order: bool, order: str) -> None:
    """Longest first where durations are known; those that are unknown may be long and go first; else, and under -x, as planned."""
    floor = Floor(concurrency=1, durations=durations, keep_order=keep_order)
    floor.go.set()
    floor.scheduler.plan(keys("abcd"))
    floor.scheduler.start()
    await floor.scheduler.drained()

    assert order == floor.begun


def test_longest_first_knows_variants_and_trials() -> None:
    """A duration belongs to one rollout, not to its scenario."""
    second, hot = RolloutKey("shop", "a", trial=2), RolloutKey("shop", "a", "hot")
    durations = {"shop[a]": 1.0, "shop[a-t2]": 3.0, "shop[a-hot]": 2.0}

    assert [second, hot, *keys("a")] == longest_first([*keys("a"), hot, second], durations)


async def test_an_unplanned_rollout_goes_first() -> None:
    """A test that asks for what is in no plan gets the next free place."""
    floor = Floor(concurrency=1)
    floor.scheduler.plan(keys("abc"))
    floor.scheduler.start()
    await floor.until_begun(1)
    asked = floor.asked("z")
    await settle()
    floor.go.set()

    assert [OK] == await asyncio.gather(*asked)

    await floor.scheduler.drained()

    assert "azbc" == floor.begun


async def test_who_stops_waiting_harms_nobody() -> None:
    """A test process that dies while it waits cancels neither the rollout nor the others that wait for it."""
    floor = Floor()
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()
    gone, stays = floor.asked("aa")
    await floor.until_begun(1)
    gone.cancel()
    await settle()
    floor.go.set()

    assert OK == await stays


async def test_bodies_are_bounded() -> None:
    """The lines of the last finished rollouts are in memory, older ones are not."""
    floor = Floor()
    floor.go.set()
    many = [RolloutKey("shop", f"{number}") for number in range(KEPT + 3)]
    floor.scheduler.plan(many)
    floor.scheduler.start()
    await floor.scheduler.drained()

    assert [None] * 3 == [floor.scheduler.body(key) for key in many[:3]]
    assert [f"line of {number}".encode() for number in range(3, KEPT + 3)] == [floor.scheduler.body(key) for key in many[3:]]


async def test_an_infra_error_is_tried_again() -> None:
    """An infra_error is tried again, at most `retries` times; the attempts before the last one are kept with their reasons and calls."""
    floor = Floor(retries=2)
    floor.ends = {"a": ["infra_error", "ok"], "b": ["infra_error"], "c": ["infra_error", "limit"]}
    floor.go.set()
    floor.scheduler.plan(keys("abc"))
    floor.scheduler.start()

    assert [OK, Outcome("infra_error", "infra_error: why", recorded=True), Outcome("limit", "limit: why", recorded=True)] == (
        await floor.outcomes("abc")
    )
    assert [2, 3, 2] == [floor.begun.count(name) for name in "abc"]
    a, b, c = sorted(floor.journal, key=lambda rollout: rollout.scenario)
    failed = [Attempt(number, "infra_error", "infra_error: why", **WORK) for number in (1, 2)]
    assert (2, (*failed[:1],)) == (a.attempt, a.earlier_attempts)
    assert (3, (*failed,)) == (b.attempt, b.earlier_attempts)
    assert (2, (*failed[:1],)) == (c.attempt, c.earlier_attempts)


@pytest.mark.parametrize("status", ["ok", "limit", "agent_error", "cancelled"])
async def test_nothing_else_is_tried_again(status: str) -> None:
    """Whatever is not an infra_error is final at once."""
    floor = Floor(retries=2)
    floor.ends = {"a": [status]}
    floor.go.set()
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()

    assert [status] == [outcome.status for outcome in await floor.outcomes("a")]
    assert ("a", 1, ()) == (floor.begun, floor.journal[0].attempt, floor.journal[0].earlier_attempts)


async def test_no_retries() -> None:
    """With no retries the first infra_error is the last."""
    floor = Floor(retries=0)
    floor.ends = {"a": ["infra_error", "ok"]}
    floor.go.set()
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()

    assert ["infra_error"] == [outcome.status for outcome in await floor.outcomes("a")]


@pytest.mark.parametrize("error", [RuntimeError("oh"), GeneratorExit("oh"), KeyboardInterrupt("oh")])
async def test_a_fault_of_ours_reaches_who_waits(error: BaseException) -> None:
    """An error of the pool itself ends one rollout, which has no record then; the others go on."""
    floor = Floor(concurrency=1, retries=2)
    floor.ends = {"a": [error]}
    floor.go.set()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()

    failed, other = await floor.outcomes("ab")
    assert ("infra_error", OK) == (failed.status, other)
    assert failed.reason.startswith(f"the pool failed on this rollout: {error!r} (")
    assert ["b"] == [rollout.scenario for rollout in floor.journal]


async def test_a_record_that_cannot_be_written() -> None:
    """A rollout whose record is lost has none, is not run again for it, and says why; the others go on."""
    floor = Floor(concurrency=1, retries=2)
    floor.refused = "a"
    floor.go.set()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    lost, good = await floor.outcomes("ab")

    assert ("infra_error", "the record could not be written: the disk is full", False) == (lost.status, lost.reason, lost.recorded)
    assert (OK, "ab") == (good, floor.begun)


async def test_stop_answers_what_waits_and_lets_the_rest_end() -> None:
    """After a stop nothing begins; those who wait for it are told at once, and what runs still ends and is recorded."""
    floor = Floor(concurrency=1)
    floor.scheduler.plan(keys("abc"))
    floor.scheduler.start()
    await floor.until_begun(1)
    runs, *waiting = floor.asked("abc")
    await settle()
    floor.scheduler.stop("the backend is gone", "infra_error")

    assert [Outcome("infra_error", "the backend is gone")] * 2 == await asyncio.gather(*waiting)
    assert not runs.done()

    floor.go.set()

    assert OK == await runs
    assert "a" == floor.begun


@pytest.mark.parametrize("started", [True, False])
async def test_a_plan_after_the_stop(started: bool) -> None:
    """A backend may die before the plan comes: whoever asks for a planned rollout is told why, and nothing begins."""
    floor = Floor()
    if started:
        floor.scheduler.start()
    floor.scheduler.stop("the backend is gone", "infra_error")
    floor.scheduler.plan(keys("ab"))
    if not started:
        floor.scheduler.start()

    assert [Outcome("infra_error", "the backend is gone")] * 3 == await floor.outcomes("abz")
    assert "" == floor.begun


async def test_no_attempt_after_the_stop() -> None:
    """A rollout that fails because the backend is gone is not tried again."""
    floor = Floor(retries=2)
    floor.ends = {"a": ["infra_error", "ok"]}
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()
    await floor.until_begun(1)
    floor.scheduler.stop("the backend is gone", "infra_error")
    floor.go.set()

    assert ["infra_error"] == [outcome.status for outcome in await floor.outcomes("a")]
    assert "a" == floor.begun


async def test_cancel_answers_everybody_at_once() -> None:
    """After a cancel those who wait are told, whether their rollout ran, waited or was never planned; nothing is recorded."""
    floor = Floor(concurrency=2)
    floor.scheduler.plan(keys("abcd"))
    floor.scheduler.start()
    await floor.until_begun(2)
    asked = floor.asked("abcd")
    await settle()
    floor.scheduler.cancel("a test failed")

    cancelled = Outcome("cancelled", "a test failed")
    assert [cancelled] * 4 == await asyncio.gather(*asked)
    assert [cancelled] == await floor.outcomes("z")
    await floor.scheduler.drained()
    assert ("ab", 0, []) == (floor.begun, floor.running, floor.journal)


async def test_cancel_right_after_the_start() -> None:
    """A rollout that is cancelled before it takes its first step is answered too, and the pool drains."""
    floor = Floor()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    floor.scheduler.cancel("Ctrl-C")

    await floor.scheduler.drained()
    assert [Outcome("cancelled", "Ctrl-C")] * 2 == await floor.outcomes("ab")
    assert "" == floor.begun


async def test_cancel_in_the_pause_between_attempts() -> None:
    """A rollout that waits for its next attempt is answered at once as well."""
    floor = Floor(retries=1)
    floor.ends = {"a": ["infra_error"]}
    floor.go.set()
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()
    await settle()
    floor.scheduler.cancel("Ctrl-C")

    assert [Outcome("cancelled", "Ctrl-C")] == await floor.outcomes("a")
    assert "a" == floor.begun


async def test_what_has_ended_is_recorded() -> None:
    """A rollout on its way to the journal gets there, whatever is cancelled meanwhile, and whoever waits for it has it."""
    floor = Floor(concurrency=2)
    floor.open_journal.clear()
    floor.go.set()
    floor.scheduler.plan(keys("abc"))
    floor.scheduler.start()
    await floor.until_begun(2)
    asked = floor.asked("abc")
    await settle()
    floor.scheduler.cancel("a test failed")
    drained = asyncio.create_task(floor.scheduler.drained())
    await settle()

    assert not drained.done()

    floor.open_journal.set()

    assert [OK, OK, Outcome("cancelled", "a test failed")] == await asyncio.gather(*asked)
    await drained
    assert ["a", "b"] == [rollout.scenario for rollout in floor.journal]
    assert b"line of a" == floor.scheduler.body(keys("a")[0])


async def test_held_back() -> None:
    """While a part of the backend is away no attempt begins, neither a first one nor a further one; then they go on."""
    floor = Floor(concurrency=1, retries=1)
    floor.ends["a"] = ["infra_error", "ok"]
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await floor.until_begun(1)
    floor.scheduler.hold("engine: started again")
    floor.go.set()
    await asyncio.sleep(0.4)  # longer than the pause before the second attempt
    held = floor.begun
    floor.scheduler.hold("")

    assert [OK, OK] == await floor.outcomes("ab")
    assert ("a", "aab") == (held, floor.begun)
    assert [1, 0] == [len(rollout.earlier_attempts) for rollout in floor.journal]


async def test_a_hold_that_follows_at_once() -> None:
    """If another part goes away just after a hold has ended, nothing begins in between, neither a first attempt nor another one."""
    floor = Floor(concurrency=2)
    floor.ends["a"] = [INTERRUPTED, "ok"]
    floor.scheduler.plan(keys("abc"))
    floor.scheduler.start()
    await floor.until_begun(2)
    floor.scheduler.hold("tap")
    floor.go.set()
    await settle()
    for turns_of_the_loop in range(4):
        floor.scheduler.hold("")
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        begun = floor.begun
        floor.scheduler.hold("tap-2")
        await settle()
        assert begun == floor.begun

    floor.scheduler.hold("")

    assert [OK] * 3 == await floor.outcomes("abc")
    assert ["a", "a", "b", "c"] == sorted(floor.begun)


async def test_a_stop_after_a_hold_that_follows_at_once() -> None:
    """A rollout whose start such a hold has prevented does not begin after a stop, whose reason its test gets."""
    floor = Floor()
    floor.go.set()
    floor.scheduler.hold("tap")
    floor.scheduler.plan(keys("a"))
    floor.scheduler.start()
    floor.scheduler.hold("")
    floor.scheduler.hold("tap-2")
    await settle()
    floor.scheduler.stop("the tap is gone", "infra_error")

    assert [Outcome("infra_error", "the tap is gone")] == await floor.outcomes("a")
    assert "" == floor.begun


async def test_held_back_for_ever() -> None:
    """When the part does not come back, those that are held back end with the attempts that they had."""
    floor = Floor(concurrency=1, retries=5)
    floor.ends["a"] = ["infra_error"]
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await floor.until_begun(1)
    floor.scheduler.hold("engine: started again")
    floor.go.set()
    asked = floor.asked("ab")
    await asyncio.sleep(0.4)
    floor.scheduler.stop("the backend is gone", "infra_error")

    tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="the backend is gone")
    assert [tried, Outcome("infra_error", "the backend is gone")] == [await each for each in asked]
    assert ("a", 1, ()) == (floor.begun, floor.journal[0].attempt, floor.journal[0].earlier_attempts)


async def test_what_is_stored_does_not_run() -> None:
    """Rollouts of earlier sessions are answered from the record, planned or not, also when nothing can run; the others run."""
    floor = Floor()
    floor.scheduler.stored = dict.fromkeys(keys("az"), OK)
    floor.go.set()
    floor.scheduler.plan(keys("abc"))

    assert [OK, OK] == await floor.outcomes("az")  # before the start: the backend need not be there for them

    floor.scheduler.start()

    assert [OK] * 4 == await floor.outcomes("abcz")
    assert "bc" == floor.begun

    floor.scheduler.stop("the engine died", "infra_error")

    assert [OK] == await floor.outcomes("z")


async def test_an_interruption_costs_no_retry() -> None:
    """An attempt that was interrupted is run again, also without retries, and stays in the record."""
    floor = Floor(concurrency=1)
    floor.ends["a"] = [INTERRUPTED, INTERRUPTED, "ok"]
    floor.go.set()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()

    assert [OK, OK] == await floor.outcomes("ab")
    assert "aaab" == floor.begun  # it goes back to the front of the queue
    assert [("infra_error", 1), ("infra_error", 2), ("ok", 3)] == [(each.status, each.attempt) for each in floor.journal[0].attempts]


async def test_an_interruption_of_one_attempt_excuses_no_other() -> None:
    """Of two attempts that fail at the same time, the one that was not interrupted has spent its retry."""
    floor = Floor(concurrency=2)
    floor.ends = {"a": [INTERRUPTED, "ok"], "b": ["infra_error", "ok"]}
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await floor.until_begun(2)
    floor.go.set()

    assert [OK, Outcome("infra_error", "infra_error: why", recorded=True)] == await floor.outcomes("ab")


async def test_an_interruption_while_a_part_is_away() -> None:
    """The rollout waits until the part is there again. If that never happens, it ends with the attempt that it had."""
    for comes_back in (True, False):
        floor = Floor(concurrency=1)
        floor.ends["a"] = [INTERRUPTED, "ok"]
        floor.scheduler.plan(keys("a"))
        floor.scheduler.start()
        await floor.until_begun(1)
        floor.scheduler.hold("engine")
        floor.go.set()
        await settle()
        assert "a" == floor.begun

        if comes_back:
            floor.scheduler.hold("")
            assert [OK] == await floor.outcomes("a")
        else:
            floor.scheduler.stop("the backend is gone", "infra_error")
            tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="the backend is gone")
            assert [tried] == await floor.outcomes("a")


async def test_the_concurrency_changes() -> None:
    """More rollouts begin at once if it rises. If it falls, those that run finish, and none begins until fewer are running."""
    floor = Floor(concurrency=2)
    floor.scheduler.plan(keys("abcdefgh"))
    floor.scheduler.start()
    await floor.until_begun(2)

    floor.scheduler.resize(4)
    await settle()
    assert ("abcd", 4) == (floor.begun, floor.running)

    floor.scheduler.resize(1)
    floor.go.set()
    await settle()
    floor.go.clear()
    await floor.scheduler.drained()

    assert [OK] * 8 == await floor.outcomes("abcdefgh")
    assert 4 == floor.peak


async def test_what_runs_alone() -> None:
    """It comes first, and nothing runs beside it."""
    floor = Floor(concurrency=3)
    floor.scheduler.alone.update(keys("cd"))
    floor.scheduler.plan(keys("abcd"))
    floor.scheduler.start()
    await settle()

    assert "c" == floor.begun

    floor.go.set()

    assert [OK] * 4 == await floor.outcomes("abcd")
    assert "cdab" == floor.begun


async def test_a_round_is_over() -> None:
    """When all that was planned has ended, what was planned meanwhile too; each rollout has a record."""
    floor = Floor()
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    settled = asyncio.create_task(floor.scheduler.settled())
    await floor.until_begun(2)
    floor.scheduler.plan(keys("c"))
    assert not settled.done()

    floor.go.set()

    assert await settled
    assert ["a", "b", "c"] == sorted(each.scenario for each in floor.journal)


@pytest.mark.parametrize("why", ["stopped", "the disk is full"])
async def test_a_round_that_is_not_whole(why: str) -> None:
    """One that is broken off, or of which a rollout has no record, is over, and not whole."""
    floor = Floor(concurrency=1)
    floor.refused = "a" if why != "stopped" else ""
    floor.scheduler.plan(keys("ab"))
    floor.scheduler.start()
    await floor.until_begun(1)
    if why == "stopped":
        floor.scheduler.stop("the time is up", "cancelled")
    floor.go.set()

    assert not await floor.scheduler.settled()
