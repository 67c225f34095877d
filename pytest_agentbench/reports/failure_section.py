"""The data of a rollout in test reports: properties for JUnit, and the section shown below a failed test."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.metrics import registry, timeline
from pytest_agentbench.records import Draft, Json, Rollout, Scale
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.stats.quantiles import percentile

TAIL = 8  # last messages of the transcript that are shown
OUTPUT = 20  # last lines of a verifier's output that are shown
WIDTH = 400  # maximum characters of a message
BRIEF = 200  # maximum characters of a reason that is shown in full elsewhere


def properties(rollout: Rollout, scales: Mapping[str, Scale]) -> list[tuple[str, object]]:
    """Returns scores, timings and counts of a rollout as properties of a test case. Calls and tokens are those of all attempts.

    Times are in milliseconds, except `rollout_s`. `scales` has the scale of each score.
    """
    pairs: list[tuple[str, object]] = [
        ("status", rollout.status),
        ("rollout_s", round(rollout.duration_s, 3)),
        ("llm_calls", len(rollout.all_calls)),
    ]
    pairs += [(name, round(float(score), 6)) for name, score in rollout.scores.items()]
    pairs += [(f"{name}_scale", scales[name].text) for name in rollout.scores if name in scales]
    good = [call for call in rollout.all_calls if not call.error_kind]
    for metric in registry.objectives().values():
        values = [value / 1e6 for call in good for value in metric.values_of(call)]
        pairs += [(f"{metric.key}_p50", round(median, 3))] if (median := percentile(values, 50)) is not None else []
    pairs += [("prompt_tokens", sum(call.prompt_tokens or 0 for call in rollout.all_calls))]
    pairs += [("output_tokens", sum(call.completion_tokens or 0 for call in rollout.all_calls)), ("attempt", rollout.attempt)]
    return [_shared(*each) for each in pairs]


def brief(reason: str) -> str:
    """Returns at most BRIEF characters of the first line of a reason, and dots if anything is left out."""
    line = reason.partition("\n")[0]
    return line if line == reason and len(line) <= BRIEF else f"{line[:BRIEF].rstrip(':')} ..."


@functools.lru_cache(maxsize=1024, typed=True)
def _shared(name: str, value: object) -> tuple[str, object]:
    """Returns one shared object for equal pairs, to save memory: pytest keeps the properties of all tests until the session ends."""
    return name, value


def rollout_section(rollout: Rollout) -> str:
    """Returns a text about a rollout: status, scores, drafts, time split, earlier attempts, tools or verifier result, messages and log."""
    status = f"{rollout.status} ({rollout.reason})" if rollout.reason else rollout.status
    calls = f"{len(rollout.calls)} LLM call{'s' * (len(rollout.calls) != 1)}"
    rows = [("status", f"{status}, {calls}, {rollout.duration_s:.2f} s")]
    rows += [(name, f"{score!r}  {score.explanation}") for name, score in rollout.scores.items()]
    rows += [(f"draft {draft.number}", draft_text(draft)) for draft in rollout.drafts]
    rows.append(("time", split_text(rollout)))
    width = max(9, *(len(name) for name, _ in rows))  # width of roles in the transcript
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
        lines += ["", "log and output of the rollout:", *rollout.log.rstrip().split("\n")]
    return "\n".join(map(one_line, lines))


def draft_text(draft: Draft) -> str:
    """`insufficient (0.80), chosen, tsq 0.500: No card was blocked.`: a judge's verdict on a draft.

    A draft is a try of an agent that judges its own work. Its scores and the judge's reason follow the verdict.
    """
    verdict = draft.verdict or {}
    judgement = f"{'sufficient' if verdict['is_sufficient'] else 'insufficient'} ({verdict['confidence']:g})" if verdict else "not judged"
    facts = [draft.status] * (draft.status != "ok") + [judgement] + ["chosen"] * draft.chosen
    facts += [f"{name} {score!r}" for name, score in draft.scores.items()]
    return f"{', '.join(facts)}: {' '.join(str(verdict.get('reasoning') or draft.reason).split())[:WIDTH]}"


def split_text(rollout: Rollout) -> str:
    """`decoding 0.40 s, waiting for the first token 0.10 s`: how the time of the rollout was spent."""
    names, parts = timeline.part_names(any(call.output for call in rollout.calls)), timeline.split(rollout).items()
    return ", ".join(f"{names[part]} {duration / 1e9:.2f} s" for part, duration in parts if duration) or "none"


def tool_table(rollout: Rollout) -> list[str]:
    """Returns a table of expected and actual calls of each tool, and lines about calls with problems."""
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
    """Returns the result of a task's verifier, and the end of its output."""
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
    """Returns a message of a transcript on one line."""
    calls = [f"{call['function']['name']}({call['function'].get('arguments', '')})" for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    text = " ".join(filter(None, [content if isinstance(content, str) else json.dumps(content), *calls])).replace("\n", " ")
    return f"  {message.get('role', '?'):<9} {text if len(text) <= WIDTH else text[:WIDTH] + ' ...'}"
