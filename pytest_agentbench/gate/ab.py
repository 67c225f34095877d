"""Compares the arms (the settings under comparison) of an A/B session in quality and speed, and warns if their conditions differed.

Scores are paired by scenario, latencies by the blocks of rollouts in which the arms alternated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, starmap
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.backends.cache_state import CacheBlock, total_hits
from pytest_agentbench.gate.evidence import Trial, latencies, samples, score_limits
from pytest_agentbench.gate.usable_numbers import connect_note, uncounted
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import goodput
from pytest_agentbench.metrics.stopwatch import Stopwatch, unusable_reason
from pytest_agentbench.records import STATUSES, RolloutKey, Scale
from pytest_agentbench.runs.nodes import NodeRecord, connect_times
from pytest_agentbench.runs.provenance import model_names, models_of
from pytest_agentbench.runs.results import ArmFacts, ArmResult, ArmsCompared, MetricCompared
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision, step_down
from pytest_agentbench.stats.latency import compare_interleaved
from pytest_agentbench.stats.paired import ScenarioSample, compare
from pytest_agentbench.stats.quantiles import percentile
from pytest_agentbench.suites.arms import Arm, VariantOrigin

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice

PERCENTILES = (50, 90)
CONFIDENCE = 0.95  # confidence of a single comparison
MAX_HIT_RATIO_DIFFERENCE = 0.1  # difference of prefix cache hit ratios above which a warning says that conditions were not equal

BETTER, WORSE, FASTER, SLOWER, SAME = "better", "worse", "faster", "slower", "no difference shown"
UNDECIDED = "inconclusive"


class SuiteInArms(NamedTuple):
    """The scores and variants of one suite in an A/B session."""

    scales: Mapping[str, Scale]  # score -> its scale, for every score
    origins: Mapping[str, VariantOrigin]  # variant of the session -> the suite's variant and the arm that it combines


def compare_arms(
    arms: Sequence[Arm],
    suites: Mapping[str, SuiteInArms],
    trials: Iterable[Trial],
    part: Slice,
    facts: ArmFacts,
    blocks: Sequence[CacheBlock],
    stopwatch: Stopwatch,
    *,
    with_each_other: bool = False,
    nodes: Sequence[NodeRecord] = (),
) -> ArmsCompared:
    """Compares the arms (settings under comparison) of an A/B session: each other arm with the first one, or all with each other.

    Returns a summary of the arms, the comparisons and warnings.

    Args:
        arms: The arms of the session, in order.
        suites: Suite -> its scores and variants. Other suites are not compared.
        trials: The rollouts of the session.
        part: The rollouts and calls of the session as tables (Slice), for metrics of speed.
        facts: Load times and failures of the backends, and whether the arms ran in sequence.
        blocks: The blocks of the last session: stretches in which only one arm ran, with their prefix cache hits.
        stopwatch: The timing quality. Timings that cannot be trusted are shown but decide nothing.
        with_each_other: Whether arms other than the first one are compared as well.
        nodes: The node workers of the session.
    """
    every = starmap(ArmPair, combinations([arm.name for arm in arms], 2))
    pairs = [pair for pair in every if with_each_other or pair.base == arms[0].name]
    groups = {arm.name: _groups(suites, arm.name) for arm in arms}
    parts = {name: part.where(group=own) for name, own in groups.items()}
    results = tuple(_result(arm, parts[arm.name], facts, [block for block in blocks if block.arm == arm.name]) for arm in arms)
    return ArmsCompared(
        arms=results,
        order="in sequence" if facts.in_sequence else "interleaved",
        comparisons=tuple(each for question in _questions(arms, suites, trials, stopwatch) for each in answers(question, pairs, facts)),
        warnings=(*_warnings(results, blocks, sequence=facts.in_sequence), *filter(None, [connect_note(connect_times(nodes))])),
    )


def _groups(suites: Mapping[str, SuiteInArms], arm: str) -> set[str]:
    """Returns the groups (suite, or `suite-variant`) of an arm."""
    origins = ((name, variant, origin) for name, suite in suites.items() for variant, origin in suite.origins.items())
    return {RolloutKey(name, "", variant).group for name, variant, origin in origins if origin.arm == arm}


def _result(arm: Arm, part: Slice, facts: ArmFacts, blocks: Sequence[CacheBlock]) -> ArmResult:
    """Returns the summary of one arm. Its rates are over the time in which any of its rollouts ran."""
    statuses = Counter(part.rollouts["status"].tolist())
    return ArmResult(
        **vars(arm),
        model=model_names(models_of(part.calls["model"], part.calls["answered_by"])),
        load_s=facts.load_s.get(arm.name),
        failure=facts.failures.get(arm.name, ""),
        blocks=len(blocks),
        rollouts={status: statuses[status] for status in STATUSES},
        calls=len(part.calls),
        failed_calls=len(part.calls) - len(part.successful_calls),
        busy_s=part.seconds,
        metrics=registry.numbers(part, "session"),
        goodput=goodput(part),
        prefix_cache=total_hits(block.prefix_cache for block in blocks if block.prefix_cache),
    )


def _questions(
    arms: Sequence[Arm], suites: Mapping[str, SuiteInArms], trials: Iterable[Trial], stopwatch: Stopwatch
) -> Iterator[ArmQuestion]:
    by_group: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_group[trial.group].append(trial)
    for name, suite in suites.items():
        for variant in dict.fromkeys(origin.variant for origin in suite.origins.values()):
            group = RolloutKey(name, "", variant).group
            groups = {origin.arm: RolloutKey(name, "", each).group for each, origin in suite.origins.items() if origin.variant == variant}
            own = {arm.name: by_group[groups[arm.name]] if arm.name in groups else [] for arm in arms}
            yield from (_of_score(group, score, scale, own) for score, scale in suite.scales.items())
            for metric in registry.gated():
                for q in PERCENTILES:
                    reasons = dict.fromkeys(own, unusable_reason(stopwatch, f"{metric}.p{q}"))
                    yield latency_question(group, metric, q, own, reasons)


class ArmPair(NamedTuple):
    """Names of two arms that are compared."""

    base: str
    new: str


@dataclass(frozen=True)
class ArmQuestion:
    """A metric of a suite: its values in all arms, and a function that compares two of them."""

    suite: str  # suite, or `suite-variant`
    metric: str
    values: Mapping[str, float | None]  # arm -> percentile in milliseconds, or mean score
    compare: Callable[[ArmPair, float], Decision]  # compares two arms at a given confidence
    words: tuple[str, str]  # findings for PASS and FAIL
    reasons: Mapping[str, str]  # arm -> why it cannot be compared, or an empty string


def _of_score(group: str, score: str, scale: Scale, trials: Mapping[str, Sequence[Trial]]) -> ArmQuestion:
    measured = {arm: samples(each, score, scale) for arm, each in trials.items()}
    reasons = {arm: f"{arm}: {why}" if (why := uncounted(score, scale, each)) else "" for arm, each in trials.items()}

    def compare_pair(pair: ArmPair, confidence: float) -> Decision:
        return compare_scores(scale, measured[pair.new], measured[pair.base], confidence)

    return ArmQuestion(group, score, {arm: mean_of(each) for arm, each in measured.items()}, compare_pair, (BETTER, WORSE), reasons)


def latency_question(group: str, metric: str, q: int, trials: Mapping[str, Sequence[Trial]], reasons: Mapping[str, str]) -> ArmQuestion:
    """Returns the question how the q-th percentile (0 to 100) of a latency compares between arms.

    `trials` has the rollouts of each arm, and `reasons` says for each why its latencies cannot be compared, or nothing.
    """
    times = {arm: latencies(each, metric) for arm, each in trials.items()}

    def compare_pair(pair: ArmPair, confidence: float) -> Decision:
        return compare_interleaved(times[pair.new], times[pair.base], q, confidence=confidence)

    values = {arm: percentile(chain(*(timing.values for timing in each)), q) for arm, each in times.items()}
    return ArmQuestion(group, f"{metric}.p{q}", values, compare_pair, (FASTER, SLOWER), reasons)


def answers(question: ArmQuestion, pairs: Sequence[ArmPair], facts: ArmFacts) -> Iterator[MetricCompared]:
    """Yields the comparison of each pair of arms in one metric.

    All these comparisons together have the error probability of a single one (`step_down`). Pairs that cannot be compared are
    INCONCLUSIVE with a reason.
    """
    reasons = {pair: facts.failure or _arm_failures(pair, facts) or _inconclusive_reason(pair, question) for pair in pairs}
    certain = [pair for pair in pairs if not reasons[pair]]
    decisions = dict(zip(certain, step_down([partial(question.compare, pair) for pair in certain]), strict=True))
    for pair in pairs:
        decision = decisions.get(pair) or replace(question.compare(pair, CONFIDENCE), verdict=INCONCLUSIVE, reason=reasons[pair])
        finding = dict(zip((PASS, FAIL), question.words, strict=True)).get(decision.verdict)
        yield MetricCompared(
            **vars(decision),
            suite=question.suite,
            metric=question.metric,
            base_arm=pair.base,
            new_arm=pair.new,
            base=question.values[pair.base],
            new=question.values[pair.new],
            finding=finding or (UNDECIDED if decision.reason else SAME),
        )


def _arm_failures(pair: ArmPair, facts: ArmFacts) -> str:
    """Returns why an arm of the pair failed to start, was lost, or lost workers, or an empty string."""
    return "; ".join(facts.failures[arm] for arm in pair if arm in facts.failures)


def _inconclusive_reason(pair: ArmPair, question: ArmQuestion) -> str:
    """Returns why this metric cannot be compared for a pair of arms, or an empty string."""
    return "; ".join(dict.fromkeys(filter(None, (question.reasons.get(arm, "") for arm in pair))))


def _warnings(arms: Sequence[ArmResult], blocks: Sequence[CacheBlock], *, sequence: bool) -> Iterator[str]:
    ratios = {arm.name: ratio for arm in arms if (ratio := hit_ratio(arm)) is not None and not arm.failure}
    if ratios and max(ratios.values()) - min(ratios.values()) > MAX_HIT_RATIO_DIFFERENCE:
        first, *others = (f"in {name}" for name in ratios)
        one, *more = (f"{ratio * 100:.0f} %" for ratio in ratios.values())
        ratio_texts = ", ".join([f"{one} of the prompt tokens were hits {first}", *map(" ".join, zip(more, others, strict=True))])
        yield f"the prefix cache was not in the same state: {ratio_texts}; see --agentbench-cache"
    salted = [arm.name for arm in arms if any(block.salt for block in blocks if block.arm == arm.name)]
    if salted and any(not block.salt for block in blocks):
        yield (
            f"a text that prevents cache hits was put before the prompts of {', '.join(salted)}, so they are a few tokens longer; "
            "the caches of the other arms were reset instead"
        )
    if sequence:
        names = " before ".join(arm.name for arm in arms[1:])
        why = "because they do not fit on this machine at once"
        yield f"{arms[0].name} ran before {names}, {why}: changes over time are part of the difference"


def hit_ratio(arm: ArmResult) -> float | None:
    """Returns the prefix cache hit ratio of an arm, from the server's counters or, without them, from the usage of its calls."""
    return arm.metrics["prefix_cache_hit_ratio"] if arm.prefix_cache.hit_ratio is None else arm.prefix_cache.hit_ratio


def compare_scores(
    scale: Scale, new: Mapping[str, ScenarioSample], base: Mapping[str, ScenarioSample], confidence: float = CONFIDENCE
) -> Decision:
    """Compares the scores of two arms or runs with a margin of 0. PASS means better, FAIL means worse."""
    limits = score_limits(scale, new, base)
    decision = compare(new, base, 0.0, limits=limits, confidence=confidence, higher_is_better=not scale.falling)
    return decision if decision.low is None else replace(decision, reason="")  # The reason concerns margins, and here the margin is 0


def mean_of(measured: Mapping[str, ScenarioSample]) -> float | None:
    """Returns the mean over scenarios of the mean of each scenario's trials, or None if nothing was measured."""
    means = [each.mean for each in measured.values() if each.scores]
    return sum(means) / len(means) if means else None
