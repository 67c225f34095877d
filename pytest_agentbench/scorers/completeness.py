"""Completeness: a judge rates how much of the request was done. The score is only as good as the judge; prefer a verifier if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.transcript import marked

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

PROMPT = """You judge how much of a request an assistant has carried out.
It acted by the calls and commands below, whose results stand behind them.

<request>
{request}
</request>

<conversation>
{conversation}
</conversation>

First list what the request asks for, and say of each part whether the conversation shows that it was done.
What the assistant only claims was not done.
Then give a mark from 0 (nothing of it was done) to 10 (all of it was done, and was seen to work)."""


@scorer(range=(0, 1))
async def completeness(scenario: Scenario, rollout: Rollout, judge: LLM, *, judgements: int = 3, temperature: float = 0.5) -> Score:
    """Returns how much of the request was done, from 0 to 1: the mean of the marks that a judge gives.

    Options:
        judgements: How often the judge is asked.
        temperature: Sampling temperature of the judge.
    """
    return await marked(scenario, rollout, judge, PROMPT, judgements, temperature)
