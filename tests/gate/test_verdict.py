"""Verdicts on rules for a run and its baseline: which runs pass, fail, or cannot pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.gate.evidence import CallTimes, Evidence, Trial
from pytest_agentbench.gate.usable_numbers import missing_scores
from pytest_agentbench.gate.verdict import RuleVerdict, cannot_measure, judge_rules, session_verdict
from pytest_agentbench.metrics.stopwatch import READ_TOO_LATE
from pytest_agentbench.stats.pass_rates import PassThreshold
from tests.gate.evidences import HASHES, asked, evidence, trial


def suite(n: int = 100, trials: int = 3, score: float = 0.8, wrong: int = 0, **keys: Any) -> list[Trial]:
    """Returns scenarios of which the first `wrong` ones score 0."""
    return [trial(i, 0.0 if i < wrong else score, number=k, **keys) for i in range(n) for k in range(1, trials + 1)]


def judged(text: str, run: Evidence, base: Evidence | None = None, **keys: Any) -> RuleVerdict:
    return judge_rules([asked(text, **keys)], run, {"shop": base} if base else {})[0]


def verdict(text: str, run: Evidence, base: Evidence | None = None, **keys: Any) -> str:
    return judged(text, run, base, **keys).decision.verdict


BASE = evidence(suite(), run="before")


@pytest.mark.parametrize(
    ("text", "run", "expected"),
    [
        ("tsq.mean >= -0.05 vs baseline", {}, "PASS"),
        ("tsq.mean >= -0.05 vs baseline", {"wrong": 30}, "FAIL"),
        ("tsq.mean >= -0.05 vs baseline", {"wrong": 7}, "INCONCLUSIVE"),
        ("tsq.mean >= 0.7", {}, "PASS"),
        ("tsq.mean >= 0.9", {}, "FAIL"),
        ("tsq.mean >= 0.8", {}, "INCONCLUSIVE"),
        ("repeated.mean <= 0.5 vs baseline", {}, "INCONCLUSIVE"),  # without limits and without variation nothing bounds the mean
        ("ttft.p50 <= 150ms", {}, "PASS"),
        ("ttft.p50 <= 50ms", {}, "FAIL"),
        ("ttft.p50 <= +10% vs baseline", {}, "PASS"),
        ("ttft.p50 <= +10% vs baseline", {"ttft": 120.0}, "FAIL"),
        ("ttft.p99 <= 150ms", {}, "INCONCLUSIVE"),  # 100 scenarios have no p99
        ("rollout.p50 <= 2s", {}, "PASS"),
        ("rollouts_per_hour >= 900", {}, "PASS"),
        ("rollouts_per_hour >= 1100", {}, "FAIL"),
        ("rollouts_per_hour >= -1% vs baseline", {}, "PASS"),
        ("output_tokens_per_s >= 1", {}, "INCONCLUSIVE"),  # this run has no such rate
        ("infra_error.rate <= 0%", {}, "PASS"),
        ("agent_error.rate <= 1%", {"status": "agent_error"}, "FAIL"),
        ("goodput >= 95%", {}, "INCONCLUSIVE"),  # without latency objectives, no call is good
    ],
)
def test_rules(text: str, run: dict[str, Any], expected: str) -> None:
    """Rules about scores and latencies are decided by an interval, rules about exact values without one."""
    assert expected == verdict(text, evidence(suite(**run)), BASE)


def test_goodput() -> None:
    """With objectives, goodput is the share of good calls, averaged by scenario."""
    good = evidence(suite(), slo={"ttft": 150.0})

    assert "PASS" == verdict("goodput >= 90%", good)
    assert "FAIL" == verdict("goodput >= 90%", evidence(suite(ttft=200.0), slo={"ttft": 150.0}))
    assert 1.0 == judged("goodput >= 90%", good).decision.estimate


def test_an_agents_error_is_the_worst_score() -> None:
    """An agent error counts as score 0. If it were left out, a run would get better the more often its agent fails."""
    run = evidence([*suite(50), *(trial(i, None, status="agent_error") for i in range(50, 100))])

    found = judged("tsq.mean >= -0.05 vs baseline", run, BASE).decision

    assert "FAIL" == found.verdict
    assert found.estimate == pytest.approx(-0.4)


DOUBTFUL = {
    "lost": (evidence(suite(), lost=1), "1 of 300 planned rollouts were not run"),
    "cancelled": (evidence([*suite(), trial(5, None, status="cancelled")]), "1 of 301 planned rollouts were not run"),
    "infra": (
        evidence([*suite(), *(trial(5, None, number=9 + i, status="infra_error") for i in range(7))]),
        "7 of 307 rollouts ended as infra_error, more than 2 %",
    ),
}


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("text", ["tsq.mean >= -0.05 vs baseline", "tsq.mean >= 0.7", "ttft.p50 <= 150ms", "rollouts_per_hour >= 900"])
def test_a_doubtful_run_never_passes(name: str, text: str) -> None:
    """If rollouts were lost or not measured, PASS becomes INCONCLUSIVE, and the reason says why."""
    run, why = DOUBTFUL[name]
    found = judged(text, run, BASE).decision

    assert ("INCONCLUSIVE", why) == (found.verdict, found.reason)
    assert cannot_measure("shop", [asked(text)], run)


def test_a_doubtful_run_can_fail() -> None:
    """A drop in the remaining scenarios still fails."""
    assert "FAIL" == verdict("tsq.mean >= -0.05 vs baseline", evidence(suite(wrong=40), lost=1), BASE)


def test_the_allowed_share_of_infra_errors() -> None:
    """The allowed share of infra errors is 2 %, or the limit of a rule about it. Above its limit, the rule itself fails."""
    run = DOUBTFUL["infra"][0]
    rules = [asked("tsq.mean >= -0.05 vs baseline"), asked("infra_error.rate <= 5%")]

    assert ["PASS", "PASS"] == [each.decision.verdict for each in judge_rules(rules, run, {"shop": BASE})]
    assert not cannot_measure("shop", rules, run)
    strict = [rules[0], asked("infra_error.rate <= 1%")]
    assert ["INCONCLUSIVE", "FAIL"] == [each.decision.verdict for each in judge_rules(strict, run, {"shop": BASE})]


@pytest.mark.parametrize(
    "text", ["tsq.mean >= -0.9 vs baseline", "tsq.mean >= 0", "ttft.p50 <= 9s", "rollouts_per_hour >= 0", "infra_error.rate <= 100%"]
)
@pytest.mark.parametrize("status", [None, "infra_error", "cancelled", "agent_error"])
def test_nothing_measured_is_never_a_pass(text: str, status: str | None) -> None:
    """Without an evaluable rollout, no rule passes."""
    run = evidence([trial(i, None, status=status, calls=()) for i in range(50)] if status else [])

    assert "PASS" != verdict(text, run, BASE)


@pytest.mark.parametrize(
    ("run", "base", "why"),
    [
        (evidence(suite()), None, "there is no baseline; name one with --agentbench-baseline"),
        (evidence(suite()), evidence([]), "the baseline now has no results of shop"),
        (evidence(suite()), evidence(suite(n=60)), "only 60 of 100 scenarios are in both the run and its baseline; a verdict needs 80 %"),
        (evidence(suite(n=60)), BASE, "only 60 of 100 scenarios are in both the run and its baseline; a verdict needs 80 %"),
        (
            evidence(suite(content={**HASHES, "scenario": "changed"})),
            BASE,
            "only 0 of 100 scenarios are in both the run and its baseline; a verdict needs 80 %",
        ),
        (
            evidence(suite(content={**HASHES, "scorers": {"tsq": "changed"}})),
            BASE,
            "the baseline's tsq is from another version of the scorer",
        ),
        (evidence([*suite(), trial(1, None, unscored=("tsq",))]), BASE, missing_scores(1, "tsq")),
    ],
)
def test_baselines_that_cannot_be_compared(run: Evidence, base: Evidence | None, why: str) -> None:
    """A baseline that is missing or has other scenarios, data or scorers decides nothing, and the reason says so."""
    found = judged("tsq.mean >= -0.05 vs baseline", run, base).decision

    assert "INCONCLUSIVE" == found.verdict
    assert why in found.reason


def test_a_part_of_a_suite() -> None:
    """A rule in suite.yaml is about the suite. One on the command line is about the scenarios that ran."""
    part = evidence(suite(), scenarios={"shop": 1000})

    assert "INCONCLUSIVE" == verdict("tsq.mean >= 0.7", part)
    assert "PASS" == verdict("tsq.mean >= 0.7", part, any_part=True)


@pytest.mark.parametrize("text", ["ttft.p50 <= 9s", "ttft.p50 <= 1ms", "rollouts_per_hour >= 1", "goodput >= 1%"])
def test_timings_of_a_saturated_client(text: str) -> None:
    """Timings of a saturated client neither pass nor fail. Scores are not affected."""
    run = evidence(suite(), stopwatch="client-saturated", slo={"ttft": 150.0})

    assert "INCONCLUSIVE" == verdict(text, run)
    assert "PASS" == verdict("tsq.mean >= 0.7", run)


@pytest.mark.parametrize("text", ["cost_per_pass <= 0.02", "score_per_1k_tokens >= 0.3", "prefix_cache_hit_ratio >= 0.5"])
def test_token_metrics_need_no_timing(text: str) -> None:
    """Token metrics are known even if the client was saturated."""
    efficiency = {"shop": {"cost_per_pass": 0.01, "score_per_1k_tokens": 0.5}}
    run = evidence(suite(), stopwatch="client-saturated", efficiency=efficiency, rates={"prefix_cache_hit_ratio": 0.75})

    assert "PASS" == verdict(text, run)


@pytest.mark.parametrize(("cost", "expected"), [(0.0109, "PASS"), (0.0111, "FAIL"), (None, "INCONCLUSIVE")])
def test_cost_against_a_baseline(cost: float | None, expected: str) -> None:
    """A suite's metric is compared with that of the same suite in the baseline. Unknown values never pass."""
    run, base = (evidence(suite(), efficiency={"shop": {"cost_per_rollout": each}}) for each in (cost, 0.01))

    assert expected == verdict("cost_per_rollout <= +10% vs baseline", run, base)


UNUSABLE = "not usable: chunks arrived faster than the client's machine read them"


@pytest.mark.parametrize(
    ("unusable", "text", "why"),
    [
        ("ttft.p50", "ttft.p50 <= 9s", f"not usable in now: TTFT p50; {READ_TOO_LATE}"),
        ("ttft.p99", "ttft.p50 <= 9s", ""),
        ("tpot.p50", "tpot.p50 <= 9s", f"not usable in now: TPOT p50; {READ_TOO_LATE}"),
        ("ttft.p50", "e2e.p50 <= 9s", ""),
        ("ttft.p50", "rollout.p50 <= 9s", ""),
        ("ttft.p50", "rollouts_per_hour >= 1", ""),
        ("goodput.itl", "goodput >= 1%", f"not usable in now: goodput by ITL; {READ_TOO_LATE}"),
        (
            "goodput.itl",
            "goodput_per_s >= 1",
            f"not usable in now: goodput by ITL; {READ_TOO_LATE}",
        ),
        ("goodput.ttft", "goodput >= 1%", ""),
        ("itl.p99", "goodput >= 1%", ""),
    ],
)
def test_a_rule_needs_its_own_numbers(unusable: str, text: str, why: str) -> None:
    """Timings that are not usable neither pass nor fail, in limits and goodput. Rules about other timings do."""
    decision = judged(text, evidence(suite(), unusable=(unusable,), slo={"itl": 150.0})).decision

    assert ("INCONCLUSIVE" if why else "PASS", why) == (decision.verdict, decision.reason)


@pytest.mark.parametrize(
    ("text", "versions", "share", "is_refused"),
    [
        ("ttft.p50 <= +10% vs baseline", (1, 2), 0.25, True),
        ("ttft.p50 <= +10% vs baseline", (2, 1), 0.25, True),
        ("tpot.p50 <= +10% vs baseline", (1, 2), 0.25, True),
        ("goodput_per_s >= -10% vs baseline", (1, 2), 0.25, True),
        ("ttft.p50 <= +10% vs baseline", (2, 2), 0.25, False),
        ("ttft.p50 <= +10% vs baseline", (1, 1), 0.25, False),
        ("ttft.p50 <= +10% vs baseline", (1, 2), 0.01, False),
        ("e2e.p50 <= +10% vs baseline", (1, 2), 0.25, False),
        ("ttft.p50 <= 9s", (1, 2), 0.25, False),
    ],
)
def test_versions_of_the_stopwatch(text: str, versions: tuple[int, int], share: float, is_refused: bool) -> None:
    """Rules about timings of events do not compare versions of the stopwatch that time more than one call in a hundred differently."""
    base, run = (
        evidence(suite(), slo={"ttft": 500.0}, stopwatch_version=version, delayed_ack_share=share * (version == 2)) for version in versions
    )

    decision = judged(text, run, base).decision

    why = "TTFT of versions 1 and 2 of the stopwatch differs by up to 40 ms in 25 % of these calls if the server does not set TCP_NODELAY"
    assert is_refused == (f"{why}; promote a new baseline" == decision.reason)
    assert is_refused == ("stopwatch" in decision.reason)
    assert not is_refused or "INCONCLUSIVE" == decision.verdict


def test_a_baseline_may_not_be_usable() -> None:
    """A percentile that is not usable in the baseline is not compared."""
    decision = judged("ttft.p50 <= +10% vs baseline", evidence(suite()), evidence(suite(), unusable=("ttft.p50",))).decision

    assert "INCONCLUSIVE" == decision.verdict
    assert decision.reason.startswith("not usable in now: TTFT p50; ")


@pytest.mark.parametrize(
    ("slo", "why"),
    [
        ({"ttft": 50.0}, ""),
        ({}, "goodput needs latency objectives; set them with --agentbench-slo, for example ttft=500ms"),
        ({"ttft": 5000.0}, "the latency objectives are ttft=5000ms, but were ttft=50ms in the baseline; use the same --agentbench-slo"),
    ],
    ids=["the same", "none", "others"],
)
def test_goodput_under_other_objectives(slo: dict[str, float], why: str) -> None:
    """Goodput per second is compared with a baseline only if that has the same objectives."""
    run, base = (evidence(suite(), slo=each, rates={"goodput_per_s": 4.0}) for each in (slo, {"ttft": 50.0}))
    decision = judged("goodput_per_s >= -10% vs baseline", run, base).decision

    assert ("INCONCLUSIVE" if why else "PASS", why) == (decision.verdict, decision.reason)


def test_another_cache_policy() -> None:
    """Timings with a cold cache are not compared with those of a warm one. Limits and scores are not affected."""
    run, base = evidence(suite(), cache="cold"), evidence(suite())
    verdicts = {
        text: judged(text, run, base).decision
        for text in ("ttft.p50 <= +50% vs baseline", "ttft.p50 <= 10s", "tsq.mean >= -0.5 vs baseline")
    }

    assert ["the policy for the prefix cache is cold, but was carry in the baseline; use --agentbench-cache=carry", "", ""] == [
        decision.reason for decision in verdicts.values()
    ]


def test_a_baseline_with_a_saturated_client() -> None:
    """A baseline with a saturated client has no usable timings, but its scores are compared."""
    base = evidence(suite(), stopwatch="client-saturated")

    assert "INCONCLUSIVE" == verdict("ttft.p50 <= +10% vs baseline", evidence(suite()), base)
    assert "PASS" == verdict("tsq.mean >= -0.05 vs baseline", evidence(suite()), base)


def test_failed_calls_have_no_latency() -> None:
    """A run whose slow calls failed does not count as fast."""
    calls = (CallTimes({"ttft": 100.0}, 11, failed=False), CallTimes({}, 0, failed=True))
    found = judged("ttft.p50 <= 150ms", evidence(suite(calls=calls))).decision

    assert ("INCONCLUSIVE", "300 of 600 LLM calls failed, more than 2 %, and failed calls have no latency") == (found.verdict, found.reason)


def test_imported_rollouts_may_have_no_time() -> None:
    """A baseline without durations does not count as infinitely fast."""
    base = evidence(suite(duration_ms=0.0))

    assert "INCONCLUSIVE" == verdict("rollout.p50 <= +10% vs baseline", evidence(suite()), base)


def test_notes_about_other_changes() -> None:
    """A different agent, backend or share of prefix cache hits causes a note, and does not change the verdict."""
    run = evidence(suite(content={**HASHES, "agent": "x", "backend": "y"}), rates={"prefix_cache_hit_ratio": 0.9})
    base = evidence(suite(), rates={"prefix_cache_hit_ratio": 0.1})

    assert ("the agent has changed since the baseline", "the backend has changed since the baseline") == judged(
        "tsq.mean >= -0.05 vs baseline", run, base
    ).notes
    timed = judged("ttft.p50 <= +10% vs baseline", run, base)
    assert "prefix cache hits were 90 % of the prompt tokens, in the baseline 10 %" in timed.notes
    assert "PASS" == timed.decision.verdict


@pytest.mark.parametrize("text", ["rollouts_per_hour >= 1", "rollouts_per_hour >= 9999"])
def test_rates_need_clocks_of_nodes(text: str) -> None:
    """A rule on a rate is inconclusive if the clocks of nodes are known to no better than 1 % of its time. Latencies are not affected."""
    good, bad = evidence(suite(), clock_share=0.01), evidence(suite(), clock_share=0.0101)

    assert "INCONCLUSIVE" != verdict(text, good)
    assert (
        "the clocks of the nodes of now are known only to 1 % of the time over which rates are taken, and 1 % is needed; run more rollouts"
        == (judged(text, bad).decision.reason)
    )
    assert ("INCONCLUSIVE", "PASS", "PASS") == (
        verdict(text, bad),
        verdict("ttft.p50 <= 9s", bad),
        verdict("seconds_per_rollout <= 9", evidence(suite(), clock_share=0.5, efficiency={"shop": {"seconds_per_rollout": 1.0}})),
    )


def test_clocks_of_the_nodes_of_a_baseline() -> None:
    """A comparison of rates needs the clocks of both runs."""
    rule, base = "rollouts_per_hour >= -10% vs baseline", evidence(suite(), run="then", clock_share=0.05)

    assert "the clocks of the nodes of then are known only to 5 %" in judged(rule, evidence(suite()), base).decision.reason
    assert "PASS" == verdict("rollouts_per_hour >= 1", evidence(suite()), base)


def test_nodes_at_different_distances_are_named() -> None:
    """A verdict on latencies names nodes whose times to connect to the backend differ. It stays the same. Other rules do not name them."""
    run = evidence(suite(), connect_ms={"w1 on a": 50.2, "w2 on b": 0.25})
    sentence = (
        "nodes are at different distances from the backend, which is a part of latencies: "
        "connecting takes 0.25 ms from w2 on b, 50.2 ms from w1 on a"
    )

    found = judged("ttft.p50 <= 9s", run)

    assert ("PASS", (sentence,)) == (found.decision.verdict, found.notes)
    assert (sentence,) == judged("ttft.p50 <= +10% vs baseline", evidence(suite()), run).notes
    assert () == judged("tsq.mean >= 0.5", run).notes


def test_hits_do_not_make_up_for_throughput() -> None:
    """A rule on the rate fails although the prefix cache hits rose. A router that pauses programs may have twenty times the hits."""
    run = evidence(suite(), rates={"prefix_cache_hit_ratio": 0.65, "rollouts_per_hour": 300.0})
    base = evidence(suite(), rates={"prefix_cache_hit_ratio": 0.03, "rollouts_per_hour": 900.0})

    assert "FAIL" == verdict("rollouts_per_hour >= -10% vs baseline", run, base)
    assert "PASS" == verdict("prefix_cache_hit_ratio >= 0.5", run, base)


def test_suspects() -> None:
    """Scenarios that fell in all their trials are listed, and only those: claimed with many trials, ranked with few."""
    for trials in (8, 2):
        base = evidence(suite(n=30, trials=trials, score=1.0))
        run = evidence(suite(n=30, trials=trials, score=1.0, wrong=2))
        found = judged("tsq.mean >= -0.2 vs baseline", run, base).suspects

        assert [("0", trials == 8), ("1", trials == 8)] == [(each.scenario, each.claimed) for each in found]


def test_scores_beyond_1_have_no_limits() -> None:
    """A score up to ten without declared limits uses the method for unlimited values, which needs more scenarios."""
    base = evidence([trial(i, float(i % 10)) for i in range(100)])

    assert (
        "percentile-t"
        == judged("tsq.mean >= -0.05 vs baseline", evidence([trial(i, float(i * 7 % 10)) for i in range(100)]), base).decision.method
    )
    assert "INCONCLUSIVE" == verdict("tsq.mean >= -0.05 vs baseline", evidence([trial(i, 9.0) for i in range(20)]), base)


@given(st.lists(st.sampled_from(["PASS", "FAIL", "INCONCLUSIVE"]), max_size=5))
def test_the_sessions_verdict(verdicts: list[str]) -> None:
    """One FAIL makes the session FAIL. It is PASS only if all rules pass. Without rules it is not PASS."""
    texts = {"PASS": "tsq.mean >= 0.7", "FAIL": "tsq.mean >= 0.9", "INCONCLUSIVE": "tsq.mean >= 0.8"}
    found = session_verdict(judge_rules([asked(texts[each]) for each in verdicts], evidence(suite(trials=1)), {}))

    assert found == ("FAIL" if "FAIL" in verdicts else "PASS" if verdicts and set(verdicts) == {"PASS"} else "INCONCLUSIVE")


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0])), max_size=30), st.integers(0, 9))
def test_verdicts_do_not_depend_on_order(pairs: list[tuple[int, float]], turn: int) -> None:
    """The order in which rollouts end does not matter."""
    trials = [trial(scenario, score, number=number) for number, (scenario, score) in enumerate(pairs)]
    rules = [asked("tsq.mean >= 0.4"), asked("tsq.mean >= -0.3 vs baseline"), asked("limit.rate <= 1%")]
    base = {"shop": evidence(suite(n=10, trials=1))}

    one, other = (
        [(each.decision.verdict, each.decision.n) for each in judge_rules(rules, evidence(order), base)]
        for order in (trials, trials[turn:] + trials[:turn])
    )
    assert one == other


HELD = {"quarantined": {"shop": [str(i) for i in range(5)]}}


@pytest.mark.parametrize(
    ("rule", "run", "base"),
    [
        ("tsq.mean >= -0.05 vs baseline", {"score": 0.0}, {}),
        ("tsq.mean >= -0.05 vs baseline", {}, {"score": 0.0}),
        ("tsq.mean >= 0.7", {"score": 0.0}, {}),
        ("ttft.p50 <= +10% vs baseline", {"ttft": 1e6}, {}),
        ("rollout.p50 <= 2s", {"duration_ms": 1e6}, {}),
        ("goodput >= 90%", {"ttft": 1e6}, {}),
    ],
)
def test_quarantined_scenarios_are_left_out(rule: str, run: dict[str, Any], base: dict[str, Any]) -> None:
    """Quarantined scenarios do not affect the decision, whatever they did in either run.

    It is that of the 95 others, and a note names them.
    """
    others = [each for each in suite() if int(each.scenario) >= 5]
    one = judged(rule, evidence([*suite(5, **run), *others], slo={"ttft": 150.0}, **HELD), evidence([*suite(5, **base), *others]))
    without = judged(rule, evidence(others, slo={"ttft": 150.0}), evidence(others))

    assert (without.decision, 95) == (one.decision, one.decision.n)
    assert ("left out because of quarantine: 0, 1, 2, 3, 4", ()) == (one.notes[0], one.suspects)


@pytest.mark.parametrize(("size", "verdict"), [(100, "PASS"), (118, "PASS"), (126, "INCONCLUSIVE")])
def test_tasks_that_were_skipped(size: int, verdict: str) -> None:
    """Skipped tasks do not count as passes: rules name them, and no rule passes with less than four fifths of a suite."""
    skipped = [f"task-{number}" for number in range(size - 100)]
    found = judged("tsq.mean >= 0.5 of run", evidence(suite(), scenarios={"shop": size}, unsupported={"shop": skipped}))

    assert verdict == found.decision.verdict
    notes = [f"skipped because they need unsupported features: {', '.join(skipped)}"] if skipped else []
    assert notes == [*found.notes]


def test_the_quarantine_of_a_baseline_does_not_matter() -> None:
    """A scenario that leaves quarantine is judged again, against its results in the baseline."""
    found = judged("tsq.mean >= -0.05 vs baseline", evidence(suite()), evidence(suite(), **HELD))

    assert (100, ()) == (found.decision.n, found.notes)


@pytest.mark.parametrize("rule", ["infra_error.rate <= 2%", "tsq.mean >= -0.05 vs baseline"])
def test_infra_errors_of_quarantined_scenarios_count(rule: str) -> None:
    """Rules about the run include quarantined scenarios, because they share the infrastructure."""
    broken = [trial(i, None, number=k, status="infra_error") for i in range(5) for k in (1, 2, 3)]
    run = evidence([*broken, *(each for each in suite() if int(each.scenario) >= 5)], **HELD)

    assert "PASS" != verdict(rule, run, BASE)


def test_a_suite_in_quarantine_cannot_pass() -> None:
    """If quarantine leaves no scenario of the selected part, the rule is INCONCLUSIVE."""
    assert "INCONCLUSIVE" == verdict("tsq.mean >= -0.9 vs baseline", evidence(suite(5), **HELD), BASE)
    assert "INCONCLUSIVE" == verdict("tsq.mean >= 0.1", evidence(suite(5), **HELD), any_part=True)


def test_interim_looks_need_more_confidence() -> None:
    """If rounds are added until the verdict is decided, means and pass rates have the confidence of their interim look.

    Other rules are unchanged.
    """
    run = evidence(suite(trials=2), rounds=2, most_rounds=5)
    texts = ["tsq.mean >= -0.05 vs baseline", "tsq.mean >= 0.7", "ttft.p50 <= 150ms", "repeated.mean <= 0.5 vs baseline"]

    levels = [each.decision.confidence for each in judge_rules([asked(text) for text in texts], run, {"shop": BASE})]

    assert [0.98983, 0.99921, 0.95, 0.95] == [round(level, 5) for level in levels]


def test_rules_without_a_margin_share_the_level_of_their_look() -> None:
    """Two rules without a margin share the risk of an interim look, so each needs a higher confidence."""
    run = evidence(suite(trials=2), rounds=2, most_rounds=5)
    rule = asked("tsq.mean >= -0 vs baseline")

    one, two = (judge_rules([rule] * count, run, {"shop": BASE})[0].decision.confidence for count in (1, 2))

    assert 0.95 < one < two < 1


def test_interim_looks_use_complete_rounds() -> None:
    """Trials of an incomplete round count for all rules except those with interim looks."""
    trials = [*suite(trials=2), *suite(n=50, score=0.0, trials=3)[2::3]]
    run = evidence(trials, rounds=2, most_rounds=5)

    score, share = judge_rules([asked("tsq.mean >= -0.05 vs baseline"), asked("infra_error.rate <= 2%")], run, {"shop": BASE})

    assert ("PASS", 200) == (score.decision.verdict, score.decision.trials[0])
    assert 250 == share.decision.trials[0]


@pytest.mark.parametrize(
    ("text", "run", "expected"),
    [
        ("tsq.mean >= -0.05 vs baseline", {}, False),  # it passes
        ("tsq.mean >= -0.05 vs baseline", {"wrong": 50}, False),  # it fails
        ("tsq.mean >= -0.05 vs baseline", {"wrong": 7}, True),
        ("tsq.mean >= 0.8", {}, True),
        ("pass^3 >= 0.7", {}, True),  # two trials are too few
        ("pass^2 >= 0.5", {}, False),
    ],
)
def test_rules_that_more_trials_may_decide(text: str, run: dict[str, Any], expected: bool) -> None:
    """A rule is open if its interval contains the threshold, or if a pass rate needs more trials than there are."""
    pass_threshold = PassThreshold("tsq", 0.5)
    rule = replace(asked(text, passes=True), pass_threshold=pass_threshold)
    found = judge_rules([rule], evidence(suite(trials=2, **run), rounds=2, most_rounds=5), {"shop": BASE})[0]

    assert expected == found.is_open(2)


def test_rules_that_more_trials_cannot_decide() -> None:
    """A rule is not open if it lacks a baseline, or if the measured part of the suite is too small for a PASS."""
    run = evidence(suite(trials=2), rounds=2, most_rounds=5, scenarios={"shop": 1000})
    rules = [asked("tsq.mean >= -0.05 vs baseline"), asked("tsq.mean >= 0.5")]

    without, part = judge_rules(rules, run, {})

    assert ("INCONCLUSIVE", False) == (without.decision.verdict, without.is_open(2))
    assert ("INCONCLUSIVE", False) == (part.decision.verdict, part.is_open(2))


@pytest.mark.parametrize(
    ("text", "verdict", "estimate"),
    [
        ("tsq.mean >= 0.8 of run", "PASS", 0.8),  # the threshold itself passes
        ("tsq.mean >= 0.81 of run", "FAIL", 0.8),
        ("repeated.mean <= 0 of run", "PASS", 0.0),
        ("pass^2 >= 0.8 of run", "PASS", 0.8),
        ("pass^2 >= 0.81 of run", "FAIL", 0.8),
    ],
)
def test_a_fact_about_this_run(text: str, verdict: str, estimate: float) -> None:
    """A rule `of run` is decided by the measured value alone, without an interval."""
    every = [trial(number, 0.0 if number < 2 else 1.0, number=k) for number in range(10) for k in (1, 2)]
    rule = replace(asked(text, passes=True), pass_threshold=PassThreshold("tsq", 0.5))

    (found,) = judge_rules([rule], evidence(every), {})

    decision = found.decision
    assert (verdict, estimate, None, "a fact", "run", 10) == (
        decision.verdict, decision.estimate, decision.low, decision.method, decision.of, decision.n,
    )  # fmt: skip
    assert not rule.may_decide_early


@pytest.mark.parametrize(
    ("score", "any_part", "verdict"), [(1.0, False, "INCONCLUSIVE"), (0.0, False, "INCONCLUSIVE"), (0.0, True, "FAIL")]
)
def test_a_fact_about_a_part(score: float, any_part: bool, verdict: str) -> None:
    """The score of a part of a suite neither passes nor fails, unless the rule is from the command line."""
    run = evidence([trial(number, score) for number in range(3)], scenarios={"shop": 100})

    (found,) = judge_rules([asked("tsq.mean >= 0.8 of run", any_part=any_part)], run, {})

    assert (verdict, score) == (found.decision.verdict, found.decision.estimate)
    assert (
        any_part
        or (
            "only 3 of 100 scenarios were measured, and a verdict needs 80 %; to judge only this part, give the rule with --agentbench-gate"
        )
        == found.decision.reason
    )


def test_a_fact_counts_quarantine() -> None:
    """A rule `of run` includes quarantined scenarios, so its mean equals that of the reports. A rule about the suite leaves them out."""
    run = evidence([trial(number, float(number > 0)) for number in range(20)], quarantined={"shop": ["0"]})

    fact, inferred = judge_rules([asked("tsq.mean >= 0.96 of run"), asked("tsq.mean >= 0.96")], run, {})

    assert ("FAIL", 0.95) == (fact.decision.verdict, fact.decision.estimate)
    assert 1.0 == inferred.decision.estimate


def test_a_missing_score_is_not_measured() -> None:
    """A group counts as not measured if it lacks a score that a rule uses, whatever its other scores are."""
    rule = asked("tsq.mean >= 0.8 of run")
    run = evidence([trial(0), trial(1, None, unscored=("tsq",))])

    (found,) = judge_rules([rule], run, {})

    assert ("INCONCLUSIVE", missing_scores(1, "tsq")) == (found.decision.verdict, found.decision.reason)
    assert cannot_measure("shop", [rule], run)
    assert not cannot_measure("shop", [asked("repeated.mean <= 0 of run")], run)


@pytest.mark.parametrize(
    "text", ["tsq.mean >= 0.7", "tsq.mean >= 0.9", "tsq.mean >= -0.05 vs baseline", "ttft.p50 <= 50ms", "tsq.mean >= 0.9 of run"]
)
def test_a_recording_is_no_trial(text: str) -> None:
    """A run whose answers come from a recording neither passes nor fails a rule, whatever the numbers are."""
    found = judged(text, evidence(suite(), recorded=True), BASE)

    assert ("INCONCLUSIVE", True) == (found.decision.verdict, "recording" in found.decision.reason)
