"""Phrases about the results of a suite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.metrics.suite_metrics import DraftMeans, DraftsSummary, RoleUse
from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Code, plain, spans
from pytest_agentbench.runs.results import RetriedMeans, ScorerFailure, WorstScore
from pytest_agentbench.runs.tasks_and_mistakes import Confusion, TaskFailure, TaskResult, TasksSummary, ToolMistakes, Triage
from pytest_agentbench.suites.suite import DatasetInfo
from tests.amounts import amounts
from tests.made_runs import mean, run_of

SUITE = run_of().suites["shop"]

NO_CALLS = RoleUse(
    models=(),
    endpoints=(),
    calls=0,
    measured=0,
    failed_calls={},
    prompt_tokens=0,
    cached_tokens=0,
    output_tokens=0,
    seconds=0.0,
    ttft_ms=None,
    e2e_ms=None,
    currency=None,
    cost=None,
)


def test_scores() -> None:
    """A score says how many scenarios it covers, and whether it has no interval or no value."""
    assert "0.500 [0.250, 0.750] mean, 95 % interval of the suite over 100 scenarios" == suite_phrases.score(mean(scenarios=100))
    assert ["0.500", "1"] == amounts(suite_phrases.score(mean(low=None, high=None, scenarios=1)))
    assert "no interval" in suite_phrases.score(mean(low=None, high=None))
    assert ["0.500", "0.250", "0.750", "95 %", "9", "4"] == amounts(suite_phrases.score(mean(clusters=4)))
    assert ("not measured", "") == (suite_phrases.score(None), suite_phrases.mean_of(None))
    assert suite_phrases.score(mean()).endswith(suite_phrases.mean_of(mean()))


def test_data_sets() -> None:
    """A data set has its name, size, label source and the start of its hash."""
    data = DatasetInfo("agentbench banking", "f", "data.json", "0123456789abcdef", "hand", 100)

    assert "agentbench banking: 100 scenarios, labels: hand, sha256 0123456789ab" == suite_phrases.dataset(replace(SUITE, dataset=data))


def test_statuses() -> None:
    """Statuses are counted, and those without rollouts are left out."""
    assert "97 ok, 3 limit" == suite_phrases.statuses({"ok": 97, "limit": 3, "agent_error": 0})
    assert "none" == suite_phrases.statuses({"ok": 0})


def test_rollouts() -> None:
    """If all rollouts are ok, a short text says so. Labels that no person has checked are named."""
    good, mixed = replace(SUITE, rollouts={"ok": 3, "limit": 0}), replace(SUITE, rollouts={"ok": 1, "limit": 2})
    rules = replace(good, dataset=replace(SUITE.dataset, label_source="heuristic-v1"))

    assert "3 rollouts, all ok" == suite_phrases.rollouts(good)
    assert "3 rollouts: 1 ok, 2 limit" == suite_phrases.rollouts(mixed)
    assert suite_phrases.rollouts(rules).endswith(": heuristic-v1")
    assert ("", True) == (suite_phrases.ended_badly(good), suite_phrases.ended_badly(mixed).endswith(": 2 limit"))


def test_retried_rollouts() -> None:
    """Scores of retried rollouts are compared with those of others. If no retried rollout was measured, there is no comparison."""
    measured = replace(SUITE, retried=2, retried_scores={"tsq": RetriedMeans(mean(0.5, None, None), mean(0.6, None, None))})
    lost = replace(SUITE, retried=2, retried_scores={"tsq": RetriedMeans(None, mean(0.6, None, None))})

    assert (["2", "0.500", "0.600"], True) == (amounts(suite_phrases.retried(measured)), ": tsq " in suite_phrases.retried(measured))
    assert ["2"] == amounts(suite_phrases.retried(lost))
    assert "" == suite_phrases.retried(SUITE)


def test_drafts() -> None:
    """The text has the number of drafts, the rollouts with an accepted one, and the scores of first and chosen drafts."""
    found = DraftsSummary(rollouts=3, drafts=6, accepted=2, scores={"tsq": DraftMeans(rollouts=2, first=0.375, chosen=0.625)})

    assert ["6", "3", "2.00", "2", "66.7 %"] == amounts(suite_phrases.drafts(found))
    assert (["0.375", "0.625"], True) == (
        amounts(suite_phrases.draft_score(found, "tsq")),
        suite_phrases.draft_score(found, "tsq").startswith("tsq "),
    )


def task(scenario: str, solved: int, trials: int = 2) -> TaskResult:
    return TaskResult(scenario, trials, solved, solved / trials, commands=3.5, tokens=9.0, seconds=12.0, sandbox_s=4.0, verifier_s=1.5)


def test_tasks() -> None:
    """Tasks are counted by whether all, some or none of their trials solved them. Zero for some is left out."""
    some, all_of_them = TasksSummary((task("a", 2), task("b", 1), task("c", 0)), ()), TasksSummary((task("a", 2),), ())

    assert ["1", "3", "1", "1"] == amounts(suite_phrases.tasks(some))
    assert ["1", "1", "0"] == amounts(suite_phrases.tasks(all_of_them))
    assert ["2", "3"] == amounts(suite_phrases.solved(2, 3))


def test_ways_to_fail() -> None:
    """A failure has the status of the agent, the first failed check, the number of rollouts, and an example."""
    checked, unchecked = TaskFailure("ok", "test_port", 2, ("b", "c")), TaskFailure("limit: iterations", "", 1, ("c-2",))

    assert Code("b", "scenario") == suite_phrases.task_failure(checked)[-1]
    assert plain(suite_phrases.task_failure(checked)).startswith("the agent finished, first failed: test_port: 2 rollouts, ")
    assert plain(suite_phrases.task_failure(unchecked)).startswith("limit: iterations: 1 rollout, ")
    of_all = suite_phrases.commonest_failure(TasksSummary((), (checked, unchecked)))
    assert suite_phrases.task_failure(checked) == spans(of_all)[1:]
    assert "" == suite_phrases.commonest_failure(TasksSummary((task("a", 2),), ()))


def test_left_out_tasks() -> None:
    """The text about left-out tasks has their number, and is empty for zero."""
    assert (["3"], []) == (amounts(suite_phrases.tasks_left(3)), amounts(suite_phrases.tasks_left(0)))


def trials(**passes: str) -> list[Rollout]:
    """Returns rollouts of scenarios. Each digit is the score of a trial."""
    return [
        Rollout("shop", id, "default", at, "ok", scores={"tsq": Score(float(digit))})
        for id, digits in passes.items()
        for at, digit in enumerate(digits, 1)
    ]


def test_flips() -> None:
    """Only scenarios with passed and failed trials are listed, pass rates nearest to 50 % first. Three are named."""
    few = run_of(*trials(a="110", b="10", c="00", d="11")).suites["shop"].passes
    many = run_of(*trials(a="10", b="10", c="10", d="10")).suites["shop"].passes

    assert [Code("b", "scenario"), Code("a", "scenario")] == [each for each in spans(suite_phrases.flips(few)) if isinstance(each, Code)]
    assert (["2"], ["4"]) == (amounts(suite_phrases.flips(few)), amounts(suite_phrases.flips(many)))
    assert ["a", "b", "c"] == [each.text for each in spans(suite_phrases.flips(many)) if isinstance(each, Code)]
    assert "others" in plain(suite_phrases.flips(many))
    assert ("", "") == (suite_phrases.flips(None), suite_phrases.flips(run_of(*trials(c="00", d="11")).suites["shop"].passes))


def test_pass_rates_in_short() -> None:
    """The text counts the scenarios that always passed, and those that a table leaves out."""
    passes = run_of(*trials(a="11", b="11", c="10")).suites["shop"].passes
    assert passes is not None

    rates = suite_phrases.passes(passes, run_of().suites["shop"].scales["tsq"])
    assert all(f"{name} {rate.value:.3f}" in rates for name, rate in (("pass@2", passes.pass_at[-1]), ("pass^2", passes.pass_all[-1])))
    assert passes.pass_at[-1].value != passes.pass_all[-1].value
    assert ["2"] == amounts(suite_phrases.always_passed(passes, 0))
    assert ["2", "4"] == amounts(suite_phrases.always_passed(passes, 4))
    assert ("", ["4"]) == (
        suite_phrases.always_passed(replace(passes, always=0), 0),
        amounts(suite_phrases.always_passed(replace(passes, always=0), 4)),
    )


@pytest.mark.parametrize(
    ("changes", "numbers", "timed"),
    [
        ({"calls": 1, "measured": 1}, ["1", "1,000", "100", "0.2 s"], "all of them"),
        ({"calls": 1, "measured": 0}, ["1", "1,000", "100", "0.2 s"], "none of them"),
        ({"calls": 2, "measured": 1, "failed_calls": {"cut": 1}}, ["2", "1", "1,000", "100", "0.2 s", "1"], "1 of them"),
        ({"calls": 1, "measured": 0, "currency": "USD", "cost": 0.25}, ["1", "1,000", "100", "0.2 s", "0.2500"], "none of them"),
    ],
)
def test_roles(changes: Json, numbers: list[str], timed: str) -> None:
    """The text of a role has its calls, failed calls, tokens, time and cost, and how many of its calls are in the serving metrics."""
    text = suite_phrases.role(replace(NO_CALLS, prompt_tokens=1000, output_tokens=100, seconds=0.2, **changes))

    assert numbers == amounts(text)
    assert f", {timed} " in text


def test_cells_of_roles() -> None:
    """A role uses the backend, other endpoints, or both.

    If there is a price, an unknown cost is shown as unknown. Without a price it is not shown.
    """
    expert = ("http://expert/v1",)
    backend, both, other = (
        replace(NO_CALLS, measured=1),
        replace(NO_CALLS, measured=1, endpoints=expert),
        replace(NO_CALLS, endpoints=expert),
    )

    assert ("the backend",) == suite_phrases.role_endpoints(backend)
    assert ("the backend", ", ", Code("http://expert/v1")) == suite_phrases.role_endpoints(both)
    assert (Code("http://expert/v1"),) == suite_phrases.role_endpoints(other)
    assert ["3,916", "2,000", "336"] == amounts(
        suite_phrases.role_tokens(replace(NO_CALLS, prompt_tokens=3916, cached_tokens=2000, output_tokens=336))
    )
    assert ("", "unknown, in USD") == (suite_phrases.role_cost(NO_CALLS), suite_phrases.role_cost(replace(NO_CALLS, currency="USD")))


TRIAGE = Triage(
    rollouts=3,
    faulty=2,
    kinds=(),
    confused=(Confusion("find", "order", 2), Confusion("find", "sell", 1)),
    tools=(ToolMistakes("find", expected=3, missing=2, unexpected=0, bad_arguments=1),),
)


def test_mistakes() -> None:
    """The texts have the share of rollouts with mistakes, confused tools, and the mistakes of a tool."""
    assert ["2", "3"] == amounts(suite_phrases.faulty(TRIAGE))
    assert (["2"], []) == (amounts(suite_phrases.confusion(TRIAGE.confused[0])[-1]), amounts(suite_phrases.confusion(TRIAGE.confused[1])))
    assert [Code("order"), Code("find")] == [each for each in suite_phrases.confusion(TRIAGE.confused[0]) if isinstance(each, Code)]
    assert suite_phrases.confusion(TRIAGE.confused[0]) == spans(suite_phrases.most_confused(TRIAGE))[1:]
    assert (Code("find"), ["2", "3", "1"]) == (suite_phrases.tool(TRIAGE.tools[0])[0], amounts(suite_phrases.tool(TRIAGE.tools[0])))
    assert suite_phrases.tool(TRIAGE.tools[0]) == spans(suite_phrases.worst_tool(TRIAGE))[1:]
    nothing = replace(TRIAGE, confused=(), tools=())
    assert ("", "") == (suite_phrases.most_confused(nothing), suite_phrases.worst_tool(nothing))
    assert ["9", "90.0 %"] == amounts(suite_phrases.mistake_share(9, 10))


def test_examples() -> None:
    """Examples have the names of scenarios, and the mistake if it is known."""
    a, b = Code("a", "scenario"), Code("b", "scenario")

    assert (a, ", ", b, ": ", Code("order instead of find")) == suite_phrases.examples(["a", "b"], "order instead of find")
    assert (a,) == suite_phrases.examples(["a"], "")


def test_missing_scores() -> None:
    """A cause has the number of rollouts, the scorer, the error and the first rollout. Left-out causes are counted."""
    failure = ScorerFailure("tsq", "KeyError: 'x'\nTraceback", 2, "s-0")

    text = suite_phrases.scorer_failure(failure)

    assert text.startswith("2 rollouts: scorer tsq failed: KeyError: 'x' ...")
    assert text.endswith(" s-0")
    assert (["2"], "") == (amounts(suite_phrases.more_causes(2)), suite_phrases.more_causes(0))


def test_the_worst() -> None:
    """A scenario with a low score has its question, if it is known, and the expected and called tools."""
    low = WorstScore("s-0", "s", "Is there a lamp?", 0.25, "", ("find", "order"), ())

    assert 's-0 0.250 "Is there a lamp?"' == suite_phrases.worst(low)
    assert "s-0 0.250" == suite_phrases.worst(replace(low, question=""))


def test_left_out_scenarios() -> None:
    """The text about left-out scenarios has their number, and is empty for zero."""
    assert (["200", "40"], "") == (amounts(suite_phrases.scenarios_left(200, 240)), suite_phrases.scenarios_left(200, 200))
