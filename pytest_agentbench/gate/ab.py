"""The two arms of an A/B session against each other: quality and speed, paired by scenario, and what else differed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from pytest_agentbench.backends.cache_state import CacheBlock, together
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.values import latencies, samples
from pytest_agentbench.metrics import registry, windows
from pytest_agentbench.metrics.stopwatch import Stopwatch, doubt
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import STATUSES, Rollout, RolloutKey
from pytest_agentbench.runs.arm_results import ArmResult, ArmsCompared, MetricCompared
from pytest_agentbench.scorers import LOWER_IS_BETTER
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, Decision
from pytest_agentbench.stats.interleaved import compare_interleaved
from pytest_agentbench.stats.paired import Sample, compare
from pytest_agentbench.stats.percentiles import percentile
from pytest_agentbench.suites.arms import Arm, Side
from pytest_agentbench.suites.models import Models, names

if TYPE_CHECKING:
    from pytest_agentbench.session.block_turns import Facts
    from pytest_agentbench.session.discovery import Found

PERCENTILES = (50, 90)
APART = 0.1  # hit ratios that differ by more than this are no equal conditions

BETTER, WORSE, FASTER, SLOWER, SAME = "better", "worse", "faster", "slower", "no difference shown"


@dataclass
class Totals:
    """Of all suites under one arm."""

    statuses: Counter[str] = field(default_factory=Counter)
    spans: defaultdict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))  # session -> rollouts
    evaluable: int = 0
    calls: int = 0
    failed_calls: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cached_of: int = 0  # prompt tokens of calls whose usage says how many were cached
    models: Models = field(default_factory=Models)

    def add(self, rollout: Rollout) -> None:
        self.statuses[rollout.status] += 1
        for attempt in rollout.attempts:
            self.spans[attempt.session].append((attempt.started_ns, attempt.ended_ns))
        self.evaluable += rollout.evaluable
        self.models.add(rollout.all_calls)
        for call in rollout.all_calls:
            self.calls += 1
            self.failed_calls += call.error_kind is not None
            self.output_tokens += 0 if call.error_kind else output_tokens(call)
            if call.cached_tokens is not None and call.prompt_tokens:
                self.cached_tokens += call.cached_tokens
                self.cached_of += call.prompt_tokens

    def result(self, arm: Arm, facts: Facts, blocks: Sequence[CacheBlock]) -> ArmResult:
        """Rates are over the time in which any rollout of the arm ran."""
        busy_s = sum(windows.total_ns(windows.at_least(spans, 1)) for spans in self.spans.values()) / 1e9
        return ArmResult(
            **vars(arm),
            model=names(self.models.summary()),
            load_s=facts.load_s.get(arm.name),
            failure=facts.failures.get(arm.name, ""),
            blocks=len(blocks),
            rollouts={status: self.statuses[status] for status in STATUSES},
            calls=self.calls,
            failed_calls=self.failed_calls,
            busy_s=busy_s,
            rollouts_per_hour=self.evaluable * 3600 / busy_s if busy_s else None,
            output_tokens_per_s=self.output_tokens / busy_s if busy_s else None,
            cached_share=self.cached_tokens / self.cached_of if self.cached_of else None,
            prefix_cache=together(block.prefix_cache for block in blocks if block.prefix_cache),
        )


class Comparison:
    """Takes the rollouts of a session, and compares its second arm with the first one."""

    def __init__(self, arms: Sequence[Arm], found: Sequence[Found]) -> None:
        self._arms = arms
        self._found = {each.name: each for each in found if each.suite}
        self._trials: defaultdict[tuple[str, Side], list[Trial]] = defaultdict(list)
        self._totals = {arm.name: Totals() for arm in arms}

    def add(self, rollout: Rollout) -> None:
        found = self._found.get(rollout.suite)
        if rollout.kind != "scenario" or found is None or rollout.variant not in found.sides:
            return
        side = found.sides[rollout.variant]
        self._totals[side.arm].add(rollout)
        self._trials[rollout.suite, side].append(trial_of(rollout))

    def summary(self, facts: Facts, blocks: Sequence[CacheBlock], stopwatch: Stopwatch) -> ArmsCompared:
        """Of timings that the stopwatch doubts nothing is concluded."""
        arms = tuple(self._totals[arm.name].result(arm, facts, [block for block in blocks if block.arm == arm.name]) for arm in self._arms)
        doubts, sequence = "; ".join(filter(None, (facts.failure, *facts.failures.values()))), facts.in_sequence
        return ArmsCompared(
            arms=arms,
            order="in sequence" if sequence else "interleaved",
            comparisons=tuple(self._comparisons(doubts, stopwatch)),
            warnings=tuple(self._warnings(arms, blocks, sequence=sequence)),
        )

    def _comparisons(self, doubts: str, stopwatch: Stopwatch) -> Iterator[MetricCompared]:
        base_arm, new_arm = (arm.name for arm in self._arms)
        for name, found in self._found.items():
            assert found.suite is not None
            for variant in dict.fromkeys(side.variant for side in found.sides.values()):
                base, new = (self._trials[name, Side(variant, arm)] for arm in (base_arm, new_arm))
                group = RolloutKey(name, "", variant).group
                for score in found.suite.score_names:
                    before, after = (samples(trials, score, falling=score in LOWER_IS_BETTER) for trials in (base, new))
                    decision = compare_scores(score, after, before)
                    yield _said(group, score, (mean_of(before), mean_of(after)), decision, (BETTER, WORSE), doubts)
                for metric in registry.asked():
                    times, later = (latencies(trials, metric) for trials in (base, new))
                    for q in PERCENTILES:
                        decision = compare_interleaved(later, times, q)
                        old, now = (percentile(chain(*(timing.values for timing in each)), q) for each in (times, later))
                        yield _said(
                            group, f"{metric}.p{q}", (old, now), decision, (FASTER, SLOWER), doubts or doubt(stopwatch, f"{metric}.p{q}")
                        )

    def _warnings(self, arms: Sequence[ArmResult], blocks: Sequence[CacheBlock], *, sequence: bool) -> Iterator[str]:
        first, second = (hit_ratio(arm) for arm in arms)
        names = [arm.name for arm in arms]
        if first is not None and second is not None and abs(first - second) > APART:
            yield (
                f"the prefix cache was not in the same state: {first * 100:.0f} % of the prompt tokens were hits in {names[0]}, "
                f"{second * 100:.0f} % in {names[1]}; see --agentbench-cache"
            )
        if len({bool(block.salt) for block in blocks}) > 1:
            yield "one arm's cache was reset, the other one's prompts were salted, which makes them a few tokens longer"
        if sequence:
            yield f"{names[0]} ran before {names[1]}, because both do not fit on this machine: what changed with time is in the difference"


def hit_ratio(arm: ArmResult) -> float | None:
    """By the counters of the server, or else by the usage of the calls."""
    return arm.cached_share if arm.prefix_cache.hit_ratio is None else arm.prefix_cache.hit_ratio


def compare_scores(score: str, new: Mapping[str, Sample], base: Mapping[str, Sample]) -> Decision:
    """With a margin of 0: PASS is better, FAIL is worse."""
    every = [value for found in (new, base) for each in found.values() for value in each.scores]
    limits = (0.0, 1.0) if score not in LOWER_IS_BETTER and all(0 <= value <= 1 for value in every) else None
    decision = compare(new, base, 0.0, limits=limits, higher_is_better=score not in LOWER_IS_BETTER)
    return decision if decision.low is None else replace(decision, reason="")  # nobody asked for a margin that could be missed


def mean_of(measured: Mapping[str, Sample]) -> float | None:
    """Trials averaged within their scenarios first."""
    means = [each.mean for each in measured.values() if each.scores]
    return sum(means) / len(means) if means else None


def _said(
    suite: str, metric: str, values: tuple[float | None, float | None], decision: Decision, words: tuple[str, str], doubt: str
) -> MetricCompared:
    """`values` being the first arm's and the second one's; with a doubt nothing is concluded."""
    if doubt:
        decision = replace(decision, verdict=INCONCLUSIVE, reason=doubt)
    finding = {PASS: words[0], FAIL: words[1]}.get(decision.verdict) or ("inconclusive" if decision.reason else SAME)
    return MetricCompared(**vars(decision), suite=suite, metric=metric, base=values[0], new=values[1], finding=finding)
