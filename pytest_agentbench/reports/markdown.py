"""report.md: one run for people, with everything that is needed to judge what it says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.telemetry.engine_stats import ServingSummary
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import PartOfTime, PerformanceSummary
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.plots import drawn
from pytest_agentbench.reports import answers, comparison, first_look, roles, scorer_failures, slow_calls, tasks, triage
from pytest_agentbench.reports.gates import NO_CLAIM, claim_lines, detail_lines, gate_text, look_lines, ranking_lines, rule_text
from pytest_agentbench.reports.markup import WHOLE, code, fenced, known_name, prose, table
from pytest_agentbench.reports.outcome import headline
from pytest_agentbench.reports.window_words import chosen_text, steady_text
from pytest_agentbench.reports.words import (
    COLUMNS,
    PARTS,
    RATE_COLUMNS,
    RATES,
    boot_text,
    calls_text,
    costs_text,
    damage_lines,
    dataset_text,
    doubt_lines,
    draft_lines,
    efficiency_text,
    failed_lines,
    few_text,
    goodput_text,
    imported_lines,
    interruptions_text,
    loss_lines,
    mean_text,
    number,
    passed_text,
    passes_text,
    percent,
    quarantine_text,
    range_text,
    restarts_text,
    resume_text,
    retried_text,
    server_lines,
    sessions_text,
    statuses_text,
    stopwatch_figures,
    stopwatch_text,
    throughput_text,
    tools_text,
    unknown_text,
    unsupported_text,
    verdict_text,
)
from pytest_agentbench.runs.arm_results import ArmsCompared
from pytest_agentbench.runs.contents import Imported, Run
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.runs.verdicts import GateResult, RoundsResult
from pytest_agentbench.stats.percentiles import INFINITE, LatencySpread, Percentiles

PASS_RATES = 20  # scenarios whose trials did not all pass
SCENARIOS = 200  # with their scores


ARM_RATES = ("output_tokens_per_s", "rollouts_per_hour")  # in the table of arms


def write(run: Run, directory: Path) -> Path:
    path = directory / "report.md"
    path.write_text("\n".join([*lines(run), *_pictures(directory)]) + "\n", encoding="utf-8", errors="backslashreplace")
    return path


def lines(run: Run) -> Iterator[str]:
    """The lines of report.md."""
    backend = run.backend
    yield f"# Run {run.id}: {headline(run, prose)}"
    yield ""
    asked = run.settings.concurrency or "an unknown number of"
    yield f"Backend {code(backend.name)}, model {known_name(backend.served_model)}, {asked} rollouts in flight asked for."
    yield from _origin(run.imported)
    if backend.note:
        yield f"\n> {prose(backend.note)}"
    yield from (f"\n> {prose(sentence)}" for sentence in backend.warnings)
    if booted := boot_text(backend):
        yield f"\nThe stack: {prose(booted)}."
    if backend.failure:
        yield f"\n**The backend failed:**\n\n{fenced(backend.failure)}"
    if restarts := restarts_text(backend):
        yield f"\nServices that died and were started again in the middle of the run: {prose(restarts)}."
    yield from _progress(run)
    yield f"\nTimings: **{verdict_text(run.stopwatch)}**."
    if run.costs:
        yield f"\nTokens cost {costs_text(run.costs)}."
    if first := first_look.lines(run):
        yield "\n## What to look at first\n"
        yield from (f"- {line}" for line in first)
    for name, suite in run.suites.items():
        yield from _suite(name, suite)
        yield from _scenarios(suite, run.id)
        yield from _unmeasured(suite)
    yield from comparison.markdown(run)
    yield from _gate(run.gate, run.rounds)
    yield "\n## Serving performance\n"
    if run.ab:
        yield from _arms(run.ab)
    yield from _performance(run.performance, run.stopwatch)
    if run.serving:
        yield from _serving(run.serving)
    yield from _setup(run)


def _origin(imported: Imported | None) -> Iterator[str]:
    """Of a run that another tool made, what that is."""
    if imported is not None:
        yield "\n## Where this comes from\n"
        yield from (f"- {prose(line)}" for line in imported_lines(imported))


def _progress(run: Run) -> Iterator[str]:
    """How much of what was planned is there."""
    plan = run.plan
    counts = f"Planned {plan.rollouts} rollouts, {plan.finished} finished, {plan.not_run} not run"
    yield f"\n{counts}." + ("" if run.exit_status is None else f" pytest's exit status: {run.exit_status}.")
    if interruptions := interruptions_text(run):
        yield f"\nParts of the session died, or did not answer for a while: {prose(interruptions)}."
    if unknown := unknown_text(run):
        yield f"\n**Not known**: {prose(unknown)}."
    if sessions := sessions_text(run):
        yield f"\nGone on with, {sessions}. Rates are over the time of all sessions, without the pauses between them."
    if resume := resume_text(run):
        yield f"\nTo go on with it: {code(resume, WHOLE)}"
    if damage := damage_lines(run):
        yield f"\n**The journal is damaged**: {prose('; '.join(damage))}."
    if losses := loss_lines(run):
        yield f"\n**The session did not end in order**: {prose('; '.join(losses))}."


def _suite(name: str, suite: SuiteResult) -> Iterator[str]:
    yield f"\n## Suite {prose(name)}\n"
    yield f"Data set {prose(dataset_text(suite))}.\n"
    yield f"Rollouts: {statuses_text(suite.rollouts)}; {retried_text(suite) or 'none was tried more than once'}.\n"
    rows = [
        [score, prose(suite.scales[score].text), mean_text(means.mean), mean_text(means.mean_evaluable)]
        for score, means in suite.scores.items()
    ]
    yield from table(["score", "scale", "mean over all, 95 % interval", "over evaluable rollouts"], rows)
    yield (
        f"\nOver all: {_agent_errors(suite)}; an infra_error is left out. "
        "Intervals are over scenarios; trials of one scenario are averaged first."
    )
    if efficiency := efficiency_text(suite.efficiency):
        yield f"\nEfficiency: {efficiency}."
    if lines := [*answers.lines(suite), *draft_lines(suite)]:
        yield ""
        yield from (f"- {about}: {line}" for about, line in lines)
    yield from roles.markdown(suite.roles)
    if quarantined := quarantine_text(suite):
        yield f"\nIn quarantine: {prose(quarantined.partition(':')[0])}; means are with them.\n"
        rows = [[code(each.scenario), prose(each.owner), each.expires, prose(each.reason), passed_text(each)] for each in suite.quarantined]
        yield from table(["scenario", "owner", "expires", "reason", "tests"], rows)
    if suite.unsupported:
        yield f"\nSkipped, not supported: {prose(unsupported_text(suite).partition(':')[0])}.\n"
        yield from table(["task", "why"], [[code(task), prose(why)] for task, why in suite.unsupported.items()])
    yield from _passes(suite)
    yield from tasks.markdown(suite.tasks)
    if suite.sandboxes:
        yield f"\nPrograms of models ran in sandboxes of this kind: {prose('; '.join(suite.sandboxes))}."
    yield from triage.markdown(suite.triage)
    yield from scorer_failures.markdown(suite)
    if suite.worst:
        yield f"\n### Worst {suite.main_score}\n"
        yield from _worst(suite)


def _agent_errors(suite: SuiteResult) -> str:
    """Returns what an agent's error counts as in the means over all."""
    counted = {score: scale.worst for score, scale in suite.scales.items() if scale.worst is not None}
    values = {f"{value:g}" for value in counted.values()}
    if len(counted) == len(suite.scales) and len(values) == 1:
        return f"an agent's error counts as {values.pop()}, the worst value"
    parts = [f"as {value:g} in {score}" for score, value in counted.items()]
    left_out = [score for score in suite.scales if score not in counted]
    sentences = [f"an agent's error counts as the worst value, {', '.join(parts)}"] if parts else []
    return "; ".join([*sentences, *([f"agent errors are left out of {', '.join(left_out)}, without a worst value"] if left_out else [])])


def _worst(suite: SuiteResult) -> Iterator[str]:
    """The table of the worst scenarios; of tasks nobody says which tools are right."""
    rows = [[code(each.id), number(each.score, 3), code(each.question)] for each in suite.worst]
    tools = [(code(tools_text(each.expected_tools)), code(tools_text(each.actual_tools))) for each in suite.worst]
    if suite.tasks is not None:
        yield from table(["task", suite.main_score, "what it says"], rows)
        return
    head = ["scenario", suite.main_score, "the customer asks", "expected tools", "actual tools"]
    yield from table(head, [[*row, *names] for row, names in zip(rows, tools, strict=True)])


def _scenarios(suite: SuiteResult, run: str) -> Iterator[str]:
    """Every scenario with its scores, and where they are trial by trial."""
    if not suite.scenarios:
        return
    yield "\n### Every scenario\n"
    rows = [
        [code(each.scenario), *("-" if score is None else number(score, 3) for score in each.scores.values())]
        for each in suite.scenarios[:SCENARIOS]
    ]
    yield from table(["scenario", *suite.scorers], rows)
    if (more := len(suite.scenarios) - SCENARIOS) > 0:
        yield f"\nThe worst {SCENARIOS}; {more} more are in run.json."
    command = code(f"agentbench export {run} --as csv", WHOLE)
    yield f"\nFor a spreadsheet, each trial with the parts of its scores: {command} writes scores.csv."


def _unmeasured(suite: SuiteResult) -> Iterator[str]:
    if suite.errors:
        yield "\n### Not measured\n"
        yield from table(
            ["scenario", "status", "reason"],
            [[code(each.id), each.status, code(each.reason.partition("\n")[0])] for each in suite.errors],
        )


def _passes(suite: SuiteResult) -> Iterator[str]:
    """What passes, and which scenarios do not always; with one trial of each the scores say it all."""
    passes = suite.passes
    if passes is None or len(passes.pass_at) < 2:
        return
    yield f"\n### Pass rates\n\n{passes_text(passes, suite.scales[passes.score])}.\n"
    rows = [
        [code(each.scenario), f"{each.passed} of {each.trials}", f"{each.low:.3f} to {each.high:.3f}"]
        for each in passes.scenarios[:PASS_RATES]
    ]
    if rows:
        yield from table(["scenario", "trials that passed", "95 % interval of its rate"], rows)
    always = passes.always
    others = [f"{always} scenario{'s' * (always > 1)} passed in all of their trials"] if always else []
    others += [f"{more} more are in run.json"] if (more := len(passes.scenarios) - PASS_RATES) > 0 else []
    if others:
        yield f"\n{'; '.join(others)}."


def _gate(gate: GateResult | None, rounds: RoundsResult | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"\n## Gate: {prose(gate_text(gate, rounds))}\n"
    for rule in gate.rules:
        yield f"- **{prose(rule_text(rule))}**"
        yield from (f"  - {prose(line)}" for line in detail_lines(rule))
    if looks := [*look_lines(rounds)]:
        yield "\n### Rounds of trials\n"
        yield from (f"- {prose(line)}" for line in looks)
        yield "\nEach look has a level of its own, so that all of them together are as wrong as one at 95 %."
    if claims := [*claim_lines(gate)]:
        yield "\n### Got worse\n"
        yield from (f"- {prose(line)}" for line in claims)
        yield "\nBy Benjamini and Hochberg: one in ten of such a list is there by chance. They decide nothing."
    if ranking := [*ranking_lines(gate)]:
        yield f"\n### Fell: {NO_CLAIM}\n"
        yield from (f"- {prose(line)}" for line in ranking)


def _arms(ab: ArmsCompared) -> Iterator[str]:
    """The rates of each arm, for which the time of the others' turns does not count, and what the section then is about."""
    rows = [
        [prose(arm.name), str(arm.calls), str(arm.failed_calls), number(arm.busy_s), *(number(arm.metrics[each]) for each in ARM_RATES)]
        for arm in ab.arms
    ]
    yield from table(["arm", "LLM calls", "failed", "seconds of its turns", "output tokens/s", "rollouts/h"], rows)
    yield "\nWhat follows is of all arms together. The section A/B compares their latencies.\n"


def _performance(performance: PerformanceSummary, stopwatch: Stopwatch) -> Iterator[str]:
    yield f"Stopwatch: **{prose(stopwatch_text(stopwatch))}**.\n"
    if figures := stopwatch_figures(stopwatch):
        yield f"It stands on: {figures}.\n"
    if stopwatch.notes:
        yield f"Not known: {prose('; '.join(stopwatch.notes))}.\n"
    yield f"{calls_text(performance)}.\n"
    if performance.failed_calls:
        yield from (f"- failed: {line}" for line in failed_lines(performance))
        yield ""
    yield f"{throughput_text(performance)}.\n"
    if performance.window:
        yield f"Window: {chosen_text(performance.window)}.\n"
    else:
        yield f"Steady: {steady_text(performance)}.\n"
    if performance.goodput:
        yield f"Goodput: {goodput_text(performance.goodput)}.\n"
    yield from _timings(performance)
    if performance.window and performance.window.calls:
        yield "\n### The window: calls that were sent in it\n"
        yield from table(["milliseconds", "n", *COLUMNS], _latency_rows(performance.window.latencies))
    yield from _split(performance.split)
    yield from slow_calls.markdown(performance.slowest_calls)


def _timings(performance: PerformanceSummary) -> Iterator[str]:
    rows = _latency_rows(performance.latencies)
    if adjusted := performance.ttft_adjusted_ms:
        cells = ("never" if value == INFINITE else number(value) for value in (adjusted.p50, adjusted.p90, adjusted.p95, adjusted.p99))
        rows.append(["TTFT, failed calls as never", str(adjusted.n), "-", "-", *cells, "never"])
    if not rows:
        yield "No LLM call was measured, so there are no latencies."
        return
    yield from table(["milliseconds", "n", *COLUMNS], rows)
    rates = [[title, *_cells(spread, RATE_COLUMNS)] for name, title in RATES if (spread := getattr(performance, name))]
    if rates:
        yield ""
        yield from table(["rates", "n", *RATE_COLUMNS], rates)
    yield (
        "\nTTFT: last request byte sent to first content, reasoning or tool-call text. ITL: gaps between output events, pooled. "
        "TPOT: (last - first) / (tokens - tokens of the first event) per call. Client queue: from the agent's call to the send. "
        "Stamps `user` are taken in the tap's process, `kernel` at the receipt of the packet."
    )
    yield (
        "\nIn brackets: 95 % intervals from order statistics, as if the values were independent. "
        "Calls of one scenario and gaps of one stream are not, so the intervals are too narrow."
    )
    if why := few_text(performance):
        yield f"\n{why[0].upper()}{why[1:]}."


def _latency_rows(latencies: Mapping[str, LatencySpread | None]) -> list[list[str]]:
    known = ((metric.title, latencies.get(metric.key)) for metric in registry.latencies().values())
    return [[title, *_cells(spread, COLUMNS)] for title, spread in known if spread]


def _cells(percentiles: Percentiles, columns: Sequence[str]) -> Iterator[str]:
    """A row of a table of numbers, each with its interval where it has one."""
    yield str(percentiles.n)
    for column in columns:
        value = getattr(percentiles, column)
        interval = range_text(percentiles.intervals.get(column)) if value is not None else ""
        yield f"{number(value)} {interval}".rstrip()


def _split(split: Mapping[str, PartOfTime] | None) -> Iterator[str]:
    if split:
        yield "\n### Who had the time of the rollouts\n"
        rows = [
            [title, percent(split[part].share), number(split[part].mean_ms), number(split[part].p50_ms)]
            for part, title in PARTS.items()
            if part in split
        ]
        yield from table(["part", "share", "mean ms", "median ms"], rows)


def _serving(serving: ServingSummary) -> Iterator[str]:
    yield "\n## What the server says of itself\n"
    yield from (f"- {prose(line if about == 'server' else f'{about}: {line}')}" for about, line in server_lines(serving))
    yield from (f"- **{about}**: {prose(line)}" for about, line in doubt_lines(serving))
    yield f"\nFrom {serving.looks} looks, all of which are in samples.jsonl beside this file."


def _setup(run: Run) -> Iterator[str]:
    yield "\n## Setup\n"
    facts = run.environment
    yield f"- command: {code(shlex.join(run.command), WHOLE)}"
    for name, suite in run.suites.items():
        data = suite.dataset.sha256 or "unknown"
        yield f"- {prose(name)}: agent {_settings(suite.agent)}, thresholds {_settings(suite.thresholds)}, data set sha256 `{data}`"
    yield f"- changed for this run: {_settings(run.settings.changes)}"
    if run.imported:
        yield "- what it ran on is not recorded"
    else:
        cpus = "an unknown number of" if facts.cpus is None else facts.cpus
        yield f"- Python {facts.python}, {facts.platform}, {cpus} CPUs, {_git_text(facts.git)}"
        yield f"- packages: {', '.join(f'{name} {version}' for name, version in facts.packages.items()) or 'unknown'}"
    yield "- every number here can be derived again from rollouts.jsonl beside this file"


def _pictures(directory: Path) -> Iterator[str]:
    """Links to the pictures that `agentbench plot` has drawn."""
    if pictures := [*drawn(directory)]:
        yield "\n## Pictures\n"
        yield from (f"![{title}]({file.relative_to(directory).as_posix()})\n" for title, file in pictures)


def _settings(settings: Mapping[str, Any]) -> str:
    """Settings as they could stand in YAML; `none` of no settings."""
    return code(json.dumps(dict(settings), ensure_ascii=False, default=str), WHOLE) if settings else "none"


def _git_text(git: Git | None) -> str:
    """`git commit 0123456789ab, with changes that are not committed`."""
    if git is None:
        return "not in a git repository"
    return f"git commit {git.commit[:12]}{', with changes that are not committed' * git.dirty}"
