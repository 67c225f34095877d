"""When the watchdog speaks, and when it ends the pool. It looks when it is told to, at a real loop in another thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pytest_agentbench.lib.capture import Log
from pytest_agentbench.records import Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.attempt_context import AttemptContext, current_attempt
from pytest_agentbench.rollouts.pool.watchdog import PATIENCE, TICK, Watchdog
from tests.blocked_loop import Block, blocked

KEY = RolloutKey("shop", "shop-3")
SAMPLES = int(PATIENCE / TICK)  # that a step has to last


class FakePipe:
    """A voice that writes down what was said, and by what the pool would have ended."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.ends: list[Any] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def leave(self, rollout: Rollout | None) -> None:
        self.ends.append(rollout)


def agent(change: Callable[[AttemptContext], None], *, left: bool = False) -> Callable[[Block], Any]:
    """A rollout that blocks the loop, before or after its end."""

    async def run(block: Block) -> None:
        with current_attempt(KEY, Log()) as mark:
            change(mark)
            if not left:
                block()
            asyncio.get_running_loop().call_soon(block)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    return run


def after(samples: int, run: Callable[[Block], Any]) -> FakePipe:
    """What is in the diary after so many looks at a loop that is blocked, from the first one on."""
    pipe = FakePipe()
    watchdog = Watchdog(pipe, 600)
    with blocked(run) as stack:
        for _ in range(samples + 1):
            watchdog.check(stack())
    return pipe


def test_it_speaks_when_a_step_lasts() -> None:
    """Once, in a sentence with the rollout, the line and what would work; not before it has looked often enough."""
    run = agent(lambda mark: mark.begin("the agent", 600))

    assert [] == after(SAMPLES - 1, run).sentences
    for samples in (SAMPLES, SAMPLES + 9):
        pipe = after(samples, run)

        (sentence,) = pipe.sentences
        assert sentence.startswith("shop[shop-3]: the agent blocks the event loop, and with it all rollouts: blocked_loop.py:")
        assert ": reached.set() or go_on.wait()" in sentence
        assert sentence.endswith("; take `def`, `await asyncio.to_thread(...)` or `isolation: process`")
        assert [] == pipe.ends


def test_a_process_that_was_stopped() -> None:
    """However long nobody looked, one look is one look: suspending a machine, or its debugger, accuses nobody."""
    pipe = after(1, agent(lambda mark: setattr(mark, "over_at", 0.0)))

    assert ([], []) == (pipe.sentences, pipe.ends)


def test_the_end_of_a_rollouts_time() -> None:
    """The rollout is named, with the line; while it has time, and where it has all the time of the world, nothing ends."""
    for seconds in (None, 600):
        assert [] == after(SAMPLES, agent(lambda mark, seconds=seconds: mark.begin("the agent", seconds))).ends  # type: ignore[misc]

    def begin(mark: AttemptContext) -> None:
        mark.begin("the agent", 0.0)
        mark.log.write("hello\n")

    (rollout,) = after(SAMPLES, agent(begin)).ends

    assert (KEY, "agent_error", "hello\n", 0) == (rollout.key, rollout.status, rollout.log, rollout.ended_ns)
    reason = rollout.reason
    assert reason.startswith("it blocked the event loop until its 0 s were over: blocked_loop.py:")


def test_a_scorer_that_blocks() -> None:
    """Of its rollout all is kept but its score; those of the scorers before it are."""
    now = time.monotonic_ns()
    unscored = Rollout(*KEY, status="ok", started_at=0.0, started_ns=now, ended_ns=now, answer="A lamp.", scores={"tsq": Score(0.5)})

    def score(mark: AttemptContext) -> None:
        mark.rollout = unscored
        mark.log.write("scoring\n")
        mark.begin_score("slow", 0.0)

    pipe = after(SAMPLES, agent(score))

    (rollout,) = pipe.ends
    assert "shop[shop-3]: the scorer 'slow' blocks the event loop" in pipe.sentences[0]
    assert ("ok", "A lamp.", {"tsq": 0.5}, "scoring\n") == (rollout.status, rollout.answer, rollout.scores, rollout.log)
    assert ["slow"] == [*rollout.score_errors]
    assert "blocked_loop.py:" in rollout.score_errors["slow"]


def test_what_an_agent_has_left_behind() -> None:
    """What blocks the loop after its rollout has ended ends the pool, but harms no record."""
    pipe = after(SAMPLES, agent(lambda mark: mark.begin("the agent", 0.0), left=True))

    assert [None] == pipe.ends
    assert pipe.sentences[0].startswith("shop[shop-3]: what its agent left behind blocks")


def test_code_that_works_for_no_rollout() -> None:
    """Nobody is accused, and nothing ends: a suite's code may take long to import."""

    async def run(block: Block) -> None:
        block()

    pipe = after(10 * SAMPLES, run)

    assert pipe.sentences[0].startswith("a suite's code blocks the event loop")
    assert [] == pipe.ends


def test_a_loop_that_turns_again() -> None:
    """It is said after how long; a loop that turns slowly is not said to stand still."""
    pipe = FakePipe()
    watchdog = Watchdog(pipe, 600)
    with blocked(agent(lambda mark: mark.begin("the agent", 600))) as stack:
        for _ in range(SAMPLES + 3):
            watchdog.check(stack())
    with blocked(agent(lambda mark: mark.begin("the agent", 600))) as stack:
        watchdog.check(stack())
        with blocked(agent(lambda mark: mark.begin("the agent", 600))) as other:
            for _ in range(SAMPLES):
                watchdog.check(other())
                watchdog.check(stack())

    assert ["shop[shop-3]: the agent", f"the event loop runs again after {(SAMPLES + 2) * TICK:.0f} s"] == [
        pipe.sentences[0].partition(" blocks")[0],
        *pipe.sentences[1:],
    ]
