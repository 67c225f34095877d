"""Parses the rules of a gate, and binds each rule to the suite that it is about.

Examples: `tsq.mean >= -0.05 vs baseline`, `tsq.mean >= 0.8 of run`, `pass^3 >= 0.7`, `infra_error.rate <= 2%`.
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

LATENCY_STATISTICS = ("p50", "p90", "p95", "p99")  # without the mean, which a few stalls dominate

SHARES = tuple(f"{status}.rate" for status in STATUSES if status != "ok")  # shares of the rollouts that ended

#: Kinds for which higher is better. For scores and rates it depends on the metric.
RISING = ("goodput", "passes")

#: Kinds that are about scenarios, so a rule can ask about the suite or about the population.
QUESTION_KINDS = ("score", "passes")

#: Kinds that a run has as plain values, so a rule may say `of run`. Rules about rates and shares always compare the plain value.
FACTS = (*QUESTION_KINDS, "rate", "share")

#: Kinds whose values cannot exceed 1.
PORTIONS = ("share", "goodput", "passes")

#: Kind -> allowed units of its limit -> factor to the unit of the metric.
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
    """A gate rule, parsed: which metric it is about, and the limit or the margin against a baseline."""

    text: str
    kind: str  # score | passes | latency | rate | share | goodput
    metric: str  # a score's name, pass^3, ttft, infra_error, rollouts_per_hour, cost_per_pass, ...
    statistic: str  # mean, p50, ...; empty if the metric has only one value
    at_least: bool  # whether the relation is `>=`, because higher is better
    limit: (
        float  # in the score's unit, in milliseconds, or a share from 0 to 1; against a baseline the difference, or a share if `relative`
    )
    versus: bool  # whether the rule compares with the baseline
    relative: bool = False  # whether the limit is a share of the baseline's value
    of: str = ""  # for scores and passes the question: suite | population | run; for rates and shares `run` or empty

    @property
    def about(self) -> tuple[str, str, bool, str]:
        """The key of the rule. If two rules have the same key, the one from the command line replaces the other."""
        return self.metric, self.statistic, self.versus, self.of if self.kind in QUESTION_KINDS else ""

    @property
    def pass_rate(self) -> PassRate:
        """The pass rate of a rule of kind `passes`."""
        return PassRate.of(self.metric)

    @property
    def margin(self) -> float:
        """The accepted loss against the baseline: 0.05 for `tsq.mean >= -0.05`, 0.1 for `ttft.p50 <= +10%`."""
        return max(0.0, -self.limit if self.at_least else self.limit)


def parse_rule(text: str, scores: Sequence[str], scales: Mapping[str, Scale] = MappingProxyType({}), *, passes: bool = False) -> Rule:
    """Parses a rule for a suite. Raises ConfigError with a rule that would work.

    Args:
        text: The rule.
        scores: The scores of the suite, the main one first.
        scales: Score -> its scale.
        passes: Whether the suite's rollouts pass or fail, because its main score has a threshold for each scenario.
    """
    text = " ".join(text.split())
    match = RULE_PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(f"gate rule {text!r} must be METRIC >= LIMIT or METRIC <= LIMIT, such as {EXAMPLES}")
    kind, metric, statistic = _quantity(text, match["metric"], scores)
    if kind == "passes" and not passes:
        raise ConfigError(
            f"gate rule {text!r}: pass rates need a threshold for {scores[0]}; "
            f"add one to suite.yaml, for example `thresholds: {{{scores[0]}: 0.5}}`"
        )
    at_least, versus = match["relation"] == ">=", match["versus"] is not None
    is_rising_rate = kind == "rate" and single()[metric].rising
    if at_least != (rising := kind in RISING or is_rising_rate or (kind == "score" and not scale_in(scales, metric).falling)):
        raise ConfigError(f"gate rule {text!r}: {'higher' if rising else 'lower'} {metric} is better, so use {'>=' if rising else '<='}")
    limit, relative = _in_its_unit(text, kind, float(match["value"]), match["unit"] or "", versus)
    if versus and limit and (limit > 0) == at_least:
        raise ConfigError(f"gate rule {text!r} requires an improvement; write how much worse the run may be, such as {EXAMPLES}")
    if match["of"] and kind not in (FACTS if match["of"] == RUN else QUESTION_KINDS):
        kinds = "scores, pass rates, rates and shares" if match["of"] == RUN else "scores and pass rates"
        raise ConfigError(f"gate rule {text!r}: `of {match['of']}` is only for {kinds}; leave it out")
    if match["of"] == RUN and versus:
        raise ConfigError(f"gate rule {text!r}: `of run` is about one run; leave out `vs baseline` or `of run`")
    question = match["of"] or (SUITE if kind in QUESTION_KINDS else "")
    return Rule(text, kind, metric, statistic, at_least, limit, versus, relative, question)


def mean_rules(thresholds: Mapping[str, float], scales: Mapping[str, Scale] = MappingProxyType({})) -> Iterator[Rule]:
    """Yields the rules for thresholds of means: `tsq.mean: 0.8` becomes `tsq.mean >= 0.8 of run`.

    Thresholds of scenarios, such as `tsq: 0.5`, are applied by tests instead.
    """
    for name, limit in thresholds.items():
        score, _, statistic = name.rpartition(".")
        if statistic == "mean":
            scale = scale_in(scales, score)
            text = f"{name} {scale.sign} {limit:g} of {RUN}"
            yield Rule(text, "score", score, statistic, not scale.falling, limit, versus=False, of=RUN)


def _quantity(text: str, metric: str, scores: Sequence[str]) -> tuple[str, str, str]:
    """Splits the left side of a rule: `ttft.p95` is (kind "latency", metric "ttft", statistic "p95"). Raises ConfigError if unknown."""
    if metric.startswith(("pass@", "pass^")):
        if not PassRate.of(metric).k:
            raise ConfigError(f"gate rule {text!r}: {metric} counts no trials; write their number, as in pass^3")
        return "passes", metric, ""
    name, _, statistic = metric.rpartition(".") if "." in metric else (metric, "", "")
    if name in scores and statistic == "mean":
        return "score", name, statistic
    if metric in scores:
        raise ConfigError(f"gate rule {text!r}: {metric} is the score of one rollout, but a rule is about a whole run; use {metric}.mean")
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
    """Returns the limit in the metric's unit, and whether it is a share of the baseline's value."""
    if versus and kind in PORTIONS:
        raise ConfigError(f"gate rule {text!r}: this metric cannot be compared with a baseline; leave out `vs baseline`")
    if versus and kind == "score":
        if unit:
            raise ConfigError(f"gate rule {text!r}: write how much worse the run may be in the score's own unit, such as -0.05")
        return value, False
    if versus:
        if unit != "%":
            raise ConfigError(f"gate rule {text!r}: write how much worse the run may be in percent, such as `<= +10% vs baseline`")
        return value / 100, True
    allowed = UNITS[kind]
    if unit not in allowed:
        units = ", ".join(each or "no unit" for each in allowed)
        raise ConfigError(f"gate rule {text!r}: the unit of the limit is {unit or 'missing'}; allowed: {units}")
    limit = value * allowed[unit]
    if (kind != "score" and limit < 0) or (kind in PORTIONS and limit > 1):
        raise ConfigError(f"gate rule {text!r}: the limit must be {'from 0 to 1, or 0% to 100%' if kind in PORTIONS else '0 or more'}")
    return limit, False


#: Kinds that leave out scenarios in quarantine. Other kinds are about the whole run.
OF_SCENARIOS = ("score", "passes", "latency", "goodput")


@dataclass(frozen=True)
class SuiteRule:
    """A rule that is applied to one group (suite, or `suite-variant`)."""

    group: str
    rule: Rule
    scale: Scale = UNDECLARED  # scale of the score that the rule is about
    any_part: bool = False  # whether it also applies if only a part of the suite ran, because it is from the command line
    deterministic: bool = False  # whether the suite declares that its trials never differ
    pass_threshold: PassThreshold | None = None  # threshold at which a rollout passes; None if the suite has none

    @property
    def score(self) -> str:
        """The score that the rule uses, or an empty string."""
        if self.rule.kind == "passes":
            return self.pass_threshold.score if self.pass_threshold else ""
        return self.rule.metric if self.rule.kind == "score" else ""

    @property
    def known_pass_threshold(self) -> PassThreshold:
        """The pass threshold of a rule about pass rates. `parse_rule` ensures that there is one."""
        assert self.pass_threshold is not None
        return self.pass_threshold

    @property
    def is_about_scenarios(self) -> bool:
        """Whether the rule judges an interval over scenarios. Scenarios in quarantine (a list in suite.yaml) are then left out."""
        return self.rule.kind in OF_SCENARIOS and self.rule.of != RUN

    @property
    def may_decide_early(self) -> bool:
        """Whether an interim look (a check between rounds of trials) may decide the rule before the last round.

        Only rules about pass rates and about scores with limits may, except those `of run`. Other rules are judged once, at the end.
        """
        return self.rule.of != RUN and (self.rule.kind == "passes" or (self.rule.kind == "score" and self.scale.limits is not None))
