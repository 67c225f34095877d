"""Compares several runs with a reference run: scores, passes and latencies.

The intervals are computed as in gates, but are wider if there are several comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_agentbench.gate.ab import compare_scores
from pytest_agentbench.gate.evidence import passes, samples
from pytest_agentbench.gate.run_pair import ComparedRun, latencies_of, shared_scenarios, speed_warnings
from pytest_agentbench.gate.usable_numbers import uncounted
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.stats.decisions import Decision, step_down
from pytest_agentbench.stats.latency import compare_latency
from pytest_agentbench.stats.paired import ROUNDING, ScenarioSample, compare, pair
from pytest_agentbench.stats.pass_rates import PassThreshold

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class RunComparison:
    """Several runs with unique names. The first one is the reference, with which the others are compared."""

    names: tuple[str, ...]
    runs: tuple[ComparedRun, ...]

    @property
    def reference(self) -> ComparedRun:
        """The run that all others are compared with."""
        return self.runs[0]

    @property
    def others(self) -> Mapping[str, ComparedRun]:
        """Name -> run, without the reference."""
        return dict(zip(self.names[1:], self.runs[1:], strict=True))

    @property
    def groups(self) -> list[str]:
        """The groups (suite, or `suite-variant`) of all runs."""
        return [*dict.fromkeys(group for run in self.runs for group in run.facts.suites)]


@dataclass(frozen=True)
class ReferenceComparison:
    """The comparison of a run with the reference in one metric."""

    decision: Decision | None  # about new - base for scores and passes, new / base for latencies; None if not compared
    why: str = ""  # reason why it is not compared


@dataclass(frozen=True)
class ScenarioResult:
    """The result of one scenario in one run."""

    mean: float  # mean of the score over the measured trials
    passed: int | None  # trials that reached the threshold; None without a threshold
    trials: int  # number of measured trials

    @property
    def share(self) -> float:
        """The share of trials that passed."""
        return (self.passed or 0) / self.trials


@dataclass(frozen=True)
class Flip:
    """The results of one scenario in all compared runs. Reports list the scenarios whose results differ."""

    scenario: str
    cells: tuple[ScenarioResult | None, ...]  # one for each run; None: not measured, other content, or scored differently

    @property
    def differs(self) -> bool:
        """Whether the mean or the share of passed trials differs between runs. Different numbers of trials do not count."""
        shares, means = self._values
        return max(shares) > min(shares) or max(means) - min(means) > ROUNDING

    @property
    def order(self) -> tuple[float, float, str]:
        """The sort key: scenarios with the largest range of pass shares come first, then those with the largest range of means."""
        shares, means = self._values
        return min(shares) - max(shares), min(means) - max(means), self.scenario

    @property
    def _values(self) -> tuple[list[float], list[float]]:
        """The pass shares and the means in the runs that have a result; at least one has."""
        cells = [cell for cell in self.cells if cell]
        return [cell.share for cell in cells], [cell.mean for cell in cells]


def score_against(runs: RunComparison, group: str, score: str) -> list[ReferenceComparison]:
    """Returns, for each other run, the comparison of its mean score with the reference's."""

    def compared(run: ComparedRun, confidence: float) -> Decision:
        new, base = (_samples(each, group, score) for each in (run, runs.reference))
        return compare_scores(run.evidence.scale(group, score), new, base, confidence)

    return _family(runs, lambda run: _why_no_score(runs.reference, run, group, score), compared)


def passes_against(runs: RunComparison, group: str) -> list[ReferenceComparison]:
    """Returns, for each other run, the comparison of its share of passed trials with the reference's."""
    pass_threshold = pass_threshold_in(runs.reference, group)

    def compared(run: ComparedRun, confidence: float) -> Decision:
        assert pass_threshold is not None  # `_why_no_passes` ensures that both have one
        new, base = (passes(each.evidence.groups.get(group, ()), pass_threshold) for each in (run, runs.reference))
        return compare(new, base, 0.0, confidence=confidence)

    return _family(runs, lambda run: _why_no_passes(runs.reference, run, group), compared)


def latency_against(runs: RunComparison, metric: str, q: int) -> list[ReferenceComparison]:
    """Returns, for each other run, the comparison of a latency percentile with the reference's, on scenarios with equal content."""

    def compared(run: ComparedRun, confidence: float) -> Decision:
        shared = shared_scenarios(runs.reference, run)
        new, base = (latencies_of(each, metric, shared) for each in (run, runs.reference))
        return compare_latency(new, base, q, 0.0, confidence=confidence)

    why = {id(run): "; ".join(speed_warnings(runs.reference, run, (runs.names[0], name))) for name, run in runs.others.items()}
    return _family(runs, lambda run: why[id(run)], compared)


def _family(
    runs: RunComparison, incomparable_reason: Callable[[ComparedRun], str], compared: Callable[[ComparedRun, float], Decision]
) -> list[ReferenceComparison]:
    """Returns the comparison of each other run with the reference in one metric, made by `compared`.

    Runs for which `incomparable_reason` returns a reason are not compared. All comparisons together have the error probability of a
    single one (`step_down`).
    """
    why = [incomparable_reason(run) for run in runs.others.values()]
    comparisons = [partial(compared, run) for run, reason in zip(runs.others.values(), why, strict=True) if not reason]
    decisions = iter(step_down(comparisons))
    return [ReferenceComparison(None, reason) if reason else ReferenceComparison(next(decisions)) for reason in why]


def _samples(run: ComparedRun, group: str, score: str) -> dict[str, ScenarioSample]:
    return samples(run.evidence.groups.get(group, ()), score, run.evidence.scale(group, score))


def _why_no_score(reference: ComparedRun, run: ComparedRun, group: str, score: str) -> str:
    """Returns why a score of two runs cannot be compared, or an empty string."""
    suites = [each.facts.suites.get(group) for each in (reference, run)]
    if without := suites.count(None):
        return f"{_owners(without)} of the runs has the suite"
    if without := sum(suite is not None and score not in suite.scores for suite in suites):
        return f"{_owners(without)} of the runs has {score}"
    if why := _incomparable_reason(reference, run, group, score):
        return why
    pairs, missing = pair(_samples(run, group, score), _samples(reference, group, score))
    if pairs:
        return ""
    return "no scenario was measured in both runs" if missing.unmeasured else "the runs share no scenario with equal content"


def _incomparable_reason(reference: ComparedRun, run: ComparedRun, group: str, score: str) -> str:
    """Returns why values of a score are not comparable between two runs, or are partly missing, or an empty string."""
    if _is_scored_differently(reference, run, group, score):
        return f"{score} is from different versions of the scorer"
    new_scale, old_scale = (each.evidence.scale(group, score) for each in (run, reference))
    if not new_scale.is_comparable(old_scale):
        return f"{score} has different scales: {old_scale.text}; now {new_scale.text}"
    reasons = (
        (each.facts.id, uncounted(score, each.evidence.scale(group, score), each.evidence.groups.get(group, ())))
        for each in (reference, run)
    )
    return "; ".join(f"in {name} {why}" for name, why in reasons if why)


def _owners(without: int) -> str:
    """Returns the beginning of "... of the runs has X", if `without` (1 or 2) of two runs lack X: `only one`, or `neither`."""
    return "neither" if without == 2 else "only one"


def _has_score(run: ComparedRun, group: str, score: str) -> bool:
    suite = run.facts.suites.get(group)
    return suite is not None and score in suite.scores


def _is_scored_differently(reference: ComparedRun, run: ComparedRun, group: str, score: str) -> bool:
    new, old = (each.evidence.scored_by(group, score) for each in (run, reference))
    return bool(new and old and new != old)


def _why_no_passes(reference: ComparedRun, run: ComparedRun, group: str) -> str:
    pass_thresholds = [pass_threshold_in(each, group) for each in (reference, run)]
    if None in pass_thresholds or pass_thresholds[0] != pass_thresholds[1]:
        return "the runs have no common pass threshold"
    assert pass_thresholds[0] is not None
    return _why_no_score(reference, run, group, pass_thresholds[0].score)


def pass_threshold_in(run: ComparedRun, group: str) -> PassThreshold | None:
    """Returns the threshold at which a rollout of a suite passes, or None if its main score has none."""
    suite: SuiteResult | None = run.facts.suites.get(group)
    if suite is None or suite.passes is None:
        return None
    return PassThreshold(suite.passes.score, suite.passes.floor, run.evidence.scale(group, suite.passes.score).falling)


def comparison_warnings(runs: RunComparison) -> Iterator[str]:
    """Yields a sentence for each run whose speeds are not compared, and for each suite and run with scores that are not compared."""
    first = runs.names[0]
    for name, run in runs.others.items():
        if why := "; ".join(speed_warnings(runs.reference, run, (first, name))):
            yield f"speeds of {name} are not compared with those of {first}: {why}"
        if run.facts.settings.slo != runs.reference.facts.settings.slo:
            yield f"goodput of {name} and {first} cannot be compared: their latency objectives differ"
    for group in runs.groups:
        scores = dict.fromkeys(score for run in runs.runs if group in run.facts.suites for score in run.facts.suites[group].scores)
        for name, run in runs.others.items():
            runs_by_doubt: dict[str, list[str]] = {}
            owned = [score for score in scores if any(_has_score(each, group, score) for each in (runs.reference, run))]
            for score in owned:
                if why := _why_no_score(runs.reference, run, group, score):
                    runs_by_doubt.setdefault(why, []).append(score)
            for why, of in runs_by_doubt.items():
                yield f"{group} {', '.join(of)} of {name} is not compared with {first}: {why}"
            if sum(map(len, runs_by_doubt.values())) < len(owned):
                yield from _few_shared(runs.reference, run, group, (first, name))


def _few_shared(reference: ComparedRun, run: ComparedRun, group: str, names: tuple[str, str]) -> Iterator[str]:
    """Yields a sentence about the number of compared scenarios, if a run has scenarios that the other lacks or has with other content."""
    old, new = (_contents(each, group) for each in (reference, run))
    shared = len(old.items() & new.items())
    if {shared} != {len(old), len(new)}:
        first, name = names
        yield (
            f"{group} of {name} is compared with {first} on the {shared} {'scenario' if shared == 1 else 'scenarios'} that both have "
            f"({first} has {len(old)}, {name} {len(new)}); the means are over all scenarios of each run"
        )


def _contents(run: ComparedRun, group: str) -> dict[str, str]:
    """Returns scenario -> hash of its content, which is empty if unknown."""
    return {trial.scenario: str(trial.content.get("scenario", "")) for trial in run.evidence.groups.get(group, ())}


def compared_scores(runs: RunComparison, group: str) -> list[str]:
    """Returns the scores of a suite in the reference, the main one first. Empty if the reference lacks the suite."""
    suite = runs.reference.facts.suites.get(group)
    return [*suite.scores] if suite else []


def left_out(runs: RunComparison, run: ComparedRun, group: str) -> dict[str, int]:
    """Returns reason -> number of scenarios whose main score is not compared with the reference."""
    scores = compared_scores(runs, group)
    if not scores or _why_no_score(runs.reference, run, group, scores[0]):
        return {}
    return vars(pair(*(_samples(each, group, scores[0]) for each in (run, runs.reference)))[1])


def flips(runs: RunComparison, group: str, score: str) -> list[Flip]:
    """Returns the scenarios whose score, or share of passes by the reference's threshold, is not the same in all runs."""
    cells = [_cells(run, runs.reference, group, score) for run in runs.runs]
    scenarios = dict.fromkeys(name for each in cells for name in each)
    every = (Flip(name, tuple(each.get(name) for each in cells)) for name in scenarios)
    return sorted((each for each in every if each.differs), key=lambda each: each.order)


def _cells(run: ComparedRun, reference: ComparedRun, group: str, score: str) -> dict[str, ScenarioResult]:
    """Returns scenario -> its result in a run, for scenarios that the reference has measured with equal content."""
    if _is_scored_differently(reference, run, group, score):
        return {}
    pass_threshold = pass_threshold if (pass_threshold := pass_threshold_in(reference, group)) and pass_threshold.score == score else None
    pairs, _ = pair(*(_samples(each, group, score) for each in (run, reference)))
    passed = passes(run.evidence.groups.get(group, ()), pass_threshold) if pass_threshold else {}
    return {
        name: ScenarioResult(each.new.mean, round(sum(passed[name].scores)) if pass_threshold else None, len(each.new.scores))
        for name, each in pairs.items()
    }


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names with a number after each repeated one: `a`, `a (2)`."""
    return tuple(name if name not in names[:place] else f"{name} ({names[: place + 1].count(name)})" for place, name in enumerate(names))
