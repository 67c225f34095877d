"""Computes results of a suite other than scores: right and wrong answers, drafts, efficiency, and the calls of each role."""

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


#: Names of parts of a score: whether a judge decided it (only scores of answers have this part), and the confidence of the answer, 0 to 1.
JUDGED, CONFIDENCE = "judged", "confidence"


@dataclass(frozen=True, kw_only=True)
class AnswersSummary:
    """The [accuracy and calibration](hle.md#accuracy-and-calibration) of the answers that a score is about."""

    questions: int  # number of questions (scenarios)
    answers: int  # number of answers: scored rollouts, and agent errors, which count as wrong
    judged: int  # number of answers that a judge decided
    accuracy: float  # share of right answers, averaged per question first, 0 to 1
    accuracy_low: float  # lower end of the 95 % interval by Wilson, with one trial per question
    accuracy_high: float  # upper end of that interval
    confident: int  # number of scored answers that state a confidence
    confidence: float | None  # mean stated confidence, 0 to 1; null if no answer states one
    calibration_error: float | None  # RMS calibration error over bins of 100 answers, 0 to 1; null if no answer states a confidence
    calibration_low: float | None  # lower end of its 95 % interval; null if there is none, as for a single question
    calibration_high: float | None  # upper end of its 95 % interval; null if there is none
    bins: int  # number of bins of the calibration error; 0 if there is no error


@dataclass
class AnswerCounts:
    """Counts the answers of a suite by score while its rollouts are read."""

    scored: dict[str, dict[str, list[tuple[float, float | None]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # score -> scenario -> (value, confidence)
    judged: Counter[str] = field(default_factory=Counter)  # score -> number of answers that a judge decided
    failed: Counter[str] = field(default_factory=Counter)  # scenario -> number of agent errors

    def add(self, rollout: Rollout) -> None:
        self.failed[rollout.scenario] += rollout.status == "agent_error"
        for name, score in rollout.scores.items():
            if JUDGED in score.parts:
                self.scored[name][rollout.scenario].append((float(score), score.parts.get(CONFIDENCE)))
                self.judged[name] += bool(score.parts[JUDGED])

    def summary(self) -> dict[str, AnswersSummary]:
        """Returns score -> summary for each score that is about answers."""
        return {name: self._of(name) for name in self.scored}

    def _of(self, name: str) -> AnswersSummary:
        questions = dict(sorted(self.scored[name].items()))  # so that the order of equal confidences does not depend on time
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
    """The means of a score for first and chosen drafts, over rollouts whose first and chosen drafts both have the score."""

    rollouts: int  # number of these rollouts
    first: float  # mean score of the first drafts
    chosen: float  # mean score of the chosen drafts


@dataclass(frozen=True)
class DraftsSummary:
    """The drafts of an agent that [judges its own work](judges.md): their numbers and mean scores."""

    rollouts: int  # number of rollouts with drafts
    drafts: int  # number of drafts
    accepted: int  # number of rollouts with an accepted draft
    scores: Mapping[str, DraftMeans]  # score -> means


def drafts_of(part: Slice) -> DraftsSummary | None:
    """Returns the summary of the drafts of a slice. None if there are none."""
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
    """The [efficiency](metrics.md#efficiency) of a suite, over measured rollouts: those that ended as `ok`, `limit` or `agent_error`."""

    currency: str | None  # currency of the backend's [prices](choose.md#prices); null without prices
    # `tokens_per_rollout` and all other metrics of a suite in the [table](metrics.md#efficiency); null if unknown
    metrics: Mapping[str, float | None] = field(metadata=OPEN)


#: The name of the agent itself among the roles.
AGENT = "agent"


@dataclass(frozen=True, kw_only=True)
class RoleUse:
    """The models, LLM calls, tokens, time and cost of one [role](roles.md) in all attempts."""

    models: tuple[str, ...]  # models that answered, or that were requested if the answer names none, by name
    endpoints: tuple[str, ...]  # base URLs of endpoints other than the backend under test; empty if there were none
    calls: int  # number of calls, failed ones included
    measured: int  # number of calls in the serving metrics of the run: to the backend under test, and not by a judge
    failed_calls: Mapping[str, int]  # [kind of failure](metrics.md#failed-calls) -> number of calls
    prompt_tokens: int  # prompt tokens
    cached_tokens: int  # prompt tokens from the prefix cache
    output_tokens: int  # output tokens
    seconds: float  # total duration of the calls, seconds
    ttft_ms: LatencySpread | None  # TTFT, as in the [serving metrics](metrics.md#serving-metrics); null if there is no value
    e2e_ms: LatencySpread | None  # E2E, as in the [serving metrics](metrics.md#serving-metrics); null if there is no value
    currency: str | None  # currency of the [prices](roles.md#prices); null if an endpoint has no prices, or another currency
    cost: float | None  # cost of the calls; null if `currency` is null, or if a successful call has no count of prompt tokens


def uses(part: Slice, prices: Mapping[str, TokenPrices]) -> dict[str, RoleUse]:
    """Returns role -> what it used, the agent first. Empty if only the agent made calls.

    `prices` maps endpoints to their prices. The key of the backend under test is an empty string.
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
        models=tuple(sorted({by or requested for requested, by in zip(calls["model"], calls["answered_by"], strict=True)} - {""})),
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
    """Returns the currency and the total cost of tokens by endpoint. None if an endpoint has no prices, or another currency."""
    currencies = {prices[endpoint].currency if endpoint in prices else None for endpoint in tokens}
    if None in currencies or len(currencies) > 1:
        return None, None
    costs = [each.cost(prices[endpoint]) for endpoint, each in tokens.items()]
    return currencies.pop(), None if None in costs else fsum(filter(None, costs))
