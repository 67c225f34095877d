"""What calls were asked with, as far as a transcript tells: each prompt of a rollout is the beginning of its transcript."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import NamedTuple

from pytest_agentbench.records import Attempt, LLMCall, Rollout


class Prompts(NamedTuple):
    """The prompts of an attempt's good calls, without tools and chat template, which no transcript has."""

    text: str  # the transcript, a message a line
    calls: tuple[LLMCall, ...]  # that went well
    ends: tuple[
        int, ...
    ]  # characters of the text that each call was asked with; of the first call alone, or of none, where no more is known


def prompts(rollout: Rollout, attempt: Attempt) -> Prompts:
    """The prompts of an attempt: of all its calls where the transcript has an answer for each, else of the first one."""
    calls = tuple(call for call in attempt.calls if call.error_kind is None and call.sent_ns is not None)
    lines = [json.dumps(message, ensure_ascii=False) for message in rollout.messages]
    text = "\n".join(lines)
    before = [0, *accumulate(len(line) + 1 for line in lines)]  # characters up to a message, with the line's end
    ends = [max(0, before[place] - 1) for place, message in enumerate(rollout.messages) if message.get("role") == "assistant"]
    if attempt.attempt != rollout.attempt or len(ends) != len(calls):
        ends = [ends[0] if ends else len(text)][: len(calls)] if text else []
    return Prompts(text, calls, tuple(ends))
