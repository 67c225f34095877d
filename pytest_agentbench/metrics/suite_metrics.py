"""What a suite has beside its scores: right and wrong answers, drafts, what its scores took, and what each role took."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING

from pytest_agentbench.metrics.slice_metrics import Tokens
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import OPEN, Rollout
from pytest_agentbench.stats.calibration import calibration
from pytest_agentbench.stats.mean_intervals import wilson_interval
from pytest_agentbench.stats.quantiles import LatencySpread, latency_spread

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice


#: Parts of a score: whether a judge decided it (a score without this part is about no answer), and how sure the answer is, from 0 to 1.
JUDGED, CONFIDENCE = "judged", "confidence"


@dataclass(frozen=True, kw_only=True)
class AnswersSummary:
    """How often a score's [answers](hle.md#accuracy-and-calibration) are right, and whether they know it."""

    questions: int  # scenarios
    answers: int  # rollouts that were scored, and those of agents that raised, which count as wrong
    judged: int  # of them, those that a judge decided
    accuracy: float  # share of right answers, of each question first
    accuracy_low: float  # 95 % interval by Wilson, of as many trials as there are questions
    accuracy_high: float  # its upper end
    confident: int  # scored answers that say how sure they are
    confidence: float | None  # what those say in the mean, from 0 to 1; null where none does
    calibration_error: float | None  # of the same, from 0 to 1: RMS, bins of 100 answers
    calibration_low: float | None  # 95 % interval; null of a single question
    calibration_high: float | None  # its upper end
    bins: int  # of the calibration error; 0 where there is none


@dataclass
class AnswerCounts:
    """Those of a suite's scores, counted while rollouts are read."""

    scored: dict[str, dict[str, list[tuple[float, float | None]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # score -> scenario -> (value, confidence)
    judged: Counter[str] = field(default_factory=Counter)  # score -> answers
    failed: Counter[str] = field(default_factory=Counter)  # scenario -> rollouts in which the agent raised

    def add(self, rollout: Rollout) -> None:
        self.failed[rollout.scenario] += rollout.status == "agent_error"
        for name, score in rollout.scores.items():
            if JUDGED in score.parts:
                self.scored[name][rollout.scenario].append((float(score), score.parts.get(CONFIDENCE)))
                self.judged[name] += bool(score.parts[JUDGED])

    def summary(self) -> dict[str, AnswersSummary]:
        """Of each score that is about answers."""
        return {name: self._of(name) for name in self.scored}

    def _of(self, name: str) -> AnswersSummary:
        questions = dict(sorted(self.scored[name].items()))  # the order of equal confidences must not be that of the clock
        values = {scenario: [value for value, _ in each] for scenario, each in questions.items()}
        for scenario, count in self.failed.items():
            values[scenario] = [*values.get(scenario, ()), *[0.0] * count]
        shares = [math.fsum(each) / len(each) for each in values.values() if each]
        accuracy = math.fsum(shares) / len(shares)
        low, high = wilson_interval(accuracy, len(shares))
        sure = [[*_confident(each)] for each in questions.values()]
        stated = [confidence for each in sure for confidence, _ in each]
        error = calibration(sure) if stated else None
        return AnswersSummary(
            questions=len(shares),
            answers=sum(map(len, values.values())),
            judged=self.judged[name],
            accuracy=accuracy,
            accuracy_low=low,
            accuracy_high=high,
            confident=len(stated),
            confidence=math.fsum(stated) / len(stated) if stated else None,
            calibration_error=error.error if error else None,
            calibration_low=error.low if error else None,
            calibration_high=error.high if error else None,
            bins=error.bins if error else 0,
        )


def _confident(answers: list[tuple[float, float | None]]) -> Iterator[tuple[float, bool]]:
    return ((confidence, value >= 1) for value, confidence in answers if confidence is not None)


@dataclass(frozen=True)
class DraftMeans:
    """A score over the rollouts whose first and whose chosen draft have it."""

    rollouts: int  # what the means are over
    first: float  # mean of the first drafts
    chosen: float  # mean of those that count


@dataclass(frozen=True)
class DraftsSummary:
    """Drafts of an agent that [judges itself](judges.md)."""

    rollouts: int  # with drafts
    drafts: int  # of all of them
    accepted: int  # rollouts with an accepted draft
    scores: Mapping[str, DraftMeans]  # score -> means


def drafts_of(part: Slice) -> DraftsSummary | None:
    """Returns how the drafts of a slice were judged. None if there were none."""
    counts = part.rollouts["drafts"]
    names, first, chosen = (part.drafts[column] for column in ("score", "first", "chosen"))
    scores = {
        name: DraftMeans(int(own.sum()), float(first[own].mean()), float(chosen[own].mean()))
        for name in sorted(set(names.tolist()))
        for own in [names == name]
    }
    rollouts, accepted = int((counts > 0).sum()), int(part.rollouts["is_accepted"].sum())
    return DraftsSummary(rollouts, int(counts.sum()), accepted, scores) if rollouts else None


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """[What scores took](metrics.md#efficiency). Measured rollouts are those that ended as `ok`, `limit` or `agent_error`."""

    currency: str | None  # of the backend's [prices](backends.md#prices); null without any
    # `tokens_per_rollout` and all other metrics of a suite in the [table](metrics.md#efficiency); null if a number is unknown
    metrics: Mapping[str, float | None] = field(metadata=OPEN)


#: How the agent is called among the roles.
AGENT = "agent"


@dataclass(frozen=True, kw_only=True)
class RoleUse:
    """The calls of one [role](roles.md), those of all attempts."""

    models: tuple[str, ...]  # that answered, or were asked for; by name
    endpoints: tuple[str, ...]  # base URLs beside the backend under test that were asked; empty where that was the only one
    calls: int
    measured: int  # of them, those in the serving metrics of the run: they reached the backend under test, and judged nobody
    failed_calls: Mapping[str, int]  # [kind of error](metrics.md#failed-calls) -> calls
    prompt_tokens: int
    cached_tokens: int  # of the prompt
    output_tokens: int
    seconds: float  # of all calls together
    ttft_ms: LatencySpread | None  # as in the [serving metrics](metrics.md#serving-metrics); null when there is no value
    e2e_ms: LatencySpread | None
    currency: str | None  # of the [prices](roles.md#prices); null where a part of it has none
    cost: float | None  # null without prices, or when a call that went well names no prompt tokens


def uses(part: Slice, prices: Mapping[str, TokenPrices]) -> dict[str, RoleUse]:
    """Returns role -> its use, the agent first; empty if only the agent called.

    `prices`: endpoint -> its own; that of the backend under test is an empty text.
    """
    calls = part.frame.calls
    roles = sorted(set(calls["role"][part.chosen[calls["rollout"]]].tolist()))
    return {role or AGENT: _use(part.where(role=role), prices) for role in roles} if any(roles) else {}


def _use(part: Slice, prices: Mapping[str, TokenPrices]) -> RoleUse:
    calls = part.calls
    endpoints = [*dict.fromkeys(calls["endpoint"].tolist())]
    of_endpoints = {each: Tokens.of(calls.of(calls.table["endpoint"] == each)) for each in endpoints}
    currency, cost = _cost(of_endpoints, prices)
    ttft, e2e = (latency_spread(part.known(f"{name}_ms")) for name in ("ttft", "e2e"))
    return RoleUse(
        models=tuple(sorted({by or asked for asked, by in zip(calls["model"], calls["answered_by"], strict=True)} - {""})),
        endpoints=tuple(sorted(filter(None, endpoints))),
        calls=len(calls),
        measured=int(calls["measured"].sum()),
        failed_calls=dict(Counter(filter(None, calls["error_kind"])).most_common()),
        prompt_tokens=sum(each.prompt for each in of_endpoints.values()),
        cached_tokens=sum(each.cached for each in of_endpoints.values()),
        output_tokens=sum(each.output for each in of_endpoints.values()),
        seconds=float(calls["tap_ms"].sum()) / 1e3,
        ttft_ms=ttft,
        e2e_ms=e2e,
        currency=currency,
        cost=cost,
    )


def _cost(tokens: Mapping[str, Tokens], prices: Mapping[str, TokenPrices]) -> tuple[str | None, float | None]:
    """Returns (currency, amount) of the tokens of each endpoint; None if a part of it has no price, or another currency."""
    currencies = {prices[endpoint].currency if endpoint in prices else None for endpoint in tokens}
    if None in currencies or len(currencies) > 1:
        return None, None
    costs = [each.cost(prices[endpoint]) for endpoint, each in tokens.items()]
    return currencies.pop(), None if None in costs else fsum(filter(None, costs))
