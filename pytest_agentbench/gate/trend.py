"""A suite's history: scores and latencies of its runs in the order of time, the setups that changed, and the steps down of each metric."""

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

SCHEMA = "agentbench-trend/2"  # docs/trend.md describes it
RISK = 0.05  # that any step of a series is none
SLOWER = 10  # percent by which a median has to be beyond another one: what the hour of a run does to it is in no interval

NEW, RECURRING = "new", "recurring"
OPEN, FIXED, UNKNOWN = "open", "fixed", "unknown"


@dataclass(frozen=True)
class TrendRun:
    """A run, or the baseline that was made of one."""

    run: str  # its id
    source: str  # name of the directory or file that it was read from
    finished_at: str  # ISO 8601
    commit: str | None  # of the repository; null where there was none


@dataclass(frozen=True)
class ExcludedRun:
    """What lies in the directory and is not in the history."""

    source: str  # name of the directory or file
    why: str  # a sentence


@dataclass(frozen=True)
class SetupChange:
    """Where the setup of a suite is not that of the run before."""

    run: str  # the first with the new one
    parts: tuple[str, ...]  # what changed: `data`, `scenarios` (which of the data), `agent`, `prompts`, `backend`, `scoring`, `cache`


@dataclass(frozen=True)
class Point:
    """A metric of one run."""

    run: str  # its id
    value: float  # of scores their own unit, of latencies milliseconds
    low: float | None  # 95 % interval; null where there is none
    high: float | None


@dataclass(frozen=True)
class Regression:
    """A [step down](trend.md#what-a-regression-is)."""

    kind: str  # `new`, or `recurring` where an earlier one of this metric was fixed
    state: str  # `open`, `fixed`, or `unknown` where later runs cannot be compared any more
    run: str  # the first that is worse
    commit: str | None  # of that run
    reference: str  # the run that it is worse than
    reference_commit: str | None  # of that run: the cause lies between the two
    estimate: float  # difference of scores, or ratio of latencies
    low: float  # the interval that decided
    high: float
    confidence: float  # of the interval
    fixed_by: str | None = None  # the first run that is better again
    fixed_commit: str | None = None  # of that run


@dataclass(frozen=True)
class TrendSeries:
    """One metric of a suite under a variant."""

    metric: str  # as in rules: `tsq.mean`, `ttft.p50`
    unit: str  # `ms`, or empty
    rising: bool  # more is better
    points: tuple[Point, ...]  # in the order of time
    regressions: tuple[Regression, ...]  # in the order of time
    compared: int  # runs that could be compared with an earlier one


@dataclass(frozen=True)
class SuiteTrend:
    """A suite under a variant."""

    setups: tuple[SetupChange, ...]  # in the order of time
    series: tuple[TrendSeries, ...]  # scores first


@dataclass(frozen=True)
class Trend:
    """The history of the suites that runs of a directory have."""

    schema: str  # `agentbench-trend/2`
    runs: tuple[TrendRun, ...]  # in the order of time
    left_out: tuple[ExcludedRun, ...]  # what could not be read
    suites: Mapping[str, SuiteTrend]  # suite, or `suite-variant`, -> its history

    def regressions(self) -> Iterator[tuple[str, TrendSeries, Regression]]:
        """All of them, each with its suite and its series."""
        for group, suite in self.suites.items():
            yield from ((group, series, each) for series in suite.series for each in series.regressions)


@dataclass(frozen=True)
class History:
    """What was read from a directory."""

    evidence: tuple[tuple[str, Evidence], ...]  # (name of the directory or file, what a gate knows of it), in the order of time
    left_out: tuple[ExcludedRun, ...]


def read_history(directory: Path) -> History:
    """The runs and baselines of a directory, each run once; raises ConfigError where there is none."""
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}; name the one that runs lie in")
    if (directory / FILE).exists():
        raise ConfigError(f"{directory} is one run, which has no history; name the directory that runs lie in, such as {directory.parent}")
    runs = sorted(file.parent for file in directory.glob(f"*/{FILE}") if not file.parent.is_symlink())
    baselines = sorted(chain(directory.glob("*.jsonl"), directory.glob(f"{FOLDER}/*.jsonl")))
    known: dict[tuple[str, str], tuple[str, Evidence]] = {}  # (run, suite) -> where it was first, and what it says
    left_out = []
    for path in (*runs, *baselines):
        try:
            evidence = read_evidence(path)
        except ConfigError as error:
            left_out.append(ExcludedRun(path.name, str(error)))
            continue
        fresh = {group: trials for group, trials in evidence.groups.items() if (evidence.facts.run, group) not in known}
        part = path.name, Evidence(evidence.facts, fresh)
        known |= {(evidence.facts.run, group): part for group in fresh}
    if not known and left_out:
        raise ConfigError(f"nothing in {directory} can be read: {left_out[0].why}")
    if not known:
        raise ConfigError(f"{directory} has no finished runs and no baselines; name the directory that runs lie in, such as reports")
    parts = {id(part): part for part in known.values()}
    return History(tuple(sorted(parts.values(), key=lambda part: _time(part[1]))), tuple(left_out))


def _time(evidence: Evidence) -> tuple[float, str]:
    try:
        return datetime.fromisoformat(evidence.facts.finished_at).timestamp(), evidence.facts.run
    except ValueError:  # a baseline of an imported run may not say when it was
        return 0.0, evidence.facts.run


def trend_of(history: History) -> Trend:
    """The history of all suites."""
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
    """What is known of two neighbours and differs."""
    before: dict[str, str] = {}
    scenarios: dict[str, str] | None = None  # of the run before
    for run in runs:
        now = {part: hash for part, hash in _setup(group, run).items() if hash}
        contents = {trial.scenario: str(trial.content.get("scenario", "")) for trial in run.groups[group]}
        changed = [part for part, hash in now.items() if before.get(part, hash) != hash]
        if parts := (*_scenario_changes(scenarios or contents, contents), *changed):
            yield SetupChange(run.facts.run, parts)
        before |= now
        scenarios = contents


def _scenario_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """`data` where one that both have is another one, else `scenarios` where they are not the same ones."""
    if any(old[name] != new[name] for name in old.keys() & new.keys()):
        yield "data"
    elif old.keys() != new.keys():
        yield "scenarios"


def _setup(group: str, run: Evidence) -> dict[str, str]:
    """Part -> a hash; empty where nobody knows."""
    trials = run.groups[group]
    hashes = {part: sorted(run.hashes(group, part)) for part in ("agent", "prompts", "backend")}
    scoring = [(score, sorted(run.scored_by(group, score))) for score in sorted({score for trial in trials for score in trial.scores})]
    parts = {**hashes, "scoring": scoring}
    return {"cache": run.facts.cache, **{part: digest(value) if value else "" for part, value in parts.items()}}


def _last_scale(group: str, score: str, runs: Sequence[Evidence]) -> Scale:
    """Returns the scale of the last run that has a score; earlier runs may have declared another one."""
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
    """The metric with the interval that a run has alone; None where it was not measured."""
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
    """Takes the runs of one metric in the order of time, and finds where it steps down, and up again.

    Each run is compared with the first of the level that it may belong to; a step makes it the first of the next one. The k-th comparison
    has a risk of RISK / k (k + 1), so all that there will ever be have RISK together, and what was claimed stays claimed.
    """

    def __init__(self, suite_rule: SuiteRule) -> None:
        self.regressions: list[Regression] = []
        self.compared = 0  # runs that could be compared with an earlier one
        self._suite_rule = suite_rule
        self._first: Evidence | None = None  # of the level
        self._incomparable: Evidence | None = None  # the latest run that cannot be compared with it
        self._before: dict[int, Evidence] = {}  # open regression -> the run that it is worse than
        self._comparisons = 0

    def add(self, run: Evidence) -> None:
        """Takes the next run."""
        if self._first is None:
            self._first = run
            return
        is_comparable = self._compared(run, self._first)
        if not is_comparable and self._incomparable is not None:
            is_comparable = self._compared(run, self._incomparable, elsewhere=True)
        self._incomparable = None if is_comparable else run
        self.compared += is_comparable

    def _compared(self, run: Evidence, first: Evidence, *, elsewhere: bool = False) -> bool:
        """Whether the run can be compared with the first of a level; a step is noted. `elsewhere`: that level begins with `first`."""
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
        assert down.estimate is not None and down.low is not None and down.high is not None  # `_compared` has seen to it
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
        """Fixed are those regressions whose reference the run is not worse than; a step half of the way up fixes nothing."""
        for place, before in list(self._before.items()):
            if self._judged(run, before, confidence).verdict != FAIL:
                fixed = replace(self.regressions[place], state=FIXED, fixed_by=run.facts.run, fixed_commit=run.facts.commit)
                self.regressions[place] = fixed
                del self._before[place]
        self._first = run

    def _close_as_unknown(self) -> None:
        """Of what is open nobody will know whether it was fixed."""
        for place in self._before:
            self.regressions[place] = replace(self.regressions[place], state=UNKNOWN)
        self._before.clear()
