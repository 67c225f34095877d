"""What a session whose arms are concurrencies measured at each of them, without the warm-up, and the knee of throughput against latency."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_benchmark import add_events
from pytest_agentbench.exports.nat_profiler import events_of
from pytest_agentbench.gate.ab import mean_of
from pytest_agentbench.gate.evidence import LOST, Trial, samples, trial_of
from pytest_agentbench.metrics.columns import Origin
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.frame_reader import FrameReader
from pytest_agentbench.metrics.other_tools.nat import Throughput
from pytest_agentbench.records import Rollout, RolloutKey, Scale, arm_of
from pytest_agentbench.runs.run_file import Run, read_run
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
