"""Computes a Run from the files of a run directory and the facts of its session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, Looks, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.gate import ab
from pytest_agentbench.gate.ab import SuiteInArms
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.metrics.timeline import Span
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.runs.arm_results import ArmFacts, ArmsCompared
from pytest_agentbench.runs.builder import RunReader, build_run
from pytest_agentbench.runs.contents import Run, SessionFacts
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.results import PlannedSuite
from pytest_agentbench.suites.models import models_of, names


class MainScore(NamedTuple):
    """The first score of a suite."""

    name: str
    scale: Scale


@dataclass
class JournalContents:
    """The contents of a journal after one pass over it."""

    read: RunReader = field(default_factory=RunReader)
    client: Client = field(default_factory=Client)  # of this session, as its backend's counters are
    damaged: list[str] = field(default_factory=list)  # sentences on lines of the journal that are no records
    trials: list[Trial] = field(default_factory=list)  # for a gate and a comparison of arms; none without these


def read_rollouts(
    directory: Path,
    mains: Mapping[str, MainScore],
    session: int,
    *,
    with_trials: bool = False,
    also: Callable[[Rollout], None] = lambda _: None,
) -> JournalContents:
    """Reads the journal once, with one rollout in memory at a time.

    Args:
        directory: The run's directory.
        mains: The main score of each suite under each variant.
        session: The session that ends; its calls are compared with the counters of the backend.
        with_trials: Whether a gate or a comparison of arms needs the trials.
        also: Is given each rollout of a scenario as well.
    """
    contents = JournalContents()
    for rollout in read_journal(directory, contents.damaged.append):
        if rollout.session == session:
            contents.client.add(rollout)
        if rollout.kind == "scenario":
            contents.read.add(rollout, *mains[rollout.key.group])
            also(rollout)
            if with_trials:
                contents.trials.append(trial_of(rollout))
    return contents


def serving(looks: Looks | None, directory: Path, calls: Sequence[Span], client: Client) -> ServingSummary | None:
    """Returns the metrics of the stack, and where they differ from what the tap saw; None if the stack has none."""
    if looks is None:
        return None
    stats = summary(tally(read_samples(directory, NAMES), timeline.outer(calls)))
    return ServingSummary(**vars(stats), **vars(looks), disagreements=tuple(disagreements(stats.server, client)))


def compute(facts: SessionFacts, suites: Sequence[PlannedSuite], journal: JournalContents) -> Run:
    """Returns the run of a session that is over, without the comparison of its arms and the verdict of its gate.

    What the journal tells takes the place of what `facts` has of it: rollouts of each session, damage and models.
    """
    part = journal.read.frame.scenarios()
    counts = Counter(part.rollouts["session"].tolist())
    sessions = tuple(replace(each, rollouts=counts[each.session]) for each in facts.sessions)
    used = models_of(part.calls["model"], part.calls["answered_by"])
    backend = replace(facts.backend, served_model=names(used) or facts.backend.served_model, models=used)
    known = replace(facts, sessions=sessions, damaged=tuple(journal.damaged), backend=backend)
    return build_run(known, suites, journal.read)


def compare_arms(run: Run, journal: JournalContents, suites: Mapping[str, SuiteInArms], facts: ArmFacts) -> ArmsCompared:
    """Returns the paired comparison of an A/B session."""
    settings, blocks = run.settings, run.cache.blocks if run.cache else ()
    part = journal.read.frame.scenarios(Terms(objectives_of(settings.slo)))
    return ab.compare_arms(settings.ab, suites, journal.trials, part, facts, blocks, run.stopwatch, with_each_other=settings.ab_pairs)
