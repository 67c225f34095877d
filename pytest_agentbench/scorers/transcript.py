"""Asks a judge several times to mark a whole rollout from 0 to 10. Shared code of the scorers `completeness` and `reasoning_quality`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.lib.options import whole
from pytest_agentbench.llm.judge import Form, ask, fill_template, identity
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.suites.suite import content_text, user_text

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

BEST = 10  # highest mark
MESSAGE = 4_000  # maximum bytes of one message that a judge sees
CONVERSATION = 40_000  # maximum bytes of all messages together

FORM = Form(
    "mark",
    {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "mark": {"type": "number", "minimum": 0, "maximum": BEST}},
        "required": ["reasoning", "mark"],
        "additionalProperties": False,
    },
)


async def marked(scenario: Scenario, rollout: Rollout, judge: LLM, prompt: str, judgements: int, temperature: float) -> Score:
    """Asks the judge for `judgements` marks and returns their mean, from 0 to 1. The parts are their number, the lowest and the highest.

    The explanation is the judge's reasoning for the median mark. Raises ValueError if the conversation of the rollout is unknown.
    """
    whole(1).check("judgements", judgements)
    if rollout.calls and not rollout.messages:
        raise ValueError("the conversation is unknown, so a judge cannot mark it; run the suite with --agentbench-keep=calls or all")
    request = user_text(scenario.messages)
    question = fill_template(prompt, {"request": request, "conversation": conversation_text(rollout.messages)})
    parameters = {"temperature": temperature}
    answers = [await ask(judge, question, FORM, **parameters, seed=number) for number in range(judgements)]
    answers.sort(key=lambda each: float(each["mark"]))
    marks = [each["mark"] / BEST for each in answers]
    who = identity(judge, prompt, FORM, parameters)
    by = f"judge {who['model']}, prompt {who['prompt_sha256'][:12]}, temperature {temperature:g}"
    reasoning = " ".join(str(answers[judgements // 2]["reasoning"]).split())
    return Score(fmean(marks), {"judgements": judgements, "lowest": marks[0], "highest": marks[-1]}, f"{reasoning}; {by}")


def conversation_text(messages: Sequence[Json]) -> str:
    """Returns the conversation after the user's request as a text, with tool calls. Long messages and texts lose their middle."""
    texts = [_message_text(message) for message in messages if message.get("role") != "system"]
    return cut("\n\n".join(texts[1:]), CONVERSATION) or "(nothing was said or done)"


def _message_text(message: Json) -> str:
    calls = [f"{call['function']['name']}({_arguments(call)})" for call in message.get("tool_calls") or ()]
    return f"[{message.get('role')}] " + "\n".join(filter(None, [cut(content_text(message), MESSAGE), *calls]))


def _arguments(call: Json) -> str:
    arguments = call["function"].get("arguments") or ""
    return cut(arguments if isinstance(arguments, str) else json.dumps(arguments), MESSAGE)
