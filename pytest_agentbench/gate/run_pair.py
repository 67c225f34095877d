"""Compares the setups of two runs, selects their comparable latencies, and warns if their speeds are not comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.gate.baselines import read_evidence
from pytest_agentbench.gate.evidence import Evidence, Trial, latencies
from pytest_agentbench.gate.usable_numbers import version_difference
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.stopwatch import unusable_reason
from pytest_agentbench.records import Json
from pytest_agentbench.runs.provenance import MeasuringOptions, RunIdentity
from pytest_agentbench.runs.results import Changed
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.stats.latency import RolloutLatencies
from pytest_agentbench.suites.hashes import changes

#: Parts of an identity that have an entry for each group (suite, or `suite-variant`).
OF_SUITES = ("data", "prompts", "tools", "agent", "scoring")

MAX_HIT_RATIO_DIFFERENCE = 0.1  # difference of prefix cache hit ratios above which speeds are not comparable


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared: the contents of its run.json, and its rollouts."""

    facts: Run
    evidence: Evidence

    @property
    def identity(self) -> RunIdentity | None:
        """The setup that may influence the numbers of the run (code, backend, data, ...). None if the run was imported."""
        return self.facts.identity


def read(directory: Path) -> ComparedRun:
    """Reads a run. Raises ConfigError if the directory does not contain a finished run."""
    return ComparedRun(read_run(directory), read_evidence(directory))


def common(old: ComparedRun, new: ComparedRun) -> list[str]:
    """Returns the groups (suite, or `suite-variant`) that both runs have."""
    return [group for group in new.facts.suites if group in old.facts.suites]


def compared_parts(old: ComparedRun, new: ComparedRun) -> list[str]:
    """Returns the parts of the runs' identities that can be compared, such as `backend`. None if a run was imported.

    Parts about suites can be compared if the runs have a common suite.
    """
    if old.identity is None or new.identity is None:
        return []
    return _parts(old.identity, new.identity, common(old, new))


def _parts(old: RunIdentity, new: RunIdentity, groups: Sequence[str]) -> list[str]:
    return [part for part in new.hashes if part in old.hashes and (groups or part not in OF_SUITES)]


def setup_changes(old: ComparedRun, new: ComparedRun) -> Iterator[Changed]:
    """Yields the differences between the setups (identities) of two runs, as far as they are about common suites.

    Yields nothing if one of the runs has no identity.
    """
    if old.identity is not None and new.identity is not None:
        yield from identity_changes(old.identity, new.identity, common(old, new))


def identity_changes(old: RunIdentity, new: RunIdentity, groups: Sequence[str]) -> Iterator[Changed]:
    """Yields the differences between two identities, as far as they are about these groups (suite, or `suite-variant`)."""
    was, now = plain(old), plain(new)
    for part in _parts(old, new, groups):
        before, after = (_of_groups(each[part], groups) if part in OF_SUITES else each[part] for each in (was, now))
        if part == "options":
            before, after = ({**each, "suites": _of_groups(each["suites"], groups)} for each in (before, after))
        every = [Changed(part, *each) for each in changes(before, after)]
        differing = [each for each in every if (each.part, each.path) != ("backend", "hash")]
        # The hash of the backend is only worth showing if nothing else differs.
        yield from differing or every


def _of_groups(part: Json, groups: Sequence[str]) -> Json:
    return {group: part.get(group) for group in groups}


def shared_scenarios(old: ComparedRun, new: ComparedRun) -> set[tuple[str, str]]:
    """Returns (group, scenario) for the scenarios that both runs have with equal content."""
    before, after = (
        {(group, trial.scenario, _content(trial)) for group, trials in run.evidence.groups.items() for trial in trials}
        for run in (old, new)
    )
    return {(group, scenario) for group, scenario, _ in before & after}


def _content(trial: Trial) -> str:
    return str(trial.content.get("scenario", ""))


def latencies_of(run: ComparedRun, name: str, shared: set[tuple[str, str]]) -> list[RolloutLatencies]:
    """Returns the latencies in milliseconds of a run's rollouts, or of their calls, in the shared (group, scenario)."""
    return [
        timing._replace(scenario=f"{group}[{timing.scenario}]")
        for group, trials in run.evidence.groups.items()
        for timing in latencies(trials, name)
        if (group, timing.scenario) in shared
    ]


def speed_warnings(old: ComparedRun, new: ComparedRun, names: tuple[str, str] = ("the old run", "the new run")) -> Iterator[str]:
    """Yields a sentence for each reason why the speeds of two runs are not comparable. `names` are the runs' names in it."""
    for name_of_run, run in zip(names, (old, new), strict=True):
        yield from dict.fromkeys(
            f"in {name_of_run} {why}" for name in registry.gated() if (why := unusable_reason(run.facts.stopwatch, f"{name}.p50"))
        )
    if why := version_difference(old.evidence.facts, new.evidence.facts):
        yield why
    if (was := old.identity) and (now := new.identity):
        unknown = [name for name, each in zip(names, (was, now), strict=True) if each.hardware.gpus is None]
        if unknown:
            yield f"the hardware of {' and '.join(unknown)} is unknown"
        elif was.hardware != now.hardware:
            yield "the GPUs or the driver differ"
        if any(getattr(was.host, name) != getattr(now.host, name) for name in ("cpus", "cpu", "machine")):
            yield "the host differs"
        yield from _other_conditions(was.options, now.options)
    elif (before := old.facts.settings.concurrency) != (after := new.facts.settings.concurrency):
        yield f"the concurrency differs: {before} and {after} rollouts in flight"
    was_hit, now_hit = (run.facts.performance.number("prefix_cache_hit_ratio") for run in (old, new))
    if was_hit is not None and now_hit is not None and abs(was_hit - now_hit) > MAX_HIT_RATIO_DIFFERENCE:
        yield f"the prefix cache was not in the same state: hit ratio {was_hit:.2f} and {now_hit:.2f}"


def _other_conditions(was: MeasuringOptions, now: MeasuringOptions) -> Iterator[str]:
    for name, what in CONDITIONS.items():
        before, after = getattr(was, name), getattr(now, name)
        if before != after:
            yield f"{what}: {_option_text(before)} and {_option_text(after)}"


#: Options that affect speed -> text about a difference.
CONDITIONS = {
    "concurrency": "different numbers of rollouts in flight",
    "cache": "different policies for the prefix cache",
    "warm": "one of the stacks was kept, with warm caches",
}


def _option_text(value: Any) -> str:
    return "unknown" if value is None else {True: "warm", False: "cold"}.get(value, str(value)) if isinstance(value, bool) else str(value)
