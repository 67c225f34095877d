"""Cancellation: an agent that cancels itself is at fault, a cancelled rollout is not, and no rollout waits for code that does not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_agentbench.lib.standard_streams import Log, capture
from pytest_agentbench.lib.threads import in_thread, no_threads
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Rollout, Score
from pytest_agentbench.rollouts.attempt_context import current
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox
from tests.rollouts.test_rollout import KEY, SCENARIO, Doing, QuietTap, answer, raising, ran, scoring

colour: ContextVar[str] = ContextVar("colour", default="none")


async def cancel_a_task_of_its_own(llm: LLM) -> Answer:
    del llm
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return Answer("")


async def cancel_a_group(llm: LLM) -> Answer:
    del llm
    waiting = asyncio.gather(asyncio.sleep(60))
    waiting.cancel()
    await waiting
    return Answer("")


@pytest.mark.parametrize("what", [cancel_a_task_of_its_own, cancel_a_group])
async def test_an_agent_that_awaits_a_task_that_it_has_cancelled(what: Any) -> None:
    """An agent that awaits a task that it has cancelled ends as agent_error."""
    record = await ran(what)

    assert ("agent_error", True) == (record.status, record.reason.startswith("CancelledError: "))


async def test_the_context_of_an_agent() -> None:
    """An agent runs in the context of its rollout: the caller's ContextVars, the rollout's key, and whether threads are used."""
    seen: list[Any] = []

    async def look(llm: LLM) -> Answer:
        del llm
        mark = current()
        seen.append((colour.get(), mark and mark.key, mark and mark.part, await in_thread(colour.get)))
        return Answer("")

    token = colour.set("red")
    with no_threads():
        await ran(look)
    await ran(look)
    colour.reset(token)

    assert [("red", KEY, "the agent", "red")] * 2 == seen


async def test_the_log_of_an_agent() -> None:
    """Output of an agent goes to the log of its own rollout only."""
    logs: list[Log] = []

    async def remember(llm: LLM) -> Answer:
        del llm
        mark = current()
        assert mark is not None
        mark.log.write(f"rollout {len(logs)}\n")
        logs.append(mark.log)
        await asyncio.sleep(0)
        return Answer("")

    with capture() as outer:
        records = await asyncio.gather(ran(remember), ran(remember))

    assert ["rollout 0\n", "rollout 1\n", ""] == [*(record.log for record in records), outer.text]


@pytest.mark.parametrize("part", ["agent", "scorer"])
async def test_a_cancelled_rollout_is_not_at_fault(part: str) -> None:
    """A rollout that is cancelled from outside has no record, even if its agent or scorer takes time to clean up."""
    running, cleaned = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    async def agent(llm: LLM) -> Answer:
        del llm
        await (wait() if part == "agent" else asyncio.sleep(0))
        return Answer("")

    async def scorer(scenario: Any, rollout: Any) -> float:
        del scenario, rollout
        await wait()
        return 1.0

    setup = RolloutSetup(Doing(agent), {"mine": scorer}, {}, None, {})  # type: ignore[dict-item]  # a scorer may be a coroutine function
    tap = QuietTap()
    task = asyncio.create_task(run_rollout(KEY, SCENARIO, setup, tap, None, 60))
    await running.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert (True, True, []) == (task.cancelled(), cleaned.is_set(), tap.open_ids)


class Stubborn:
    """Suite code that ignores cancellation until the test has ended."""

    def __init__(self) -> None:
        self.released = False
        self.cancelled = 0  # number of cancellations
        self.refusals: set[str] = set()
        self.has_asked = asyncio.Event()

    async def run(self, *_: Any) -> Answer:
        while not self.released:
            try:
                await asyncio.sleep(0.1)
            except BaseException:
                self.cancelled += 1
        return Answer("too late")

    async def ask(self, llm: LLM, tools: Toolbox) -> Answer:
        """Continues to call tools and models after its time is over."""
        requests: dict[str, Callable[[], Awaitable[object]]] = {
            "tool": lambda: tools.call("find", "{}", 2),
            "model": lambda: llm.chat([]),
            "role": lambda: llm.role("user"),
        }
        await self.run()
        for name, request in requests.items():
            try:
                await request()
            except asyncio.CancelledError:
                self.refusals.add(name)
        self.has_asked.set()
        return Answer("too late")


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    """Yields code that ignores cancellation. It ends with the test, because a closing event loop waits for all its tasks."""
    code = Stubborn()
    yield code
    code.released = True
    if running := {each for each in asyncio.all_tasks() if each is not asyncio.current_task()}:
        await asyncio.wait(running, timeout=30)


@dataclass(frozen=True)
class Asking:
    """An agent that continues to request tools and models."""

    code: Stubborn

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del scenario
        return await self.code.ask(llm, tools)


async def raise_generator_exit(llm: LLM) -> Answer:
    del llm
    try:
        await asyncio.sleep(60)
    finally:
        raise GeneratorExit


async def test_code_that_does_not_end_on_cancellation(stubborn: Stubborn) -> None:
    """A rollout ends with reason and scores even if its agent or scorer continues to run. Later requests of that code are refused."""
    tap = QuietTap()
    asking = run_rollout(KEY, SCENARIO, RolloutSetup(Asking(stubborn), {}, {}, None, {}), tap, None, 0.01)
    scorers: dict[str, Any] = {"slow": stubborn.run, "quick": scoring(Score(1.0))}
    scored = ran(stubborn.run, seconds=0.01, scorers={"quick": scoring(Score(1.0))})
    hung, agent, scorer, exiting = await asyncio.gather(
        asking, scored, ran(answer, seconds=0.01, scorers=scorers), ran(raise_generator_exit, seconds=0.01)
    )
    stubborn.released = True
    async with asyncio.timeout(30):
        await stubborn.has_asked.wait()

    late = "longer than 0.01 s; its code did not end when it was cancelled, and was left running"
    assert ("limit", f"time: the rollout took {late}", {"quick": 1.0}) == (agent.status, agent.reason, values(agent))
    assert ("ok", {"quick": 1.0}, {"slow": f"the scorer took {late}"}) == (scorer.status, values(scorer), scorer.score_errors)
    assert ("limit", (), []) == (hung.status, hung.tool_calls, tap.open_ids)
    assert {"tool", "model", "role"} == stubborn.refusals
    assert ("agent_error", True) == (exiting.status, exiting.reason.startswith("GeneratorExit: "))


def values(record: Rollout) -> dict[str, float]:
    return {name: float(score) for name, score in record.scores.items()}


@pytest.mark.parametrize("error", [GeneratorExit(), KeyboardInterrupt(), BaseException("its own")])
async def test_errors_that_are_not_exceptions(error: BaseException) -> None:
    """An agent or scorer that raises an error that is not an Exception is at fault, and the event loop continues."""
    agent, scorer = await ran(raising(error)), await ran(answer, scorers={"mine": scoring(error)})

    assert ("agent_error", True) == (agent.status, agent.reason.startswith(f"{type(error).__name__}: {error} (test_rollout.py:"))
    assert ("ok", ["mine"]) == (scorer.status, [*scorer.score_errors])
    assert scorer.score_errors["mine"].startswith(f"{type(error).__name__}: {error} (test_rollout.py:")
