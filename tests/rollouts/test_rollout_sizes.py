"""Rollouts with texts that are too large: which texts are truncated or refused, and what the record says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError, LimitReached, ToolError
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json, Rollout, Score
from pytest_agentbench.rollouts.rollout import outcome
from pytest_agentbench.rollouts.scores import no_judge, scored
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.source import DecisionOnly
from pytest_agentbench.tools.toolbox import Toolbox

SCENARIO = Scenario("s-0", ({"role": "user", "content": "A lamp?"},), (Tool("find", "", {"type": "object"}),), ())
SIZES = Sizes(answer=4096, tool_result=2048, reason=1024)
RECORD = Rollout("shop", "s-0", "default", 1, status="ok")


@dataclass(frozen=True)
class Doing:
    """An agent that runs a function of a test."""

    what: Callable[[Toolbox], Awaitable[str]]

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del scenario, llm
        return Answer(await self.what(tools))


class Large(DecisionOnly):
    """A source with a state, whose tool returns so many letters, or refuses with as many."""

    def __init__(self, size: int, *, refuses: bool = False) -> None:
        self.size, self.refuses = size, refuses

    async def call(self, tool: Tool, arguments: Json) -> str:
        del tool, arguments
        if self.refuses:
            raise ToolError("r" * self.size)
        return "r" * self.size

    def state(self) -> Any:
        return {"calls": 1}


async def ended(what: Callable[[Toolbox], Awaitable[str]], source: DecisionOnly | None = None) -> tuple[str, str, str, Toolbox]:
    """Returns (status, reason, answer) of an agent with small size limits, and its tools."""
    tools = Toolbox(SCENARIO.tools, source=source, sizes=SIZES)
    return *await outcome(Doing(what), SCENARIO, LLM("", ""), tools, 60, SIZES), tools


async def call(tools: Toolbox) -> str:
    return await tools.call("find", "{}", 1)


async def test_an_answer_that_is_too_large() -> None:
    """The status is `limit`, the reason has the size of the answer, and the record has its beginning and its end."""

    async def long(tools: Toolbox) -> str:
        return "a" * 30_000_000

    status, reason, answer, _ = await ended(long)

    assert ("limit", "answer: 30,000,000 bytes, at most 4,096 are kept; raise --agentbench-size-answer") == (status, reason)
    assert f"{'a' * 1920}\n[29,996,160 bytes left out]\n{'a' * 1920}" == answer


async def test_an_answer_of_the_size() -> None:
    """An answer of exactly the size limit is not truncated."""

    async def fits(tools: Toolbox) -> str:
        return "a" * 4096

    assert ("ok", "", "a" * 4096) == (await ended(fits))[:3]


async def test_a_result_that_is_too_large() -> None:
    """The agent does not get the result. The record has the call and the state of the tools."""
    status, reason, answer, tools = await ended(call, Large(30_000_000))

    expected = "result of the tool 'find': 30,000,000 bytes, at most 2,048 are kept; raise --agentbench-size-tool-result"
    assert ("limit", expected, "") == (status, reason, answer)
    assert ([("find", None)], {"calls": 1}) == ([(each.name, each.problem) for each in tools.calls], tools.final_state)


async def test_an_agent_that_continues_after_a_refused_result() -> None:
    """The status is `limit` even if the agent catches the error and answers."""

    async def stubborn(tools: Toolbox) -> str:
        with suppress(LimitReached):
            await call(tools)
        return "done"

    assert "limit" == (await ended(stubborn, Large(3000)))[0]


async def test_a_fault_of_the_tools_comes_first() -> None:
    """If the tools have failed, too, nothing was measured, and the rollout is retried."""

    class Failing(Large):
        async def call(self, tool: Tool, arguments: Json) -> str:
            self.size += 3000
            if self.size > 3000:
                raise InfraError("the shop is closed")
            return await super().call(tool, arguments)

    async def both(tools: Toolbox) -> str:
        with suppress(LimitReached, InfraError):
            await call(tools)
        with suppress(LimitReached, InfraError):
            await call(tools)
        return "done"

    assert ("infra_error", "the shop is closed") == (await ended(both, Failing(0)))[:2]


async def test_a_result_of_the_size() -> None:
    """A result of exactly the size limit reaches the agent."""
    assert ("ok", "", "r" * 2048) == (await ended(call, Large(2048)))[:3]


async def test_a_refusal_that_is_too_large() -> None:
    """The reason of a tool's refusal is truncated, in the record and for the agent."""
    status, _, answer, tools = await ended(call, Large(30_000_000, refuses=True))

    cut = f"{'r' * 384}\n[29,999,232 bytes left out]\n{'r' * 384}"
    assert ("ok", f"Error: {cut}", cut) == (status, answer, tools.calls[0].refusal)


@pytest.mark.parametrize(("error", "status"), [(LimitReached, "limit"), (InfraError, "infra_error"), (ValueError, "agent_error")])
async def test_an_error_with_a_text_that_is_too_large(error: type[Exception], status: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is truncated, but still names the line that raised the error. The traceback in the log is limited, too."""

    async def fails(tools: Toolbox) -> str:
        raise error("e" * 30_000_000)

    found, reason, answer, _ = await ended(fails)

    assert (status, "", True) == (found, answer, "\n[29,999,232 bytes left out]\ne" in reason)
    assert len(reason) < 1024
    if error is ValueError:
        assert reason.startswith("ValueError: eee")
        assert "(test_rollout_sizes.py:" in reason
        assert 60_000 < len(printed := capsys.readouterr().err) < 80_000
        assert "in fails" in printed


async def test_explanations_and_errors_of_scorers() -> None:
    """Explanations and errors are truncated. The score and its parts are kept."""

    def wordy(scenario: Scenario, rollout: Rollout) -> Score:
        return Score(0.5, {"calls": 3}, "w" * 5000)

    def broken(scenario: Scenario, rollout: Rollout) -> Score:
        raise KeyError("k" * 5000)

    record = await scored(RECORD, SCENARIO, {"wordy": wordy, "broken": broken}, no_judge, 60, SIZES)

    score = record.scores["wordy"]
    assert (0.5, {"calls": 3}, f"{'w' * 384}\n[4,232 bytes left out]\n{'w' * 384}") == (score, score.parts, score.explanation)
    assert record.score_errors["broken"].startswith(f"KeyError: '{'k' * 383}")
    assert "\n[4,234 bytes left out]\n" in record.score_errors["broken"]
    assert len(record.score_errors["broken"]) < 1024


def test_the_tools_of_further_drafts_have_the_limits() -> None:
    """The tools of an agent that makes several drafts refuse the same results."""
    assert SIZES == Toolbox(SCENARIO.tools, sizes=SIZES).fresh().sizes
