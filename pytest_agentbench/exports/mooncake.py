"""Writes agentic Mooncake traces, `RUN.jsonl` for each run, which `python -m dynamo.replay` of Dynamo 1.4 replays.

A trace has a line for each LLM call, with the blocks of its prompt (for prefix caching) and the call that it waited for.

No tokenizer is available, so a block of a prompt is a fixed number of characters. Two calls share their first blocks if their prompts
begin alike. Prompts that were kept contain tools, and the server's count of tokens tells how many characters a block has. Other prompts
are known from the transcript, which lacks tools; these count as equal for all rollouts of a suite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.sessions import ReplaySession, SentCall, first_ms, sessions
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import Json
from pytest_agentbench.tables.prompts import PromptTexts

BLOCK = 64  # tokens, for `--trace-block-size`
CHARACTERS = 4  # characters per token, as in English


@dataclass
class BlockNumbers:
    """Assigns numbers to the blocks of prompts. Two blocks get the same number if they and all blocks before them are equal.

    Only hashes are in memory, because the blocks of a run are all its texts.
    """

    _numbers: dict[bytes, int] = field(default_factory=dict)

    def numbers(self, names: Sequence[str]) -> list[int]:
        chain: list[int] = []
        for name in names:
            key = blake2b(f"{chain[-1] if chain else -1} {name}".encode(errors="surrogatepass"), digest_size=16).digest()
            chain.append(self._numbers.setdefault(key, len(self._numbers)))
        return chain


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a trace for each run. Raises ConfigError if a run has no successful call whose time is known."""
    for origin in chosen.origins:
        began, prompts, names, blocks = first_ms(chosen, origin), PromptTexts(origin.directory), BlockNames(), BlockNumbers()
        with (directory / f"{origin.run}.jsonl").open("w", encoding="utf-8") as file:
            for session in sessions(origin):
                file.writelines(json.dumps(row) + "\n" for row in _rows(session, prompts, names, blocks, began))
            if not file.tell():
                raise ConfigError(f"{origin.directory}: all calls of its scenarios failed, so nothing can be replayed; name another run")


def _rows(session: ReplaySession, prompts: PromptTexts, names: BlockNames, blocks: BlockNumbers, began: int) -> Iterator[Json]:
    """Yields a line of the trace for each call of a session (one attempt at a rollout)."""
    texts, are_kept = prompts.of(session.place.rollout, session.attempt, [call.call for call in session.calls])
    lengths = [call.call.prompt_tokens or max(1, len(text) // CHARACTERS) for call, text in zip(session.calls, texts, strict=True)]
    front = 0 if are_kept or not texts else max(0, math.ceil(lengths[0] / BLOCK) - math.ceil(len(texts[0]) / (BLOCK * CHARACTERS)))
    for number, (call, text, length) in enumerate(zip(session.calls, texts, lengths, strict=True)):
        group = session.place.rollout.key.group
        known = names.of_kept(group, call.call.model, text, length) if are_kept else names.of_transcript(group, text, front)
        count = math.ceil(length / BLOCK)
        rest = (f"{call.id} {place}" for place in range(len(known), count))  # blocks of unknown text, which nothing else shares
        yield {
            "request_id": call.id,
            "session_id": session.id,
            "input_length": length,
            "output_length": max(1, output_tokens(call.call)),
            "hash_ids": blocks.numbers([*known[:count], *rest]),
            **_when(session.place, call, session.calls[:number], began),
        }


class BlockNames:
    """Names the blocks of prompts; equal names mean equal blocks.

    For kept prompts, the first one of a suite and model determines the characters of a block. All others must have the same number, because
    blocks of equal text would differ otherwise.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = {}  # (group, model) -> characters in a block

    def of_kept(self, group: str, model: str, text: str, length: int) -> list[str]:
        """Returns the names of the blocks of a prompt that messages.jsonl contains. `length` is its number of tokens."""
        return _stretches(text, self._sizes.setdefault((group, model), max(1, round(len(text) * BLOCK / length))))

    @staticmethod
    def of_transcript(group: str, text: str, front: int) -> list[str]:
        """Returns the names of the blocks of a prompt whose text comes from a transcript, which lacks tools and chat template.

        The first `front` blocks stand for what the transcript lacks. They are the same for the whole suite.
        """
        return [*(f"{group} {number}" for number in range(front)), *_stretches(text, BLOCK * CHARACTERS)]


def _stretches(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


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
