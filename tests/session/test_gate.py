"""The gate of a session: which rules apply to which suite, with which baseline, and the exit status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import default_baseline, write_baseline
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL, SessionEnd, deciding, exit_status
from pytest_agentbench.gate.rules import parse_rule
from pytest_agentbench.rollouts.compile import CompiledSuite
from pytest_agentbench.session.gate import Gate, make_gate
from pytest_agentbench.session.settings import Settings, read_settings
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from tests.gate.evidences import evidence, trial
from tests.made_runs import SCALES, gate_result, rule_result, run_of


def found(
    *gate: str,
    name: str = "shop",
    scenarios: int = 20,
    trials: int = 1,
    scorers: tuple[str, ...] = ("tsq", "repeated"),
    passes: bool = False,
) -> CompiledSuite:
    """Returns a compiled suite with these rules."""
    each = tuple(Scenario(str(number), ()) for number in range(scenarios))
    data = DatasetInfo(name, "f", "data.json", "0" * 64, "hand", scenarios)
    suite = Suite(name, Path(f"scenarios/{name}"), each, dataset=data, scorers={name: {} for name in scorers}, scales=SCALES, gate=gate)
    rules = tuple(parse_rule(text, scorers, SCALES, passes=passes) for text in gate)
    return CompiledSuite(suite, ("default",), trials, {}, rules)


@pytest.fixture
def asking(pytester: pytest.Pytester) -> Any:
    """Returns a function that makes the settings of a command line."""

    def settings(*options: str) -> Settings:
        pytester.makeini("[pytest]\n")
        return read_settings(pytester.parseconfig(*options))

    return settings


def made(suites: list[CompiledSuite], settings: Settings) -> Gate:
    gate = make_gate(suites, settings)
    assert gate is not None
    return gate


def texts(gate: Gate) -> list[tuple[str, str, bool]]:
    return [(each.group, each.rule.text, each.any_part) for each in gate.rules]


def baseline(settings: Settings, n: int = 20, **keys: Any) -> Path:
    """Writes the promoted baseline of the suite shop."""
    return write_baseline(
        evidence([trial(i, **keys) for i in range(n)], run="before"), "shop", default_baseline("shop", settings.reports_directory)
    )


def test_no_rules(asking: Any) -> None:
    """Without rules and a baseline option there is no gate, even if a promoted baseline exists."""
    baseline(asking())

    assert make_gate([found()], asking()) is None


def test_rules_of_the_command_line(asking: Any) -> None:
    """A rule of the command line applies to all suites that measure its metric, and replaces rules of suite.yaml about the same value."""
    suites = [found("tsq.mean >= 0.5", "tsq.mean >= -0.1 vs baseline"), found(name="bank", scorers=("exact",))]
    gate = made(suites, asking("--agentbench-gate=tsq.mean >= 0.8", "--agentbench-gate", "infra_error.rate <= 1%"))

    assert [
        ("shop", "tsq.mean >= -0.1 vs baseline", False),
        ("shop", "tsq.mean >= 0.8", True),
        ("shop", "infra_error.rate <= 1%", True),
        ("bank", "infra_error.rate <= 1%", True),
    ] == texts(gate)


@pytest.mark.parametrize(
    ("rule", "sentence"), [("exact.mean >= 0.5", "no metric 'exact.mean' .*; known: .*tsq.mean"), ("tsq", "must be METRIC >= LIMIT")]
)
def test_a_rule_about_an_unknown_metric(asking: Any, rule: str, sentence: str) -> None:
    """A rule about an unknown metric is refused, not ignored."""
    with pytest.raises(ConfigError, match=sentence):
        make_gate([found()], asking(f"--agentbench-gate={rule}"))


def test_pass_rates(asking: Any) -> None:
    """A rule about pass rates applies to suites with a threshold for their main score, and is refused if no suite has one."""
    floored = replace(found(), thresholds={"tsq": 0.5})
    other = replace(found(name="bank"), thresholds={"tsq.mean": 0.5, "repeated": 0})
    asked = asking("--agentbench-gate=pass^3 >= 0.7")

    assert [("shop", "pass^3 >= 0.7", True), ("bank", "tsq.mean >= 0.5 of run", False)] == texts(made([floored, other], asked))
    with pytest.raises(ConfigError, match="pass rates need a threshold for tsq"):
        make_gate([other], asked)
    with pytest.raises(ConfigError, match="the limit must be from 0 to 1"):
        make_gate([floored], asking("--agentbench-gate=pass^3 >= 7"))


@pytest.mark.parametrize(
    ("trials", "said"), [(1, ["shop: `pass^3 >= 0.7` needs 3 trials of each scenario; use --agentbench-trials=3"]), (3, [])]
)
def test_a_pass_rate_takes_trials(asking: Any, trials: int, said: list[str]) -> None:
    """If a pass rate needs more trials, a warning at the start says how many."""
    suites = [replace(found("pass^3 >= 0.7", trials=trials, passes=True), thresholds={"tsq": 0.5})]

    assert said == [*made(suites, asking()).warnings(suites, None)]


def test_a_baseline_alone(asking: Any) -> None:
    """A baseline without rules adds the rule that the main score must not drop by more than 0.05."""
    path = baseline(asking())
    gate = made([found()], asking(f"--agentbench-baseline={path}"))

    assert [("shop", "tsq.mean >= -0.05 vs baseline", True)] == texts(gate)
    assert ({"shop": ["tsq"]}, True) == (gate.compared, gate.decides)


def test_a_promoted_baseline(asking: Any) -> None:
    """A rule `vs baseline` uses the baseline in reports/baselines. The gate then decides instead of thresholds, unless the tests decide."""
    baseline(asking())
    suites = [found("tsq.mean >= -0.1 vs baseline")]

    assert {"shop": ["tsq"]} == made(suites, asking()).compared
    assert {} == made(suites, asking("--agentbench-verdict=tests")).compared
    assert {} == made([found("ttft.p50 <= +10% vs baseline")], asking()).compared


def test_a_promoted_baseline_without_the_suite(asking: Any) -> None:
    """A promoted baseline without results of the suite is a usage error, which says what it has and what to do."""
    path = default_baseline("shop", asking().reports_directory)
    write_baseline(evidence([replace(trial(1), group="shop-fast")], run="before"), "shop", path)

    with pytest.raises(ConfigError, match=r"shop\.jsonl has results of shop-fast, but none of the suite shop; replace it with `agentbench"):
        made([found("tsq.mean >= -0.1 vs baseline")], asking())


def test_no_baseline(asking: Any) -> None:
    """A rule `vs baseline` without a baseline stays, so that the verdict can report it."""
    gate = made([found("tsq.mean >= -0.1 vs baseline")], asking())

    assert (1, {}, {}) == (len(gate.rules), gate.baselines, gate.compared)


def test_a_baseline_of_other_suites(asking: Any) -> None:
    """A baseline of other suites is a usage error."""
    path = baseline(asking())

    with pytest.raises(ConfigError, match="has results of shop, but this session has bank"):
        make_gate([found(name="bank")], asking(f"--agentbench-baseline={path}"))


@pytest.mark.parametrize(
    ("rule", "trials", "warned"),
    [
        ("tsq.mean >= -0.03 vs baseline", 1, True),
        ("tsq.mean >= -0.03 vs baseline", 7, False),
        ("tsq.mean >= -0.15 vs baseline of population", 100, True),
        ("tsq.mean >= -0.5 vs baseline", 1, False),
        ("tsq.mean >= 0.8", 1, False),
        ("tsq.mean >= -0.2 vs baseline", 20, False),
    ],
)
def test_warnings(asking: Any, rule: str, trials: int, warned: bool) -> None:
    """A margin with which no run of 20 scenarios can pass is a warning at the start, with the number of trials that is enough."""
    suites = [found(rule, trials=trials)]
    warnings = [*made(suites, asking()).warnings(suites, None)]

    assert warned == bool(warnings)
    if warned:
        enough = "below 0.185; use --agentbench-trials=7", "however many trials; add scenarios, or use `of suite`"
        assert any(each in warnings[0] for each in enough)


def test_warnings_know_the_baselines_spread(asking: Any) -> None:
    """If the trials of a baseline vary, there is also a warning about a margin with which an unchanged run is unlikely to pass."""
    suites = [found("tsq.mean >= -0.2 vs baseline", scenarios=40)]
    noisy = [trial(i, float((i + k) % 2), number=k) for i in range(40) for k in (1, 2, 3)]
    write_baseline(evidence(noisy, run="before"), "shop", default_baseline("shop", asking().reports_directory))

    (warning,) = made(suites, asking()).warnings(suites, None)
    assert "with the baseline's noise, unchanged runs pass 4 times out of 5 only with a margin of 0." in warning
    quiet = [trial(i, number=k) for i in range(40) for k in (1, 2, 3)]
    write_baseline(evidence(quiet, run="before"), "shop", default_baseline("shop", asking().reports_directory))
    assert [] == [*made(suites, asking()).warnings(suites, None)]


def test_warnings_count_the_baselines_trials(asking: Any) -> None:
    """With a baseline of one trial, more trials of the run alone are not enough, so the advice is about both."""
    baseline(asking())
    suites = [found("tsq.mean >= -0.05 vs baseline", scenarios=20, trials=4)]
    both = "use --agentbench-trials=4 for a new baseline, which has 1, and for this run"

    (warning,) = made(suites, asking()).warnings(suites, None)
    assert warning.endswith(f"no result passes with a margin below 0.185; {both}")
    whole = [trial(i, number=k) for i in range(20) for k in (1, 2, 3, 4)]
    write_baseline(evidence(whole, run="before"), "shop", default_baseline("shop", asking().reports_directory))
    assert [] == [*made(suites, asking()).warnings(suites, None)]


MEANS = {"tsq": 0.5, "tsq.mean": 0.8, "repeated.mean": 0.25}


def test_thresholds_of_means_are_rules(asking: Any) -> None:
    """`tsq.mean: 0.8` is a rule `of run`, an upper bound if lower is better; `tsq: 0.5` is not. A rule on the same value replaces it."""
    suite = replace(found("tsq.mean >= 0.7"), thresholds=MEANS)

    assert [
        ("shop", "tsq.mean >= 0.7", False),
        ("shop", "tsq.mean >= 0.8 of run", False),
        ("shop", "repeated.mean <= 0.25 of run", True),
    ] == texts(made([suite], asking("--agentbench-threshold=repeated.mean=0.25")))
    assert [
        ("shop", "tsq.mean >= 0.7", False),
        ("shop", "tsq.mean >= 0.6 of run", True),
        ("shop", "repeated.mean <= 0.25 of run", False),
    ] == texts(made([suite], asking("--agentbench-gate=tsq.mean >= 0.6 of run")))


def test_arms_keep_their_thresholds(asking: Any) -> None:
    """In an A/B session only rules `of run` apply to each arm, because the arms are compared with each other."""
    suite = replace(found("tsq.mean >= 0.7", "infra_error.rate <= 2%"), thresholds=MEANS)

    gate = made([suite], asking("--agentbench-ab=agent.temperature=0,1"))

    assert ["tsq.mean >= 0.8 of run", "repeated.mean <= 0.25 of run"] == [rule for _, rule, _ in texts(gate)]


@pytest.mark.parametrize(("decides", "expected"), [(True, ("FAIL", 2)), (False, ("FAIL", 1))])
def test_facts_always_decide(decides: bool, expected: tuple[str, int]) -> None:
    """With `--agentbench-verdict=tests` rules are only shown, except rules `of run`, such as thresholds of means."""
    fact = rule_result("tsq.mean >= 0.8 of run", "FAIL", 0.7, of="run")
    gate = gate_result("FAIL", rule_result("tsq.mean >= 0.8", "FAIL", 0.7, of="suite"), fact, decides=decides)

    said = deciding(run_of(gate=gate))

    assert said is not None
    assert expected == (said.verdict, len(said.rules))
    assert None is deciding(run_of(gate=replace(gate, rules=gate.rules[:1], decides=False)))


#: pytest's status, the gate's verdict if there is one, further facts, --agentbench-inconclusive, and the resulting status.
STATUSES = [
    (0, "PASS", {}, "pass", 0),
    (0, "FAIL", {}, "pass", 1),
    (0, "INCONCLUSIVE", {}, "pass", 0),
    (0, "INCONCLUSIVE", {}, "fail", CANNOT_TELL),
    (5, "INCONCLUSIVE", {}, "pass", 5),
    (1, "PASS", {}, "pass", 1),  # A test failed for another reason.
    (1, "PASS", {"only_unmeasured": True}, "pass", CANNOT_MEASURE),
    (1, "FAIL", {"only_unmeasured": True}, "pass", 1),
    (0, "INCONCLUSIVE", {"unmeasured": ["shop"]}, "pass", CANNOT_MEASURE),
    (0, "INCONCLUSIVE", {"unmeasured": ["shop"]}, "fail", CANNOT_MEASURE),
    (0, "INCONCLUSIVE", {"failure": True}, "pass", CANNOT_MEASURE),
    (0, "", {}, "fail", 0),
    (0, "", {"failure": True}, "pass", CANNOT_MEASURE),
    (1, "", {}, "pass", 1),
    (1, "", {"only_unmeasured": True}, "pass", CANNOT_MEASURE),
]


def status_of(pytests: int, verdict: str, what: dict[str, Any], inconclusive: str) -> int:
    gate = gate_result(verdict, unmeasured=tuple(what.get("unmeasured", ()))) if verdict else None
    ending = SessionEnd(pytests, what.get("only_unmeasured", False), what.get("failure", False), gate)
    return exit_status(ending, inconclusive)


@pytest.mark.parametrize(("pytests", "verdict", "what", "inconclusive", "expected"), STATUSES)
def test_exit_statuses(pytests: int, verdict: str, what: dict[str, Any], inconclusive: str, expected: int) -> None:
    """The exit status is 1 for a regression, 6 if the run was not measured, 7 if INCONCLUSIVE should fail, and else pytest's own."""
    assert expected == status_of(pytests, verdict, what, inconclusive)


@given(
    st.sampled_from([0, 1, 5]),
    st.sampled_from(["", "PASS", "FAIL", "INCONCLUSIVE"]),
    st.fixed_dictionaries({"failure": st.booleans(), "only_unmeasured": st.booleans()}),
    st.sampled_from(["pass", "fail"]),
)
def test_status_0_means_that_all_is_well(pytests: int, verdict: str, what: dict[str, Any], inconclusive: str) -> None:
    """The status is 0 only if pytest's is 0, no service failed, and the verdict is not FAIL. A FAIL is always 1."""
    status = status_of(pytests, verdict, what, inconclusive)

    assert (status == 1) or verdict != "FAIL"
    if status == 0:
        assert (0, False) == (pytests, what["failure"])
