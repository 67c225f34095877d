"""Action completion: a judge (an LLM) decides which of the user's goals were reached. The score is only as good as the judge.

The judge sees the request, the goals, the tool calls and the answer, and reasons about each goal before its verdict. It is asked several
times, and a goal is completed if more than half of its judgements say so. Galileo's leaderboard calls a judgement of whole simulated
conversations action completion, too, so the numbers cannot be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_agentbench.lib.options import whole
from pytest_agentbench.llm.judge import Form, ask, calls_text, fill_template, identity, numbered
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.suites.suite import user_text

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

PROMPT = """You judge what an assistant did for a customer. It acts by calling tools. Tools are only recorded here and give back samples:
a call with the right arguments counts as done, and the values in the answer do not matter.

<request>
{question}
</request>

<goals>
{goals}
</goals>

<tool_calls>
{tool_calls}
</tool_calls>

<answer>
{answer}
</answer>

For each goal say first, in one or two sentences, what was done for it and what is missing, and only then whether it is completed.
A goal that was reached in part, with wrong arguments, or only in words where a tool had to be called, is not completed.
A goal that asks to leave something alone is completed when it was left alone."""


@scorer(range=(0, 1))
async def action_completion(scenario: Scenario, rollout: Rollout, judge: LLM, *, judgements: int = 3, temperature: float = 0.5) -> Score:
    """Returns the share of `user_goals` that were reached according to most judgements of a judge.

    A scenario without goals gets no score.

    Options:
        judgements: How often the judge is asked.
        temperature: Sampling temperature of the judge.
    """
    goals = goals_of(scenario)
    if not goals:
        raise ValueError("the scenario has no user_goals; add them to the data set, or leave out the scorer action_completion")
    whole(1).check("judgements", judgements)
    form = _form(len(goals))
    fields = {
        "question": user_text(scenario.messages),
        "goals": numbered(goals),
        "tool_calls": calls_text(rollout.tool_calls),
        "answer": rollout.answer or "(none)",
    }
    prompt, parameters = fill_template(PROMPT, fields), {"temperature": temperature}
    judgements_made = [_completed(await ask(judge, prompt, form, **parameters, seed=number)) for number in range(judgements)]
    return _score(goals, judgements_made, identity(judge, PROMPT, form, parameters))


def goals_of(scenario: Scenario) -> list[str]:
    """Returns the user's goals: `user_goals` in the scenario's metadata, as texts."""
    return [str(goal) for goal in scenario.metadata.get("user_goals") or ()]


def _form(goals: int) -> Form:
    goal: Json = {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "completed": {"type": "boolean"}},
        "required": ["reasoning", "completed"],
        "additionalProperties": False,
    }
    properties = {f"goal_{number}": goal for number in range(1, goals + 1)}
    return Form("completion", {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False})


def _completed(judgement: Json) -> list[bool]:
    return [judgement[f"goal_{number}"]["completed"] for number in range(1, len(judgement) + 1)]


def _score(goals: Sequence[str], judgements: Sequence[Sequence[bool]], judge: Json) -> Score:
    """Returns the score of several judgements. Each says for every goal whether it was completed. A goal with a tie is not completed.

    The part `agreement` is the share of judgements that agree with the majority, averaged over goals; 1 if all judgements are equal.
    """
    votes = [sum(each) for each in zip(*judgements, strict=True)]
    done = [2 * count > len(judgements) for count in votes]
    agreement = sum(max(count, len(judgements) - count) for count in votes) / (len(judgements) * len(goals))
    left = ", ".join(repr(goal) for goal, is_done in zip(goals, done, strict=True) if not is_done)
    parts = {"goals": len(goals), "completed": sum(done), "judgements": len(judgements), "agreement": agreement}
    by = f"judge {judge['model']}, prompt {judge['prompt_sha256'][:12]}, temperature {judge['parameters']['temperature']:g}"
    return Score(
        sum(done) / len(goals), parts, f"not completed: {left or 'none'}; agreement {agreement:.2f} of {len(judgements)} judgements; {by}"
    )
