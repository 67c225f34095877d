"""When the watchdog warns, and when it ends the pool. Tests take its samples of a real loop in another thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pytest_agentbench.lib.standard_streams import Log
from pytest_agentbench.records import Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.attempt_context import AttemptContext, current_attempt
from pytest_agentbench.rollouts.pool.watchdog import PATIENCE, TICK, Watchdog
from tests.blocked_loop import Block, blocked

KEY = RolloutKey("shop", "shop-3")
SAMPLES = int(PATIENCE / TICK)  # samples of a step after which the loop counts as blocked


class FakePipe:
    """A pipe that records the sentences, and the rollouts with which the pool would have ended."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.ends: list[Any] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def leave(self, rollout: Rollout | None) -> None:
        self.ends.append(rollout)


def agent(change: Callable[[AttemptContext], None], *, left: bool = False) -> Callable[[Block], Any]:
    """Returns a rollout that blocks the loop before or after its end."""

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
    """Returns the pipe after so many samples of a blocked loop, counted after the first one."""
    pipe = FakePipe()
    watchdog = Watchdog(pipe, 600)
    with blocked(run) as stack:
        for _ in range(samples + 1):
            watchdog.check(stack())
    return pipe


def test_it_warns_if_a_step_lasts_long() -> None:
    """The watchdog warns once, not before PATIENCE. The sentence has the rollout, the line and the advice."""
    run = agent(lambda mark: mark.begin("the agent", 600))

    assert [] == after(SAMPLES - 1, run).sentences
    for samples in (SAMPLES, SAMPLES + 9):
        pipe = after(samples, run)

        (sentence,) = pipe.sentences
        assert sentence.startswith("shop[shop-3]: the agent blocks the event loop, and with it all rollouts: blocked_loop.py:")
        assert ": reached.set() or go_on.wait()" in sentence
        assert sentence.endswith("; use `def`, `await asyncio.to_thread(...)` or `isolation: process`")
        assert [] == pipe.ends


def test_a_process_that_was_stopped() -> None:
    """Time without samples does not count, so suspending a machine or debugging causes no warning."""
    pipe = after(1, agent(lambda mark: setattr(mark, "over_at", 0.0)))

    assert ([], []) == (pipe.sentences, pipe.ends)


def test_the_end_of_a_rollouts_time() -> None:
    """The record has the rollout and the line. The pool does not end while the rollout has time, or if its time is unlimited."""
    for seconds in (None, 600):
        assert [] == after(SAMPLES, agent(lambda mark, seconds=seconds: mark.begin("the agent", seconds))).ends  # type: ignore[misc]

    def begin(mark: AttemptContext) -> None:
        mark.begin("the agent", 0.0)
        mark.log.write("hello\n")

    (rollout,) = after(SAMPLES, agent(begin)).ends

    assert (KEY, "agent_error", "hello\n", 0) == (rollout.key, rollout.status, rollout.log, rollout.ended_ns)
    reason = rollout.reason
    assert reason.startswith("the agent blocked the event loop until its 0 s were over: blocked_loop.py:")


def test_a_scorer_that_blocks() -> None:
    """The record of the rollout is complete except for the blocking scorer's score."""
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


def test_code_that_blocks_after_its_rollout() -> None:
    """Code that blocks the loop after its rollout has ended makes the pool end, but changes no record."""
    pipe = after(SAMPLES, agent(lambda mark: mark.begin("the agent", 0.0), left=True))

    assert [None] == pipe.ends
    assert pipe.sentences[0].startswith("shop[shop-3]: code that its agent left running blocks")


def test_code_that_works_for_no_rollout() -> None:
    """Suite code outside of a rollout causes a warning without a rollout and no end, because an import may take long."""

    async def run(block: Block) -> None:
        block()

    pipe = after(10 * SAMPLES, run)

    assert pipe.sentences[0].startswith("a suite's code blocks the event loop")
    assert [] == pipe.ends


def test_a_loop_that_is_no_longer_blocked() -> None:
    """The message says how long the loop was blocked. A slow loop does not count as blocked."""
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
