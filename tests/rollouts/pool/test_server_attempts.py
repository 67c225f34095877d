"""A pool that begins with an attempts.jsonl of earlier pools."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace

import pytest

from pytest_agentbench.records import Access, Attempt, Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import BlockSettings, Scheduling
from pytest_agentbench.rollouts.questions_of_tests import GetRollout, PlanAccepted, PlanSelected, RecordedRollout
from pytest_agentbench.runs.attempts import (
    AddressClosed,
    AddressOpened,
    AttemptBegun,
    AttemptFailed,
    EndRollout,
    PoolEntry,
    PrepareBlock,
    RolloutRead,
    RolloutsPlanned,
    RolloutTally,
    RoundAdded,
    RunAlone,
)
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.tap.protocol import TapPorts
from tests.rollouts.pool.test_model_addresses import addresses, call
from tests.rollouts.pool.test_server import Line, session
from tests.tap.peers import answering, backend, response

pytestmark = pytest.mark.timeout(60)

FIRST, SECOND, THIRD = (RolloutKey("shop", f"s-{number}") for number in range(3))
FAILED = Attempt(1, "infra_error", "no route", 1, 10, 20)
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}'


def scheduling(concurrency: int = 3, retries: int = 0) -> Scheduling:
    return Scheduling(concurrency, retries, keep_order=True, durations={})


async def finished(controller: Line, count: int = 1) -> list[Rollout]:
    """Waits for the records of so many rollouts, answers as the journal does, and returns the records."""
    records = []
    for _ in range(count):
        message, body = await controller.next_message()
        assert isinstance(message, protocol.RolloutFinished)
        line, *_ = body.split(b"\n")  # lines for messages.jsonl follow
        controller.tell(protocol.RecordLine(), line)
        records.append(rollout_of(line))
    return records


async def rest(controller: Line) -> list[protocol.ToController]:
    """Ends the session. Returns the pool's messages before `Drained`, without entries."""
    controller.tell(protocol.EndSession())
    messages: list[protocol.ToController] = []
    while not isinstance(message := (await controller.next_message())[0], protocol.Drained):
        messages.append(message)
    return messages


def begun_attempts(controller: Line) -> list[RolloutKey]:
    """Returns the rollouts whose attempts have begun, one for each attempt."""
    return [entry.key for entry in controller.entries if isinstance(entry, AttemptBegun)]


def failures(controller: Line) -> list[AttemptFailed]:
    return [entry for entry in controller.entries if isinstance(entry, AttemptFailed)]


async def test_the_plan_of_an_earlier_pool() -> None:
    """Only planned rollouts that tests have not read run. A test that sends its plan is answered without the controller."""
    left = (RolloutsPlanned((FIRST, FIRST, SECOND, THIRD)), RolloutRead(FIRST), RolloutRead(SECOND))
    async with session(left, scheduling=scheduling()) as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        test.ask(plan := PlanSelected((FIRST, FIRST, SECOND, THIRD), {"shop": 4}))
        assert (PlanAccepted(), b"") == await test.answer(plan)

        connected.start(controller)
        records = await finished(controller, 2)
        test.ask(question := GetRollout(THIRD))
        answer, _ = await test.answer(question)
        others = await rest(controller)

    assert {FIRST: 1, THIRD: 1} == Counter(begun_attempts(controller))
    assert {FIRST, THIRD} == {record.key for record in records}
    assert RecordedRollout(None, over=False) == answer
    assert [] == others


async def test_a_record_of_an_earlier_pool() -> None:
    """A test that has not read a recorded rollout gets the line of the journal. The rollout does not run again."""
    left = (RolloutsPlanned((FIRST, SECOND)), AttemptBegun(FIRST, 5))
    async with session(left, recorded=[Rollout(*FIRST, status="ok")]) as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        await finished(controller)
        test.ask(question := GetRollout(FIRST))
        message, _ = await controller.next_message()
        controller.tell(protocol.RecordLine(), b"{}")
        answer = await test.answer(question)

    assert protocol.GetRecord(FIRST) == message
    assert (RecordedRollout(None, over=False), b"{}") == answer
    assert ([SECOND], []) == (begun_attempts(controller), failures(controller))


async def test_a_round_of_an_earlier_pool() -> None:
    """Trials that no test requests run, too, and the controller gets a message when all have ended."""
    left = (RolloutsPlanned((FIRST,)), RolloutRead(FIRST), RoundAdded((SECOND, THIRD)))
    async with session(left) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        await finished(controller, 2)
        settled, _ = await controller.next_message()

    assert protocol.PlanSettled(whole=True) == settled
    assert {SECOND: 1, THIRD: 1} == Counter(begun_attempts(controller))


async def test_a_rollout_that_runs_alone() -> None:
    """A rollout that runs alone runs before all others, and none of those begins until it has ended."""
    left = (RolloutsPlanned((FIRST, SECOND, THIRD)), RunAlone((SECOND,)))
    async with session(left, scheduling=scheduling()) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        message, line = await controller.next_message()
        assert [SECOND] == begun_attempts(controller)

        controller.tell(protocol.RecordLine(), line)
        others = await finished(controller, 2)

    assert isinstance(message, protocol.RolloutFinished)
    assert SECOND == message.key
    assert {FIRST, THIRD} == {record.key for record in others}


async def test_a_rollout_that_does_not_run_again() -> None:
    """A rollout that must not run again gets the record that the controller has decided on.

    Its interrupted attempt is not reported as failed.
    """
    end = Rollout(*FIRST, status="agent_error", reason="it blocked the event loop", log="hello\n")
    left = (RolloutsPlanned((FIRST,)), AttemptBegun(FIRST, 5), EndRollout(end))
    async with session(left) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        (record,) = await finished(controller)

    assert end == replace(
        record, started_at=0.0, started_ns=0, ended_ns=0, settings={}, content={}, expected=(), reference=None, cluster=None
    )
    assert (5, {"kind": "tool_calling"}) == (record.started_ns, record.settings)
    assert [] == controller.entries


@pytest.mark.parametrize(("interrupted", "attempts"), [(False, 2), (True, 3)])
async def test_failed_attempts_of_an_earlier_pool(interrupted: bool, attempts: int) -> None:
    """Failed attempts of an earlier pool are in the record. Each is a spent retry, unless it was interrupted."""
    left = (RolloutsPlanned((FIRST,)), AttemptBegun(FIRST, 10), AttemptFailed(FIRST, FAILED, interrupted))
    async with session(left, scheduling=scheduling(retries=1)) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        (record,) = await finished(controller)

    assert ("infra_error", attempts, FAILED) == (record.status, record.attempt, record.earlier_attempts[0])
    assert [FIRST] * (attempts - 1) == begun_attempts(controller)
    assert [(number, False) for number in range(2, attempts)] == [(each.attempt.attempt, each.interrupted) for each in failures(controller)]


async def test_an_attempt_that_was_in_flight() -> None:
    """When the pool starts, it reports the attempt as failed and interrupted, and makes the next one without spending a retry."""
    left = (RolloutsPlanned((FIRST,)), AttemptFailed(FIRST, FAILED, interrupted=False), AttemptBegun(FIRST, 30))
    async with session(left, scheduling=scheduling(retries=1)) as connected:
        controller = await connected.connect("controller")
        controller.tell(protocol.CatchUp(7))
        caught, _ = await controller.next_message()
        before = [*controller.entries]
        connected.start(controller)
        (record,) = await finished(controller)

    assert (protocol.CaughtUp(7), []) == (caught, before)
    (failed,) = failures(controller)
    assert controller.entries[0] is failed
    lost = Attempt(2, "infra_error", "interrupted: the pool died", 1, 30, failed.attempt.ended_ns)
    assert AttemptFailed(FIRST, lost, interrupted=True) == failed
    assert lost.ended_ns > 30
    assert (3, (FAILED, lost)) == (record.attempt, record.earlier_attempts)
    assert [FIRST] == begun_attempts(controller)


async def test_the_calls_of_an_attempt_that_was_in_flight(taps: TapPorts) -> None:
    """The failed attempt has the calls that the taps still have. Its address is closed before the attempt is reported as failed."""
    token = secrets.token_hex(16)
    entries: list[PoolEntry] = [AttemptBegun(FIRST, 30)]
    async with backend(answering(response(ANSWER))) as url:
        async with addresses(taps, Endpoint(f"{url}/v1", "m", context_length=8192), token, entries.append) as old:
            address = await old.open(FIRST, Access())
            assert [200, 200] == [await call(address), await call(address)]
        async with session((RolloutsPlanned((FIRST,)), *entries), taps, token) as connected:
            controller = await connected.connect("controller")
            connected.start(controller)
            (record,) = await finished(controller)

    closed, failed, again, opened = controller.entries[:4]
    assert AddressClosed("1.1", 2, False, RolloutTally()) == closed
    assert isinstance(failed, AttemptFailed)
    assert ([200, 200], ()) == ([each.http_status for each in failed.attempt.calls], failed.attempt.other_calls)
    assert isinstance(again, AttemptBegun)
    assert isinstance(opened, AddressOpened)
    assert "2.1" == opened.number
    assert (failed.attempt,) == record.earlier_attempts


async def test_blocks_continue_to_be_numbered(taps: TapPorts) -> None:
    """The number of the pool's first block follows those of earlier pools, so no two first calls have the same name."""
    blocks = BlockSettings({"default": VariantOrigin("default", "a")}, "primed", in_sequence=False, own={})
    left = (PrepareBlock("a", 1), PrepareBlock("a", 1), RolloutsPlanned((FIRST,)))
    async with session(left, taps, secrets.token_hex(16), blocks=blocks) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        assert PrepareBlock("a", 1) == (await controller.next_message())[0]
        controller.tell(protocol.Turn(Endpoint("http://127.0.0.1:9/v1", "m", context_length=8192), ""))
        (primer,) = await finished(controller)

    assert ("primer", "shop[s-0] before block 3") == (primer.kind, primer.scenario)


async def test_lines_that_are_damaged() -> None:
    """The user gets a message about each damaged line. All other lines count."""
    left = (RolloutsPlanned((FIRST, SECOND)), b"what?\n", RolloutRead(FIRST), b"{}\n")
    async with session(left) as connected:
        controller = await connected.connect("controller")
        sentences = [(await controller.next_message())[0] for _ in range(2)]
        connected.start(controller)
        (record,) = await finished(controller)
        others = await rest(controller)

    assert all(isinstance(each, protocol.ShowUser) for each in sentences)
    assert [2, 4] == [
        next(number for number in range(1, 5) if each.sentence.startswith(f"line {number} of "))
        for each in sentences
        if isinstance(each, protocol.ShowUser) and "attempts.jsonl is damaged and is ignored: " in each.sentence
    ]
    assert (SECOND, [SECOND], []) == (record.key, begun_attempts(controller), others)


async def test_entries_that_come_later() -> None:
    """The pool reads the file up to the size that the controller has named, because later entries are sent as messages."""
    async with session([RolloutsPlanned((FIRST, SECOND))], later=[RolloutRead(FIRST), RolloutRead(SECOND)]) as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        records = await finished(controller, 2)

    assert {FIRST, SECOND} == {record.key for record in records}


async def test_a_first_pool() -> None:
    """A first pool has nothing to continue: before a test sends its plan, no rollout runs and no message is sent."""
    async with session() as connected:
        controller = await connected.connect("controller")
        connected.start(controller)
        controller.tell(protocol.CatchUp(1))
        caught, _ = await controller.next_message()

    assert (protocol.CaughtUp(1), []) == (caught, controller.entries)
