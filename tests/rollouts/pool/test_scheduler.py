"""Which rollout runs next, how many run at the same time, and what happens to failed ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, RetryPolicy
from pytest_agentbench.rollouts.pool.scheduler import KEPT, Outcome, Scheduler, longest_first
from pytest_agentbench.rollouts.protocol import Scheduling

pytestmark = pytest.mark.timeout(60)  # A forgotten waiter fails the test instead of hanging it.

OK = Outcome("ok", recorded=True)
INTERRUPTED = "interrupted"  # end of an attempt that raises Interrupted
CALL = LLMCall(received_ns=0, sent_ns=0, ended_ns=1, error_kind="server_error")
JUDGED = LLMCall(received_ns=1, sent_ns=1, ended_ns=2)
WORK: dict[str, Any] = {"ended_ns": 2_000_000_000, "calls": (CALL,), "other_calls": (JUDGED,)}  # of every attempt


def keys(names: str) -> list[RolloutKey]:
    """Returns a key for every letter."""
    return [RolloutKey("shop", name) for name in names]


class FakeRollouts:
    """The environment of a scheduler: rollouts that end when the test decides it, and a journal."""

    def __init__(
        self, *, concurrency: int = 8, retries: int = 0, keep_order: bool = False, durations: dict[str, float] | None = None
    ) -> None:
        self.begun = ""  # letters of rollouts, in the order in which they began
        self.peak = self.running = 0
        self.begins = asyncio.Condition()
        self.go = asyncio.Event()  # set if rollouts may end
        self.open_journal = asyncio.Event()  # set if the journal accepts records
        self.open_journal.set()
        self.journal: list[Rollout] = []
        self.refused = ""  # letters of rollouts whose records cannot be written
        self.ends: dict[str, list[str | BaseException]] = {}  # letter -> ends of its attempts; the last one is repeated
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

    def request(self, names: str) -> list[asyncio.Task[Outcome]]:
        """Requests outcomes, as tests do."""
        return [asyncio.create_task(self.scheduler.outcome(key)) for key in keys(names)]


async def settle() -> None:
    """Runs the event loop until no callback is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_rollout_runs_once() -> None:
    """A rollout runs once, however often it is planned and requested before, while and after it runs. All requests get its outcome."""
    fake = FakeRollouts()
    early = fake.request("aa")
    fake.scheduler.plan(keys("abab"))
    fake.scheduler.plan(keys("bc"))
    fake.scheduler.start()
    await fake.until_begun(3)
    middle = fake.request("ab")
    fake.go.set()

    assert [OK] * 4 == await asyncio.gather(*early, *middle)
    assert [OK] * 3 == await fake.outcomes("abc")
    assert "abc" == "".join(sorted(fake.begun))
    assert "abc" == "".join(sorted(rollout.scenario for rollout in fake.journal))


async def test_nothing_runs_before_the_start() -> None:
    """Planned rollouts, and rollouts that are requested without a plan, wait for `start`."""
    fake = FakeRollouts()
    fake.go.set()
    fake.scheduler.plan(keys("ab"))
    requests = fake.request("z")
    await settle()

    assert "" == fake.begun

    fake.scheduler.start()

    assert [OK] == await asyncio.gather(*requests)
    assert "zab" == fake.begun


async def test_what_comes_after_the_start_begins_at_once() -> None:
    """A plan or a request after `start` begins at once if places are free."""
    fake = FakeRollouts()
    fake.go.set()
    fake.scheduler.start()
    fake.scheduler.plan(keys("ab"))
    await fake.scheduler.drained()

    assert "ab" == fake.begun
    assert [OK] == await fake.outcomes("z")


async def test_the_concurrency_is_reached_and_never_exceeded() -> None:
    """As many rollouts run at the same time as allowed, until fewer are left."""
    fake = FakeRollouts(concurrency=3)
    fake.scheduler.plan(keys("abcdefgh"))
    fake.scheduler.start()
    await fake.until_begun(3)
    await settle()

    assert ("abc", 3) == (fake.begun, fake.running)

    fake.go.set()
    await fake.scheduler.drained()

    assert ("abcdefgh", 3, 0) == (fake.begun, fake.peak, fake.running)


async def test_a_recording_holds_its_place() -> None:
    """A rollout counts as running until it is in the journal, so a slow journal slows the pool down."""
    fake = FakeRollouts(concurrency=1)
    fake.go.set()
    fake.open_journal.clear()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await settle()

    assert "a" == fake.begun

    fake.open_journal.set()
    await fake.scheduler.drained()

    assert "ab" == fake.begun


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
    """If durations are known, rollouts run longest first, after those with unknown durations.

    Otherwise, and under -x, they run as planned.
    """
    fake = FakeRollouts(concurrency=1, durations=durations, keep_order=keep_order)
    fake.go.set()
    fake.scheduler.plan(keys("abcd"))
    fake.scheduler.start()
    await fake.scheduler.drained()

    assert order == fake.begun


def test_longest_first_knows_variants_and_trials() -> None:
    """A duration belongs to one rollout, not to its scenario."""
    second, hot = RolloutKey("shop", "a", trial=2), RolloutKey("shop", "a", "hot")
    durations = {"shop[a]": 1.0, "shop[a-t2]": 3.0, "shop[a-hot]": 2.0}

    assert [second, hot, *keys("a")] == longest_first([*keys("a"), hot, second], durations)


async def test_an_unplanned_rollout_goes_first() -> None:
    """A rollout that was not planned runs next when a test requests it."""
    fake = FakeRollouts(concurrency=1)
    fake.scheduler.plan(keys("abc"))
    fake.scheduler.start()
    await fake.until_begun(1)
    requests = fake.request("z")
    await settle()
    fake.go.set()

    assert [OK] == await asyncio.gather(*requests)

    await fake.scheduler.drained()

    assert "azbc" == fake.begun


async def test_a_test_process_that_stops_waiting() -> None:
    """A test process that dies while it waits cancels neither the rollout nor other waits for it."""
    fake = FakeRollouts()
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()
    cancelled, stays = fake.request("aa")
    await fake.until_begun(1)
    cancelled.cancel()
    await settle()
    fake.go.set()

    assert OK == await stays


async def test_bodies_are_bounded() -> None:
    """Only the lines of the last finished rollouts are in memory."""
    fake = FakeRollouts()
    fake.go.set()
    many = [RolloutKey("shop", f"{number}") for number in range(KEPT + 3)]
    fake.scheduler.plan(many)
    fake.scheduler.start()
    await fake.scheduler.drained()

    assert [None] * 3 == [fake.scheduler.body(key) for key in many[:3]]
    assert [f"line of {number}".encode() for number in range(3, KEPT + 3)] == [fake.scheduler.body(key) for key in many[3:]]


async def test_an_infra_error_is_tried_again() -> None:
    """An infra_error is retried up to `retries` times. Earlier attempts are kept with their reasons and calls."""
    fake = FakeRollouts(retries=2)
    fake.ends = {"a": ["infra_error", "ok"], "b": ["infra_error"], "c": ["infra_error", "limit"]}
    fake.go.set()
    fake.scheduler.plan(keys("abc"))
    fake.scheduler.start()

    assert [OK, Outcome("infra_error", "infra_error: why", recorded=True), Outcome("limit", "limit: why", recorded=True)] == (
        await fake.outcomes("abc")
    )
    assert [2, 3, 2] == [fake.begun.count(name) for name in "abc"]
    a, b, c = sorted(fake.journal, key=lambda rollout: rollout.scenario)
    failed = [Attempt(number, "infra_error", "infra_error: why", **WORK) for number in (1, 2)]
    assert (2, (*failed[:1],)) == (a.attempt, a.earlier_attempts)
    assert (3, (*failed,)) == (b.attempt, b.earlier_attempts)
    assert (2, (*failed[:1],)) == (c.attempt, c.earlier_attempts)


@pytest.mark.parametrize("status", ["ok", "limit", "agent_error", "cancelled"])
async def test_nothing_else_is_tried_again(status: str) -> None:
    """Any status other than infra_error is final."""
    fake = FakeRollouts(retries=2)
    fake.ends = {"a": [status]}
    fake.go.set()
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()

    assert [status] == [outcome.status for outcome in await fake.outcomes("a")]
    assert ("a", 1, ()) == (fake.begun, fake.journal[0].attempt, fake.journal[0].earlier_attempts)


async def test_no_retries() -> None:
    """With no retries the first infra_error is final."""
    fake = FakeRollouts(retries=0)
    fake.ends = {"a": ["infra_error", "ok"]}
    fake.go.set()
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()

    assert ["infra_error"] == [outcome.status for outcome in await fake.outcomes("a")]


@pytest.mark.parametrize("error", [RuntimeError("oh"), GeneratorExit("oh"), KeyboardInterrupt("oh")])
async def test_a_bug_in_the_pool_reaches_the_waiting_test(error: BaseException) -> None:
    """A bug in the pool ends one rollout without a record, and the waiting test gets it. Other rollouts continue."""
    fake = FakeRollouts(concurrency=1, retries=2)
    fake.ends = {"a": [error]}
    fake.go.set()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()

    failed, other = await fake.outcomes("ab")
    assert ("infra_error", OK) == (failed.status, other)
    assert failed.reason.startswith(f"the pool failed on this rollout: {error!r} (")
    assert ["b"] == [rollout.scenario for rollout in fake.journal]


async def test_a_record_that_cannot_be_written() -> None:
    """A rollout whose record cannot be written is not run again, and its outcome says why. Other rollouts continue."""
    fake = FakeRollouts(concurrency=1, retries=2)
    fake.refused = "a"
    fake.go.set()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    lost, good = await fake.outcomes("ab")

    assert ("infra_error", "the record could not be written: the disk is full", False) == (lost.status, lost.reason, lost.recorded)
    assert (OK, "ab") == (good, fake.begun)


async def test_stop_answers_waiting_rollouts_and_lets_running_ones_end() -> None:
    """After `stop` no rollout begins. Waiting ones get the reason at once, and running ones end and are recorded."""
    fake = FakeRollouts(concurrency=1)
    fake.scheduler.plan(keys("abc"))
    fake.scheduler.start()
    await fake.until_begun(1)
    runs, *waiting = fake.request("abc")
    await settle()
    fake.scheduler.stop("the backend is gone", "infra_error")

    assert [Outcome("infra_error", "the backend is gone")] * 2 == await asyncio.gather(*waiting)
    assert not runs.done()

    fake.go.set()

    assert OK == await runs
    assert "a" == fake.begun


@pytest.mark.parametrize("started", [True, False])
async def test_a_plan_after_the_stop(started: bool) -> None:
    """If the backend dies before the plan comes, requests get the reason, and no rollout begins."""
    fake = FakeRollouts()
    if started:
        fake.scheduler.start()
    fake.scheduler.stop("the backend is gone", "infra_error")
    fake.scheduler.plan(keys("ab"))
    if not started:
        fake.scheduler.start()

    assert [Outcome("infra_error", "the backend is gone")] * 3 == await fake.outcomes("abz")
    assert "" == fake.begun


async def test_no_attempt_after_the_stop() -> None:
    """A rollout that fails because the backend has died is not retried."""
    fake = FakeRollouts(retries=2)
    fake.ends = {"a": ["infra_error", "ok"]}
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()
    await fake.until_begun(1)
    fake.scheduler.stop("the backend is gone", "infra_error")
    fake.go.set()

    assert ["infra_error"] == [outcome.status for outcome in await fake.outcomes("a")]
    assert "a" == fake.begun


async def test_cancel_answers_all_requests_at_once() -> None:
    """After `cancel` all requests are answered, whether their rollout ran, waited or was never planned. Nothing is recorded."""
    fake = FakeRollouts(concurrency=2)
    fake.scheduler.plan(keys("abcd"))
    fake.scheduler.start()
    await fake.until_begun(2)
    requests = fake.request("abcd")
    await settle()
    fake.scheduler.cancel("a test failed")

    cancelled = Outcome("cancelled", "a test failed")
    assert [cancelled] * 4 == await asyncio.gather(*requests)
    assert [cancelled] == await fake.outcomes("z")
    await fake.scheduler.drained()
    assert ("ab", 0, []) == (fake.begun, fake.running, fake.journal)


async def test_cancel_right_after_the_start() -> None:
    """A rollout that is cancelled before its first step gets an outcome, and the pool drains."""
    fake = FakeRollouts()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    fake.scheduler.cancel("Ctrl-C")

    await fake.scheduler.drained()
    assert [Outcome("cancelled", "Ctrl-C")] * 2 == await fake.outcomes("ab")
    assert "" == fake.begun


async def test_cancel_in_the_pause_between_attempts() -> None:
    """A rollout in the pause between two attempts gets its outcome at once."""
    fake = FakeRollouts(retries=1)
    fake.ends = {"a": ["infra_error"]}
    fake.go.set()
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()
    await settle()
    fake.scheduler.cancel("Ctrl-C")

    assert [Outcome("cancelled", "Ctrl-C")] == await fake.outcomes("a")
    assert "a" == fake.begun


async def test_what_has_ended_is_recorded() -> None:
    """A rollout that is being recorded is recorded despite a cancellation, and requests get it."""
    fake = FakeRollouts(concurrency=2)
    fake.open_journal.clear()
    fake.go.set()
    fake.scheduler.plan(keys("abc"))
    fake.scheduler.start()
    await fake.until_begun(2)
    requests = fake.request("abc")
    await settle()
    fake.scheduler.cancel("a test failed")
    drained = asyncio.create_task(fake.scheduler.drained())
    await settle()

    assert not drained.done()

    fake.open_journal.set()

    assert [OK, OK, Outcome("cancelled", "a test failed")] == await asyncio.gather(*requests)
    await drained
    assert ["a", "b"] == [rollout.scenario for rollout in fake.journal]
    assert b"line of a" == fake.scheduler.body(keys("a")[0])


async def test_no_attempt_begins_during_a_hold() -> None:
    """While a part is unavailable no attempt begins, neither a first nor a further one. After that they begin."""
    fake = FakeRollouts(concurrency=1, retries=1)
    fake.ends["a"] = ["infra_error", "ok"]
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await fake.until_begun(1)
    fake.scheduler.hold("engine: started again")
    fake.go.set()
    await asyncio.sleep(0.4)  # longer than the pause before the second attempt
    held = fake.begun
    fake.scheduler.hold("")

    assert [OK, OK] == await fake.outcomes("ab")
    assert ("a", "aab") == (held, fake.begun)
    assert [1, 0] == [len(rollout.earlier_attempts) for rollout in fake.journal]


async def test_a_hold_that_follows_at_once() -> None:
    """If another part becomes unavailable directly after a hold has ended, no attempt begins in between."""
    fake = FakeRollouts(concurrency=2)
    fake.ends["a"] = [INTERRUPTED, "ok"]
    fake.scheduler.plan(keys("abc"))
    fake.scheduler.start()
    await fake.until_begun(2)
    fake.scheduler.hold("tap")
    fake.go.set()
    await settle()
    for turns_of_the_loop in range(4):
        fake.scheduler.hold("")
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        begun = fake.begun
        fake.scheduler.hold("tap-2")
        await settle()
        assert begun == fake.begun

    fake.scheduler.hold("")

    assert [OK] * 3 == await fake.outcomes("abc")
    assert ["a", "a", "b", "c"] == sorted(fake.begun)


async def test_a_stop_after_a_hold_that_follows_at_once() -> None:
    """A rollout that such a second hold has delayed does not begin after a stop, and gets the reason of the stop."""
    fake = FakeRollouts()
    fake.go.set()
    fake.scheduler.hold("tap")
    fake.scheduler.plan(keys("a"))
    fake.scheduler.start()
    fake.scheduler.hold("")
    fake.scheduler.hold("tap-2")
    await settle()
    fake.scheduler.stop("the tap is gone", "infra_error")

    assert [Outcome("infra_error", "the tap is gone")] == await fake.outcomes("a")
    assert "" == fake.begun


async def test_a_hold_that_never_ends() -> None:
    """If the part does not come back, held rollouts end with the attempts that they had."""
    fake = FakeRollouts(concurrency=1, retries=5)
    fake.ends["a"] = ["infra_error"]
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await fake.until_begun(1)
    fake.scheduler.hold("engine: started again")
    fake.go.set()
    requests = fake.request("ab")
    await asyncio.sleep(0.4)
    fake.scheduler.stop("the backend is gone", "infra_error")

    tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="the backend is gone")
    assert [tried, Outcome("infra_error", "the backend is gone")] == [await each for each in requests]
    assert ("a", 1, ()) == (fake.begun, fake.journal[0].attempt, fake.journal[0].earlier_attempts)


async def test_what_is_stored_does_not_run() -> None:
    """Rollouts of earlier sessions are answered from the record, planned or not, even if nothing can run. The others run."""
    fake = FakeRollouts()
    fake.scheduler.stored = dict.fromkeys(keys("az"), OK)
    fake.go.set()
    fake.scheduler.plan(keys("abc"))

    assert [OK, OK] == await fake.outcomes("az")  # Before `start`, because stored rollouts do not need the backend.

    fake.scheduler.start()

    assert [OK] * 4 == await fake.outcomes("abcz")
    assert "bc" == fake.begun

    fake.scheduler.stop("the engine died", "infra_error")

    assert [OK] == await fake.outcomes("z")


async def test_an_interruption_costs_no_retry() -> None:
    """An interrupted attempt is repeated even without retries, and stays in the record."""
    fake = FakeRollouts(concurrency=1)
    fake.ends["a"] = [INTERRUPTED, INTERRUPTED, "ok"]
    fake.go.set()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()

    assert [OK, OK] == await fake.outcomes("ab")
    assert "aaab" == fake.begun  # It returns to the front of the queue.
    assert [("infra_error", 1), ("infra_error", 2), ("ok", 3)] == [(each.status, each.attempt) for each in fake.journal[0].attempts]


async def test_an_interruption_of_one_attempt_excuses_no_other() -> None:
    """If two attempts fail at the same time, only the one that was not interrupted spends a retry."""
    fake = FakeRollouts(concurrency=2)
    fake.ends = {"a": [INTERRUPTED, "ok"], "b": ["infra_error", "ok"]}
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await fake.until_begun(2)
    fake.go.set()

    assert [OK, Outcome("infra_error", "infra_error: why", recorded=True)] == await fake.outcomes("ab")


async def test_an_interruption_while_a_part_is_unavailable() -> None:
    """The rollout waits until the part is available again. If that never happens, it ends with the attempt that it had."""
    for comes_back in (True, False):
        fake = FakeRollouts(concurrency=1)
        fake.ends["a"] = [INTERRUPTED, "ok"]
        fake.scheduler.plan(keys("a"))
        fake.scheduler.start()
        await fake.until_begun(1)
        fake.scheduler.hold("engine")
        fake.go.set()
        await settle()
        assert "a" == fake.begun

        if comes_back:
            fake.scheduler.hold("")
            assert [OK] == await fake.outcomes("a")
        else:
            fake.scheduler.stop("the backend is gone", "infra_error")
            tried = Outcome("infra_error", "infra_error: why", recorded=True, cause="the backend is gone")
            assert [tried] == await fake.outcomes("a")


async def test_the_concurrency_changes() -> None:
    """If the concurrency rises, more rollouts begin at once. If it falls, none begins until fewer are running."""
    fake = FakeRollouts(concurrency=2)
    fake.scheduler.plan(keys("abcdefgh"))
    fake.scheduler.start()
    await fake.until_begun(2)

    fake.scheduler.resize(4)
    await settle()
    assert ("abcd", 4) == (fake.begun, fake.running)

    fake.scheduler.resize(1)
    fake.go.set()
    await settle()
    fake.go.clear()
    await fake.scheduler.drained()

    assert [OK] * 8 == await fake.outcomes("abcdefgh")
    assert 4 == fake.peak


async def test_what_runs_alone() -> None:
    """A rollout that runs alone comes first, and no other runs beside it."""
    fake = FakeRollouts(concurrency=3)
    fake.scheduler.alone.update(keys("cd"))
    fake.scheduler.plan(keys("abcd"))
    fake.scheduler.start()
    await settle()

    assert "c" == fake.begun

    fake.go.set()

    assert [OK] * 4 == await fake.outcomes("abcd")
    assert "cdab" == fake.begun


async def test_a_round_is_over() -> None:
    """`settled` waits for all planned rollouts, including those that are planned meanwhile, and each has a record."""
    fake = FakeRollouts()
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    settled = asyncio.create_task(fake.scheduler.settled())
    await fake.until_begun(2)
    fake.scheduler.plan(keys("c"))
    assert not settled.done()

    fake.go.set()

    assert await settled
    assert ["a", "b", "c"] == sorted(each.scenario for each in fake.journal)


@pytest.mark.parametrize("why", ["stopped", "the disk is full"])
async def test_an_incomplete_round(why: str) -> None:
    """`settled` returns False if rollouts were stopped, or one has no record."""
    fake = FakeRollouts(concurrency=1)
    fake.refused = "a" if why != "stopped" else ""
    fake.scheduler.plan(keys("ab"))
    fake.scheduler.start()
    await fake.until_begun(1)
    if why == "stopped":
        fake.scheduler.stop("the time is up", "cancelled")
    fake.go.set()

    assert not await fake.scheduler.settled()
