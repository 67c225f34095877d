"""Reasoning quality: a judge rates how sensibly an agent worked, whether or not it succeeded. The score is only as good as the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.transcript import marked

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

PROMPT = """You judge how well an assistant reasons while it works on a request.
It acted by the calls and commands below, whose results stand behind them.

<request>
{request}
</request>

<conversation>
{conversation}
</conversation>

Look at four things: does it look before it acts; does each step follow from what it has seen; does it notice errors and find their causes;
does it check its result before it says that it is done. Whether the result is right does not matter here.
Say first what was sensible and what was not, and then give a mark from 0 (aimless) to 10 (no step could be better)."""


@scorer(range=(0, 1))
async def reasoning_quality(scenario: Scenario, rollout: Rollout, judge: LLM, *, judgements: int = 3, temperature: float = 0.5) -> Score:
    """Returns how sensible the agent's steps were, from 0 to 1: the mean of the marks that a judge gives.

    Options:
        judgements: How often the judge is asked.
        temperature: Sampling temperature of the judge.
    """
    return await marked(scenario, rollout, judge, PROMPT, judgements, temperature)
