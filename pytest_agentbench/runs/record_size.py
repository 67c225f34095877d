"""The size of a rollout's record: the texts of one that is too large are cut, its numbers and its measurements never."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.foreign import KIB, Sizes, cut, size_of, too_large
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.runs.journal import record_line

#: Fields with texts of agents, models and tools. LLM calls are not among them, because timings are computed from them.
TEXTS = ("messages", "log", "drafts", "tool_calls", "final_state", "verification", "settings", "answer")

LONGEST = (256 * KIB, 16 * KIB, KIB)  # bytes that are kept of each text; the first one that makes the record small enough is used
DISPENSABLE = ("messages", "drafts", "log", "final_state")  # fields that are dropped if the record is still too large, largest first


def sized(rollout: Rollout, sizes: Sizes) -> tuple[Rollout, bytes]:
    """Returns a rollout of at most `sizes.record` bytes, and its record. What was cut is named in its reason, and `ok` becomes `limit`.

    The record remains larger if LLM calls alone fill it.
    """
    line = record_line(rollout)
    if len(line) <= sizes.record:
        return rollout, line
    record, names = _smaller(json.loads(line), sizes.record)
    if not names:
        return rollout, line
    why = f"{too_large('record', len(line), sizes.record, 'record')}; cut: {', '.join(names)}"
    status = "limit" if rollout.status == "ok" else rollout.status
    reason = f"{rollout.reason}; {why}" if rollout.reason else why
    small = dataclasses.replace(codec.read(Rollout, record), status=status, reason=reason)
    return small, record_line(small)


def with_cut_reasons(rollout: Rollout, most: int) -> Rollout:
    """Returns a rollout whose reason, explanations and errors of scorers have `most` bytes at most, as in a session.

    Readers that keep many rollouts in memory need it, because earlier versions wrote these texts at any size.
    """
    return dataclasses.replace(
        rollout,
        reason=cut(rollout.reason, most),
        scores={name: Score(score, score.parts, cut(score.explanation, most)) for name, score in rollout.scores.items()},
        score_errors={name: cut(error, most) for name, error in rollout.score_errors.items()},
    )


def _smaller(record: dict[str, Any], most: int) -> tuple[dict[str, Any], list[str]]:
    """Returns a record with shorter texts, and the names of the fields in which texts were cut or which were dropped."""
    before = {name: record[name] for name in TEXTS}
    for longest in LONGEST:
        record |= {name: _each_text(record[name], functools.partial(cut, most=longest)) for name in TEXTS}
        if _size(record) <= most:
            break
    for name in sorted(DISPENSABLE, key=lambda name: -_size(record[name])):
        if _size(record) > most:
            record[name] = type(record[name])() if record[name] is not None else None
    return record, [name for name in TEXTS if record[name] != before[name]]


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a JSON value with each text in it changed; keys of objects are kept."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _each_text(each, change) for key, each in value.items()}
    return value


def _size(value: Any) -> int:
    """Returns the number of bytes of a JSON value on one line."""
    return size_of(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
