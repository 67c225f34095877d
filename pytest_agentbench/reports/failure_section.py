"""What a test shows of its rollout: properties for JUnit, and a section for the reader of a failure."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.metrics import registry, timeline
from pytest_agentbench.records import Draft, Json, Rollout
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.stats.quantiles import percentile

TAIL = 8  # messages of the transcript that a failure shows
OUTPUT = 20  # lines of a verifier
WIDTH = 400  # characters of one message
BRIEF = 200  # characters of a reason that is shown elsewhere as well


def properties(rollout: Rollout, scales: Mapping[str, str]) -> list[tuple[str, object]]:
    """Scores, timings and counts of a rollout, as a test case's properties; calls and tokens are those of all attempts.

    `scales` has the scale of each score in words.

    Times are milliseconds unless named otherwise.
    """
    pairs: list[tuple[str, object]] = [
        ("status", rollout.status),
        ("rollout_s", round(rollout.duration_s, 3)),
        ("llm_calls", len(rollout.all_calls)),
    ]
    pairs += [(name, round(float(score), 6)) for name, score in rollout.scores.items()]
    pairs += [(f"{name}_scale", scales[name]) for name in rollout.scores if name in scales]
    good = [call for call in rollout.all_calls if not call.error_kind]
    for metric in registry.objectives().values():
        values = [value / 1e6 for call in good for value in metric.values_of(call)]
        pairs += [(f"{metric.key}_p50", round(median, 3))] if (median := percentile(values, 50)) is not None else []
    pairs += [("prompt_tokens", sum(call.prompt_tokens or 0 for call in rollout.all_calls))]
    pairs += [("output_tokens", sum(call.completion_tokens or 0 for call in rollout.all_calls)), ("attempt", rollout.attempt)]
    return [_shared(*each) for each in pairs]


def brief(reason: str) -> str:
    """The first line of a reason, if it is not too long; dots for what is left out."""
    line = reason.partition("\n")[0]
    return line if line == reason and len(line) <= BRIEF else f"{line[:BRIEF].rstrip(':')} ..."


@functools.lru_cache(maxsize=1024, typed=True)
def _shared(name: str, value: object) -> tuple[str, object]:
    """The same pair for the same property: pytest keeps every report to the end of the session."""
    return name, value


def rollout_section(rollout: Rollout) -> str:
    """What happened: outcome, expected against actual tools, the end of the transcript, the log."""
    status = f"{rollout.status} ({rollout.reason})" if rollout.reason else rollout.status
    rows = [("status", f"{status}, {len(rollout.calls)} LLM calls, {rollout.duration_s:.2f} s")]
    rows += [(name, f"{score!r}  {score.explanation}") for name, score in rollout.scores.items()]
    rows += [(f"draft {draft.number}", draft_text(draft)) for draft in rollout.drafts]
    rows.append(("time", split_text(rollout)))
    width = max(9, *(len(name) for name, _ in rows))  # as roles in the transcript, or the longest name
    lines = [f"{name:<{width}} {text}" for name, text in rows]
    lines += [f"attempt {each.attempt} was {each.status}: {each.reason}" for each in rollout.earlier_attempts]
    lines += [
        "",
        *(verifier_lines(rollout.verification) if rollout.verification else tool_table(rollout)),
    ]
    if rollout.messages:
        lines += ["", f"the end of the transcript ({len(rollout.messages)} messages):"]
        lines += [message_line(message) for message in rollout.messages[-TAIL:]]
    if rollout.log:
        lines += ["", "what the rollout logged and printed:", *rollout.log.rstrip().split("\n")]
    return "\n".join(map(one_line, lines))


def draft_text(draft: Draft) -> str:
    """`insufficient (0.80), chosen, tsq 0.500: No card was blocked.`"""
    verdict = draft.verdict or {}
    judgement = f"{'sufficient' if verdict['is_sufficient'] else 'insufficient'} ({verdict['confidence']:g})" if verdict else "not judged"
    facts = [draft.status] * (draft.status != "ok") + [judgement] + ["chosen"] * draft.chosen
    facts += [f"{name} {score!r}" for name, score in draft.scores.items()]
    return f"{', '.join(facts)}: {' '.join(str(verdict.get('reasoning') or draft.reason).split())[:WIDTH]}"


def split_text(rollout: Rollout) -> str:
    """Who had the rollout's time: `decoding 0.40 s, first token 0.10 s`."""
    parts = timeline.split(rollout).items()
    return ", ".join(f"{part.replace('_', ' ')} {duration / 1e9:.2f} s" for part, duration in parts if duration) or "none"


def tool_table(rollout: Rollout) -> list[str]:
    """Expected and actual tools side by side, one line a tool."""
    expected, actual = rollout.expected_tools, rollout.tools
    names = list(dict.fromkeys([*expected, *actual]))
    lines = [f"{'tool':<34} {'expected':>8} {'actual':>6}"]
    for name in names:
        mark = "" if (name in expected) == (name in actual) else ("  missing" if name in expected else "  unexpected")
        lines.append(f"{name:<34} {expected.count(name):>8} {actual.count(name):>6}{mark}")
    lines += [f"{call.name}: {call.problem}: {call.detail}" for call in rollout.tool_calls if call.problem]
    lines += [f"{call.name}: refused: {call.refusal}" for call in rollout.tool_calls if call.refusal]
    return lines


def verifier_lines(verification: Verification) -> list[str]:
    """What the verifier of a task said, and the end of what it printed."""
    ended = "was killed" if verification.exit_code is None else f"exit code {verification.exit_code}"
    rewards = ", ".join(f"{name} {value:g}" for name, value in verification.rewards.items())
    first = f"; the first check that failed: {verification.first_failure}" if verification.first_failure else ""
    tampered = [f"the verification was tampered with: {verification.tampered}"] if verification.tampered else []
    changed = [f"changed files that the verifier may use: {', '.join(verification.changed)}"] if verification.changed else []
    skipped = f"; skipped: {verification.skipped}" if verification.skipped else ""
    mode = f"{verification.mode} sandbox"
    return [
        f"the verifier ({mode}): {rewards or 'no reward'}; {ended}{first}{skipped}",
        *tampered,
        *changed,
        "the end of its output:",
        *verification.output.rstrip().split("\n")[-OUTPUT:],
    ]


def message_line(message: Json) -> str:
    """One message of a transcript on one line."""
    calls = [f"{call['function']['name']}({call['function'].get('arguments', '')})" for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    text = " ".join(filter(None, [content if isinstance(content, str) else json.dumps(content), *calls])).replace("\n", " ")
    return f"  {message.get('role', '?'):<9} {text if len(text) <= WIDTH else text[:WIDTH] + ' ...'}"
