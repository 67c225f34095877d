"""What a sweep measured at each concurrency (without the warm-up), the knee of throughput against latency, and the capacity.

The capacity is the greatest concurrency whose calls meet their objectives and whose quality is not worse. It is found by doubling and
halving.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_benchmark import add_events
from pytest_agentbench.exports.nat_profiler import events_of
from pytest_agentbench.gate.ab import mean_of
from pytest_agentbench.gate.evidence import LOST, Trial, good_shares, samples, score_limits, trial_of, uncounted
from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.metrics.other_tools.nat import Throughput
from pytest_agentbench.records import Rollout, RolloutKey, Scale, arm_of
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision, judge
from pytest_agentbench.stats.means import Interval, scenarios_interval
from pytest_agentbench.stats.paired import compare
from pytest_agentbench.stats.quantiles import percentile
from pytest_agentbench.suites.arms import concurrencies
from pytest_agentbench.tables import origins, places


class Operation(NamedTuple):
    """How a backend does at one concurrency."""

    concurrency: int
    throughput: float  # output tokens per second
    latency_ms: float  # of a call, median


def power(operation: Operation) -> float:
    """Throughput over latency: great where much is done and little is waited for (Giessler et al. 1978)."""
    return operation.throughput / operation.latency_ms


def knee(operations: Sequence[Operation]) -> Operation | None:
    """The one of the greatest power; the smallest of equals. None of fewer than three, which have no bend.

    Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", ICC 1979: at this point
    the line from the origin touches the curve of latency over throughput, and more load buys less than it costs.
    """
    known = [each for each in sorted(operations) if each.latency_ms > 0]
    return max(known, key=lambda each: (power(each), -each.concurrency)) if len(known) > 2 else None


@dataclass(frozen=True)
class SweepLevel:
    """The rollouts of one concurrency, but for those of its first block."""

    concurrency: int  # rollouts in flight
    part: Slice
    trials: Sequence[Trial]
    throughput: Throughput

    @property
    def statuses(self) -> Counter[str]:
        """Status -> rollouts."""
        return Counter(self.part.rollouts["status"].tolist())

    @property
    def failed_calls(self) -> int:
        return len(self.part.calls) - len(self.part.successful_calls)

    def latency(self, metric: str, q: int) -> float | None:
        """Returns a percentile of the calls in milliseconds, however few they are."""
        return percentile(self.part.successful_calls[f"{metric}_ms"], q)


@dataclass(frozen=True)
class Sweep:
    """A run whose arms are concurrencies."""

    run: Run
    suite: str
    score: str  # the suite's main one
    scale: Scale  # of that score
    levels: tuple[SweepLevel, ...]  # by concurrency
    warm_up: Mapping[int, int]  # concurrency -> rollouts that were left out, being of its first block

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of any level."""
        return any(trial.status not in LOST for level in self.levels for trial in level.trials)

    @property
    def operations(self) -> list[Operation]:
        """Throughput and latency of the levels that have both."""
        measured = [(each, each.latency("e2e", 50), each.part.value("output_tokens_per_s")) for each in self.levels]
        return [Operation(level.concurrency, rate, latency) for level, latency, rate in measured if latency and rate]

    def quality(self, level: SweepLevel) -> float | None:
        """Returns the mean of the main score at a level."""
        return mean_of(samples(level.trials, self.score, self.scale))


def read_sweep(directory: Path) -> Sweep:
    """Raises ConfigError for a run whose arms are no concurrencies, and for one of several suites."""
    run = read_run(directory)
    own = concurrencies(run.ab.arms) if run.ab else {}
    if not own:
        raise ConfigError(f"{directory}: its arms are no concurrencies; `agentbench sweep` makes such a run")
    [origin] = origins([directory])
    reader, trials = FrameReader(origin, events=False), dict[str, list[Trial]]()
    throughputs = defaultdict[str, Throughput](Throughput)
    dropped = _first_blocks(run, origin, own)
    for place in places(origin):
        key = place.rollout.key
        if _counts(place.rollout, own) and key not in dropped[arm_of(key.variant)]:
            reader.add_place(place)
            known = trials.setdefault(arm_of(key.variant), [])
            add_events(throughputs[arm_of(key.variant)], len(known), sorted(events_of(place), key=lambda event: event.at))
            known.append(trial_of(place.rollout))
    part = reader.frame().scenarios()
    levels = [SweepLevel(count, part.where(arm=arm), trials.get(arm, []), throughputs[arm]) for arm, count in own.items()]
    for level in levels:
        level.throughput.wall_s = level.part.seconds
    suites = {trial.suite for level in levels for trial in level.trials}
    if len(suites) > 1:
        raise ConfigError(f"{directory}: a sweep is of one suite, and this run has {', '.join(sorted(suites))}")
    result = next(iter(run.suites.values()))
    return Sweep(
        run=run,
        suite=next(iter(suites), ""),
        score=result.main_score or "",
        scale=result.scales[result.main_score],
        levels=tuple(sorted(levels, key=lambda level: level.concurrency)),
        warm_up={own[arm]: len(keys) for arm, keys in dropped.items()},
    )


def _first_blocks(run: Run, origin: Origin, arms: Mapping[str, int]) -> dict[str, set[RolloutKey]]:
    """Returns arm -> the rollouts of its first block, which warm the level up."""
    begun: defaultdict[str, list[tuple[int, RolloutKey]]] = defaultdict(list)
    for place in places(origin):
        if _counts(place.rollout, arms):
            begun[arm_of(place.rollout.variant)].append((place.rollout.started_ns, place.rollout.key))
    return {arm: {key for _, key in sorted(keys)[: _first_block(run, arm)]} for arm, keys in begun.items()}


def _counts(rollout: Rollout, arms: Mapping[str, int]) -> bool:
    return rollout.kind == "scenario" and arm_of(rollout.variant) in arms


def _first_block(run: Run, arm: str) -> int:
    """Rollouts of an arm's first block in the last session; none where it has only one."""
    sizes = _block_sizes(run, arm)
    return sizes[0] if len(sizes) > 1 else 0


def short_blocks(sweep: Sweep) -> Iterator[tuple[int, int]]:
    """Yields concurrency and rollouts of a block of each level that most of the time had fewer rollouts in flight than it asked for."""
    for arm, concurrency in sorted(concurrencies(sweep.run.ab.arms if sweep.run.ab else ()).items(), key=itemgetter(1)):
        sizes = sorted(_block_sizes(sweep.run, arm))
        if sizes and sizes[len(sizes) // 2] < 2 * concurrency:
            yield concurrency, sizes[len(sizes) // 2]


def _block_sizes(run: Run, arm: str) -> list[int]:
    """Rollouts of each block that an arm had in the last session, in their order."""
    return [block.rollouts for block in (run.cache.blocks if run.cache else ()) if block.arm == arm]


@dataclass(frozen=True)
class Criteria:
    """What is good enough."""

    slo: Mapping[str, float]  # objective -> milliseconds; empty: any speed is
    target: float = 0.9  # share of calls that have to meet all of them
    margin: float = 0.05  # by which the mean of the main score may be lower than at the smallest level


@dataclass(frozen=True)
class LevelVerdict:
    """One level by these terms. PASS: shown to hold; FAIL: shown not to; INCONCLUSIVE: neither."""

    concurrency: int
    share: Interval | None  # of good calls; None without objectives
    speed: str  # PASS | FAIL | INCONCLUSIVE
    quality: Decision | None  # against the smallest level; None of that one itself
    lost: int = 0  # rollouts that nothing is known of; with them a level is not shown to hold

    @property
    def verdict(self) -> str:
        verdicts = {self.speed, self.quality.verdict if self.quality else PASS, INCONCLUSIVE if self.lost else PASS}
        return FAIL if FAIL in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS


def judgements(sweep: Sweep, terms: Criteria) -> list[LevelVerdict]:
    """Of each level, by concurrency."""
    first = sweep.levels[0]
    return [_judged(sweep, level, None if level is first else first, terms) for level in sweep.levels]


def _judged(sweep: Sweep, level: SweepLevel, first: SweepLevel | None, terms: Criteria) -> LevelVerdict:
    share, speed = None, PASS
    if terms.slo:
        measured = good_shares(level.trials, terms.slo)
        share = scenarios_interval(
            {name: each.scores for name, each in measured.items()}, {name: each.cluster for name, each in measured.items()}
        )
        speed = judge(share.low, share.high, terms.target)
    quality = _quality(sweep, level, first, terms.margin) if first and sweep.score else None
    return LevelVerdict(level.concurrency, share, speed, quality, _lost(sweep, level))


def _quality(sweep: Sweep, level: SweepLevel, first: SweepLevel, margin: float) -> Decision:
    scale = sweep.scale
    new, base = (samples(each.trials, sweep.score, scale) for each in (level, first))
    decision = compare(new, base, margin, limits=score_limits(scale, new, base), higher_is_better=not scale.falling)
    why = "; ".join(dict.fromkeys(filter(None, (uncounted(sweep.score, scale, each.trials) for each in (level, first)))))
    return replace(decision, verdict=INCONCLUSIVE, reason=why) if why and decision.verdict == PASS else decision


def _lost(sweep: Sweep, level: SweepLevel) -> int:
    """Rollouts without the score; of a suite without scores, those that failed."""
    if not sweep.score:
        return sum(trial.status in LOST for trial in level.trials)
    measured = samples(level.trials, sweep.score, sweep.scale)
    return len(level.trials) - sum(len(each.scores) for each in measured.values())


@dataclass(frozen=True)
class SustainedRange:
    """The greatest level that is good enough lies from `shown` up to, but not at, `refuted`."""

    shown: int | None  # the greatest level that holds, and with it all that were measured below; None: not even the smallest
    refuted: int | None  # the smallest level above that is shown not to hold; None: none is
    undecided: tuple[int, ...] = ()  # levels between, of which neither is shown


def greatest(verdicts: Mapping[int, str]) -> SustainedRange:
    """Of levels and their verdicts. More in flight is never taken to be better for a call, so what holds above one that fails is chance."""
    shown = None
    for level in sorted(verdicts):
        if verdicts[level] == FAIL:
            return SustainedRange(shown, level, _between(verdicts, shown, level))
        if verdicts[level] == PASS and not _between(verdicts, shown, level):
            shown = level
    return SustainedRange(shown, None, _between(verdicts, shown, None))


def _between(verdicts: Mapping[int, str], low: int | None, high: int | None) -> tuple[int, ...]:
    return tuple(sorted(level for level in verdicts if (low is None or level > low) and (high is None or level < high)))


def verdicts(judged: Sequence[LevelVerdict]) -> dict[int, str]:
    """Concurrency -> verdict."""
    return {each.concurrency: each.verdict for each in judged}


MOST = 14  # sessions of a search: enough to tell 1 from 1,000
NEAR = 0.1  # levels that are no further apart than this share of the smaller one are near enough


def search(session: Callable[[int], Mapping[int, str]], low: int, high: int) -> SustainedRange:
    """`session` measures a level, beside the lowest one, and gives the verdicts of what it measured: PASS, FAIL or INCONCLUSIVE.

    A level that is not shown to hold counts as too much, so the search goes on below it. At most MOST sessions.
    """
    verdicts: dict[int, str] = {}
    level: int | None = min(2 * low, high)
    for number in count(1):
        if level is None or number > MOST:
            break
        verdicts |= {each: verdict for each, verdict in session(level).items() if each == level or each not in verdicts}
        level = next_level(verdicts, low, high)
    return greatest(verdicts)


def next_level(verdicts: Mapping[int, str], low: int, high: int) -> int | None:
    """The level to be measured next; None: what is known is enough, or nothing holds at all."""
    if verdicts[low] != PASS:
        return None
    passed = low
    for level in sorted(verdicts):
        if verdicts[level] != PASS:
            middle = (passed + level) // 2
            return middle if level - passed > max(1.0, passed * NEAR) else None
        passed = level
    return min(2 * passed, high) if passed < high else None
