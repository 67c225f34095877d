"""The data of a rollout in report.html: its table row, and the details that are shown when the user opens the rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median

from pytest_agentbench.lib import codec
from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import Attempt, Draft, Json, LLMCall, Rollout, ToolCall
from pytest_agentbench.runs.judgement import Judgement
from pytest_agentbench.scorers.mistakes import has_labels

#: The fields of a row, in this order.
FIELDS = (
    *("id", "suite", "scenario", "variant", "trial", "status", "reason", "scores", "passed", "question", "expected", "actual"),
    *("turns", "failed", "attempts", "start", "end", "ttft", "itl", "rate", "tokens", "why"),
)

Statistic = Callable[[Sequence[float]], float]

SHORT = 160  # maximum characters of a text in the table
MOST_NAMES = 40  # maximum number of tool names in a row
LOG = 40_000  # maximum characters of an agent's output
TICK_NS = 100_000  # unit of token timestamps on the timeline: 0.1 ms


def row(rollout: Rollout, judgement: Judgement, calendar: Calendar) -> Json:
    """Returns field -> value of a rollout's row. Times are in seconds since 1970, TTFT and ITL in milliseconds, rates per second."""
    key, calls = rollout.key, rollout.all_calls
    return {
        "id": key.id,
        "suite": key.suite,
        "scenario": key.scenario,
        "variant": key.variant,
        "trial": key.trial,
        "status": rollout.status,
        "reason": rollout.reason[:SHORT],
        "scores": {name: round(float(score), 4) for name, score in rollout.scores.items()},
        "passed": judgement.passed,
        "question": _question(rollout)[:SHORT],
        "expected": _names(rollout.expected_tools) if has_labels(rollout) else None,
        "actual": _names(rollout.tools),
        "turns": rollout.turns,
        "failed": sum(call.error_kind is not None for call in calls),
        "attempts": rollout.attempt,
        "start": calendar.epoch_s(rollout.session, rollout.started_ns),
        "end": calendar.epoch_s(rollout.session, rollout.ended_ns),
        "ttft": _milliseconds(median, [value for call in calls if (value := timings.ttft_ns(call)) is not None]),
        "itl": _milliseconds(fmean, [gap for call in calls for gap in timings.itl_ns(call)]),
        "rate": _rounded(fmean, [speed for call in calls if (speed := timings.tokens_per_s(call)) is not None]),
        "tokens": sum(map(timings.output_tokens, calls)),
        "why": "" if judgement.passed else _why(rollout, judgement)[:SHORT],
    }


def detail(rollout: Rollout) -> Json:
    """Returns the details of a rollout: messages, expected and actual tools, scores, attempts and timings.

    Requests and replies of calls, and the messages if they are there too, are ids in messages.jsonl. `conversations` reads them.
    """
    return {
        "messages": () if rollout.conversation else rollout.messages,
        "conversation": rollout.conversation,
        "expected": rollout.expected if has_labels(rollout) else None,
        "tools": [_tool(call) for call in rollout.tool_calls],
        "answer": rollout.answer,
        "reason": rollout.reason,
        "scores": {name: codec.plain(score) for name, score in rollout.scores.items()},
        "score_errors": dict(rollout.score_errors),
        "drafts": [_draft(each) for each in rollout.drafts],
        "verification": _verification(rollout),
        "settings": rollout.settings,
        "log": rollout.log if len(rollout.log) <= LOG else f"{rollout.log[: LOG // 2]}\n[...]\n{rollout.log[-LOG // 2 :]}",
        "attempts": [_attempt(each, rollout) for each in rollout.attempts],
    }


def _why(rollout: Rollout, judgement: Judgement) -> str:
    """Returns why a rollout did not pass: the missing score, the first failed check, a score below its threshold, or a failed test.

    Empty if the called tools differ from the expected ones and the main score is too low, because the page shows how.
    """
    if rollout.score_errors:
        return "; ".join(f"{name} is missing: {why}" for name, why in rollout.score_errors.items())
    if rollout.verification and rollout.verification.first_failure:
        return rollout.verification.first_failure
    main = next(iter(rollout.scores), "")
    worst = main if main in judgement.missed else next(iter(judgement.missed), "")
    if not worst and judgement.messages:
        return judgement.messages[0].partition("\n")[0]
    if worst in ("", main) and has_labels(rollout) and sorted(rollout.expected_tools) != sorted(rollout.tools):
        return ""
    return _score_text(rollout, worst or main, is_main=worst in ("", main), is_judged=judgement.passed is not None)


def _score_text(rollout: Rollout, name: str, *, is_main: bool, is_judged: bool) -> str:
    """Returns the explanation of a score, with its name and value unless it is the main score, which the page shows. Empty without one."""
    if name not in rollout.scores:
        return ""
    score = rollout.scores[name]
    value = f"{name} {float(score):.3f}"
    if is_main:
        return score.explanation or (value if is_judged else "")
    return f"{value}: {score.explanation}" if score.explanation else value


def _question(rollout: Rollout) -> str:
    """Returns the first message of the user."""
    texts = (message.get("content") for message in rollout.messages if isinstance(message, dict) and message.get("role") == "user")
    first = next(texts, "")
    return " ".join(first.split()) if isinstance(first, str) else ""


def _names(names: Sequence[str]) -> list[str]:
    return [name[:SHORT] for name in names[:MOST_NAMES]]


def _milliseconds(statistic: Statistic, values: Sequence[float]) -> float | None:
    return _rounded(statistic, [value / 1e6 for value in values])


def _rounded(statistic: Statistic, values: Sequence[float]) -> float | None:
    return round(statistic(values), 2) if values else None


def _tool(call: ToolCall) -> Json:
    words = {"name": call.name, "arguments": call.arguments, "turn": call.turn, "problem": call.problem, "detail": call.detail}
    return {**words, "raw": call.raw, "repaired": call.repaired}


def _draft(draft: Draft) -> Json:
    data = {name: getattr(draft, name) for name in ("number", "status", "reason", "answer", "verdict", "accepted", "chosen")}
    return {**data, "scores": {name: float(score) for name, score in draft.scores.items()}}


def _verification(rollout: Rollout) -> Json | None:
    verification = rollout.verification
    if verification is None:
        return None
    return {
        name: getattr(verification, name)
        for name in ("reward", "rewards", "exit_code", "output", "first_failure", "sandbox", "mode", "tampered", "changed")
    }


def _attempt(attempt: Attempt, rollout: Rollout) -> Json:
    """Returns an attempt with its calls, in the order of time, and spans, in milliseconds from its start.

    Only the spans of the last attempt are known.
    """
    began = _beginning(attempt)
    ordered = sorted((*attempt.calls, *attempt.other_calls), key=lambda call: call.begun_ns)
    last = attempt.attempt == rollout.attempt
    return {
        "attempt": attempt.attempt,
        "status": attempt.status,
        "reason": attempt.reason,
        "ms": _since(attempt.ended_ns, began) if attempt.ended_ns else None,
        "calls": [_call(call, began) for call in ordered],
        "spans": [*_spans(rollout, began)] if last else [],
    }


def _beginning(attempt: Attempt) -> int:
    """Returns when the timeline of an attempt begins, in nanoseconds of its session's clock. 0 if no time is known."""
    timestamps = [attempt.started_ns, *(call.called_ns or call.received_ns for call in (*attempt.calls, *attempt.other_calls))]
    return min(filter(None, timestamps), default=0)


def _call(call: LLMCall, began: int) -> Json:
    """Returns a call for the timeline.

    `at` has the times of call, send, first output event and end, in milliseconds after `began`. `stamps` has the distances between
    consecutive output events in units of TICK_NS (0.1 ms).
    """
    output = call.output
    first = output[0].at_ns if output else None
    return {
        "role": call.role,
        "endpoint": call.endpoint,
        "api": call.dialect,
        "kept": dataclasses.astuple(call.kept) if call.kept else None,
        "at": [_since(timestamp, began) for timestamp in (call.called_ns or call.received_ns, call.sent_ns, first, call.ended_ns)],
        "stamps": [round(later.at_ns / TICK_NS) - round(earlier.at_ns / TICK_NS) for earlier, later in pairwise(output)],
        "held": round(call.held_ns / 1e6, 1),
        "model": call.answered_by or call.model,
        "status": call.http_status,
        "finish": call.finish_reason,
        "error": call.error_kind,
        "why": call.error,
        "tokens": [call.prompt_tokens, call.cached_tokens, timings.output_tokens(call)],
    }


def _spans(rollout: Rollout, began: int) -> Iterator[Json]:
    """Yields the spans of tools and programs, and that of the verifier, which starts after the rollout has ended."""
    for tool in rollout.tool_calls:
        if tool.started_ns and tool.ended_ns:
            yield {"kind": "tool", "name": tool.name, "at": [_since(tool.started_ns, began), _since(tool.ended_ns, began)]}
    for program in rollout.programs:
        yield {"kind": "program", "name": "program", "at": [_since(program.started_ns, began), _since(program.ended_ns, began)]}
    if (verification := rollout.verification) and verification.started_ns:
        yield {"kind": "verifier", "name": "verifier", "at": [_since(verification.started_ns, began), _since(verification.ended_ns, began)]}


def _since(timestamp: int | None, began: int) -> float | None:
    """Returns the milliseconds from `began` to a timestamp, rounded to microseconds. Both are in nanoseconds."""
    return None if timestamp is None else round((timestamp - began) / 1e6, 3)
