"""Gate rules: their meaning, and the errors about invalid rules."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.rules import LATENCY_STATISTICS, SHARES, Rule, parse_rule
from pytest_agentbench.metrics.registry import gated
from tests.made_runs import SCALES

SCORES = ("tsq", "hallucinated")


def parsed(text: str) -> Rule:
    return parse_rule(text, SCORES, SCALES)


@pytest.mark.parametrize(
    ("text", "kind", "metric", "statistic", "at_least", "limit", "versus", "relative"),
    [
        ("tsq.mean >= -0.03 vs baseline", "score", "tsq", "mean", True, -0.03, True, False),
        ("tsq.mean >= 80%", "score", "tsq", "mean", True, 0.8, False, False),
        ("hallucinated.mean <= 0.1", "score", "hallucinated", "mean", False, 0.1, False, False),
        ("hallucinated.mean <= +0.1 vs baseline", "score", "hallucinated", "mean", False, 0.1, True, False),
        ("ttft.p95 <= 500ms", "latency", "ttft", "p95", False, 500.0, False, False),
        ("rollout.p50<=1.5 s", "latency", "rollout", "p50", False, 1500.0, False, False),
        ("tpot.p90 <= +10% vs baseline", "latency", "tpot", "p90", False, 0.1, True, True),
        ("rollouts_per_hour >= 1200", "rate", "rollouts_per_hour", "", True, 1200.0, False, False),
        ("output_tokens_per_s >= -5% vs baseline", "rate", "output_tokens_per_s", "", True, -0.05, True, True),
        ("infra_error.rate <= 2%", "share", "infra_error", "rate", False, 0.02, False, False),
        ("limit.rate <= 0.05", "share", "limit", "rate", False, 0.05, False, False),
        ("goodput >= 95%", "goodput", "goodput", "", True, 0.95, False, False),
        ("  tsq.mean   >=  0  vs   baseline ", "score", "tsq", "mean", True, 0.0, True, False),
    ],
)
def test_meaning(text: str, kind: str, metric: str, statistic: str, at_least: bool, limit: float, versus: bool, relative: bool) -> None:
    """A rule has a metric, a direction, a limit in the metric's unit, and may compare with a baseline."""
    rule = parsed(text)

    assert (kind, metric, statistic, at_least, versus, relative) == (
        rule.kind, rule.metric, rule.statistic, rule.at_least, rule.versus, rule.relative,
    )  # fmt: skip
    assert math.isclose(limit, rule.limit)
    assert " ".join(text.split()) == rule.text


@pytest.mark.parametrize("name", ["harbor_tests-passed", "harbor_unit tests", "1st", "été", "a>=b", "nat_x/y"])
def test_scores_of_other_tools(name: str) -> None:
    """Rules, trends and calibrations accept any score name, because imported scores are named by other tools."""
    rule = parse_rule(f"{name}.mean >= -0.05 vs baseline", (name,))

    assert ("score", name, "mean", -0.05, True) == (rule.kind, rule.metric, rule.statistic, rule.limit, rule.versus)


@pytest.mark.parametrize(
    ("text", "margin"), [("tsq.mean >= -0.03 vs baseline", 0.03), ("ttft.p50 <= +10% vs baseline", 0.1), ("tsq.mean >= 0", 0.0)]
)
def test_margins(text: str, margin: float) -> None:
    """A margin is the accepted loss, in whichever direction is worse."""
    assert math.isclose(margin, parsed(text).margin)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must be METRIC >= LIMIT or METRIC <= LIMIT"),
        ("tsq > 0.8", "must be METRIC >= LIMIT"),
        ("pass^3.5 >= 0.8", "must be METRIC >= LIMIT"),
        ("tsq.mean >= 0.8 vs main", "must be METRIC >= LIMIT"),
        ("tsq.mean >= -0.03 vs baseline of run", "`of run` is about one run; leave out `vs baseline` or `of run`"),
        ("tqs >= 0.8", "no metric 'tqs' .did you mean 'tsq.mean'..; known: .*tsq.mean, ttft.p95"),
        ("ttft.mean <= 500ms", "no statistic of ttft 'mean'; known: p50, p90, p95, p99"),
        ("ttft <= 500ms", "no statistic of ttft ''; known: p50, p90, p95, p99"),
        ("tsq >= -0.03 vs baseline", "tsq is the score of one rollout, but a rule is about a whole run; use tsq.mean"),
        ("tsq >= 0.8", "tsq is the score of one rollout, but a rule is about a whole run; use tsq.mean"),
        ("ok.rate <= 5%", "no metric 'ok.rate'"),
        ("tsq.mean <= 0.8", "higher tsq is better, so use >="),
        ("hallucinated.mean >= 0.8", "lower hallucinated is better, so use <="),
        ("ttft.p95 >= 500ms", "lower ttft is better, so use <="),
        ("tsq.mean >= 500ms", "the unit of the limit is ms; allowed: no unit, %"),
        ("ttft.p95 <= 500", "the unit of the limit is missing; allowed: ms, s"),
        ("ttft.p50 <= +50ms vs baseline", "write how much worse the run may be in percent"),
        ("tsq.mean >= -3% vs baseline", "write how much worse the run may be in the score's own unit, such as -0.05"),
        ("tsq.mean >= 0.03 vs baseline", "requires an improvement"),
        ("ttft.p50 <= -10% vs baseline", "requires an improvement"),
        ("infra_error.rate <= 2% vs baseline", "this metric cannot be compared with a baseline; leave out `vs baseline`"),
        ("infra_error.rate <= 200%", "the limit must be from 0 to 1, or 0% to 100%"),
        ("goodput >= 95", "the limit must be from 0 to 1, or 0% to 100%"),
        ("rollouts_per_hour >= -5", "the limit must be 0 or more"),
    ],
)
def test_invalid_rules(text: str, sentence: str) -> None:
    """The error about an invalid rule quotes the rule, and says what is wrong or what would work."""
    with pytest.raises(ConfigError, match=sentence) as error:
        parsed(text)

    assert repr(text) in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_a_config_error(text: str) -> None:
    """Any text is parsed or raises ConfigError, and nothing else."""
    with suppress(ConfigError):
        parsed(text)


METRICS = st.one_of(
    st.tuples(st.just("tsq.mean"), st.just(">="), st.just(""), st.just(1.0)),
    st.tuples(
        st.builds("{}.{}".format, st.sampled_from([*gated()]), st.sampled_from(LATENCY_STATISTICS)),
        st.just("<="),
        st.just("s"),
        st.just(1000.0),
    ),
    st.tuples(st.sampled_from(SHARES), st.just("<="), st.just("%"), st.just(0.01)),
)


@given(METRICS, st.integers(0, 10_000), st.sampled_from(["", " ", "  "]))
def test_limits_are_read_exactly(metric: tuple[str, str, str, float], hundredths: int, space: str) -> None:
    """A limit with two decimals is its number times its unit, whatever the spaces."""
    name, relation, unit, worth = metric
    rule = parsed(f"{name}{space}{relation}{space}{hundredths / 100:.2f}{unit}")

    assert math.isclose(hundredths / 100 * worth, rule.limit, abs_tol=1e-12)
    assert not rule.versus


@given(st.integers(1, 100))
def test_a_rule_of_its_own_text_is_itself(hundredths: int) -> None:
    """The text of a rule, which reports quote, can be parsed again."""
    rule = parsed(f"tsq.mean  >=  -{hundredths / 100}  vs baseline")

    assert rule == parsed(rule.text)


@pytest.mark.parametrize(("words", "of"), [("", "suite"), (" of suite", "suite"), (" of population", "population")])
def test_the_question(words: str, of: str) -> None:
    """A rule about a score is about the suite, or about the population if it says so. Another question makes it a different rule."""
    rule, plain = (parse_rule(f"tsq.mean >= -0.05 vs baseline{each}", ("tsq",)) for each in (words, ""))

    assert of == rule.of == parse_rule(f"tsq.mean >= 0.8{words}", ("tsq",)).of
    assert (of == "suite") == (rule.about == plain.about)
    if words:
        with pytest.raises(ConfigError, match=f"`of {of}` is only for scores and pass rates; leave it out"):
            parse_rule(f"ttft.p95 <= 500ms{words}", ("tsq",))
