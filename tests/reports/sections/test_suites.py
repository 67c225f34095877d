"""The section of suites: tables of mistakes, tasks, pass rates and scenarios, and facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.records import Draft, Rollout, Score, Verification
from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import Fact, Finding, Level, Measure, Section, Table, say
from pytest_agentbench.reports.sections.suites import CAUSES, FAILURES, PASS_RATES, SCENARIOS, TASKS
from pytest_agentbench.runs.results import Means, QuarantineResult, ScorerFailure
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.runs.tasks_and_mistakes import TaskFailure, TaskResult, TasksSummary
from pytest_agentbench.scorers.mistakes import KINDS
from tests.amounts import amounts
from tests.findings import facts, part, report, said, tables, values_of
from tests.made_runs import SCALES, mean, run_of
from tests.reports.sections.shop import rollout
from tests.reports.test_suite_phrases import NO_CALLS


def of_suite(run: Run, *titles: str, level: Level = Level.VERBOSE) -> Section | None:
    """Returns the section of the shop suite, or a section nested in it."""
    return part(report(run, level), "Suites", "shop", *titles)


def table(run: Run, *titles: str) -> list[tuple[Any, ...]]:
    """Returns the rows of the only table in a section of the shop suite, or nothing without such a section."""
    section = of_suite(run, *titles)
    if section is None:
        return []
    [found] = [each for each in section.blocks if isinstance(each, Table)]
    return values_of(found)


def test_mistakes() -> None:
    """Kinds of mistakes, confused tools, and tools have a table each. A run without mistakes has none."""
    run, right = run_of(rollout("a", "order"), rollout("b", "order"), rollout("c", "find", tsq=1.0)), run_of(rollout("c", "find", tsq=1.0))

    assert ("wrong tool", (2, 3), KINDS["wrong tool"], (("a", "b"), "order instead of find")) in table(run, "What went wrong")
    assert [("find", "order", 2)] == table(run, "Confused tools")
    assert [("find", 3, 2, 0, 0), ("order", 0, 0, 2, 0)] == table(run, "Tools with the most mistakes")
    for title in ("What went wrong", "Confused tools", "Tools with the most mistakes"):
        assert of_suite(right, title) is None
    assert [] == said(report(right), suite_phrases.mistakes)


def test_mistakes_by_level() -> None:
    """The first page counts kinds, -v names confused tools, and files have tables of both."""
    run = run_of(rollout("a", "order"))
    first, full, verbose = (report(run, level) for level in (Level.FIRST_PAGE, Level.FULL, Level.VERBOSE))

    assert (1, 0, 0) == tuple(len(said(each, suite_phrases.mistakes)) for each in (first, full, verbose))
    assert (0, 1, 0) == tuple(len(said(each, suite_phrases.confusion)) for each in (first, full, verbose))


def test_pass_rates() -> None:
    """The table has the scenarios whose trials did not all pass, the worst first.

    A note counts the others. With one trial there is no table.
    """
    many = [Rollout("shop", f"s-{at}", "default", trial, "ok", scores={"tsq": Score(trial > at)}) for at in range(25) for trial in (1, 2)]
    run, once = run_of(*many), run_of(*many[::2])
    passes = run.suites["shop"].passes
    assert passes is not None

    rows = table(run, "Pass rates")
    assert PASS_RATES == len(rows)
    assert ("s-10", (0, 2)) in [row[:2] for row in rows]
    [interval] = {row[2] for row in rows if row[0] == "s-10"}
    assert (0.0, pytest.approx(0.842, abs=0.001)) == interval
    assert [(passes, 4)] == said(report(run), suite_phrases.always_passed)
    assert 1 == passes.always
    assert [(passes, run.suites["shop"].scales["tsq"])] == said(report(run), suite_phrases.passes)
    assert of_suite(once, "Pass rates") is None


def test_scores() -> None:
    """Each score has its mean over all and over evaluable rollouts, if it has a value."""
    low, lost = rollout("s|0", tsq=0.25), rollout("s-1", status="agent_error", reason="KeyError: 'x'\nTraceback")
    run = run_of(low, lost)
    found = run.suites["shop"].scores["tsq"]

    [row] = values_of(tables(report(run), "score")[0])
    assert ("tsq", run.suites["shop"].scales["tsq"].text, found.mean, found.mean_evaluable) == row
    assert found.mean is not None and found.mean_evaluable is not None
    assert (0.125, 0.25) == (found.mean.value, found.mean_evaluable.value)
    [nothing] = values_of(tables(report(run_of()), "score")[0])
    assert (None, None) == nothing[2:]


def test_means_of_evaluable_rollouts() -> None:
    """A terminal shows means over evaluable rollouts only if they differ from those over all."""
    differs, equal = run_of(rollout("a", tsq=0.5), rollout("b", status="agent_error")), run_of(rollout("a", tsq=0.5))

    assert (1, 0) == tuple(len(said(report(each, Level.FULL), suite_phrases.evaluable)) for each in (differs, equal))
    assert 1 == len(said(report(equal, Level.FULL), suite_phrases.score))


def test_the_worst() -> None:
    """A low score has its question, and, except for tasks, its expected and called tools."""
    asked = ({"role": "user", "content": "Is there a lamp?"},)
    run = run_of(rollout("s|0", tsq=0.25, messages=asked))
    task = run_of(rollout("a", "bash", verification=Verification(0.0, first_failure="test_port"), messages=asked))

    assert [("s|0", 0.25, ("find",), (), "Is there a lamp?")] == table(run, "Worst tsq")
    assert ["scenario", "tsq", "expected tools", "actual tools"] == titles(run, "Worst tsq")[:4]
    assert [("a", 0.0, "Is there a lamp?")] == table(task, "Worst tsq")
    assert ["task", "tsq"] == titles(task, "Worst tsq")[:2]
    assert (1, 0) == tuple(len(said(report(each, Level.FULL), phrases.expected_and_actual)) for each in (run, task))


def titles(run: Run, title: str) -> list[str]:
    section = of_suite(run, title)
    assert section is not None
    return [column.title for each in section.blocks if isinstance(each, Table) for column in each.columns]


def test_unmeasured_rollouts() -> None:
    """A rollout without a score has its status and reason."""
    lost = rollout("s-1", status="agent_error", reason="KeyError: 'x'\nTraceback")
    run = run_of(lost)

    assert [("s-1", "agent_error", "KeyError: 'x'")] == table(run, "Not measured")
    assert of_suite(run_of(rollout("a", "find", tsq=1.0)), "Not measured") is None


def test_the_first_page() -> None:
    """The first page has the rollouts; the main score is in its headline. With several suites, a summary has the suite before the score."""
    run = run_of(rollout("a", tsq=0.5), rollout("b", tsq=1.0))
    found, first = run.suites["shop"].scores["tsq"].mean, report(run, Level.FIRST_PAGE)
    assert found is not None

    assert [(run.suites["shop"],)] == said(first, suite_phrases.rollouts)
    assert [] == facts(first, "tsq")
    [summary] = facts(report(run, Level.SUMMARY), "tsq")
    assert isinstance(summary.content, Measure)
    assert (0.75, run.suites["shop"].scales["tsq"].text) == (summary.content.value, summary.content.about)
    several = replace(run, suites=dict.fromkeys(("shop", "bank"), run.suites["shop"]))
    assert [0, 0] == [len(facts(report(several, level), "tsq")) for level in (Level.FIRST_PAGE, Level.SUMMARY)]
    assert [1, 1] == [len(facts(report(several, Level.SUMMARY), f"{name} tsq")) for name in ("shop", "bank")]


def test_a_second_score() -> None:
    """A score that counts mistakes is on the first page only if there were any, but always in a summary."""
    run = run_of(rollout("a", tsq=0.5))
    suite = run.suites["shop"]
    scales = {**suite.scales, "repeated": SCALES["repeated"]}

    def with_count(value: float) -> Run:
        scores = {**suite.scores, "repeated": Means(mean(value), mean(value))}
        return replace(run, suites={"shop": replace(suite, scorers=("tsq", "repeated"), scales=scales, scores=scores)})

    assert [[], [({"repeated": mean(1.0)},)]] == [
        said(report(with_count(value), Level.FIRST_PAGE), suite_phrases.means) for value in (0.0, 1.0)
    ]
    assert [1, 1] == [len(facts(report(with_count(value), Level.SUMMARY), "repeated")) for value in (0.0, 1.0)]


def test_a_run_without_a_rollout() -> None:
    """A score without a mean is shown as not measured."""
    [fact] = facts(report(run_of(), Level.SUMMARY), "tsq")

    assert isinstance(fact.content, Measure)
    assert fact.content.value is None


def task(scenario: str, solved: int, trials: int = 2, tokens: float | None = 1234.0) -> TaskResult:
    return TaskResult(scenario, trials, solved, solved / trials, commands=3.5, tokens=tokens, seconds=12.0, sandbox_s=4.0, verifier_s=1.5)


def run_with(tasks: TasksSummary | None) -> Run:
    run = run_of()
    return replace(run, suites={"shop": replace(run.suites["shop"], tasks=tasks)})


SOME = run_with(
    TasksSummary(
        (task("a", 2), task("b", 1, tokens=None), task("c", 0)),
        (TaskFailure("ok", "test_port", 2, ("b", "c")), TaskFailure("limit: iterations", "", 1, ("c-2",))),
        ("docker", "docker without this and that"),
    )
)


def test_tasks() -> None:
    """The table has the tasks with their times and tokens, the lowest reward first. The kind of sandbox is named."""
    rows = table(SOME, "Tasks")

    assert [("c", (0, 2), 0.0), ("b", (1, 2), 0.5), ("a", (2, 2), 1.0)] == [row[:3] for row in rows]
    assert [(3.5, 1234.0, 12.0, 4.0, 1.5), (3.5, None, 12.0, 4.0, 1.5)] == [row[3:8] for row in rows[:2]]
    [fact] = facts(report(SOME, Level.FULL), "tasks")
    assert Finding(suite_phrases.tasks, (SOME.suites["shop"].tasks,)) == fact.content
    assert ["docker", "docker without this and that"] == [each.content for each in facts(report(SOME), "sandbox")]


def test_ways_to_fail() -> None:
    """Failed trials have a table in files, and at most five lines on a terminal."""
    tasks = SOME.suites["shop"].tasks
    assert tasks is not None
    many = run_with(replace(tasks, failures=tasks.failures * FAILURES))

    assert [("ok", "test_port", 2, (("b", "c"), "")), ("limit: iterations", None, 1, (("c-2",), ""))] == table(
        SOME, "How failed trials ended"
    )
    assert [(each,) for each in tasks.failures] == said(report(SOME, Level.FULL), suite_phrases.task_failure)
    assert FAILURES == len(said(report(many, Level.FULL), suite_phrases.task_failure))
    assert [] == said(report(SOME, Level.VERBOSE), suite_phrases.task_failure)


def test_suites_without_tasks() -> None:
    """A suite without tasks has no such sections. If all tasks are solved, there is no table of failures."""
    solved = run_with(TasksSummary((task("a", 2),), ()))

    assert [None, None] == [of_suite(run_of(), "Tasks"), of_suite(solved, "How failed trials ended")]
    assert of_suite(solved, "Tasks") is not None


def test_many_tasks() -> None:
    """A long table of tasks is limited to the lowest rewards, and a note counts the others."""
    many = run_with(TasksSummary(tuple(task(f"t{number:03}", 2) for number in range(TASKS + 3)), ()))

    assert TASKS == len(table(many, "Tasks"))
    assert [(3,)] == said(report(many), suite_phrases.tasks_left)


def test_every_scenario() -> None:
    """Each scenario has a row with its mean, the worst first. After two hundred rows, a note refers to run.json."""
    run = run_of(rollout("b", tsq=0.5), rollout("b", tsq=1.0, trial=2), rollout("a", status="agent_error"))
    many = run_of(*(rollout(f"s{each:03}") for each in range(SCENARIOS + 2)))

    assert [("b", 0.75), ("a", None)] == table(run, "Every scenario")
    assert SCENARIOS == len(table(many, "Every scenario"))
    assert ([(SCENARIOS, SCENARIOS + 2)], []) == (
        said(report(many), suite_phrases.scenarios_left),
        said(report(run), suite_phrases.scenarios_left),
    )
    assert SCENARIOS + 2 == len(many.suites["shop"].scenarios)
    assert [(run,)] == said(report(run), suite_phrases.spreadsheet)


def test_missing_scores() -> None:
    """The first page has three causes of missing scores and counts the others. Files have all causes."""
    run = run_of(rollout("s-0", score_errors={"tsq": "KeyError: 'x'"}))
    causes = tuple(ScorerFailure("tsq", f"KeyError: {number}", 1, "s-0") for number in range(CAUSES + 2))
    many = replace(run, suites={"shop": replace(run.suites["shop"], scorer_failures=causes)})

    assert [(ScorerFailure("tsq", "KeyError: 'x'", 1, "s-0"),)] == said(report(run), suite_phrases.scorer_failure)
    assert ["open"] == [fact.tone for fact in facts(report(run), "no score")]
    first, verbose = report(many, Level.FIRST_PAGE), report(many, Level.VERBOSE)
    assert (CAUSES, [(2,)]) == (len(said(first, suite_phrases.scorer_failure)), said(first, suite_phrases.more_causes))
    assert (CAUSES + 2, []) == (len(said(verbose, suite_phrases.scorer_failure)), said(verbose, suite_phrases.more_causes))


def test_scenarios_without_a_gate() -> None:
    """Quarantined scenarios are counted on the first page, named with -v, and have a table with their owners in files."""
    entry = QuarantineResult("s-0", "ada", "the label is disputed", "2999-12-31", tests=3, passed=2)
    run = run_of()
    held = replace(run, suites={"shop": replace(run.suites["shop"], quarantined=(entry,), unsupported={"t-1": "needs a GPU"})})
    suite = held.suites["shop"]

    assert [("s-0", "ada", "2999-12-31", "the label is disputed", entry)] == values_of(tables(report(held), "scenario")[0])
    assert [("t-1", "needs a GPU")] == values_of(tables(report(held), "task")[0])
    first, full = report(held, Level.FIRST_PAGE), report(held, Level.FULL)
    assert ([(suite,)], [(suite,)]) == (said(first, suite_phrases.quarantined_count), said(first, suite_phrases.unsupported_count))
    assert ([(suite,)], [(suite,)]) == (said(full, suite_phrases.quarantined), said(full, suite_phrases.unsupported))
    size = replace(suite, dataset=replace(suite.dataset, size=7))
    assert [["1", "7"]] * 2 == [amounts(each(size)) for each in (suite_phrases.quarantined_count, suite_phrases.unsupported_count)]
    assert ([], []) == (said(report(run), suite_phrases.quarantined_count), said(report(run), suite_phrases.unsupported))
    files = report(held, Level.VERBOSE)  # files have the names in a table
    assert ([(suite,)], []) == (said(files, suite_phrases.quarantined_count), said(files, suite_phrases.quarantined))


def judged(scenario: str, value: float, confidence: float | None, *, by_judge: bool = False) -> Rollout:
    parts = {"judged": float(by_judge), **({} if confidence is None else {"confidence": confidence})}
    return Rollout("shop", scenario, "default", 1, "ok", scores={"judged_answer": Score(value, parts), "tsq": Score(1.0)})


def measures(run: Run, label: str) -> list[Measure]:
    return [each.content for each in facts(report(run, Level.FIRST_PAGE), label) if isinstance(each.content, Measure)]


def test_answers() -> None:
    """Accuracy and calibration have intervals. Without a score of answers, there are none."""
    run = run_of(*[judged(f"b-{number}", float(number < 8), 0.75, by_judge=number > 9) for number in range(12)])

    [accuracy], [calibration] = measures(run, "accuracy"), measures(run, "calibration")

    assert (0.667, 0.391, 0.862) == tuple(round(value or 0.0, 3) for value in (accuracy.value, accuracy.low, accuracy.high))
    assert suite_phrases.judged(run.suites["shop"].answers["judged_answer"], 0) == accuracy.about
    assert (0.083, 0.0) == tuple(round(value or 0.0, 3) for value in (calibration.value, calibration.low))
    assert calibration.high is not None
    assert ("RMS error", suite_phrases.confidence(run.suites["shop"].answers["judged_answer"])) == (calibration.unit, calibration.about)
    assert [] == measures(run_of(rollout("a", tsq=1.0)), "accuracy")


def test_answers_of_two_suites() -> None:
    """A summary with several suites names the suite of each measure."""
    run = run_of(judged("b-0", 1.0, 0.5))
    both = replace(run, suites={"shop": run.suites["shop"], "bank": run.suites["shop"]})

    labels = [each.label for each in report(both, Level.SUMMARY).blocks() if isinstance(each, Fact) and isinstance(each.content, Measure)]

    assert {f"{name} {what}" for name in ("shop", "bank") for what in ("accuracy", "calibration", "tsq")} <= {*labels}
    assert "accuracy" not in labels


def test_answers_without_confidence() -> None:
    """If no answer states its confidence, the text says so."""
    run = run_of(judged("b-0", 1.0, None))
    [accuracy], [calibration] = measures(run, "accuracy"), measures(run, "calibration")

    assert (1.0, 0.207, 1.0) == (accuracy.value, round(accuracy.low or 0.0, 3), accuracy.high)
    assert (None, suite_phrases.confidence(run.suites["shop"].answers["judged_answer"])) == (calibration.value, calibration.about)
    assert calibration.about


def test_drafts() -> None:
    """An agent with drafts has a fact about them, and one for each of their scores."""
    drafts = (Draft(1, "ok", "", scores={"tsq": Score(0.5)}), Draft(2, "ok", "", accepted=True, chosen=True, scores={"tsq": Score(1.0)}))
    run = run_of(rollout("a", tsq=1.0, drafts=drafts))
    summary = run.suites["shop"].drafts

    assert [(summary,)] == said(report(run), suite_phrases.drafts)
    assert [(summary, "tsq")] == said(report(run), suite_phrases.draft_score)
    assert [] == [*said(report(run_of(rollout("a"))), suite_phrases.drafts), *said(report(run_of(rollout("a"))), suite_phrases.draft_score)]


def test_roles() -> None:
    """A terminal has a fact for each role except the agent. Files have a table of all roles. Without roles there is neither."""
    agent, search = (
        replace(NO_CALLS, models=("m",), calls=1, measured=1),
        replace(NO_CALLS, calls=2, failed_calls={"cut": 1}, currency="USD"),
    )
    run = run_of()
    with_roles = replace(run, suites={"shop": replace(run.suites["shop"], roles={"agent": agent, "search": search})})
    full = report(with_roles, Level.FULL)

    assert [(search,)] == said(full, suite_phrases.role)
    assert ["search"] == [
        fact.label for fact in full.blocks() if isinstance(fact, Fact) and fact.content == say(suite_phrases.role, search)
    ]
    rows = table(with_roles, "Roles")
    assert [("agent", "m", agent, 1, "0", agent), ("search", "", search, 2, {"cut": 1}, search)] == [row[:6] for row in rows]
    assert [(None, None, None), (None, None, search)] == [row[6:] for row in rows]
    assert [] == said(report(with_roles, Level.VERBOSE), suite_phrases.role)
    assert (None, []) == (of_suite(run, "Roles"), said(report(run, Level.FULL), suite_phrases.role))
