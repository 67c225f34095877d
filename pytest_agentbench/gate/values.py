"""What a rule looks at, from the trials of a run: scores, passes, shares of good calls, latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_agentbench.gate.evidence import Trial
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.terms import GOOD, UNKNOWN, verdicts_of
from pytest_agentbench.records import Scale
from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.stats.intervals import Limits
from pytest_agentbench.stats.latency import RolloutLatencies, latency_limit
from pytest_agentbench.stats.paired import ScenarioSample
from pytest_agentbench.stats.pass_rates import Bar
from pytest_agentbench.stats.quantiles import percentile

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Counts

SHORTEST_MS = 0.001  # a latency below a microsecond counts as one: its logarithm has to exist
LOST = ("infra_error", "cancelled")  # statuses of rollouts that would have had a score


def samples(trials: Iterable[Trial], score: str, scale: Scale) -> dict[str, ScenarioSample]:
    """Scenario -> what was measured of it. An agent's error counts as the worst value of the scale, and is left out if there is none."""

    def measured(trial: Trial) -> float | None:
        return scale.worst if trial.status == "agent_error" else trial.scores.get(score)

    return _samples((trial, measured(trial)) for trial in trials)


def score_limits(scale: Scale, *measured: Mapping[str, ScenarioSample]) -> Limits | None:
    """Returns the least and the greatest value of a scale; None unless both are known and hold for what was measured."""
    values = (value for found in measured for each in found.values() for value in each.scores)
    return scale.limits if all(map(scale.contains, values)) else None


def passes(trials: Iterable[Trial], bar: Bar) -> dict[str, ScenarioSample]:
    """Scenario -> 1 of each trial that passed, else 0; one in which the agent raised did not pass."""

    def measured(trial: Trial) -> float | None:
        if trial.status == "agent_error":
            return 0.0
        value = trial.scores.get(bar.score)
        return None if value is None else float(bar.reached(value))

    return _samples((trial, measured(trial)) for trial in trials)


def _samples(trials: Iterable[tuple[Trial, float | None]]) -> dict[str, ScenarioSample]:
    """Returns scenario -> the values of its trials; None of a trial that has none."""
    values: dict[str, list[float]] = {}
    known: dict[str, Trial] = {}
    lost: Counter[str] = Counter()
    for trial, measured in trials:
        known[trial.scenario] = trial
        values.setdefault(trial.scenario, []).extend(() if measured is None else (measured,))
        lost[trial.scenario] += trial.status in LOST
    return {
        name: ScenarioSample(known[name].content.get("scenario", ""), tuple(scores), known[name].cluster, lost[name])
        for name, scores in values.items()
    }


def latencies(trials: Iterable[Trial], metric: str) -> list[RolloutLatencies]:
    """Milliseconds of measured rollouts, or of their calls. Imported rollouts may have taken no time: it is unknown."""
    found = ((trial, _milliseconds(trial, metric)) for trial in trials)
    return [
        RolloutLatencies(each.scenario, each.trial, each.began_at, tuple(max(value, SHORTEST_MS) for value in ms)) for each, ms in found
    ]


def latency_percentile(trials: Iterable[Trial], metric: str, q: int) -> float | None:
    """The q-th percentile (0 to 100) in milliseconds, as it was measured: it may be 0. None where nothing was measured."""
    return percentile([value for trial in trials for value in _milliseconds(trial, metric)], q)


def compare_with_limit(trials: Sequence[Trial], metric: str, q: int, limit: float, confidence: float = 0.95) -> Decision:
    """Is the q-th percentile (0 to 100) at most `limit` milliseconds? What is below SHORTEST_MS is told as it was measured."""
    decision, measured = latency_limit(latencies(trials, metric), q, limit, confidence=confidence), latency_percentile(trials, metric, q)
    if decision.estimate is None or decision.low is None or measured is None or measured >= SHORTEST_MS:
        return decision
    return replace(decision, estimate=measured, low=min(decision.low, measured))


def _milliseconds(trial: Trial, metric: str) -> list[float]:
    if metric == "rollout":
        return [trial.duration_ms] if trial.status in ("ok", "limit") and trial.duration_ms else []
    return [value for call in trial.calls if (value := call.ms.get(metric)) is not None]


def good_shares(trials: Iterable[Trial], slo: Mapping[str, float]) -> dict[str, ScenarioSample]:
    """Returns scenario -> of each trial the share of calls that met all objectives (milliseconds), as far as that is known."""
    import numpy as np

    every = [*trials]
    if not every:
        return {}
    calls, objectives = [call for trial in every for call in trial.calls], objectives_of(slo)
    columns = {each.column: np.array([call.ms.get(each.name, np.nan) for call in calls]) for each in objectives}
    verdicts = verdicts_of(columns.__getitem__, np.array([call.failed for call in calls], bool), objectives)
    of_trials = np.split(verdicts, np.cumsum([len(trial.calls) for trial in every])[:-1])
    return _samples((trial, _share(own[own != UNKNOWN])) for trial, own in zip(every, of_trials, strict=True))


def _share(verdicts: Counts) -> float | None:
    return float((verdicts == GOOD).mean()) if len(verdicts) else None
