"""The section of suites: scores, costs, mistakes and tables of each suite. A function in PARTS yields each part of a suite's section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_agentbench.lib.error_texts import cause_of
from pytest_agentbench.metrics.suite_metrics import AGENT, RoleUse
from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import AnyBlock, Code, Fact, Level, Measure, Note, Section, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.results import Mean, SuiteResult, UnmeasuredRollout
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.runs.tasks_and_mistakes import MistakeCount, TaskResult, Triage
from pytest_agentbench.scorers.mistakes import KINDS

WORST = 3  # worst scenarios on the first page, over all suites
CAUSES = 3  # causes of missing scores on the first page
CONFUSED = 3  # pairs of confused tools
FAILURES = 5  # kinds of task failures on a terminal
PASS_RATES = 20  # rows: scenarios whose trials did not all pass
SCENARIOS = 200  # rows of the table of all scenarios
TASKS = 50  # rows of the table of tasks

Blocks = Iterator[AnyBlock | Section | None]


def section(view: RunView) -> Section | None:
    """Returns a section for each suite under each variant, and the cost of all."""
    run = view.run
    cost = suite_phrases.costs_of_all if len(run.suites) > 1 else suite_phrases.costs
    parts = [of(name, (block for part in PARTS for block in part(run, name, suite))) for name, suite in run.suites.items()]
    return of("Suites", [Fact("cost", say(cost, run.costs)), *parts])


def _first_page(run: Run, name: str, suite: SuiteResult) -> Blocks:
    """Yields the numbers of rollouts and the means. In a run with arms they are not on the first page, which compares the arms instead."""
    first, summary, several = Level.FIRST_PAGE, Level.SUMMARY, len(run.suites) > 1
    if not run.ab:
        yield Fact(name, say(suite_phrases.rollouts, suite), level=first, until=summary, spare=2)
    if not run.imported:
        level = Level.SUMMARY if run.ab else first
        yield Fact(_in_summary(run, name, "no calls"), say(suite_phrases.without_calls, suite), "open", level=level)
    # The main score is in the headline. A further score that counts mistakes is on the first page if its mean is not perfect.
    news = {score: mean for score in suite.scorers[1:] if _has_news(suite, score, mean := suite.scores[score].mean)}
    if not run.ab and not several:
        yield Fact("scores", say(suite_phrases.means, news), level=first, until=first, spare=4)
    for score in suite.scorers:
        mean, scale = suite.scores[score].mean, suite.scales[score]
        yield Fact(_in_summary(run, name, score), _measure(mean, scale.text), level=summary, until=summary)


def _has_news(suite: SuiteResult, score: str, mean: Mean | None) -> bool:
    scale = suite.scales[score]
    return mean is None or not scale.falling or mean.value != scale.best


def _in_summary(run: Run, name: str, label: str) -> str:
    """Returns a label, with the name of the suite if there are several, because the first screen of a page has no headings for suites."""
    return f"{name} {label}" if len(run.suites) > 1 else label


def _measure(mean: Mean | None, about: str = "") -> Measure:
    return Measure(None, about=about) if mean is None else Measure(mean.value, low=mean.low, high=mean.high, about=about)


def _dataset(_run: Run, _name: str, suite: SuiteResult) -> Blocks:
    yield Fact("data set", say(suite_phrases.dataset, suite))
    yield Fact("rollouts", say(suite_phrases.statuses, suite.rollouts))
    yield Fact("retried", say(suite_phrases.retried, suite))


def _excluded(run: Run, _name: str, suite: SuiteResult) -> Blocks:
    """Yields the scenarios excluded from gates, and the tasks that were skipped."""
    first, summary, verbose = Level.SUMMARY if run.ab else Level.FIRST_PAGE, Level.SUMMARY, Level.VERBOSE
    for level, until in ((first, summary), (verbose, verbose)):
        yield Fact("quarantined", say(suite_phrases.quarantined_count, suite), "open", level=level, until=until)
        yield Fact("unsupported", say(suite_phrases.unsupported_count, suite), "open", level=level, until=until)
    yield Fact("quarantined", say(suite_phrases.quarantined, suite), "open", until=Level.FULL)
    yield Fact("unsupported", say(suite_phrases.unsupported, suite), "open", until=Level.FULL)
    rows = [
        (Code(each.scenario, "scenario"), each.owner, each.expires, each.reason, say(suite_phrases.quarantine_tests, each))
        for each in suite.quarantined
    ]
    yield Table(heads("scenario", "owner", "expires", "reason", "tests"), tuple(rows), level=verbose)
    if rows:
        yield Note(suite_phrases.MEANS_WITH_QUARANTINED, level=verbose)
    unsupported = tuple((Code(task, "scenario"), why) for task, why in suite.unsupported.items())
    yield Table(heads("task", "why"), unsupported, level=verbose)


def _scores(_run: Run, _name: str, suite: SuiteResult) -> Blocks:
    for score, means in suite.scores.items():
        yield Fact(score, say(suite_phrases.score, means.mean), until=Level.FULL)
        if means.mean != means.mean_evaluable:
            yield Fact("", say(suite_phrases.evaluable, means.mean_evaluable), until=Level.FULL)
    rows = [
        (score, suite.scales[score].text, say(suite_phrases.score, means.mean), say(phrases.mean, means.mean_evaluable))
        for score, means in suite.scores.items()
    ]
    columns = heads("score", "scale", "mean over all, 95 % interval", "over evaluable rollouts")
    yield Table(columns, tuple(rows), level=Level.VERBOSE)
    yield Note(say(suite_phrases.agent_errors, suite), level=Level.VERBOSE)
    if suite.passes:
        yield Fact("passed", say(suite_phrases.passes, suite.passes, suite.scales[suite.passes.score]))
    yield Fact("efficiency", say(suite_phrases.efficiency, suite.efficiency))


def _tasks(_run: Run, _name: str, suite: SuiteResult) -> Blocks:
    if suite.tasks:
        yield Fact("tasks", say(suite_phrases.tasks, suite.tasks))
        yield from (Fact("", say(suite_phrases.task_failure, each), until=Level.FULL) for each in suite.tasks.failures[:FAILURES])
    sandboxes = (*suite.sandboxes, *(suite.tasks.sandboxes if suite.tasks else ()))
    yield from (Fact("sandbox", kind) for kind in sandboxes)


def _mistakes(run: Run, _name: str, suite: SuiteResult) -> Blocks:
    if (triage := suite.triage) and triage.faulty:
        if not run.ab:
            yield Fact("mistakes", say(suite_phrases.mistakes, triage), level=Level.FIRST_PAGE, until=Level.FIRST_PAGE, spare=4)
        yield Fact("mistakes", say(suite_phrases.faulty, triage))
        yield from (Fact("", say(suite_phrases.confusion, each), until=Level.FULL) for each in triage.confused[:CONFUSED])


def _without_score(run: Run, _name: str, suite: SuiteResult) -> Blocks:
    ended = sum(suite.rollouts.values()) - suite.rollouts.get("ok", 0) - suite.rollouts.get("limit", 0)
    is_main = not run.ab and not run.backend.failure and 2 * ended >= sum(suite.rollouts.values())  # The first page has few lines.
    for place, cause in enumerate(error_causes(suite.errors)[:CAUSES]):
        level = Level.FIRST_PAGE if is_main and place == 0 else Level.FULL
        yield Fact("error", say(suite_phrases.error_cause, cause), "open", level=level, until=Level.FULL)
    failures, first = suite.scorer_failures, Level.FULL if run.ab else Level.FIRST_PAGE
    for place, failure in enumerate(failures):
        yield Fact("no score", say(suite_phrases.scorer_failure, failure), "open", level=first if place < CAUSES else Level.VERBOSE)
    yield Fact("", say(suite_phrases.more_causes, len(failures) - CAUSES), level=first, until=Level.FULL)


def error_causes(errors: Sequence[UnmeasuredRollout]) -> list[tuple[UnmeasuredRollout, int]]:
    """Returns the first of the listed rollouts for each cause, with the number of listed rollouts that ended for it, the most first."""
    causes: dict[str, tuple[UnmeasuredRollout, int]] = {}
    for each in (each for each in errors if each.reason):
        first, number = causes.get(cause := f"{each.status} {cause_of(each.reason)}", (each, 0))
        causes[cause] = first, number + 1
    return sorted(causes.values(), key=lambda cause: -cause[1])


def _answers(run: Run, name: str, suite: SuiteResult) -> Blocks:
    several = len(suite.answers) > 1
    for score, each in suite.answers.items():
        of_score = f"{score} " if several else ""
        judged = suite_phrases.judged(each, suite.score_errors.get(score, 0))
        accuracy = Measure(each.accuracy, low=each.accuracy_low, high=each.accuracy_high, about=judged)
        yield from _measured(run, name, f"{of_score}accuracy", accuracy)
        error = Measure(
            each.calibration_error, "RMS error", "", each.calibration_low, each.calibration_high, 3, suite_phrases.confidence(each)
        )
        yield from _measured(run, name, f"{of_score}calibration", error)


def _measured(run: Run, name: str, label: str, measure: Measure) -> Blocks:
    """Yields facts that show a measure of a suite on the first page, in the summary and in longer reports.

    In a run with arms, the first page does not show it, because it compares the arms instead.
    """
    summary = Level.SUMMARY
    if not run.ab:
        yield Fact(label, measure, level=Level.FIRST_PAGE, until=Level.FIRST_PAGE, spare=1)
    yield Fact(_in_summary(run, name, label), measure, level=summary, until=summary)
    yield Fact(label, measure)


def _drafts(_run: Run, _name: str, suite: SuiteResult) -> Blocks:
    if drafts := suite.drafts:
        yield Fact("drafts", say(suite_phrases.drafts, drafts))
        yield from (Fact("", say(suite_phrases.draft_score, drafts, name)) for name in drafts.scores)


ROLE_COLUMNS = heads("role", "model", "endpoint", ("calls", 0), "failed", "tokens", "TTFT p50, p95 ms", "E2E p50, p95 ms", "cost")


def _roles(_run: Run, _name: str, suite: SuiteResult) -> Blocks:
    for name, use in suite.roles.items():
        if name != AGENT:
            yield Fact(name, say(suite_phrases.role, use), until=Level.FULL)
    rows = tuple(_role_row(name, use) for name, use in suite.roles.items())
    table = Table(ROLE_COLUMNS, rows, level=Level.VERBOSE)
    yield of("Roles", [table, Note(suite_phrases.SERVING_CALLS, level=Level.VERBOSE)] if rows else [])


def _role_row(name: str, use: RoleUse) -> tuple[TableCell, ...]:
    failed = say(suite_phrases.statuses, use.failed_calls) if use.failed_calls else "0"
    cost = say(suite_phrases.role_cost, use) if use.currency else None
    spreads = (say(phrases.median_and_p95, spread) for spread in (use.ttft_ms, use.e2e_ms))
    models = Code(", ".join(use.models))
    return name, models, say(suite_phrases.role_endpoints, use), use.calls, failed, say(suite_phrases.role_tokens, use), *spreads, cost


def _worst(run: Run, _name: str, suite: SuiteResult) -> Blocks:
    if not run.ab:
        worst = say(suite_phrases.worst_scenarios, suite.main_score, suite.worst[: WORST // len(run.suites)])
        yield Fact("worst", worst, level=Level.FIRST_PAGE, until=Level.FIRST_PAGE, spare=3)
    for each in suite.worst:
        yield Fact("worst", say(suite_phrases.worst, each), until=Level.FULL)
        if suite.tasks is None:
            yield Fact("", say(phrases.expected_and_actual, each.expected_tools, each.actual_tools), until=Level.FULL)


def _tables(run: Run, _name: str, suite: SuiteResult) -> Blocks:
    """Yields the tables of a suite, which are mostly shown only in files and with -vv."""
    yield of("Pass rates", _pass_rates(suite))
    yield of("Tasks", _task_table(suite))
    yield of("How failed trials ended", _task_failures(suite))
    if suite.triage and suite.triage.faulty:
        yield from _mistake_tables(suite.triage)
    yield of(f"Worst {suite.main_score}", _worst_tables(suite))
    yield of("Every scenario", _scenarios(run, suite))
    rows = tuple((Code(each.id, "scenario"), each.status, Code(each.reason.partition("\n")[0])) for each in suite.errors)
    yield of("Not measured", [Table(heads("scenario", "status", "reason"), rows, level=Level.VERBOSE)])


def _pass_rates(suite: SuiteResult) -> Blocks:
    passes = suite.passes
    if passes is None or len(passes.pass_at) < 2:
        return
    columns = heads("scenario", "trials that passed", "95 % interval of its rate")
    rows = [
        (Code(each.scenario, "scenario"), say(suite_phrases.solved, each.passed, each.trials), say(phrases.ends, each.low, each.high))
        for each in passes.scenarios[:PASS_RATES]
    ]
    yield Table(columns, tuple(rows), level=Level.VERBOSE)
    yield Note(say(suite_phrases.always_passed, passes, len(passes.scenarios) - PASS_RATES), level=Level.VERBOSE)


TASK_COLUMNS = heads(
    *("task", "solved", ("mean reward", 3), ("commands", 1), ("tokens", 1), ("seconds", 1), ("in the sandbox", 1), ("verifier, s", 1)),
    *("verifier runs", ("changed its files", 0), ("tampered", 0)),
)


def _task_table(suite: SuiteResult) -> Blocks:
    if suite.tasks is None:
        return
    tasks = sorted(suite.tasks.tasks, key=lambda each: (each.reward, each.scenario))
    yield Table(TASK_COLUMNS, tuple(map(_task_row, tasks[:TASKS])), level=Level.VERBOSE)
    yield Note(say(suite_phrases.tasks_left, len(tasks) - TASKS), level=Level.VERBOSE)


def _task_row(each: TaskResult) -> tuple[TableCell, ...]:
    took = (each.reward, each.commands, each.tokens, each.seconds, each.sandbox_s, each.verifier_s)
    name, solved = Code(each.scenario, "scenario"), say(suite_phrases.solved, each.solved, each.trials)
    return name, solved, *took, each.verifier, each.changed or None, each.tampered or None


def _task_failures(suite: SuiteResult) -> Blocks:
    columns = heads("agent ended as", "first check that failed", ("rollouts", 0), "for example")
    failures = suite.tasks.failures if suite.tasks else ()
    rows = [
        (each.end, Code(each.check) if each.check else None, each.rollouts, say(suite_phrases.examples, each.examples, ""))
        for each in failures
    ]
    yield Table(columns, tuple(rows), level=Level.VERBOSE)


def _mistake_tables(triage: Triage) -> Blocks:
    verbose = Level.VERBOSE
    kinds = heads("mistake", "rollouts", "what it is", "for example")
    yield of("What went wrong", [Table(kinds, tuple(_mistake_row(each, triage.rollouts) for each in triage.kinds), level=verbose)])
    confused = [(Code(each.expected), Code(each.actual), each.rollouts) for each in triage.confused]
    yield of("Confused tools", [Table(heads("expected", "called", ("rollouts", 0)), tuple(confused), level=verbose)])
    counts = ("rollouts that expect it", "did not call it", "called it unexpectedly", "wrong arguments")
    tools = [(Code(each.tool), each.expected, each.missing, each.unexpected, each.bad_arguments) for each in triage.tools]
    columns = heads("tool", *((title, 0) for title in counts))
    yield of("Tools with the most mistakes", [Table(columns, tuple(tools), level=verbose)])


def _mistake_row(each: MistakeCount, rollouts: int) -> tuple[TableCell, ...]:
    share, examples = say(suite_phrases.mistake_share, each.rollouts, rollouts), say(suite_phrases.examples, each.examples, each.detail)
    return each.kind, share, KINDS[each.kind], examples


def _worst_tables(suite: SuiteResult) -> Blocks:
    """Yields tables of the worst scenarios for summaries and files; a terminal shows lines instead.

    In suites of tasks, the tables have no columns for tools.
    """
    rows: list[tuple[TableCell, ...]] = []
    for each in suite.worst:
        tools = () if suite.tasks else (say(suite_phrases.tools, each.expected_tools), say(suite_phrases.tools, each.actual_tools))
        rows.append((Code(each.id, "scenario"), each.score, *tools, Code(each.question)))
    names = () if suite.tasks else ("expected tools", "actual tools")
    first, last = ("task", "what it says") if suite.tasks else ("scenario", "the customer asks")
    for level in (Level.SUMMARY, Level.VERBOSE):
        yield Table(heads(first, (suite.main_score, 3), *names, last), tuple(rows), level=level, until=level)


def _scenarios(run: Run, suite: SuiteResult) -> Blocks:
    """Yields all scenarios with their scores, and the command that exports each trial."""
    rows = [(Code(each.scenario, "scenario"), *(each.scores.get(score) for score in suite.scorers)) for each in suite.scenarios[:SCENARIOS]]
    yield Table(heads("scenario", *((score, 3) for score in suite.scorers)), tuple(rows), level=Level.VERBOSE)
    if rows:
        yield Note(say(suite_phrases.scenarios_left, SCENARIOS, len(suite.scenarios)), level=Level.VERBOSE)
        yield Note(say(suite_phrases.spreadsheet, run), level=Level.VERBOSE)


Part = Callable[[Run, str, SuiteResult], Blocks]

PARTS: tuple[Part, ...] = (
    *(_first_page, _dataset, _scores, _answers, _drafts, _roles, _mistakes, _without_score, _excluded, _tasks, _worst, _tables),
)
