"""Writes agentic Mooncake traces, which `python -m dynamo.replay` of Dynamo 1.4 replays.

A trace has a line for each LLM call, with the blocks of its prompt (for prefix caching) and the call that it waited for.

No tokenizer is available, so a block of a prompt is a fixed number of the transcript's characters. Two calls share their first blocks if
their transcripts begin alike. Tools and template are not in a transcript; they count as equal for all rollouts of a suite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import Attempt, Json, LLMCall
from pytest_agentbench.tables import places
from pytest_agentbench.tables.prompts import prompts

BLOCK = 64  # tokens, for `--trace-block-size`
CHARACTERS = 4  # characters per token, as in English


class SentCall(NamedTuple):
    """A successful LLM call with its prompt. Times are in nanoseconds since 1970."""

    id: str
    start: int
    end: int
    call: LLMCall
    text: str  # the part of the prompt that the transcript contains


@dataclass
class BlockNumbers:
    """Assigns numbers to the blocks of prompts. Two blocks get the same number if they and all blocks before them are equal."""

    _numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def numbers(self, names: Sequence[str]) -> list[int]:
        chain: list[int] = []
        for name in names:
            key = (chain[-1] if chain else -1, name)
            chain.append(self._numbers.setdefault(key, len(self._numbers)))
        return chain


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a trace for each run. Raises ConfigError if a run has no successful call whose time is known."""
    calls = chosen.tables.calls
    for origin in chosen.origins:
        sent = calls.where((calls["run"] == origin.run) & calls["measured"] & (calls["kind"] == "scenario"))["sent_s"]
        if np.isnan(sent).all():
            raise ConfigError(f"{origin.directory} has no call with a known time, so nothing can be replayed; name another run")
        began, blocks = math.floor(np.nanmin(sent) * 1e3), BlockNumbers()
        with (directory / f"{origin.run}.jsonl").open("w", encoding="utf-8") as file:
            for place in places(origin):
                if place.rollout.kind == "scenario":
                    file.writelines(json.dumps(row) + "\n" for row in _rows(place, blocks, began))
            if not file.tell():
                raise ConfigError(f"{origin.directory}: all calls of its scenarios failed, so nothing can be replayed; name another run")


def _rows(place: RolloutPlace, blocks: BlockNumbers, began: int) -> Iterator[Json]:
    """Yields a line of the trace for each call of a rollout. Each attempt is a session of the trace."""
    for attempt in place.rollout.attempts:
        timed = sorted(timed_calls(place, attempt), key=lambda call: call.start)
        shared = _shared(timed)
        for number, call in enumerate(timed):
            length = _length(call)
            yield {
                "request_id": call.id,
                "session_id": f"{place.rollout.key}-{attempt.attempt}",
                "input_length": length,
                "output_length": max(1, output_tokens(call.call)),
                "hash_ids": blocks.numbers(_names(place.rollout.key.group, call, shared)),
                **_when(place, call, timed[:number], began),
            }


def timed_calls(place: RolloutPlace, attempt: Attempt) -> Iterator[SentCall]:
    """Yields the successful calls of an attempt whose times are known."""
    text, calls, ends = prompts(place.rollout, attempt)
    first = ends[0] if ends else 0  # characters that every prompt contains
    for number, call in enumerate(calls):
        start, end = (place.origin.calendar.epoch_ns(attempt.session, stamp) for stamp in (call.sent_ns, call.ended_ns))
        if start is not None and end is not None:
            prompt = text[: ends[number] if number < len(ends) else first]
            yield SentCall(f"{place.rollout.key}-{attempt.attempt}-{number + 1}", start, end, call, prompt)


def _length(call: SentCall) -> int:
    """Returns the number of tokens in a call's prompt: the server's count, or else an estimate."""
    return call.call.prompt_tokens or max(1, len(call.text) // CHARACTERS)


def _stretches(text: str) -> list[str]:
    size = BLOCK * CHARACTERS
    return [text[at : at + size] for at in range(0, len(text), size)]


def _shared(timed: Sequence[SentCall]) -> int:
    """Returns how many blocks of each prompt precede its transcript (tools and template), from the length of the first prompt."""
    return max(0, math.ceil(_length(timed[0]) / BLOCK) - len(_stretches(timed[0].text))) if timed else 0


def _names(group: str, call: SentCall, shared: int) -> list[str]:
    """Returns a name for each block of a prompt; equal names mean equal blocks.

    The `shared` blocks before the transcript are named after the suite, blocks of the transcript after their text, and blocks of
    unknown text after the call.
    """
    count = math.ceil(_length(call) / BLOCK)
    names = [*(f"{group} {number}" for number in range(shared)), *_stretches(call.text)][:count]
    return [*names, *(f"{call.id} {number}" for number in range(len(names), count))]


def _when(place: RolloutPlace, call: SentCall, earlier: Sequence[SentCall], began: int) -> Json:
    """Returns the part of a trace line (keys and values) that says when a call begins.

    It has the earlier call that ended last before this one, and the milliseconds after that, divided into tool time and other
    delay. If no earlier call had ended, it has a timestamp instead.
    """
    ended = [each for each in earlier if each.end <= call.start]
    if not ended:
        return {"timestamp": max(0.0, call.start / 1e6 - began)}
    last = max(ended, key=lambda each: each.end)
    tools = _tool_ns(place, last.end, call.start)
    return {"wait_for": [last.id], "delay": (call.start - last.end - tools) / 1e6, "tool_wait_ms": tools / 1e6}


def _tool_ns(place: RolloutPlace, start: int, end: int) -> int:
    """Returns how many nanoseconds of the gap between two calls tools were running. Overlapping tools count once."""
    rollout, calendar = place.rollout, place.origin.calendar
    spans = (tuple(calendar.epoch_ns(rollout.session, stamp) for stamp in (tool.started_ns, tool.ended_ns)) for tool in rollout.tool_calls)
    total, covered = 0, start
    for begun, done in sorted((begun, done) for begun, done in spans if begun is not None and done is not None):
        total += max(0, min(done, end) - max(begun, covered))
        covered = max(covered, min(done, end))
    return total
