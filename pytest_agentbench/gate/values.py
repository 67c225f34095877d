"""What a rule looks at, from the trials of a run: scores, passes, shares of good calls, latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_agentbench.gate.evidence import Trial
from pytest_agentbench.records import Scale
from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.stats.intervals import Limits
from pytest_agentbench.stats.latency import RolloutLatencies, latency_limit
from pytest_agentbench.stats.paired import ScenarioSample
from pytest_agentbench.stats.pass_rates import Bar
from pytest_agentbench.stats.percentiles import percentile

SHORTEST_MS = 0.001  # a latency below a microsecond counts as one: its logarithm has to exist
LOST = ("infra_error", "cancelled")  # statuses of rollouts that would have had a score


def samples(trials: Iterable[Trial], score: str, scale: Scale) -> dict[str, ScenarioSample]:
    """Scenario -> what was measured of it. An agent's error counts as the worst value of the scale, and is left out if there is none."""

    def measured(trial: Trial) -> float | None:
        return scale.worst if trial.status == "agent_error" else trial.scores.get(score)

    return _samples(trials, measured)


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

    return _samples(trials, measured)


def _samples(trials: Iterable[Trial], value: Callable[[Trial], float | None]) -> dict[str, ScenarioSample]:
    values: dict[str, list[float]] = {}
    known: dict[str, Trial] = {}
    lost: Counter[str] = Counter()
    for trial in trials:
        known[trial.scenario] = trial
        measured = value(trial)
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
    """Scenario -> of each trial the share of calls that met all objectives (milliseconds), as far as that is known."""

    def measured(trial: Trial) -> float | None:
        known = [good for call in trial.calls if (good := call.good(slo)) is not None]
        return sum(known) / len(known) if known else None

    return _samples(trials, measured)
