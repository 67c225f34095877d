"""Writes `RUN-API.jsonl` for each run and API: whole requests, which AIPerf sends again
(`--custom-dataset-type mooncake_trace`).

AIPerf sends a file to one endpoint, so there is a file for each API. It sends the calls of a session, here those of
one attempt at a rollout, one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.sessions import KeptSessions, SentCall, first_ms
from pytest_agentbench.records import Json
from pytest_agentbench.runs.conversations import Conversations

APIS = ("chat", "completions", "responses", "messages")  # also the names of AIPerf's endpoint types


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes `RUN-API.jsonl` for each run and API. Raises ConfigError if a run kept no requests."""
    for origin in chosen.origins:
        began, kept = first_ms(chosen, origin), KeptSessions(origin, APIS)
        concurrent = changed = 0
        for session in kept:
            for api in dict.fromkeys(call.call.dialect for call in session.calls):
                calls = [call for call in session.calls if call.call.dialect == api]
                concurrent += sum(gap < 0 for gap in _gaps(calls))
                changed += sum(not kept.conversations.is_exact(call.call) for call in calls)
                with (directory / f"{origin.run}-{api}.jsonl").open("ab") as file:
                    file.writelines(_rows(session.id, calls, began, kept.conversations))
        chosen.notes += kept.note()
        of = f"{origin.run}: {{}} of {kept.count} calls"
        if concurrent:
            chosen.notes.append(f"{of.format(concurrent)} overlapped an earlier one of their session; AIPerf sends them after it")
        if changed:
            chosen.notes.append(
                f"{of.format(changed)} have a payload that is not exactly what the agent sent, see docs/agents/conversations.md"
            )


def _gaps(calls: Sequence[SentCall]) -> Iterator[float]:
    """Yields for each call of an attempt but the first one the milliseconds since all earlier ones ended, negative if one had not ended."""
    end = calls[0].end
    for call in calls[1:]:
        yield (call.start - end) / 1e6
        end = max(end, call.end)


def _rows(session: str, calls: Sequence[SentCall], began: int, conversations: Conversations) -> Iterator[bytes]:
    """Yields a line of the trace for each call of a session (one attempt at a rollout).

    The first one has the time since the first call of the run, later ones the time since all calls before them ended.

    A line contains the agent's own bytes, whose JSON has no line breaks in any style of `kept_values.STYLES`.
    """
    whens: list[Json] = [{"timestamp": max(0.0, calls[0].start / 1e6 - began)}, *({"delay": max(0.0, gap)} for gap in _gaps(calls))]
    for when, call in zip(whens, calls, strict=True):
        head = json.dumps({"session_id": session, **when}).encode()
        yield b'%b, "payload": %b}\n' % (head[:-1], conversations.body(call.call))
