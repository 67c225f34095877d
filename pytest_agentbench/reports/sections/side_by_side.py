"""Tables with a column for each arm of a run, or for each of several runs, which the first screen of report.html shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.gate.ab import hit_ratio
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.stopwatch import unusable_reason
from pytest_agentbench.reports import comparison_phrases, gate_phrases, phrases, suite_phrases
from pytest_agentbench.reports.document import Column, Level, Table, TableCell, heads, say
from pytest_agentbench.reports.view import complete_comparisons
from pytest_agentbench.runs.results import ArmsCompared, MetricCompared
from pytest_agentbench.runs.run_file import Run

Cells = tuple[TableCell, ...]

LATENCIES = ("ttft", "itl", "e2e")
DIGITS = {"output_tokens_per_s": 1, "rollouts_per_hour": 0}  # rate of a session -> its decimal places


def of_arms(ab: ArmsCompared) -> Table:
    """Returns a table with a column for each arm: rollouts, scores, latencies with their differences from the first arm, and rates."""
    arms = ab.arms
    rows: list[Cells] = [("rollouts", *(say(suite_phrases.statuses, arm.rollouts) for arm in arms)), *_compared(ab)]
    rows += [(_title(name), *(say(phrases.number, arm.metrics.get(name), DIGITS[name]) for arm in arms)) for name in DIGITS]
    rows.append(("LLM calls", *(say(phrases.number, arm.calls, 0) for arm in arms)))
    rows.append(("prefix cache hits", *(say(phrases.percent, hit_ratio(arm)) for arm in arms)))
    return Table((*heads("arm"), *(Column(arm.name) for arm in arms)), tuple(rows), level=Level.SUMMARY)


def _compared(ab: ArmsCompared) -> Iterator[Cells]:
    """Yields for each metric the values of all arms, and the differences from the first arm."""
    base, names = ab.arms[0].name, [arm.name for arm in ab.arms]
    comparisons = complete_comparisons(ab)
    several = len({each.suite for each in comparisons}) > 1
    for suite, metric in dict.fromkeys((each.suite, each.metric) for each in comparisons):
        pairs = [each for each in comparisons if (each.suite, each.metric) == (suite, metric)]
        values = {each.base_arm: each.base for each in pairs} | {each.new_arm: each.new for each in pairs}
        if (metric.endswith(".p90") and all(each.low is None for each in pairs)) or all(value is None for value in values.values()):
            continue
        yield (
            f"{f'{suite} ' if several else ''}{_title(metric)}",
            *(say(phrases.number, values.get(name), 1 if "." in metric else 3) for name in names),
        )
        against: dict[str, MetricCompared] = {each.new_arm: each for each in pairs if each.base_arm == base}
        if any(each.low is not None for each in against.values()):
            cells = (say(gate_phrases.difference_of_arms, against[name]) if name in against else "" for name in names)
            yield comparison_phrases.against(base), *cells


def _title(metric: str) -> str:
    """Returns the title of a metric or percentile: `TTFT p50` for `ttft.p50`."""
    name, _, statistic = metric.partition(".")
    if statistic:
        return f"{registry.title_of(name)} {statistic}, ms"
    return registry.title_of(name) if name in DIGITS else metric  # a score has its own name


def of_runs(names: Sequence[str], runs: Sequence[Run]) -> Table:
    """Returns a table with a column for each run: verdict, rollouts, mean scores, latencies, rates, setup and time."""
    rows: list[Cells] = [
        ("verdict", *(run.verdict for run in runs)),
        ("gate", *(run.gate.verdict if run.gate else "" for run in runs)),
    ]
    groups = list(dict.fromkeys(group for run in runs for group in run.suites))
    for group in groups:
        about = f"{group} " if len(groups) > 1 else ""
        suites = [run.suites.get(group) for run in runs]
        rows.append((f"{about}rollouts", *(say(suite_phrases.statuses, suite.rollouts) if suite else None for suite in suites)))
        for score in dict.fromkeys(score for suite in suites if suite for score in suite.scores):
            means = [suite.scores[score].mean if suite and score in suite.scores else None for suite in suites]
            rows.append((f"{about}{score}", *(say(phrases.mean, mean) if mean else None for mean in means)))
    rows += [(_title(f"{name}.p50"), *(_median(run, name) for run in runs)) for name in LATENCIES]
    rows += [(_title(name), *(say(phrases.number, _timed(run, name), DIGITS[name]) for run in runs)) for name in DIGITS]
    rows.append(("timing quality", *(run.stopwatch.verdict or "" for run in runs)))
    rows.append(("backend", *(run.backend.name for run in runs)))
    rows.append(("concurrency", *(str(run.settings.concurrency) for run in runs)))
    rows.append(("finished", *(run.finished_at for run in runs)))
    kept = tuple(row for row in rows if any(cell not in (None, "") for cell in row[1:]))
    return Table((*heads("run"), *map(Column, names)), kept)


def _timed(run: Run, name: str) -> float | None:
    return None if run.backend.is_recorded else run.performance.number(name)


def _median(run: Run, name: str) -> TableCell:
    """Returns the median of a latency. Without its interval if the timing is not usable, and a dash for answers from a recording."""
    spread = run.performance.latency(name)
    if spread is None or run.backend.is_recorded or spread.p50 is None:
        return None
    ends = None if unusable_reason(run.stopwatch, f"{name}.p50") else spread.intervals.get("p50")
    return say(phrases.with_interval, spread.p50, ends)
