"""What a pool leaves to the next one, from its notes to the state in which the next one begins."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Attempt, Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts.inherited import (
    AttemptBegun,
    AttemptFailed,
    Inherited,
    LabelReleased,
    OpenLabel,
    OpenToken,
    RolloutEnd,
    RolloutRead,
    RolloutTally,
    TokenClosed,
    TokenOpened,
)
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.inheritance import Inheritance
from pytest_agentbench.rollouts.pool.scheduler import Scheduler
from pytest_agentbench.rollouts.pool_config import Scheduling
from pytest_agentbench.session.handover import Handover
from tests.rollouts.pool.test_server import shop

ONE, TWO, THREE = (RolloutKey("shop", f"s-{number}") for number in range(3))
ENDPOINT = Endpoint("http://127.0.0.1:9/v1", "m", labels={"kind": "dynamo"})


def left(handover: Handover, alone: Collection[RolloutKey] = (), ends: Collection[RolloutEnd | Rollout] = ()) -> Inherited:
    """What the next pool gets, as it arrives there."""
    inherited = handover.leave("the pool died (exit code -9)", alone, ends)
    return codec.received(Inherited, json.loads(json.dumps(codec.plain(inherited))))


async def never(_: object) -> Rollout:
    raise AssertionError("nothing runs here")


async def unwritten(_: Rollout) -> bytes:
    raise AssertionError("nothing is recorded here")


def next_pool(inherited: Inherited | None) -> tuple[Inheritance, Scheduler, Addresses]:
    """A pool's parts that inherit."""
    scheduler = Scheduler(never, unwritten, Scheduling(2, 0, keep_order=False, durations={}))
    addresses = Addresses("r", lambda _: None, lambda: "")
    inheritance = Inheritance(inherited, 1)
    inheritance.hand_to(scheduler, addresses)
    return inheritance, scheduler, addresses


def test_the_first_pool() -> None:
    """It inherits nothing, and waits for a plan."""
    inheritance, scheduler, _ = next_pool(None)

    assert (None, (), {}, set()) == (inheritance.plan, inheritance.round, inheritance.ends, inheritance.lent)
    assert ({}, set()) == (scheduler.earlier, scheduler.alone)


def test_a_pool_that_dies_before_the_plan() -> None:
    """The next one has no plan either, which is another thing than an empty one."""
    handover = Handover()

    assert left(handover).plan is None

    handover.planned([ONE])
    handover.note(RolloutRead(ONE))

    assert () == left(handover).plan


def test_rollouts_and_attempts() -> None:
    """Tests that have not read their rollout still ask for it; failed attempts count, interrupted ones as no retry."""
    handover = Handover()
    handover.planned([ONE, ONE, TWO])
    first, second = Attempt(1, "infra_error", "no route"), Attempt(2, "infra_error", "interrupted")
    for note in (RolloutRead(ONE), AttemptBegun(TWO), AttemptFailed(TWO, first, interrupted=False), AttemptBegun(TWO)):
        handover.note(note)
    handover.note(AttemptFailed(TWO, second, interrupted=True))
    handover.note(AttemptBegun(TWO))
    handover.note(AttemptFailed(THREE, first, interrupted=False))
    handover.ended(THREE, 0)

    inheritance, scheduler, _ = next_pool(left(handover, alone={TWO}))

    assert (ONE, TWO) == inheritance.plan
    assert {TWO: (first, second)} == scheduler.earlier
    assert {TWO: 1} == scheduler.tries
    assert {TWO} == scheduler.alone == {*inheritance.in_flight}
    assert 1 == handover.interrupted
    assert set() == handover.in_flight  # nothing runs until the next pool begins it


def test_tokens_and_labels() -> None:
    """Tokens are inherited as long as they are open, labels until they are released, and the tally of all pools so far."""
    handover = Handover()
    tally = RolloutTally(labelled=2)
    tokens = [
        OpenToken("a", ONE, lent=False, label=OpenLabel("r-a", ENDPOINT)),
        OpenToken("b", TWO, lent=True, label=None),
        OpenToken("c", THREE, lent=False, label=OpenLabel("r-c", ENDPOINT)),
    ]
    for token in tokens:
        handover.note(TokenOpened(token, tally))
    handover.note(TokenClosed("c", 3, unreleased=True, tally=tally))

    inherited = left(handover)
    inheritance, _, addresses = next_pool(inherited)

    assert ((tokens[0], tokens[1]), (tokens[2].label,)) == (inherited.tokens, inherited.labels)
    assert ({"b"}, tally, 3) == (inheritance.lent, addresses.tally, handover.unrecorded)

    handover.note(LabelReleased("r-c", replace(tally, released=1)))

    assert ((), 1) == (left(handover).labels, left(handover).tally.released)


def test_rollouts_that_do_not_run_again() -> None:
    """One ends as it is told, with its log; one that a scorer blocked keeps all that it had; others run."""
    unscored = Rollout(*TWO, status="ok", answer="A lamp.", score_errors={"slow": "it blocked"})
    inheritance, _, _ = next_pool(left(Handover(), ends=[RolloutEnd(ONE, "agent_error", "it blocked", "hello\n"), unscored]))
    suite = shop()
    scenarios = {("shop", each.id): each for each in suite.scenarios}

    blocked = inheritance.end_of(ONE, suite, scenarios)

    assert blocked is not None
    assert (ONE, "agent_error", "it blocked", "hello\n") == (blocked.key, blocked.status, blocked.reason, blocked.log)
    assert unscored == inheritance.end_of(TWO, suite, scenarios)
    assert inheritance.end_of(THREE, suite, scenarios) is None
