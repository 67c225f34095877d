"""What a gate is asked: `tsq.mean >= -0.05 vs baseline`, `tsq.mean >= 0.8 of run`, `pass^3 >= 0.7`, `infra_error.rate <= 2%`; and such a
rule for one suite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.metrics.registry import gated, single
from pytest_agentbench.records import STATUSES, UNDECLARED, Scale, scale_in
from pytest_agentbench.stats.decisions import QUESTIONS, RUN, SUITE
from pytest_agentbench.stats.pass_rates import PassRate, PassThreshold

LATENCY_STATISTICS = ("p50", "p90", "p95", "p99")  # no mean: a few stalls rule it

SHARES = tuple(f"{status}.rate" for status in STATUSES if status != "ok")  # of the rollouts that ended

#: Kinds of which more is better; of scores and rates it depends.
RISING = ("goodput", "passes")

#: Kinds that are about scenarios, so that they ask of the suite or of the population.
QUESTION_KINDS = ("score", "passes")

#: Kinds that a run has as facts, so that a rule may say `of run`; of rates and shares that is what is asked in any case.
FACTS = (*QUESTION_KINDS, "rate", "share")

#: Kinds of which no value is above 1.
PORTIONS = ("share", "goodput", "passes")

#: Kind -> units that its limit may have, and what they are worth.
UNITS: Mapping[str, Mapping[str, float]] = {
    "score": {"": 1, "%": 0.01},
    "latency": {"ms": 1, "s": 1000},
    "rate": {"": 1},
    "share": {"%": 0.01, "": 1},
    "goodput": {"%": 0.01, "": 1},
    "passes": {"%": 0.01, "": 1},
}

#: A metric may be any text: scores of other tools have names such as `harbor_tests-passed`.
RULE_PATTERN = re.compile(
    r"(?P<metric>pass[@^]\d+|(?!pass[@^])\S.*?) ?(?P<relation>>=|<=) ?(?P<value>[+-]?\d+(?:\.\d+)?) ?(?P<unit>%|ms|s)?"
    rf"(?P<versus> vs baseline)?(?: of (?P<of>{'|'.join((*QUESTIONS, RUN))}))?"
)

EXAMPLES = (
    "`tsq.mean >= -0.05 vs baseline`, `tsq.mean >= 0.8`, `pass^3 >= 0.7`, `ttft.p95 <= 500ms`, `ttft.p50 <= +10% vs baseline`, "
    "`infra_error.rate <= 2%`"
)


@dataclass(frozen=True)
class Rule:
    """One rule as it was written, understood."""

    text: str
    kind: str  # score | passes | latency | rate | share | goodput
    metric: str  # a score's name, pass^3, ttft, infra_error, rollouts_per_hour, cost_per_pass, ...
    statistic: str  # mean, p50, ...; empty where there is only one
    at_least: bool  # `>=`: more is better
    limit: float  # of a score its unit, of a latency milliseconds, of a share 0..1; against a baseline the difference, or the share of it
    versus: bool  # compared with the baseline
    relative: bool = False  # against a baseline: the limit is a share of it
    of: str = ""  # of scores and passes the question: suite | population | run; of rates and shares `run`, or empty

    @property
    def about(self) -> tuple[str, str, bool, str]:
        """What it is about: of two rules about the same, the one on the command line counts."""
        return self.metric, self.statistic, self.versus, self.of if self.kind in QUESTION_KINDS else ""

    @property
    def pass_rate(self) -> PassRate:
        """What a rule of kind `passes` is about."""
        return PassRate.of(self.metric)

    @property
    def margin(self) -> float:
        """How much worse than the baseline is still accepted: 0.05 of `tsq.mean >= -0.05`, 0.1 of `ttft.p50 <= +10%`."""
        return max(0.0, -self.limit if self.at_least else self.limit)


def parse_rule(text: str, scores: Sequence[str], scales: Mapping[str, Scale] = MappingProxyType({}), *, passes: bool = False) -> Rule:
    """The rule that a text says, for a suite that measures `scores` on these scales, the main one first.

    Its rollouts pass or fail (`passes`) where the main score has a floor.

    Raises ConfigError that says what would work.
    """
    text = " ".join(text.split())
    match = RULE_PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(f"gate rule {text!r} should be METRIC >= LIMIT or METRIC <= LIMIT, such as {EXAMPLES}")
    kind, metric, statistic = _quantity(text, match["metric"], scores)
    if kind == "passes" and not passes:
        raise ConfigError(
            f"gate rule {text!r}: without a floor for {scores[0]} no rollout passes or fails; `thresholds: {{{scores[0]}: 0.5}}` is one"
        )
    at_least, versus = match["relation"] == ">=", match["versus"] is not None
    is_rising_rate = kind == "rate" and single()[metric].rising
    if at_least != (rising := kind in RISING or is_rising_rate or (kind == "score" and not scale_in(scales, metric).falling)):
        raise ConfigError(f"gate rule {text!r}: {metric} is better the {'higher' if rising else 'lower'} it is: {'>=' if rising else '<='}")
    limit, relative = _in_its_unit(text, kind, float(match["value"]), match["unit"] or "", versus)
    if versus and limit and (limit > 0) == at_least:
        raise ConfigError(
            f"gate rule {text!r} asks for more than the baseline has; a margin is how much worse is accepted, such as {EXAMPLES}"
        )
    if match["of"] and kind not in (FACTS if match["of"] == RUN else QUESTION_KINDS):
        kinds = "scores, rates and shares" if match["of"] == RUN else "scores"
        raise ConfigError(f"gate rule {text!r}: `of {match['of']}` is for {kinds}; leave it out")
    if match["of"] == RUN and versus:
        raise ConfigError(f"gate rule {text!r}: `of run` is a fact about one run; leave out `vs baseline`")
    question = match["of"] or (SUITE if kind in QUESTION_KINDS else "")
    return Rule(text, kind, metric, statistic, at_least, limit, versus, relative, question)


def scenario_thresholds(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the thresholds that hold for each scenario, which tests apply: `tsq: 0.5`, but not `tsq.mean: 0.8`, which is a rule."""
    return {name: limit for name, limit in thresholds.items() if name.rpartition(".")[2] != "mean"}


def mean_rules(thresholds: Mapping[str, float], scales: Mapping[str, Scale] = MappingProxyType({})) -> Iterator[Rule]:
    """What `thresholds` ask of a whole run: `tsq.mean: 0.8` is `tsq.mean >= 0.8 of run`. `tsq: 0.5`, a floor, is the tests' affair."""
    for name, limit in thresholds.items():
        score, _, statistic = name.rpartition(".")
        if statistic == "mean":
            scale = scale_in(scales, score)
            text = f"{name} {scale.sign} {limit:g} of {RUN}"
            yield Rule(text, "score", score, statistic, not scale.falling, limit, versus=False, of=RUN)


def _quantity(text: str, metric: str, scores: Sequence[str]) -> tuple[str, str, str]:
    """(kind, metric, statistic); raises ConfigError for what nobody measures."""
    if metric.startswith(("pass@", "pass^")):
        if not PassRate.of(metric).k:
            raise ConfigError(f"gate rule {text!r}: {metric} is about no trial; pass^3 is about three of each scenario")
        return "passes", metric, ""
    name, _, statistic = metric.rpartition(".") if "." in metric else (metric, "", "")
    if name in scores and statistic == "mean":
        return "score", name, statistic
    if metric in scores:
        raise ConfigError(f"gate rule {text!r}: {metric} is the score of each rollout, and a rule is about a whole run: {metric}.mean")
    if name in gated() and statistic in LATENCY_STATISTICS:
        return "latency", name, statistic
    if name in gated():
        raise ConfigError(f"gate rule {text!r}: {unknown_name(f'statistic of {name}', statistic, LATENCY_STATISTICS)}")
    if metric in SHARES:
        return "share", name, statistic
    if metric in single():
        return "rate", metric, ""
    if metric == "goodput":
        return "goodput", metric, ""
    known = [*(f"{each}.mean" for each in scores), *(f"{each}.p95" for each in gated()), *single(), *SHARES, "goodput", "pass^3", "pass@3"]
    raise ConfigError(f"gate rule {text!r}: {unknown_name('metric', metric, known)}")


def _in_its_unit(text: str, kind: str, value: float, unit: str, versus: bool) -> tuple[float, bool]:
    """(the limit in the metric's unit, whether it is a share of the baseline's value)."""
    if versus and kind in PORTIONS:
        raise ConfigError(f"gate rule {text!r}: that is a fact about one run; leave out `vs baseline`")
    if versus and kind == "score":
        if unit:
            raise ConfigError(f"gate rule {text!r}: how much worse than the baseline is said in the score's own unit, such as -0.05")
        return value, False
    if versus:
        if unit != "%":
            raise ConfigError(f"gate rule {text!r}: how much worse than the baseline is said in percent, such as `<= +10% vs baseline`")
        return value / 100, True
    allowed = UNITS[kind]
    if unit not in allowed:
        raise ConfigError(
            f"gate rule {text!r}: the limit has {unit or 'no unit'}; it may have: {', '.join(each or 'none' for each in allowed)}"
        )
    limit = value * allowed[unit]
    if (kind != "score" and limit < 0) or (kind in PORTIONS and limit > 1):
        raise ConfigError(f"gate rule {text!r}: no {kind} can be {value:g}{unit}")
    return limit, False


#: Kinds that are about scenarios, those in quarantine left out; the others are about a run.
OF_SCENARIOS = ("score", "passes", "latency", "goodput")


@dataclass(frozen=True)
class SuiteRule:
    """A rule for one suite under one variant."""

    group: str
    rule: Rule
    scale: Scale = UNDECLARED  # of the score that the rule is about
    any_part: bool = False  # judged even when only a part of the suite ran: it is from the command line
    deterministic: bool = False  # the suite says that its trials never differ
    pass_threshold: PassThreshold | None = None  # what a rollout has to reach to pass; None where the suite does not say

    @property
    def score(self) -> str:
        """The score that the rule looks at; empty where it looks at none."""
        if self.rule.kind == "passes":
            return self.pass_threshold.score if self.pass_threshold else ""
        return self.rule.metric if self.rule.kind == "score" else ""

    @property
    def known_pass_threshold(self) -> PassThreshold:
        """What a rollout has to reach to pass, for a rule that asks it: `parse_rule` has seen to it."""
        assert self.pass_threshold is not None
        return self.pass_threshold

    @property
    def is_about_scenarios(self) -> bool:
        """Whether it infers something about scenarios, so that those in quarantine are left out; others are about a run as it is."""
        return self.rule.kind in OF_SCENARIOS and self.rule.of != RUN

    @property
    def may_decide_early(self) -> bool:
        """Whether it may decide before the last round of trials, as those of values with limits; others are judged once, in the end."""
        return self.rule.of != RUN and (self.rule.kind == "passes" or (self.rule.kind == "score" and self.scale.limits is not None))
