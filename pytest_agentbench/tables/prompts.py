"""Reconstructs the prompts of LLM calls from transcripts: each prompt of a rollout is a prefix of its transcript."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import NamedTuple

from pytest_agentbench.records import Attempt, LLMCall, Rollout


class Prompts(NamedTuple):
    """The prompts of the successful calls of an attempt, each a prefix of `text`. Like transcripts, they lack tools and chat template."""

    text: str  # transcript, one message per line
    calls: tuple[LLMCall, ...]  # successful calls
    ends: tuple[int, ...]  # length of each call's prompt in `text`, characters; only for the first call, or empty, if others are unknown


def prompts(rollout: Rollout, attempt: Attempt) -> Prompts:
    """Returns the prompts of an attempt. If the transcript does not have an answer for each call, only the first prompt is known."""
    calls = tuple(call for call in attempt.calls if call.error_kind is None and call.sent_ns is not None)
    lines = [json.dumps(message, ensure_ascii=False) for message in rollout.messages]
    text = "\n".join(lines)
    before = [0, *accumulate(len(line) + 1 for line in lines)]  # characters before each message, including line ends
    ends = [max(0, before[place] - 1) for place, message in enumerate(rollout.messages) if message.get("role") == "assistant"]
    if attempt.attempt != rollout.attempt or len(ends) != len(calls):
        ends = [ends[0] if ends else len(text)][: len(calls)] if text else []
    return Prompts(text, calls, tuple(ends))
