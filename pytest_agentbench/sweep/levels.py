"""Reads the results of a sweep (a run at several concurrency levels), finds the knee and searches the capacity.

The knee is the best trade-off between throughput and latency. The capacity is the greatest concurrency whose calls meet their objectives
and whose quality is not worse than at the lowest one. It is searched by doubling and halving.
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
from pytest_agentbench.exports.nat_events import events_of
from pytest_agentbench.gate.ab import mean_of
from pytest_agentbench.gate.evidence import LOST, Trial, good_shares, samples, score_limits, trial_of
from pytest_agentbench.gate.usable_numbers import uncounted
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
    """Throughput and latency of a backend at one concurrency."""

    concurrency: int
    throughput: float  # output tokens per second
    latency_ms: float  # median latency of a call, milliseconds


def power(operation: Operation) -> float:
    """Returns throughput / latency, the power of an operating point (Giessler et al. 1978)."""
    return operation.throughput / operation.latency_ms


def knee(operations: Sequence[Operation]) -> Operation | None:
    """Returns the operating point with the greatest power, or the one with the lowest concurrency among equals.

    Returns None for fewer than three points, which have no knee. At the knee, the line from the origin touches the curve of latency over
    throughput. Beyond it, more load costs more than it gains (Kleinrock, "Power and deterministic rules of thumb for probabilistic
    problems in computer communications", ICC 1979).
    """
    known = [each for each in sorted(operations) if each.latency_ms > 0]
    return max(known, key=lambda each: (power(each), -each.concurrency)) if len(known) > 2 else None


@dataclass(frozen=True)
class SweepLevel:
    """The measured rollouts of a sweep at one concurrency. Its first block (a stretch of the session in
    which only this level runs) is a warm-up and left out.
    """

    concurrency: int  # rollouts in flight
    part: Slice
    trials: Sequence[Trial]
    throughput: Throughput

    @property
    def statuses(self) -> Counter[str]:
        """Status -> number of rollouts."""
        return Counter(self.part.rollouts["status"].tolist())

    @property
    def failed_calls(self) -> int:
        return len(self.part.calls) - len(self.part.successful_calls)

    def latency(self, metric: str, q: int) -> float | None:
        """Returns a percentile of a metric of successful calls in milliseconds, even if there are too few calls for it."""
        return percentile(self.part.successful_calls[f"{metric}_ms"], q)


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep: a run whose arms (the settings under comparison) are concurrency levels."""

    run: Run
    suite: str
    score: str  # main score of the suite
    scale: Scale  # scale of that score
    levels: tuple[SweepLevel, ...]  # sorted by concurrency
    warm_up: Mapping[int, int]  # concurrency -> number of rollouts in its first block, which are left out

    @property
    def is_measured(self) -> bool:
        """Whether any level has a measured rollout."""
        return any(trial.status not in LOST for level in self.levels for trial in level.trials)

    @property
    def operations(self) -> list[Operation]:
        """The operating points of the levels with known throughput and latency."""
        measured = [(each, each.latency("e2e", 50), each.part.value("output_tokens_per_s")) for each in self.levels]
        return [Operation(level.concurrency, rate, latency) for level, latency, rate in measured if latency and rate]

    def quality(self, level: SweepLevel) -> float | None:
        """Returns the mean of the main score at a level."""
        return mean_of(samples(level.trials, self.score, self.scale))


def read_sweep(directory: Path) -> Sweep:
    """Reads a sweep. Raises ConfigError if the arms of the run are not concurrency levels, or if it has several suites."""
    run = read_run(directory)
    own = concurrencies(run.ab.arms) if run.ab else {}
    if not own:
        raise ConfigError(f"the arms of {directory} are not concurrency levels; make such a run with `agentbench sweep`")
    [origin] = origins([directory])
    reader, trials = FrameReader(origin, events=False), dict[str, list[Trial]]()
    throughputs = defaultdict[str, Throughput](Throughput)
    dropped = _first_blocks(run, origin, own)
    for place in places(origin):
        key = place.rollout.key
        if _counts(place.rollout, own) and key not in dropped[arm_of(key.variant)]:
            reader.add_place(place)
            known = trials.setdefault(arm_of(key.variant), [])
            add_events(throughputs[arm_of(key.variant)], len(known), events_of(place))
            known.append(trial_of(place.rollout))
    part = reader.frame().scenarios()
    levels = [SweepLevel(count, part.where(arm=arm), trials.get(arm, []), throughputs[arm]) for arm, count in own.items()]
    for level in levels:
        level.throughput.wall_s = level.part.seconds
    suites = {trial.suite for level in levels for trial in level.trials}
    if len(suites) > 1:
        raise ConfigError(
            f"a sweep has only one suite, but {directory} has {', '.join(sorted(suites))}; run `agentbench sweep` with one of them"
        )
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
    """Returns arm -> the rollouts of its first block (a stretch in which only this arm runs), which is the warm-up of the level."""
    begun: defaultdict[str, list[tuple[int, RolloutKey]]] = defaultdict(list)
    for place in places(origin):
        if _counts(place.rollout, arms):
            begun[arm_of(place.rollout.variant)].append((place.rollout.started_ns, place.rollout.key))
    return {arm: {key for _, key in sorted(keys)[: _first_block(run, arm)]} for arm, keys in begun.items()}


def _counts(rollout: Rollout, arms: Mapping[str, int]) -> bool:
    return rollout.kind == "scenario" and arm_of(rollout.variant) in arms


def _first_block(run: Run, arm: str) -> int:
    """Returns the number of rollouts in an arm's first block (a stretch in which only this arm runs) of the last session.

    Returns 0 if that block is its only one, because then no rollouts are left out as warm-up.
    """
    sizes = _block_sizes(run, arm)
    return sizes[0] if len(sizes) > 1 else 0


def short_blocks(sweep: Sweep) -> Iterator[tuple[int, int]]:
    """Yields (concurrency, rollouts in the median block) of levels whose blocks were mostly too short to reach the concurrency for long.

    A block is a stretch of the session in which only one level runs.
    """
    for arm, concurrency in sorted(concurrencies(sweep.run.ab.arms if sweep.run.ab else ()).items(), key=itemgetter(1)):
        sizes = sorted(_block_sizes(sweep.run, arm))
        if sizes and sizes[len(sizes) // 2] < 2 * concurrency:
            yield concurrency, sizes[len(sizes) // 2]


def _block_sizes(run: Run, arm: str) -> list[int]:
    """Returns the number of rollouts in each block of an arm (a stretch in which only this arm runs) in the last session, in order."""
    return [block.rollouts for block in (run.cache.blocks if run.cache else ()) if block.arm == arm]


@dataclass(frozen=True)
class Criteria:
    """The conditions that a concurrency level must meet to count as good enough."""

    slo: Mapping[str, float]  # objective -> milliseconds; empty: any speed is good enough
    target: float = 0.9  # share of calls that must meet all objectives
    margin: float = 0.05  # accepted loss of the mean main score against the smallest level


@dataclass(frozen=True)
class LevelVerdict:
    """The verdict on one level. PASS: it meets the criteria; FAIL: it does not; INCONCLUSIVE: neither is shown."""

    concurrency: int
    share: Interval | None  # share of calls that meet all objectives; None without objectives
    speed: str  # PASS | FAIL | INCONCLUSIVE
    quality: Decision | None  # comparison with the smallest level; None for that level itself
    lost: int = 0  # number of rollouts without a measurement; with any, the level cannot PASS

    @property
    def verdict(self) -> str:
        """FAIL if speed or quality fails. INCONCLUSIVE if one of them is inconclusive or rollouts were lost. Otherwise PASS."""
        verdicts = {self.speed, self.quality.verdict if self.quality else PASS, INCONCLUSIVE if self.lost else PASS}
        return FAIL if FAIL in verdicts else INCONCLUSIVE if INCONCLUSIVE in verdicts else PASS


def judgements(sweep: Sweep, terms: Criteria) -> list[LevelVerdict]:
    """Returns the verdict on each level by the criteria `terms`, sorted by concurrency."""
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
    """Returns the number of rollouts without the main score or, for a suite without scores, of failed rollouts."""
    if not sweep.score:
        return sum(trial.status in LOST for trial in level.trials)
    measured = samples(level.trials, sweep.score, sweep.scale)
    return len(level.trials) - sum(len(each.scores) for each in measured.values())


@dataclass(frozen=True)
class SustainedRange:
    """The range in which the capacity (the greatest concurrency that is good enough) lies: from `shown` to below `refuted`."""

    shown: int | None  # greatest level that passes, as do all measured ones below; None: not even the smallest
    refuted: int | None  # smallest failed level; None: no level failed
    undecided: tuple[int, ...] = ()  # levels in between that are INCONCLUSIVE, or above an INCONCLUSIVE one


def greatest(verdicts: Mapping[int, str]) -> SustainedRange:
    """Returns the range of the capacity, given level -> verdict. A PASS above a FAIL is ignored, because more load does not help."""
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
    """Returns concurrency -> the verdict on this level (PASS, FAIL or INCONCLUSIVE)."""
    return {each.concurrency: each.verdict for each in judged}


MOST = 14  # limit on the sessions of a search, enough for the range from 1 to 1,000
NEAR = 0.1  # the search ends if two levels differ by at most this share of the smaller one


def search(session: Callable[[int], Mapping[int, str]], low: int, high: int) -> SustainedRange:
    """Searches the capacity between `low` and `high` in at most MOST sessions. Returns the range in which it lies.

    `session` measures a level and the lowest one, and returns the verdict on each. A level that does not PASS counts as too high, so the
    search continues below it.
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
    """Returns the level to measure next, or None if the search is finished or even the lowest level does not PASS."""
    if verdicts[low] != PASS:
        return None
    passed = low
    for level in sorted(verdicts):
        if verdicts[level] != PASS:
            middle = (passed + level) // 2
            return middle if level - passed > max(1.0, passed * NEAR) else None
        passed = level
    return min(2 * passed, high) if passed < high else None
