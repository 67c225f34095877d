"""Simulates studies of `agentbench optimize` with the rollouts of a real session: search and confirmation are the command's own code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.verdicts.latency import ar1
from pytest_agentbench.gate.evidence import RunFacts, Trial
from pytest_agentbench.optimize.confirmation import BASE, CONFIRMED, NEW, ConfirmationTerms, confirm
from pytest_agentbench.optimize.plan import StudyPlan, confirmation_trials, split
from pytest_agentbench.optimize.ranking import ComparedSettings, RankingTerms
from pytest_agentbench.optimize.search import open_study, search, winner
from pytest_agentbench.optimize.space import ParameterSpec, SpaceSpec
from pytest_agentbench.records import SHARE, Json, RolloutKey
from pytest_agentbench.rollouts.pool.blocks import arrange
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.stats.power import spread
from pytest_agentbench.suites.arms import VariantOrigin

#: Scenario -> (tsq, milliseconds) of six rollouts, from a session of the banking suite on an embedded engine that errs.
ROLLOUTS: dict[str, list[tuple[float, float]]] = json.loads((Path(__file__).with_name("banking_rollouts.json")).read_text(encoding="utf-8"))

SETTINGS, CONCURRENCY, MARGIN = 20, 4, 0.05
PLANTED = 7  # the setting that differs, if one does
DRIFT, LIKENESS = 0.05, 0.9  # standard deviation of the load's logarithm, and its autocorrelation between rollouts that follow each other

TERMS = RankingTerms(("rollout.p50",), "tsq", SHARE)
JUDGED = ConfirmationTerms("banking", "rollout.p50", "tsq", SHARE, MARGIN)
SPACE = SpaceSpec(parameters={"agent.setting": ParameterSpec(values=[*range(SETTINGS)])})


@dataclass(frozen=True)
class Truth:
    """What is true of the planted setting. All others equal the default settings."""

    faster: float = 0.0  # by which share it is faster
    worse: float = 0.0  # by how much its mean score is lower

    def __str__(self) -> str:
        if not self.faster:
            return "all settings are equal"
        return f"one is {100 * self.faster:.0f} % faster, with {f'a score {self.worse:.2f} lower' if self.worse else 'equal quality'}"


@dataclass(frozen=True)
class StudyOutcome:
    """What a simulated study came to."""

    chosen: int | None  # the setting that the search ranked first; None if none ranked before the default
    is_better: bool  # whether the confirmation called it better
    rollouts: int  # rollouts of search and confirmation


def banking_plan(seed: int) -> StudyPlan:
    """Returns the plan that the command would make for this suite, if a run has shown the noise of its scores (`--run`)."""
    parts, held_out = split(dict.fromkeys(ROLLOUTS), seed)
    within = spread({scenario: [score for score, _ in each] for scenario, each in ROLLOUTS.items()}).within
    plan = StudyPlan(parts, held_out, SETTINGS, 1, CONCURRENCY, seed)
    return plan.with_confirmation(confirmation_trials(len(held_out), within, MARGIN, deterministic=False))


class SimulatedSessions:
    """Draws the rollouts of sessions in which some settings run beside the default ones."""

    def __init__(self, truth: Truth, seed: int) -> None:
        self._truth, self._random, self.rollouts = truth, np.random.default_rng(seed), 0

    def __call__(self, settings: Json, scenarios: Sequence[str], name: str, trials: int = 1) -> ComparedSettings:
        """Draws the rollouts of a session: each is a real one of its scenario, slower or faster by the load at its time."""
        del name
        planted = self._truth if settings["agent.setting"] == PLANTED else Truth()
        arms = {arm: VariantOrigin("", arm) for arm in (BASE, NEW)}
        keys = [RolloutKey("banking", each, arm, trial) for arm in arms for trial in range(1, trials + 1) for each in scenarios]
        order = [key for block in arrange(keys, arms, CONCURRENCY) for key in block.keys]
        self.rollouts += len(order)
        drawn = {BASE: list[Trial](), NEW: list[Trial]()}
        for trial, arm in self._drawn(order, planted):
            drawn[arm].append(trial)
        return ComparedSettings(drawn[BASE], drawn[NEW])

    def _drawn(self, order: Sequence[RolloutKey], planted: Truth) -> Iterator[tuple[Trial, str]]:
        """Yields the rollouts in the order of time, each with its arm."""
        load = np.exp(DRIFT * ar1(len(order), LIKENESS, self._random)).tolist()
        picks = self._random.integers(0, 6, len(order)).tolist()
        failing = self._random.random(len(order)).tolist()
        for place, key in enumerate(order):
            score, ms = ROLLOUTS[key.scenario][picks[place]]
            if key.variant == NEW:
                ms *= 1 - planted.faster
                score = 0.0 if failing[place] < planted.worse / MEAN else score
            content, scores = {"scenario": key.scenario}, {"tsq": score}
            trial = Trial("banking", key.group, key.scenario, key.trial, "ok", content, scores=scores, began_at=place)
            yield replace(trial, duration_ms=ms * load[place]), key.variant


MEAN = math.fsum(score for each in ROLLOUTS.values() for score, _ in each) / sum(map(len, ROLLOUTS.values()))


def simulate(truth: Truth, seed: int) -> StudyOutcome:
    """Simulates one study."""
    plan, sessions = banking_plan(seed), SimulatedSessions(truth, seed)
    study = open_study(SPACE)
    search(study, SPACE, TERMS, plan, sessions)
    best = winner(study)
    if best is None:
        return StudyOutcome(None, is_better=False, rollouts=sessions.rollouts)
    compared = sessions(best.settings, plan.held_out, "confirmation", plan.confirmation_trials)
    facts = RunFacts("simulated", planned=len(compared.base) + len(compared.new))
    found = confirm(compared, JUDGED, facts, ArmFacts())
    return StudyOutcome(best.settings["agent.setting"], found.verdict == CONFIRMED, sessions.rollouts)
