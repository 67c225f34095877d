"""Cancellation: an agent that cancels itself is at fault, a rollout that is cancelled from outside is not."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

import pytest

from pytest_agentbench.lib.capture import Log, capture
from pytest_agentbench.lib.threads import in_thread, no_threads
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer
from pytest_agentbench.rollouts.attempt_context import current
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from tests.rollouts.test_rollout import KEY, SCENARIO, Doing, QuietTap, ran

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
async def test_an_agent_that_waits_for_what_it_has_cancelled(what: Any) -> None:
    """An agent that awaits a task which it has cancelled ends as an agent_error."""
    record = await ran(what)

    assert ("agent_error", True) == (record.status, record.reason.startswith("CancelledError: "))


async def test_the_context_of_an_agent() -> None:
    """An agent runs in the context of its rollout: ContextVars of the caller, the rollout's key, and whether threads are used."""
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
    """What an agent writes goes into the log of its own rollout, and not into that of a rollout beside it."""
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
    """A rollout that is cancelled from outside has no record, also if its agent or scorer takes a while to clean up."""
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
