"""How reports say numbers: the same words and digits on the terminal and in files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_agentbench.backends.telemetry.engine_stats import Gauge, GpuUse, ServingSummary
from pytest_agentbench.gate.exit_status import SKIPPED
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.efficiency import Efficiency
from pytest_agentbench.metrics.goodput import GoodputSummary
from pytest_agentbench.metrics.performance import PartOfTime, PerformanceSummary
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch
from pytest_agentbench.metrics.windows import InFlight
from pytest_agentbench.records import ERROR_KINDS, Scale
from pytest_agentbench.runs.contents import BackendUse, Imported, OwnMean, Run
from pytest_agentbench.runs.journal import first_of
from pytest_agentbench.runs.results import Mean, Passes, QuarantineResult, SuiteResult
from pytest_agentbench.runs.verdicts import RuleResult
from pytest_agentbench.stats.pass_rates import PassRate
from pytest_agentbench.stats.percentiles import HIGH, needed

RATES = (
    ("call_output_tokens_per_s", "output tok/s of a call"),
    ("rollout_calls_per_minute", "LLM calls/min of a rollout"),
)
ENOUGH = 3  # looks in the time of the calls; of fewer no mean and no peak is told
LATE = 2.5  # times the time between two looks, from which on a gap is told of
COLUMNS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
RATE_COLUMNS = ("mean", "max", "p50", "p10", "p5", "p1", "min")
PARTS = {
    "decoding": "decoding",
    "first_token": "waiting for the first token",
    "tools": "tools",
    "client_queue": "client queue",
    "roles": "other roles",
    "judge": "judge",
    "agent": "agent",
}


def mean_text(mean: Mean | None) -> str:
    """`0.612 [0.571, 0.653]`: a mean with its 95 % interval over scenarios."""
    if mean is None:
        return "not measured"
    interval = "(no interval)" if mean.low is None else f"[{mean.low:.3f}, {mean.high:.3f}]"
    return f"{mean.value:.3f} {interval}"


def score_text(mean: Mean | None) -> str:
    """A mean in words: `0.612 [0.571, 0.653] mean, 95 % interval over 100 scenarios`."""
    if mean is None:
        return "not measured"
    together = f" in {mean.clusters} cluster{'s' * (mean.clusters != 1)}" if mean.clusters < mean.scenarios else ""
    scenarios = f"{mean.scenarios} scenario{'s' * (mean.scenarios != 1)}{together}"
    if mean.low is None:
        return f"{mean.value:.3f} mean over {scenarios}, no interval"
    return f"{mean_text(mean)} mean, 95 % interval of the {mean.of} over {scenarios}"


def passes_text(passes: Passes, scale: Scale) -> str:
    """`0.812 [0.771, 0.853] of the trials, those with tsq >= 0.5; pass@3 0.9 [0.8, 1.0], pass^3 0.5 [0.4, 0.6], 95 % intervals`."""
    first = f"{mean_text(passes.pass_all[0])} of the trials, those with {passes.score} {scale.sign} {passes.floor:g}"
    last = ((False, passes.pass_at[-1]), (True, passes.pass_all[-1]))
    rates = [f"{PassRate(every, mean.k).name} {mean_text(mean)}" for every, mean in last if mean.k > 1]
    return f"{'; '.join(filter(None, (first, ', '.join(rates))))}; 95 % intervals"


def statuses_text(rollouts: Mapping[str, int]) -> str:
    """`97 ok, 3 limit`; what did not happen is left out."""
    return ", ".join(f"{count} {status}" for status, count in rollouts.items() if count) or "none"


def draft_lines(suite: SuiteResult) -> Iterator[tuple[str, str]]:
    """(what it is about, a line) of an agent's drafts, where there were any."""
    if drafts := suite.drafts:
        each = drafts.drafts / drafts.rollouts
        accepted = f"{drafts.accepted} ({percent(drafts.accepted / drafts.rollouts)}) with an accepted one"
        yield "drafts", f"{drafts.drafts} of {drafts.rollouts} rollouts ({each:.2f} each), {accepted}"
        for name, means in drafts.scores.items():
            yield "drafts", f"{name} {means.first:.3f} of the first drafts, {means.chosen:.3f} of the chosen ones"


def imported_lines(imported: Imported) -> Iterator[str]:
    """Whose results a run is made of, and what they do not tell."""
    yield f"by {imported.tool}, from {imported.path}, read {imported.at}"
    yield from map(own_mean_text, imported.means)
    yield from imported.notes


def own_mean_text(mean: OwnMean) -> str:
    """`shop harbor_reward: 0.500 is the tool's own mean, 1.000 this run's: Harbor counts ...`"""
    ours = "there is none in this run" if mean.ours is None else f"{mean.ours:.3f} this run's"
    other = f", {ours}: {mean.why}" if mean.why else ", and this run's"
    return f"{mean.suite} {mean.score}: {mean.theirs:.3f} is the tool's own mean{other}"


def score_of(rule: RuleResult) -> str:
    """The score of scenarios that a rule of the gate is about: `tsq` of `tsq.mean >= -0.03 vs baseline`."""
    return str(rule.rule).split()[0].removesuffix(".mean")


def number(value: Any, digits: int = 1) -> str:
    """A number for a table, `-` for nothing; a word stays one."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.{digits}f}"


def significant(value: float | None) -> str:
    """A number of any size: four digits that count, and at least one behind the point; `-` for nothing."""
    return number(value, max(1, 3 - math.floor(math.log10(abs(value)))) if value else 1)


def percent(share: float | None) -> str:
    """`99.9 %`, `-` for nothing. What is not all of it never says 100 %, and what is not nothing never says 0."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "below 0.1 %"
    return f"{min(share * 100, 99.9) if share < 1 else share * 100:.1f} %"


def range_text(interval: tuple[float, float] | None) -> str:
    """`[11.0, 13.5]`, or nothing where there is no interval."""
    return "" if interval is None else f"[{number(interval[0])}, {number(interval[1])}]"


def verdict_text(stopwatch: Stopwatch) -> str:
    """The stopwatch's verdict on itself, and what it means for gates."""
    if stopwatch.verdict is None:
        return "no verdict: no call was measured"
    return str(stopwatch.verdict) + (", timing gates are INCONCLUSIVE" if stopwatch.verdict == SATURATED else "")


def stopwatch_text(stopwatch: Stopwatch) -> str:
    """One line on how far the timings can be trusted and what to do about it, the verdict first; without figures."""
    return ": ".join(filter(None, (verdict_text(stopwatch), "; ".join(stopwatch.reasons))))


def stopwatch_figures(stopwatch: Stopwatch) -> str:
    """What the verdict stands on; empty where nobody knows."""
    if stopwatch.clean_share is None:
        return ""
    facts = [f"{percent(stopwatch.clean_share)} of the stamps clean"]
    if stopwatch.late_share:
        facts.append(f"{percent(stopwatch.late_share)} shared because they were read late")
        facts.append(f"those of {percent(stopwatch.late_calls_share)} of the calls")
    if stopwatch.read_lag_ms is not None:
        facts.append(f"read lag p99 {stopwatch.read_lag_ms:.2f} ms")
    if stopwatch.client_queue_ms is not None:
        facts.append(f"client queue p99 {stopwatch.client_queue_ms:.1f} ms")
    shares = (("tap", stopwatch.tap_cpu), ("pool", stopwatch.pool_cpu))
    facts += [f"{name} at most {percent(share)} of a core" for name, share in shares if share is not None]
    return ", ".join(facts)


def failed_lines(performance: PerformanceSummary) -> list[str]:
    """Failed calls by kind, each with what the kind means."""
    return [f"{count} {kind}: {ERROR_KINDS.get(kind, 'unknown')}" for kind, count in performance.failed_calls.items()]


def goodput_text(goodput: GoodputSummary) -> str:
    """How many calls met all objectives."""
    objectives = ", ".join(f"{name} <= {limit:g} ms" for name, limit in goodput.slo_ms.items())
    judged = goodput.good_calls + goodput.bad_calls
    missed = ", ".join(f"{count} {name}" for name, count in goodput.missed.items() if count)
    return (
        f"{goodput.good_calls} of {judged} calls good ({percent(goodput.attainment)}), "
        f"{number(goodput.goodput_per_s, 2)} good calls/s under {objectives}"
        f"{f'; missed: {missed}' if missed else ''}"
        f"{f'; {count} could not be judged' if (count := goodput.unknown_calls) else ''}"
    )


def split_text(split: Mapping[str, PartOfTime]) -> str:
    """Who had the time of the rollouts."""
    return ", ".join(f"{title} {percent(split[part].share)}" for part, title in PARTS.items() if part in split)


def few_text(performance: PerformanceSummary) -> str:
    """Why a table has dashes; empty where it has none."""
    tables = [table for table in performance.latencies.values() if table]
    if all(getattr(table, f"p{q}") is not None for table in tables for q in HIGH):
        return ""
    return f"a dash is too few values: {', '.join(f'p{q} needs {needed(q)}' for q in HIGH if q != 50)}"


#: Metrics of a session that have a place of their own in reports, or none, as LLM calls/min. `throughput_text` lists all others.
NAMED_METRICS = (
    *("output_tokens_per_s", "rollouts_per_hour", "calls_per_minute", "speedup"),
    *("prefix_cache_hit_ratio", "call_prefix_cache_hit_ratio", "goodput_per_s"),
)


def throughput_text(performance: PerformanceSummary) -> str:
    """One line on how much was served."""
    rates = {name: performance.number(name) for name in registry.rates()}
    ratio, of_calls = rates["prefix_cache_hit_ratio"], rates["call_prefix_cache_hit_ratio"]
    flight = performance.rollouts_in_flight or InFlight(0, 0.0)
    speedup = "" if rates["speedup"] is None else f" ({rates['speedup']:.2f} times the mean of a call)"
    others = [metric for name, metric in registry.rates().items() if name not in NAMED_METRICS and rates[name] is not None]
    return (
        f"{number(rates['output_tokens_per_s'])} output tok/s{speedup}, {number(rates['rollouts_per_hour'], 0)} rollouts/h, "
        f"{''.join(f'{number(rates[each.name], each.digits)} {each.title}, ' for each in others)}"
        f"prefix cache hit ratio {'unknown' if ratio is None else f'{ratio:.2f} ({of_calls:.2f} mean of calls)'}, "
        f"in flight {flight.peak} peak, {flight.mean:.1f} mean"
    )


def efficiency_text(efficiency: Efficiency) -> str:
    """What the scores of a suite took, as far as it is known; empty where nothing is."""
    known = {metric: value for metric in registry.efficiency().values() if (value := efficiency.metrics[metric.name]) is not None}
    return ", ".join(f"{metric.title} {significant(value)}{_unit(metric, efficiency)}" for metric, value in known.items())


def _unit(metric: Metric, efficiency: Efficiency) -> str:
    return f" {efficiency.currency}" if metric.money else ""


def costs_text(costs: Mapping[str, float | None]) -> str:
    """`1.25 USD`; empty where nobody said what tokens cost."""
    return ", ".join(f"unknown, in {currency}" if cost is None else f"{significant(cost)} {currency}" for currency, cost in costs.items())


def calls_text(performance: PerformanceSummary) -> str:
    """One line on the calls behind the numbers."""
    failed = ", ".join(f"{count} {kind}" for kind, count in performance.failed_calls.items())
    calls = f"{performance.calls} LLM calls{f' ({failed})' if failed else ''} in {performance.span_s:.1f} s"
    sources, stamps = (", ".join(names) or "none" for names in (performance.token_sources, performance.stamps))
    return f"{calls}, token counts from {sources}, stamps: {stamps}"


def boot_text(backend: BackendUse) -> str:
    """How a stack came up, and what was asked of it before anything was counted; empty for backends that are no stacks."""
    boot = backend.boot
    if boot is None:
        return ""
    reaped = f"; {backend.reaped}" if backend.reaped else ""
    if backend.reused:
        return f"kept from an earlier session, so its caches are warm{reaped}"
    waited = f" after {boot.waited_for_gpus_s:.0f} s of waiting for GPUs" if boot.waited_for_gpus_s >= 1 else ""
    warm = boot.warm_up
    warmed = f"; {warm.requests} requests of warm-up in {warm.seconds:.1f} s, not counted" if warm.requests else "; no warm-up"
    other = f"; {backend.passed_over}" if backend.passed_over else ""
    return f"booted in {boot.boot_s - boot.waited_for_gpus_s:.1f} s{waited}, proofs {boot.proof_s:.1f} s{warmed}{other}{reaped}"


def server_lines(serving: ServingSummary) -> Iterator[tuple[str, str]]:
    """(what it is about, a line) of what the stack told of itself."""
    cache, usage = serving.prefix_cache, serving.kv_usage
    ratio = "unknown" if cache.hit_ratio is None else f"{cache.hit_ratio:.2f} ({cache.source})"
    preemptions = "" if serving.preemptions is None else f", {serving.preemptions:.0f} preemptions"
    yield "server", f"prefix cache hit ratio {ratio}{preemptions}"
    if serving.rounds >= ENOUGH:
        used = "unknown" if usage.max is None else f"{percent(usage.mean)} mean, {percent(usage.max)} peak"
        requests = f"running {_load_text(serving.running)}, waiting {_load_text(serving.waiting)}"
        yield "server", f"KV cache {used}; requests: {requests}"
    else:
        yield "server", f"KV cache and requests: {_too_short(serving.rounds, serving)}"
    if serving.longest_gap_s > LATE * serving.every_s:
        yield "server", f"up to {serving.longest_gap_s:.1f} s without a look, which should come every {serving.every_s:g} s"
    if serving.resets:
        yield "server", f"counters fell {serving.resets} times: something was started again"
    for gpu, use in serving.gpus.items():
        yield f"GPU {gpu}", _gpu_text(use) if use.looks >= ENOUGH else _too_short(use.looks, serving)


def _too_short(looks: int, serving: ServingSummary) -> str:
    """Why nothing is told of what changes from look to look."""
    times = f"{looks} look{'s' * (looks != 1)}" if looks else "no look"
    return f"too short to sample, {times} in the time of the calls (one comes every {serving.every_s:g} s)"


def _gpu_text(use: GpuUse) -> str:
    busy = "unknown how" if use.sm_percent_mean is None else f"{use.sm_percent_mean:.1f} %"
    watts = "power unknown" if use.power_w_mean is None else f"{number(use.power_w_mean, 0)} W mean"
    return f"{use.used_mib_max:,} of {use.total_mib:,} MiB at most, {busy} busy, {watts}"


def doubt_lines(serving: ServingSummary) -> list[tuple[str, str]]:
    """(what it is about, a sentence) of what does not agree, or could not be seen."""
    return [*(("differs", each) for each in serving.disagreements), *(("sampling", each) for each in serving.notes)]


def _load_text(load: Gauge) -> str:
    return "unknown" if load.max is None else f"{number(load.mean)} mean {load.max:.0f} peak"


def sessions_text(run: Run) -> str:
    """How many rollouts of a run that was gone on with are whose; empty for a run of one session."""
    sessions = run.sessions
    if len(sessions) < 2:
        return ""
    *earlier, last = sessions
    parts = [f"{each.rollouts} from session {each.session} ({each.started_at})" for each in earlier]
    again = f"; {run.repeated} of them had failed before and ran again" if run.repeated else ""
    levels = {each.concurrency for each in sessions if each.rollouts}
    mixed = f"; NOT at one concurrency: {', '.join(map(str, sorted(levels)))} rollouts in flight" if len(levels) > 1 else ""
    return f"{last.session} sessions: {', '.join(parts)}, {last.rollouts} from this one{again}{mixed}"


def retried_text(suite: SuiteResult) -> str:
    """Whether rollouts that were tried again score like the others; empty where none was."""
    found = [
        f"{name} {mean_text(means.retried)} against {mean_text(means.others)} of the others"
        for name, means in suite.retried_scores.items()
        if means.retried
    ]
    return ": ".join(filter(None, [f"{suite.retried} tried more than once", ", ".join(found)])) if suite.retried else ""


def quarantine_text(suite: SuiteResult) -> str:
    """Which scenarios the gate leaves out, who answers for them, and how they did; empty where there are none."""
    entries = suite.quarantined
    parts = [f"{each.scenario} ({each.owner}, until {each.expires}; {passed_text(each)})" for each in entries]
    return f"{len(entries)} of {suite.dataset.size} scenarios, in no gate: {', '.join(parts)}" if parts else ""


def unsupported_text(suite: SuiteResult) -> str:
    """Which tasks were skipped for what they ask for; empty where there are none."""
    return f"{len(suite.unsupported)} of {suite.dataset.size} tasks: {', '.join(suite.unsupported)}" if suite.unsupported else ""


def passed_text(counts: QuarantineResult) -> str:
    """`2 of 3 tests passed`."""
    return f"{counts.passed} of {counts.tests} test{'s' * (counts.tests != 1)} passed"


def interruptions_text(run: Run) -> str:
    """`pool 2, tap 1; 9 attempts were run again`; empty where no part of the session died."""
    parts = [f"{part} {count}" for part, count in run.interruptions.deaths.items()]
    attempts = run.interruptions.attempts
    again = f"{attempts} attempt{'s were' if attempts != 1 else ' was'} run again"
    return f"{', '.join(parts)}; {again}" if parts else ""


def damage_lines(run: Run) -> list[str]:
    """What of the journal could not be read."""
    return first_of(run.damaged)


def unknown_text(run: Run) -> str:
    """Of which suites nothing was measured that thresholds are asked of; empty where that is as it should be."""
    names = run.unknown_suites if run.verdict != SKIPPED else ()
    return f"{', '.join(names)}: no rollout was measured, so no threshold is known to hold" if names else ""


def loss_lines(run: Run) -> list[str]:
    """What the session could not do at its end."""
    return [*run.losses]


def resume_text(run: Run) -> str:
    """The command that goes on with a run; empty where nothing is left to do."""
    return run.resume or ""


def dataset_text(suite: SuiteResult) -> str:
    """One line on what was run, so that nobody takes one data set for another."""
    data = suite.dataset
    left = "".join(f", {count} {what} left out" for what, count in data.left_out.items())
    return f"{data.name}: {data.size} scenarios{left}, labels: {data.label_source}, sha256 {data.sha256[:12] or 'unknown'}"


def tools_text(tools: Sequence[str]) -> str:
    return ", ".join(tools) or "none"


def restarts_text(backend: BackendUse) -> str:
    """`engine once, worker-1 3 times`; empty where nothing was started again."""
    counts = backend.restarts or {}
    return ", ".join(f"{name} {'once' if count == 1 else f'{count} times'}" for name, count in counts.items())
