"""The prompts of LLM calls: from messages.jsonl, or reconstructed from transcripts, of which each prompt of a rollout is a prefix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.records import Attempt, LLMCall, Rollout
from pytest_agentbench.runs.conversations import INSTRUCTIONS, Conversations, NotKept


class Prompts(NamedTuple):
    """The prompts of the successful calls of an attempt, each a prefix of `text`. Like transcripts, they lack tools and chat template."""

    text: str  # transcript, one message per line
    calls: tuple[LLMCall, ...]  # successful calls
    ends: tuple[int, ...]  # length of each call's prompt in `text`, characters; only for the first call, or empty, if others are unknown


def prompts(rollout: Rollout, attempt: Attempt) -> Prompts:
    """Returns the prompts of an attempt. If the transcript does not have an answer for each call, only the first prompt is known."""
    calls = tuple(call for call in attempt.calls if call.error_kind is None and call.sent_ns is not None)
    lines = [_line(message) for message in rollout.messages]
    text = "\n".join(lines)
    before = [0, *accumulate(len(line) + 1 for line in lines)]  # characters before each message, including line ends
    ends = [max(0, before[place] - 1) for place, message in enumerate(rollout.messages) if message.get("role") == "assistant"]
    if attempt.attempt != rollout.attempt or len(ends) != len(calls):
        ends = [ends[0] if ends else len(text)][: len(calls)] if text else []
    return Prompts(text, calls, tuple(ends))


BEFORE_MESSAGES = ("tools", *sorted(INSTRUCTIONS))  # fields of a request that chat templates put before its messages


class PromptTexts:
    """The texts of the prompts of a run, one message per line. Only the prompts of one attempt are in memory."""

    def __init__(self, directory: Path) -> None:
        """Takes the directory of a run."""
        self._conversations = Conversations(directory) if (directory / FILE).is_file() else None

    def of(self, rollout: Rollout, attempt: Attempt, calls: Sequence[LLMCall]) -> tuple[list[str], bool]:
        """Returns the texts of the prompts of some successful calls of an attempt, and whether they come from messages.jsonl.

        Such texts begin with tools and system prompt. If messages.jsonl lacks a part of any of these requests, all texts come from the
        transcript instead. If that does not show the prompt of a call, the call gets that of the first one, or an empty text.
        """
        try:
            return [self._kept(call) for call in calls], True
        except NotKept:
            text, known, ends = prompts(rollout, attempt)
            first = ends[0] if ends else 0
            lengths = {id(call): ends[number] if number < len(ends) else first for number, call in enumerate(known)}
            return [text[: lengths[id(call)]] for call in calls], False

    def _kept(self, call: LLMCall) -> str:
        if self._conversations is None:
            raise NotKept("the run has no messages.jsonl")
        form = self._conversations.form(call)
        if form["left_out"]:
            raise NotKept("large parts of the request, such as its tools, were not kept; repeat the run with --agentbench-keep=all")
        fields = {**form.get("body", {}), **form["parts"]}
        before = [fields[name] for name in BEFORE_MESSAGES if fields.get(name)]
        return "\n".join(_line(each) for each in (*before, *self._conversations.prompt(call)))


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
