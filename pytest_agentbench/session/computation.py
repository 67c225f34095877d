"""Computes a Run from the files of a run directory and the facts of its session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, Looks, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.gate.ab import Comparison, SuiteInArms
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import Scale
from pytest_agentbench.runs.arm_results import ArmFacts, ArmsCompared
from pytest_agentbench.runs.builder import Tallies, build_run
from pytest_agentbench.runs.contents import Run, SessionFacts
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.results import PlannedSuite
from pytest_agentbench.suites.models import Models, names


class MainScore(NamedTuple):
    """The first score of a suite."""

    name: str
    scale: Scale


@dataclass
class JournalContents:
    """The contents of a journal after one pass over it."""

    tallies: Tallies
    client: Client = field(default_factory=Client)  # of this session, as its backend's counters are
    sessions: Counter[int] = field(default_factory=Counter)
    models: Models = field(default_factory=Models)
    damaged: list[str] = field(default_factory=list)  # sentences on lines of the journal that are no records
    trials: list[Trial] = field(default_factory=list)  # for the gate; none without one


def read_rollouts(
    directory: Path, mains: Mapping[str, MainScore], performance: Performance, session: int, *, gated: bool = False
) -> JournalContents:
    """Reads the journal once, with one rollout in memory at a time. `mains` has the main score of each suite under each variant."""
    contents = JournalContents(Tallies(performance))
    for rollout in read_journal(directory, contents.damaged.append):
        if rollout.session == session:
            contents.client.add(rollout)
        if rollout.kind == "scenario":
            contents.sessions[rollout.session] += 1
            contents.models.add(rollout.all_calls)
            contents.tallies.add(rollout, *mains[rollout.key.group])
            if gated:
                contents.trials.append(trial_of(rollout))
    return contents


def serving(looks: Looks | None, directory: Path, calls: Sequence[Span], client: Client) -> ServingSummary | None:
    """Returns the metrics of the stack, and where they differ from what the tap saw; None if the stack has none."""
    if looks is None:
        return None
    stats = summary(tally(read_samples(directory, NAMES), windows.outer(calls)))
    return ServingSummary(**vars(stats), **vars(looks), disagreements=tuple(disagreements(stats.server, client)))


def compute(facts: SessionFacts, suites: Sequence[PlannedSuite], journal: JournalContents) -> Run:
    """Returns the run of a session that is over, without the comparison of its arms and the verdict of its gate.

    What the journal tells takes the place of what `facts` has of it: rollouts of each session, damage and models.
    """
    sessions = tuple(replace(each, rollouts=journal.sessions[each.session]) for each in facts.sessions)
    used = journal.models.summary()
    backend = replace(facts.backend, served_model=names(used) or facts.backend.served_model, models=used)
    known = replace(facts, sessions=sessions, damaged=tuple(journal.damaged), backend=backend)
    return build_run(known, suites, journal.tallies)


def compare_arms(run: Run, directory: Path, suites: Mapping[str, SuiteInArms], arms: ArmFacts) -> ArmsCompared:
    """Returns the paired comparison of an A/B session."""
    comparison = Comparison(run.settings.ab, suites, run.settings.slo, with_each_other=run.settings.ab_pairs)
    for rollout in read_journal(directory, lambda _: None):  # `read_rollouts` has told of damage
        comparison.add(rollout)
    return comparison.summary(arms, run.cache.blocks if run.cache else (), run.stopwatch)
