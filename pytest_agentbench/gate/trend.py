"""The history of a suite: scores and latencies of its runs in time order, changes of the setup, and regressions of each metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import FOLDER, read_evidence
from pytest_agentbench.gate.evidence import Evidence, compare_with_limit, latency_percentile, samples, score_limits
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.metrics import registry
from pytest_agentbench.records import UNDECLARED, Scale, scale_in
from pytest_agentbench.runs.run_file import FILE
from pytest_agentbench.stats.decisions import FAIL, Decision
from pytest_agentbench.stats.paired import against_limit
from pytest_agentbench.suites.hashes import digest

SCHEMA = "agentbench-trend/2"  # docs/compare/trend.md describes it
RISK = 0.05  # probability that a series without changes shows any step
SLOWER = 10  # percent that a median must rise to count as a step, because intervals do not include changes of load between runs

NEW, RECURRING = "new", "recurring"
OPEN, FIXED, UNKNOWN = "open", "fixed", "unknown"


@dataclass(frozen=True)
class TrendRun:
    """A run of the history, read from its directory or from a baseline file."""

    run: str  # run id
    source: str  # name of the directory or file that it was read from
    finished_at: str  # ISO 8601
    commit: str | None  # commit of the repository; null without a repository


@dataclass(frozen=True)
class ExcludedRun:
    """A run or baseline in the directory that could not be read, or a run whose answers come from a recording."""

    source: str  # name of the directory or file
    why: str  # reason, a sentence


@dataclass(frozen=True)
class SetupChange:
    """A change of a suite's setup from one run to the next."""

    run: str  # first run with the new setup
    # changed: `data`, `scenarios` (which of the data), `agent`, `prompts`, `backend`, `scoring`, `cache`, `stopwatch` (its version)
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """The value of a metric in one run."""

    run: str  # run id
    value: float  # in the score's own unit, or in milliseconds
    low: float | None  # lower end of the 95 % interval; null without an interval
    high: float | None  # upper end of the 95 % interval; null without an interval


@dataclass(frozen=True)
class Regression:
    """A [step down](trend.md#what-a-regression-is): from some run on, a metric is worse than in earlier runs."""

    kind: str  # `new`, or `recurring` if an earlier regression of this metric was fixed
    state: str  # `open`, `fixed`, or `unknown` if later runs are not comparable
    run: str  # first run that is worse
    commit: str | None  # commit of that run
    reference: str  # run that it is worse than
    reference_commit: str | None  # commit of the reference; the cause is between the two commits
    estimate: float  # difference of scores, or ratio of latencies
    low: float  # lower end of the interval that decided
    high: float  # upper end of that interval
    confidence: float  # confidence of that interval
    fixed_by: str | None = None  # first run that is better again
    fixed_commit: str | None = None  # commit of that run


@dataclass(frozen=True)
class TrendSeries:
    """One metric of one group (suite, or `suite-variant`) over time."""

    metric: str  # name as in rules: `tsq.mean`, `ttft.p50`
    unit: str  # `ms`, or empty
    rising: bool  # whether higher is better
    points: tuple[Point, ...]  # values in time order
    regressions: tuple[Regression, ...]  # regressions in time order
    compared: int  # number of runs that could be compared with an earlier one


@dataclass(frozen=True)
class SuiteTrend:
    """The history of one group (suite, or `suite-variant`)."""

    setups: tuple[SetupChange, ...]  # changes of the setup in time order
    series: tuple[TrendSeries, ...]  # one for each metric, scores first


@dataclass(frozen=True)
class Trend:
    """The history of all suites in a directory of runs."""

    schema: str  # `agentbench-trend/2`
    runs: tuple[TrendRun, ...]  # runs in time order
    left_out: tuple[ExcludedRun, ...]  # runs and baselines that could not be read, and runs whose answers come from a recording
    suites: Mapping[str, SuiteTrend]  # suite, or `suite-variant` -> its history

    def regressions(self) -> Iterator[tuple[str, TrendSeries, Regression]]:
        """Yields all regressions, each with its group and its series."""
        for group, suite in self.suites.items():
            yield from ((group, series, each) for series in suite.series for each in series.regressions)


@dataclass(frozen=True)
class History:
    """The runs and baselines of a directory."""

    evidence: tuple[tuple[str, Evidence], ...]  # (name of the directory or file, its evidence), in time order
    left_out: tuple[ExcludedRun, ...]


def read_history(directory: Path) -> History:
    """Reads the runs and baselines of a directory, each run once. Raises ConfigError if there are none."""
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory; name the directory that contains the runs")
    if (directory / FILE).exists():
        raise ConfigError(
            f"{directory} is one run, which has no history; name the directory that contains the runs, such as {directory.parent}"
        )
    runs = sorted(file.parent for file in directory.glob(f"*/{FILE}") if not file.parent.is_symlink())
    baselines = sorted(chain(directory.glob("*.jsonl"), directory.glob(f"{FOLDER}/*.jsonl")))
    known: dict[tuple[str, str], tuple[str, Evidence]] = {}  # (run, group) -> its first source and its evidence
    left_out = []
    for path in (*runs, *baselines):
        try:
            evidence = read_evidence(path)
        except ConfigError as error:
            left_out.append(ExcludedRun(path.name, str(error)))
            continue
        if evidence.facts.recorded:
            left_out.append(ExcludedRun(path.name, f"{path.name} has answers from a recording, so nothing new was measured"))
            continue
        fresh = {group: trials for group, trials in evidence.groups.items() if (evidence.facts.run, group) not in known}
        part = path.name, Evidence(evidence.facts, fresh)
        known |= {(evidence.facts.run, group): part for group in fresh}
    if not known and left_out:
        raise ConfigError(f"{directory} contains no usable run or baseline; name another directory. The first problem: {left_out[0].why}")
    if not known:
        raise ConfigError(f"{directory} has no finished runs and no baselines; name the directory that contains the runs, such as reports")
    parts = {id(part): part for part in known.values()}
    return History(tuple(sorted(parts.values(), key=lambda part: _time(part[1]))), tuple(left_out))


def _time(evidence: Evidence) -> tuple[float, str]:
    try:
        return datetime.fromisoformat(evidence.facts.finished_at).timestamp(), evidence.facts.run
    except ValueError:  # Baselines of imported runs may have no time
        return 0.0, evidence.facts.run


def trend_of(history: History) -> Trend:
    """Returns the history of all suites."""
    runs = [evidence for _, evidence in history.evidence]
    groups = dict.fromkeys(group for run in runs for group in run.groups)
    return Trend(
        schema=SCHEMA,
        runs=tuple(TrendRun(each.facts.run, source, each.facts.finished_at, each.facts.commit) for source, each in history.evidence),
        left_out=history.left_out,
        suites={group: _suite_trend(group, [run for run in runs if group in run.groups]) for group in groups},
    )


def _suite_trend(group: str, runs: Sequence[Evidence]) -> SuiteTrend:
    scores = dict.fromkeys(score for run in runs for trial in run.groups[group] for score in trial.scores)
    series = [_series(_score_rule(group, score, _last_scale(group, score, runs)), runs) for score in scores]
    series += [_series(_latency_rule(group, metric), runs) for metric in registry.gated()]
    return SuiteTrend(tuple(_setup_changes(group, runs)), tuple(each for each in series if each.points))


def _setup_changes(group: str, runs: Sequence[Evidence]) -> Iterator[SetupChange]:
    """Yields the changes between successive runs, as far as their setups are known."""
    before: dict[str, str] = {}
    scenarios: dict[str, str] | None = None  # scenario -> content hash, in the previous run
    for run in runs:
        now = {part: hash for part, hash in _setup(group, run).items() if hash}
        contents = {trial.scenario: str(trial.content.get("scenario", "")) for trial in run.groups[group]}
        changed = [part for part, hash in now.items() if before.get(part, hash) != hash]
        if parts := (*_scenario_changes(scenarios or contents, contents), *changed):
            yield SetupChange(run.facts.run, parts)
        before |= now
        scenarios = contents


def _scenario_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yields `data` if a common scenario has changed content, or else `scenarios` if the sets of scenarios differ."""
    if any(old[name] != new[name] for name in old.keys() & new.keys()):
        yield "data"
    elif old.keys() != new.keys():
        yield "scenarios"


def _setup(group: str, run: Evidence) -> dict[str, str]:
    """Returns the setup of a group in one run: part, such as `agent` -> its hash, which is empty if unknown."""
    trials = run.groups[group]
    hashes = {part: sorted(run.hashes(group, part)) for part in ("agent", "prompts", "backend")}
    scoring = [(score, sorted(run.scored_by(group, score))) for score in sorted({score for trial in trials for score in trial.scores})]
    parts = {**hashes, "scoring": scoring}
    return {
        "cache": run.facts.cache,
        "stopwatch": str(run.facts.stopwatch_version),
        **{part: digest(value) if value else "" for part, value in parts.items()},
    }


def _last_scale(group: str, score: str, runs: Sequence[Evidence]) -> Scale:
    """Returns the scale in the last run that has the score. Earlier runs may have declared another one."""
    return next(
        (scale_in(run.facts.scales[group], score) for run in reversed(runs) if score in run.facts.scales.get(group, {})), UNDECLARED
    )


def _score_rule(group: str, score: str, scale: Scale) -> SuiteRule:
    return SuiteRule(group, parse_rule(f"{score}.mean {scale.sign} 0 vs baseline", (score,), {score: scale}), scale)


def _latency_rule(group: str, metric: str) -> SuiteRule:
    return SuiteRule(group, parse_rule(f"{metric}.p50 <= +{SLOWER}% vs baseline", ()))


def _series(suite_rule: SuiteRule, runs: Iterable[Evidence]) -> TrendSeries:
    measured = [(run, point) for run in runs if (point := _point(suite_rule, run))]
    steps = Steps(suite_rule)
    for run, _ in measured:
        steps.add(run)
    rule = suite_rule.rule
    unit = "ms" if rule.kind == "latency" else ""
    return TrendSeries(
        f"{rule.metric}.{rule.statistic}",
        unit,
        rule.at_least,
        tuple(point for _, point in measured),
        tuple(steps.regressions),
        steps.compared,
    )


def _point(suite_rule: SuiteRule, run: Evidence) -> Point | None:
    """Returns the value of a metric in one run with its own interval, or None if it was not measured."""
    trials = run.groups[suite_rule.group]
    if suite_rule.rule.kind == "latency":
        metric = suite_rule.rule.metric
        value, decision = latency_percentile(trials, metric, 50), compare_with_limit(trials, metric, 50, 1.0)
    else:
        scale = run.scale(suite_rule.group, suite_rule.rule.metric)
        measured = samples(trials, suite_rule.rule.metric, scale)
        decision = against_limit(measured, 0.0, limits=score_limits(scale, measured), higher_is_better=not scale.falling)
        value = decision.estimate
    return None if value is None else Point(run.facts.run, value, decision.low, decision.high)


class Steps:
    """Finds the steps down and up in the history of one metric. `add` takes the runs in time order.

    A level is a sequence of runs between which no step was found. Each new run is compared with the first run of the current level. If
    that shows a step, the new run begins a new level.

    A run that cannot be compared with the level (for example, because the data changed) is set aside. If the next run cannot be compared
    with the level either, but with the run set aside, that one begins a new level. Open regressions then become `unknown`.

    The k-th comparison finds a false step with a probability of at most RISK / k (k + 1). So all comparisons together, however many
    follow, have the risk RISK. A regression that was found stays in the list.
    """

    def __init__(self, suite_rule: SuiteRule) -> None:
        self.regressions: list[Regression] = []
        self.compared = 0  # number of runs that could be compared with an earlier one
        self._suite_rule = suite_rule
        self._first: Evidence | None = None  # first run of the current level
        self._incomparable: Evidence | None = None  # latest run, if it is not comparable with the level
        self._before: dict[int, Evidence] = {}  # index of an open regression -> its reference run
        self._comparisons = 0

    def add(self, run: Evidence) -> None:
        """Adds the next run in time order."""
        if self._first is None:
            self._first = run
            return
        is_comparable = self._compared(run, self._first)
        if not is_comparable and self._incomparable is not None:
            is_comparable = self._compared(run, self._incomparable, elsewhere=True)
        self._incomparable = None if is_comparable else run
        self.compared += is_comparable

    def _compared(self, run: Evidence, first: Evidence, *, elsewhere: bool = False) -> bool:
        """Compares a run with an earlier one, `first`, and records a step down or up. Returns whether both are comparable.

        Normally `first` is the first run of the current level (the runs since the last step). With `elsewhere`, it was not comparable
        with that level; if it is comparable with `run`, it becomes the first run of a new level.
        """
        confidence = self._next_confidence()
        down = self._judged(run, first, confidence)
        if down.low is None:
            return False
        if elsewhere:
            self._close_as_unknown()
            self._first = first
        if down.verdict == FAIL:
            self._record_regression(run, first, down)
        elif self._judged(first, run, confidence).verdict == FAIL:
            self._record_recovery(run, confidence)
        return True

    def _next_confidence(self) -> float:
        self._comparisons += 1
        return 1 - RISK / (self._comparisons * (self._comparisons + 1))

    def _judged(self, new: Evidence, base: Evidence, confidence: float) -> Decision:
        group, rule = self._suite_rule.group, self._suite_rule.rule
        own = _score_rule(group, rule.metric, new.scale(group, rule.metric)) if rule.kind == "score" else self._suite_rule
        (judged,) = judge_rules([own], new, {group: base}, confidence)
        return judged.decision

    def _record_regression(self, run: Evidence, first: Evidence, down: Decision) -> None:
        assert down.estimate is not None and down.low is not None and down.high is not None  # `_compared` has checked `low`
        kind = RECURRING if any(each.state == FIXED for each in self.regressions) else NEW
        self._before[len(self.regressions)] = first
        self.regressions.append(
            Regression(
                kind,
                OPEN,
                run.facts.run,
                run.facts.commit,
                first.facts.run,
                first.facts.commit,
                down.estimate,
                down.low,
                down.high,
                down.confidence,
            )
        )
        self._first = run

    def _record_recovery(self, run: Evidence, confidence: float) -> None:
        """Marks each open regression as fixed if this run is not worse than the regression's reference, the good run before it.

        A step up that leads only a part of the way back fixes nothing.
        """
        for place, before in list(self._before.items()):
            if self._judged(run, before, confidence).verdict != FAIL:
                fixed = replace(self.regressions[place], state=FIXED, fixed_by=run.facts.run, fixed_commit=run.facts.commit)
                self.regressions[place] = fixed
                del self._before[place]
        self._first = run

    def _close_as_unknown(self) -> None:
        """Marks all open regressions as unknown, because later runs cannot be compared with the good runs before the regressions."""
        for place in self._before:
            self.regressions[place] = replace(self.regressions[place], state=UNKNOWN)
        self._before.clear()
