"""Two runs side by side: what differs in their setup, in their scores and in their speed, and where a comparison makes no sense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_agentbench.gate.baselines import read_evidence
from pytest_agentbench.gate.comparability import uncounted
from pytest_agentbench.gate.evidence import Evidence, Trial
from pytest_agentbench.gate.values import latencies, samples, score_limits
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.stopwatch import doubt
from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.provenance import MeasuringOptions, RunIdentity
from pytest_agentbench.runs.results import Mean
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.stats.decisions import INCONCLUSIVE, Decision
from pytest_agentbench.stats.latency import RolloutLatencies, compare_latency
from pytest_agentbench.stats.paired import ROUNDING, compare, pair
from pytest_agentbench.suites.hashes import changes

#: Parts of an identity that hold something for each suite under each variant.
OF_SUITES = ("data", "prompts", "tools", "agent", "scoring")

MOST = 5  # scenarios that are shown of each score
APART = 0.1  # hit ratios of the prefix cache that differ by more are no equal conditions


@dataclass(frozen=True)
class ComparedRun:
    """A run, as it is compared."""

    facts: Run
    evidence: Evidence

    @property
    def identity(self) -> RunIdentity | None:
        """None of a run that was imported."""
        return self.facts.identity


@dataclass(frozen=True)
class Changed:
    """One thing of the setup."""

    part: str  # one of an identity's
    path: str
    old: Any  # as JSON has it; None: unset, or unknown
    new: Any


@dataclass(frozen=True)
class ScenarioChange:
    """A scenario whose score changed."""

    scenario: str
    old: float  # mean of its trials
    new: float


@dataclass(frozen=True)
class ScoreDiff:
    """A score of a suite under a variant."""

    group: str
    score: str
    old: Mean | None
    new: Mean | None
    decision: Decision  # of new - old, on the scenarios that both runs have
    moved: tuple[ScenarioChange, ...]  # most first


@dataclass(frozen=True)
class MedianLatency:
    """The median of a latency."""

    name: str  # of a metric
    old: float | None  # milliseconds, of all calls or rollouts of the run
    new: float | None
    decision: Decision  # of new / old, on the scenarios that both runs have
    doubtful: bool = False  # neither faster nor slower is said of it


def read(directory: Path) -> ComparedRun:
    """Raises ConfigError for what is no finished run."""
    return ComparedRun(read_run(directory), read_evidence(directory))


def common(old: ComparedRun, new: ComparedRun) -> list[str]:
    """Suites, each under a variant, that both runs have."""
    return [group for group in new.facts.suites if group in old.facts.suites]


def compared_parts(old: ComparedRun, new: ComparedRun) -> list[str]:
    """Parts of the identities that say something of both runs: those of suites do where both have one; none without an identity."""
    if old.identity is None or new.identity is None:
        return []
    has_common = bool(common(old, new))
    return [part for part in new.identity.hashes if part in old.identity.hashes and (has_common or part not in OF_SUITES)]


def setup_changes(old: ComparedRun, new: ComparedRun) -> Iterator[Changed]:
    """What is not the same in the identities of two runs, of suites that both have; nothing where one run has no identity."""
    if old.identity is None or new.identity is None:
        return
    was, now, groups = plain(old.identity), plain(new.identity), common(old, new)
    for part in compared_parts(old, new):
        before, after = (_of_groups(each[part], groups) if part in OF_SUITES else each[part] for each in (was, now))
        if part == "options":
            before, after = ({**each, "suites": _of_groups(each["suites"], groups)} for each in (before, after))
        every = [Changed(part, *each) for each in changes(before, after)]
        told = [each for each in every if (each.part, each.path) != ("backend", "hash")]  # it says less than what it is the hash of
        yield from told or every


def _of_groups(part: Json, groups: Sequence[str]) -> Json:
    return {group: part.get(group) for group in groups}


def score_changes(old: ComparedRun, new: ComparedRun) -> Iterator[ScoreDiff]:
    """The scores that both runs have, paired by scenarios with equal content."""
    for group in common(old, new):
        means, before = (run.facts.suites[group].scores for run in (new, old))
        for score in (name for name in means if name in before):
            scale = new.evidence.scale(group, score)
            base, now = (samples(run.evidence.groups.get(group, ()), score, scale) for run in (old, new))
            decision = compare(now, base, 0.0, limits=score_limits(scale, base, now), higher_is_better=not scale.falling)
            if why := _why_open(old, new, group, score):
                decision = replace(decision, verdict=INCONCLUSIVE, reason=why)
            pairs, _ = pair(now, base)
            moved = [ScenarioChange(name, each.base.mean, each.new.mean) for name, each in pairs.items() if abs(each.difference) > ROUNDING]
            most = sorted(moved, key=lambda each: (-abs(each.new - each.old), each.scenario))[:MOST]
            yield ScoreDiff(group, score, before[score].mean, means[score].mean, decision, tuple(most))


def _why_open(old: ComparedRun, new: ComparedRun, group: str, score: str) -> str:
    """Returns why a score of two runs is neither better nor worse, whatever its means; empty if nothing speaks against it."""
    scales = [run.evidence.scale(group, score) for run in (old, new)]
    if not scales[0].is_comparable(scales[1]):
        return f"on different scales: {scales[0].text}; now {scales[1].text}"
    found = (uncounted(score, scales[0], run.evidence.groups.get(group, ())) for run in (old, new))
    return "; ".join(f"{name} {why}" for name, why in zip(("in the old run", "in the new run"), found, strict=True) if why)


def speed_changes(old: ComparedRun, new: ComparedRun) -> Iterator[MedianLatency]:
    """Medians of latencies, paired by scenarios with equal content; all are doubtful where anything makes the speeds of two runs so."""
    shared = shared_scenarios(old, new)
    doubtful = any(True for _ in doubts(old, new))
    for name in registry.gated():
        base, now = (latencies_of(run, name, shared) for run in (old, new))
        before, after = (spread.p50 if (spread := run.facts.performance.latency(name)) else None for run in (old, new))
        yield MedianLatency(name, before, after, compare_latency(now, base, 50, 0.0), doubtful)


def shared_scenarios(old: ComparedRun, new: ComparedRun) -> set[tuple[str, str]]:
    """(suite under a variant, scenario) of all that both runs have with equal content."""
    before, after = (
        {(group, trial.scenario, _content(trial)) for group, trials in run.evidence.groups.items() for trial in trials}
        for run in (old, new)
    )
    return {(group, scenario) for group, scenario, _ in before & after}


def _content(trial: Trial) -> str:
    return str(trial.content.get("scenario", ""))


def latencies_of(run: ComparedRun, name: str, shared: set[tuple[str, str]]) -> list[RolloutLatencies]:
    """Milliseconds of a run's rollouts, or of their calls, in those of (suite under a variant, scenario)."""
    return [
        timing._replace(scenario=f"{group}[{timing.scenario}]")
        for group, trials in run.evidence.groups.items()
        for timing in latencies(trials, name)
        if (group, timing.scenario) in shared
    ]


def doubts(old: ComparedRun, new: ComparedRun, names: tuple[str, str] = ("the old run", "the new run")) -> Iterator[str]:
    """A sentence for each reason why the speeds of two runs, which have names in it, say little about each other."""
    for name_of_run, run in zip(names, (old, new), strict=True):
        yield from dict.fromkeys(
            f"in {name_of_run} {why}" for name in registry.gated() if (why := doubt(run.facts.stopwatch, f"{name}.p50"))
        )
    if (was := old.identity) and (now := new.identity):
        unknown = [name for name, each in zip(names, (was, now), strict=True) if each.hardware.gpus is None]
        if unknown:
            yield f"nobody knows what hardware served {' and '.join(unknown)}"
        elif was.hardware != now.hardware:
            yield "other GPUs, or another driver"
        if any(getattr(was.host, name) != getattr(now.host, name) for name in ("cpus", "cpu", "machine")):
            yield "another host"
        yield from _other_conditions(was.options, now.options)
    elif (before := old.facts.settings.concurrency) != (after := new.facts.settings.concurrency):
        yield f"another concurrency: {before} and {after} rollouts in flight"
    was_hit, now_hit = (run.facts.performance.number("prefix_cache_hit_ratio") for run in (old, new))
    if was_hit is not None and now_hit is not None and abs(was_hit - now_hit) > APART:
        yield f"the prefix cache was not in the same state: hit ratio {was_hit:.2f} and {now_hit:.2f}"


def _other_conditions(was: MeasuringOptions, now: MeasuringOptions) -> Iterator[str]:
    for name, what in CONDITIONS.items():
        before, after = getattr(was, name), getattr(now, name)
        if before != after:
            yield f"{what}: {_word(before)} and {_word(after)}"


#: Options that speeds depend on.
CONDITIONS = {
    "concurrency": "another number of rollouts in flight",
    "cache": "another policy for the prefix cache",
    "warm": "one of the stacks was kept, with warm caches",
}


def _word(value: Any) -> str:
    return "unknown" if value is None else {True: "warm", False: "cold"}.get(value, str(value)) if isinstance(value, bool) else str(value)
