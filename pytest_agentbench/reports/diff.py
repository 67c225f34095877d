"""Two runs side by side for people, the setup first: whoever reads of other scores should know by then what else is different."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from pytest_agentbench.gate.diff import (
    Changed,
    ComparedRun,
    MedianLatency,
    ScoreDiff,
    common,
    compared_parts,
    doubts,
    score_changes,
    setup_changes,
    speed_changes,
)
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.reports.gates import MISSING
from pytest_agentbench.reports.terminal import TerminalReporter
from pytest_agentbench.reports.words import mean_text, number, retried_text, significant, statuses_text
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.stats.decisions import FAIL, PASS, Decision

LONGEST = 60  # characters of a value

#: What a part says of something that one of the runs does not have.
NOTHING = {"packages": "not installed", **dict.fromkeys(("code", "model", "hardware", "host"), "unknown")}


def write_diff(terminal: TerminalReporter, old: ComparedRun, new: ComparedRun) -> None:
    """Everything, as `agentbench diff` prints it."""
    terminal.write_sep("=", "agentbench diff", bold=True)
    for word, run in (("old", old), ("new", new)):
        terminal.write_line(f"{word:<11} {run.facts.id} of {run.facts.started_at} on {run.facts.backend.name}")
    terminal.write_line("setup", bold=True)
    for about, line in setup_lines(old, new):
        terminal.write_line(f"{about:<11} {line}".rstrip())
    found = [*score_changes(old, new)]
    for group in common(old, new):
        terminal.write_line(group, bold=True)
        for about, line in suite_lines(old, new, group, [each for each in found if each.group == group]):
            terminal.write_line(f"{about:<11} {line}".rstrip())
    terminal.write_line("speed", bold=True)
    for doubt in doubts(old, new):
        terminal.write_line(f"doubtful    {doubt}", yellow=True)
    for line in speed_lines(old, new):
        terminal.write_line(line)


def setup_lines(old: ComparedRun, new: ComparedRun) -> Iterator[tuple[str, str]]:
    """(part, a line), what is the same last."""
    for word, run, other in (("old", old, new), ("new", new, old)):
        if run.identity is None:
            yield "unknown", f"the {word} run says nothing of its setup: another tool made it"
        if alone := [group for group in run.facts.suites if group not in other.facts.suites]:
            yield "suites", f"only in the {word} run: {', '.join(alone)}"
    if old.identity is None or new.identity is None:
        return
    changes = [*setup_changes(old, new)]
    for each in changes:
        yield each.part, changed_text(each)
    differing = {each.part for each in changes}
    if None in (old.identity.model.name, new.identity.model.name) and "model" not in differing:
        yield "model", "unknown in both runs"
        differing.add("model")
    if same := [part for part in compared_parts(old, new) if part not in differing]:
        yield "the same", "everything" if same == [*new.identity.hashes] else ", ".join(same)


def changed_text(changed: Changed) -> str:
    """`shop.temperature: 0.0 -> 0.6`; of lists only what differs, of prompts and tools that their texts do."""
    if changed.part in ("prompts", "tools") and isinstance(changed.old, str) and isinstance(changed.new, str):
        return f"{changed.path}: another text (hash {changed.old} -> {changed.new})"
    if isinstance(changed.old, list) and isinstance(changed.new, list):
        return f"{changed.path}: {_list_text(changed.old, changed.new)}"
    nothing = NOTHING.get(changed.part, "unset")
    return f"{changed.path}: {_short(changed.old, nothing)} -> {_short(changed.new, nothing)}"


def _list_text(old: Sequence[Any], new: Sequence[Any]) -> str:
    """`... 32768 -> 65536 ...`: the places in which two lists differ."""
    before, after = ([_short(each, "null") for each in every] for every in (old, new))
    places = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return "; ".join(
        f"{' '.join(before[a:b]) or 'nothing'} -> {' '.join(after[c:d]) or 'nothing'}" for tag, a, b, c, d in places if tag != "equal"
    )


def _short(value: Any, nothing: str) -> str:
    if value is None:
        return nothing
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def suite_lines(old: ComparedRun, new: ComparedRun, group: str, scores: Sequence[ScoreDiff]) -> Iterator[tuple[str, str]]:
    """(what about, a line) of a suite under a variant."""
    was, now = (run.facts.suites[group] for run in (old, new))
    yield "rollouts", _both(statuses_text(was.rollouts), statuses_text(now.rollouts))
    if was.retried or now.retried:
        yield "retried", _both(_retried(was), _retried(now))
    for each in scores:
        yield each.score, _both(mean_text(each.old), mean_text(each.new))
        same = each.decision.n and not each.moved
        found = "the same on each of" if same else f"{_difference(each.decision)}, on"
        yield "", f"{found} {_scenarios(each.decision.n)} of both runs{_left_out(each.decision)}"
        for moved in each.moved:
            yield "", f"{moved.scenario} {moved.old:.3f} -> {moved.new:.3f}"
    for metric in registry.efficiency().values():
        before, after = (suite.efficiency.metrics[metric.name] for suite in (was, now))
        if before is not None or after is not None:
            yield metric.title, _both(significant(before), significant(after))


def _both(old: str, new: str) -> str:
    return f"{new} in both" if old == new else f"{old} -> {new}"


def _retried(suite: SuiteResult) -> str:
    return retried_text(suite) or "none"


def _scenarios(count: int) -> str:
    return f"{count} scenario{'s' * (count != 1)}"


def _difference(decision: Decision) -> str:
    """`-0.050 [-0.090, -0.010], worse`"""
    if decision.estimate is None:
        return "nothing to compare"
    interval = "no interval" if decision.low is None else f"[{decision.low:+.3f}, {decision.high:+.3f}]"
    words = {PASS: "better", FAIL: "worse"}
    why = f" ({decision.reason})" if decision.reason else ""
    return f"{decision.estimate:+.3f} {interval}, {words.get(decision.verdict, 'no difference shown')}{why}"


def _left_out(decision: Decision) -> str:
    counts = {name: getattr(decision.missing, name) for name in MISSING}
    words = {**MISSING, "only_new": "only in the new run", "only_base": "only in the old one"}
    parts = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
    return f"; left out: {parts}" if parts else ""


def speed_lines(old: ComparedRun, new: ComparedRun) -> Iterator[str]:
    """A table of medians, and rates."""
    timed = [*speed_changes(old, new)]
    yield f"{'median, ms':<16}{'old':>10}{'new':>10}   new / old, 95 %"
    for each in timed:
        if each.old is not None or each.new is not None:
            yield f"{registry.title_of(each.name):<16}{number(each.old):>10}{number(each.new):>10}   {_ratio(each)}".rstrip()
    for metric in registry.rates().values():
        yield f"{metric.title:<16}{_rate(old, metric):>10}{_rate(new, metric):>10}"


def _ratio(timed: MedianLatency) -> str:
    decision = timed.decision
    if decision.estimate is None or decision.low is None:
        return decision.reason
    words = {PASS: "faster", FAIL: "slower"}
    word = "doubtful" if timed.doubtful else words.get(decision.verdict, "no difference shown")
    return f"{decision.estimate:.2f} [{decision.low:.2f}, {decision.high:.2f}], {word}"


def _rate(run: ComparedRun, metric: Metric) -> str:
    return number(run.facts.performance.number(metric.name), metric.digits)
