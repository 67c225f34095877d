"""What a session whose arms are concurrencies measured at each of them, without the warm-up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_profile import events_of
from pytest_agentbench.exports.nat_throughput import Throughput
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.values import LOST
from pytest_agentbench.metrics.turns import Work
from pytest_agentbench.records import Rollout, RolloutKey, Scale
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.suites.arms import arm_of, concurrencies
from pytest_agentbench.tables import origins, places
from pytest_agentbench.tables.places import RolloutPlace


@dataclass
class Level:
    """The rollouts of one concurrency, but for those of its first block."""

    concurrency: int  # rollouts in flight
    work: Work = field(default_factory=Work)
    trials: list[Trial] = field(default_factory=list)
    throughput: Throughput = field(default_factory=Throughput)

    def add(self, place: RolloutPlace) -> None:
        self.work.add(place.rollout)
        self.trials.append(trial_of(place.rollout))
        self.throughput.add(len(self.trials) - 1, sorted(events_of(place), key=lambda event: event.at))

    @property
    def rollouts(self) -> int:
        return self.work.statuses.total()

    def milliseconds(self, metric: str) -> list[float]:
        """A latency of each call that has it."""
        return [value for trial in self.trials for call in trial.calls if (value := call.ms.get(metric)) is not None]


@dataclass(frozen=True)
class Sweep:
    """A run whose arms are concurrencies."""

    run: Run
    suite: str
    score: str  # the suite's main one
    scale: Scale  # of that score
    levels: tuple[Level, ...]  # by concurrency
    warm_up: Mapping[int, int]  # concurrency -> rollouts that were left out, being of its first block

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of any level."""
        return any(trial.status not in LOST for level in self.levels for trial in level.trials)


def read_sweep(directory: Path) -> Sweep:
    """Raises ConfigError for a run whose arms are no concurrencies, and for one of several suites."""
    run = read_run(directory)
    own = concurrencies(run.ab.arms) if run.ab else {}
    if not own:
        raise ConfigError(f"{directory}: its arms are no concurrencies; `agentbench sweep` makes such a run")
    [origin] = origins([directory])
    begun: defaultdict[str, list[tuple[int, RolloutKey]]] = defaultdict(list)
    for place in places(origin):
        if _counts(place.rollout, own):
            begun[arm_of(place.rollout.variant)].append((place.rollout.started_ns, place.rollout.key))
    dropped = {arm: {key for _, key in sorted(keys)[: _first_block(run, arm)]} for arm, keys in begun.items()}
    levels = {arm: Level(count) for arm, count in own.items()}
    suites = set()
    for place in places(origin):
        key = place.rollout.key
        if _counts(place.rollout, own) and key not in dropped[arm_of(key.variant)]:
            levels[arm_of(key.variant)].add(place)
            suites.add(key.suite)
    for level in levels.values():
        level.throughput.wall_s = level.work.turns.busy_s
    if len(suites) > 1:
        raise ConfigError(f"{directory}: a sweep is of one suite, and this run has {', '.join(sorted(suites))}")
    result = next(iter(run.suites.values()))
    return Sweep(
        run=run,
        suite=next(iter(suites), ""),
        score=result.main_score or "",
        scale=result.scales[result.main_score],
        levels=tuple(sorted(levels.values(), key=lambda level: level.concurrency)),
        warm_up={own[arm]: len(keys) for arm, keys in dropped.items()},
    )


def _counts(rollout: Rollout, arms: Mapping[str, int]) -> bool:
    return rollout.kind == "scenario" and arm_of(rollout.variant) in arms


def _first_block(run: Run, arm: str) -> int:
    """Rollouts of an arm's first block in the last session; none where it has only one."""
    sizes = _block_sizes(run, arm)
    return sizes[0] if len(sizes) > 1 else 0


def short_blocks(sweep: Sweep) -> Iterator[str]:
    """A sentence for each level that most of the time had fewer rollouts in flight than it is called after."""
    for arm, concurrency in sorted(concurrencies(sweep.run.ab.arms if sweep.run.ab else ()).items(), key=itemgetter(1)):
        sizes = sorted(_block_sizes(sweep.run, arm))
        if sizes and sizes[len(sizes) // 2] < 2 * concurrency:
            yield (
                f"concurrency {concurrency} ran in blocks of {sizes[len(sizes) // 2]} rollouts, so for much of their time fewer "
                "were in flight; a suite of more scenarios makes longer ones"
            )


def _block_sizes(run: Run, arm: str) -> list[int]:
    """Rollouts of each block that an arm had in the last session, in their order."""
    return [block.rollouts for block in (run.cache.blocks if run.cache else ()) if block.arm == arm]
