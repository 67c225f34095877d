"""The plan of a study: which scenarios the search sees, which are kept for the confirmation, and how many trials that takes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.pool.blocks import arrange
from pytest_agentbench.stats.latency import FEWEST_PAIRS, fewest_values
from pytest_agentbench.stats.power import Design
from pytest_agentbench.suites.arms import VariantOrigin

PARTS = 3  # parts of the search's scenarios, after each of which Optuna may prune a trial
FEWEST_SCENARIOS = 12  # fewest scenarios of a suite that can be split
POWER = 0.9  # probability that quality which has not changed passes
CONFIRMATION_PAIRS = 15  # fewest pairs of blocks that a plan has, so that the interval of a ratio is narrow enough to show something
MOST_CONFIRMATION_TRIALS = 50  # trials of each scenario in a confirmation at most


@dataclass(frozen=True)
class StudyPlan:
    """The work of a study: the scenarios of the search in parts, and those of the confirmation with their trials."""

    parts: tuple[tuple[str, ...], ...]  # scenarios of the search; a trial runs one part after the other, until it is pruned
    held_out: tuple[str, ...]  # scenarios of the confirmation, which the search does not see
    settings: int  # number of settings that the search tries
    confirmation_trials: int  # trials of each scenario in the confirmation
    concurrency: int  # rollouts in flight
    seed: int  # of the split, and of Optuna's samplers

    @property
    def confirmation_pairs(self) -> int:
        """The number of pairs of blocks in the confirmation, each of which is one observation of speed."""
        arms = {name: VariantOrigin("", name) for name in ("base", "new")}
        trials = range(1, self.confirmation_trials + 1)
        keys = [RolloutKey("", scenario, arm, trial) for arm in arms for trial in trials for scenario in self.held_out]
        return len(arrange(keys, arms, self.concurrency)) // len(arms)

    @property
    def rollouts(self) -> tuple[int, int]:
        """The number of rollouts of the search, if nothing is pruned, and of the confirmation; both arms together."""
        return 2 * self.settings * sum(map(len, self.parts)), 2 * len(self.held_out) * self.confirmation_trials

    def with_confirmation(self, trials: int | None) -> StudyPlan:
        """Returns the plan with at least so many trials in the confirmation, and enough pairs of blocks to compare speed.

        With None, which means that no number is enough for quality, it is the most that a study runs.
        """
        counts = range(trials or MOST_CONFIRMATION_TRIALS, MOST_CONFIRMATION_TRIALS + 1)
        plans = [replace(self, confirmation_trials=count) for count in counts]
        return next((plan for plan in plans if plan.confirmation_pairs >= CONFIRMATION_PAIRS), plans[-1])


def split(clusters: Mapping[str, str | None], seed: int) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Splits scenarios into the parts of the search and those of the confirmation, at random and half and half.

    `clusters` maps each scenario to its cluster, or to None. A cluster is not divided between search and confirmation.
    """
    groups: dict[str, list[str]] = {}
    for scenario, cluster in clusters.items():
        groups.setdefault(f"cluster {cluster}" if cluster else f"scenario {scenario}", []).append(scenario)
    shuffled = [*groups.values()]
    random.Random(seed).shuffle(shuffled)
    seen: list[str] = []
    held_out: list[str] = []
    for group in shuffled:
        (seen if len(seen) < len(held_out) else held_out).extend(group)
    return tuple(tuple(seen[place::PARTS]) for place in range(PARTS)), tuple(held_out)


def confirmation_trials(scenarios: int, within: float, margin: float, *, deterministic: bool) -> int | None:
    """Returns the fewest trials with which unchanged quality passes `margin` with probability POWER. None if too many are needed.

    Args:
        scenarios: Scenarios of the confirmation.
        within: Variance of one trial around its scenario's mean, for a score from 0 to 1.
        margin: Accepted loss, as a share of the score's range.
        deterministic: Whether the suite declares that its trials never differ.
    """
    fewest = -(-fewest_values(50) // scenarios)
    if deterministic:
        return fewest
    design = Design(scenarios, fewest, within)
    counts = range(fewest, MOST_CONFIRMATION_TRIALS + 1)
    return next((count for count in counts if replace(design, trials=count).smallest_margin(POWER) <= margin), None)


def obstacles(plan: StudyPlan, needed: int | None, margin: float) -> Sequence[str]:
    """Returns the reasons why a study cannot confirm any settings, as far as they are known before it starts."""
    found = []
    if needed is None or needed > plan.confirmation_trials:
        remedy = f"{needed} trials are needed" if needed else "more scenarios or a larger --margin are needed"
        found.append(
            f"--confirmation-trials={plan.confirmation_trials} on {len(plan.held_out)} scenarios does not pass a margin of {margin:g}, "
            f"even if quality is unchanged; {remedy}"
        )
    if plan.confirmation_pairs < FEWEST_PAIRS:
        found.append(
            f"the confirmation has {plan.confirmation_pairs} pairs of blocks, but {FEWEST_PAIRS} are needed to compare speed; "
            "use a lower --concurrency, or a suite with more scenarios"
        )
    return found
