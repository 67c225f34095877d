"""The sentences of reports about the results of one suite: scores, tasks, mistakes, costs and excluded scenarios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.suite_metrics import AnswersSummary, DraftsSummary, Efficiency, RoleUse
from pytest_agentbench.records import EVALUABLE, Scale
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Code, Text
from pytest_agentbench.reports.failure_section import brief
from pytest_agentbench.reports.phrases import count, each_count, percent, significant
from pytest_agentbench.runs.results import (
    Mean,
    Passes,
    QuarantineResult,
    RetriedMeans,
    ScorerFailure,
    SuiteResult,
    UnmeasuredRollout,
    WorstScore,
)
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.runs.tasks_and_mistakes import Confusion, TaskFailure, TasksSummary, ToolMistakes, Triage
from pytest_agentbench.stats.pass_rates import PassRate

BY_HAND = "hand"  # source of labels that a person has checked
UNKNOWN = "unknown"  # source of labels of a data set that does not name one

MEANS_WITH_QUARANTINED = "The means include quarantined scenarios."

MEANS_OF_TRIALS = "Commands, tokens and seconds are means of the agent's trials."

SERVING_CALLS = (
    "Serving metrics only cover calls to the backend under test. Calls to other endpoints and calls of judges are only in this table."
)


def ended_badly(suite: SuiteResult) -> str:
    """`not all rollouts ended well: 3 limit`: the statuses other than `ok`. Empty if all rollouts are `ok`."""
    bad = {status: amount for status, amount in suite.rollouts.items() if status != "ok" and amount}
    return f"not all rollouts ended well: {statuses(bad)}" if bad else ""


def most_confused(triage: Triage) -> Text:
    """`most confused: get_balance instead of get_history 7 times`: the most frequent confusion of two tools. Empty if there is none."""
    return ("most confused: ", *confusion(triage.confused[0])) if triage.confused else ""


def worst_tool(triage: Triage) -> Text:
    """`the tool with the most mistakes: get_balance (not called in 31 of 40 rollouts that should)`. Empty without mistakes."""
    return ("the tool with the most mistakes: ", *tool(triage.tools[0])) if triage.tools else ""


def commonest_failure(tasks: TasksSummary) -> Text:
    """`the most frequent way to fail: limit: iterations: 4 rollouts, for example ...`: from a suite of tasks. Empty if all were solved."""
    return ("the most frequent way to fail: ", *task_failure(tasks.failures[0])) if tasks.failures else ""


def flips(passes: Passes | None) -> Text:
    """`2 scenarios passed only in some trials: a, b`, the pass rates nearest to 50 % first. Empty if there are none."""
    mixed = [each for each in (passes.scenarios if passes else ()) if each.passed]
    if not mixed:
        return ""
    nearest = sorted(mixed, key=lambda each: (abs(each.passed / each.trials - 0.5), each.scenario))
    named = _listed([Code(each.scenario, "scenario") for each in nearest[: phrases.NAMED]])
    others = (" and others",) if len(mixed) > phrases.NAMED else ()
    return (f"{count(len(mixed), 'scenario')} passed only in some trials: ", *named, *others)


def _listed(names: Sequence[Code]) -> tuple[str | Code, ...]:
    """Returns the names, separated by commas."""
    return tuple(part for name in names for part in (", ", name))[1:]


def dataset(suite: SuiteResult) -> str:
    """Returns the name, size, hash and source of the labels (expected results) of a data set, so that readers can tell data sets apart."""
    data = suite.dataset
    left = "".join(f", {amount} {what} left out" for what, amount in data.left_out.items())
    return f"{data.name}: {data.size} scenarios{left}, labels: {data.label_source}, sha256 {data.sha256[:12] or 'unknown'}"


def statuses(rollouts: Mapping[str, int]) -> str:
    """`97 ok, 3 limit`: the number of rollouts by status. Statuses without rollouts are left out."""
    return each_count(rollouts) or "none"


def rollouts(suite: SuiteResult) -> str:
    """`100 rollouts: 97 ok, 3 limit; labels: heuristic-v1`: rollouts by status, and the source of labels that no person has checked."""
    total = sum(suite.rollouts.values())
    how = "all ok" if total and total == suite.rollouts["ok"] else statuses(suite.rollouts)
    source = suite.dataset.label_source
    how_to = f" (set metadata.label_source of each entry in {suite.dataset.file})" if source == UNKNOWN and suite.dataset.file else ""
    labels = "" if source == BY_HAND else f"; labels: {source}{how_to}"
    return f"{count(total, 'rollout')}{',' if how == 'all ok' else ':'} {how}{labels}"


#: What an agent has to do, so that its calls are measured.
USE_THE_TAP = "the agent has to use llm.openai() or llm.chat(), or send its requests to llm.base_url (a program: to OPENAI_BASE_URL)"
CALL_NO_MODEL = ("oracle", "nothing")  # built-in agents


def without_calls(suite: SuiteResult) -> str:
    """`no LLM call of 5 rollouts went through agentbench, so no call was measured; ...`. Empty if all rollouts made calls."""
    silent, total = suite.without_calls, sum(suite.rollouts.get(status, 0) for status in EVALUABLE)
    if not silent or suite.agent.get("kind") in CALL_NO_MODEL:
        return ""
    if silent < total:
        return f"{silent} of {count(total, 'rollout')} ended without an LLM call through agentbench; if there were calls, {USE_THE_TAP}"
    return f"no LLM call of {count(total, 'rollout')} went through agentbench, so no call was measured; {USE_THE_TAP}"


def retried(suite: SuiteResult) -> str:
    """Compares the mean scores of a suite's rollouts with several attempts and of those with one. Empty if none had several."""
    if not suite.retried:
        return ""
    means_of_scores = [_retried_mean(name, means) for name, means in suite.retried_scores.items() if means.retried]
    return ": ".join(filter(None, [f"{suite.retried} with more than one attempt", ", ".join(means_of_scores)]))


def _retried_mean(name: str, means: RetriedMeans) -> str:
    return f"{name} {phrases.mean(means.retried)}, others {phrases.mean(means.others)}"


def mean_of(value: Mean | None) -> str:
    """`mean, 95 % interval of the suite over 100 scenarios`: the number of scenarios in a mean, and its interval."""
    if value is None:
        return ""
    together = f" in {value.clusters} cluster{'s' * (value.clusters != 1)}" if value.clusters < value.scenarios else ""
    scenarios = f"{value.scenarios} scenario{'s' * (value.scenarios != 1)}{together}"
    return f"mean over {scenarios}, no interval" if value.low is None else f"mean, 95 % interval of the {value.of} over {scenarios}"


def score(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653] mean, 95 % interval of the suite over 100 scenarios`: the mean of a score."""
    if value is None:
        return "not measured"
    return f"{value.value:.3f} {mean_of(value)}" if value.low is None else f"{phrases.mean(value)} {mean_of(value)}"


def evaluable(value: Mean | None) -> str:
    """`0.612 [0.571, 0.653] over evaluable rollouts only`: the mean of a score without agent errors."""
    return "no evaluable rollout" if value is None else f"{phrases.mean(value)} over evaluable rollouts only"


def agent_errors(suite: SuiteResult) -> str:
    """Explains the means over all rollouts: how agent errors and infra errors count, and that intervals are over scenarios."""
    counted = {name: each.worst for name, each in suite.scales.items() if each.worst is not None}
    left_out = [name for name in suite.scales if name not in counted]
    values = {f"{value:g}" for value in counted.values()}
    if not left_out and len(values) == 1:
        errors = f"an agent's error counts as {values.pop()}, the worst value"
    else:
        parts = [f"as {value:g} in {name}" for name, value in counted.items()]
        sentences = [f"an agent's error counts as the worst value, {', '.join(parts)}"] if parts else []
        sentences += [f"agent errors are left out of {', '.join(left_out)}, without a worst value"] if left_out else []
        errors = "; ".join(sentences)
    return f"Means over all: {errors}; an infra_error is left out. Intervals are over scenarios; trials of one scenario are averaged first."


def passes(value: Passes, of: Scale) -> str:
    """`0.812 [0.771, 0.853] of the trials, those with tsq >= 0.5; pass@3 0.900 [0.800, 1.000], ...`: the pass rates of a suite."""
    first = f"{phrases.mean(value.pass_all[0])} of the trials, those with {value.score} {of.sign} {value.floor:g}"
    last = ((False, value.pass_at[-1]), (True, value.pass_all[-1]))
    rates = [f"{PassRate(every, each.k).name} {phrases.mean(each)}" for every, each in last if each.k > 1]
    return f"{'; '.join(filter(None, (first, ', '.join(rates))))}; 95 % intervals"


def always_passed(value: Passes, left: int) -> str:
    """`7 scenarios passed in all of their trials; 3 more are in run.json`: the rows left out of a table of pass rates. Empty if none is."""
    always = [f"{count(value.always, 'scenario')} passed in all of their trials"] if value.always else []
    return "; ".join([*always, *([f"{left} more are in run.json"] if left > 0 else [])])


def efficiency(value: Efficiency) -> str:
    """Returns the efficiency metrics of a suite, for example its tokens. Empty if none is known."""
    known = {metric: each for metric in registry.efficiency().values() if (each := value.metrics[metric.name]) is not None}
    return ", ".join(f"{metric.title} {significant(each)}{_currency(metric, value)}" for metric, each in known.items())


def _currency(metric: Metric, value: Efficiency) -> str:
    return f" {value.currency}" if metric.money else ""


def costs(value: Mapping[str, float | None]) -> str:
    """`1.25 USD`: the cost in each currency. Empty without token prices."""
    return ", ".join(f"unknown, in {currency}" if cost is None else f"{significant(cost)} {currency}" for currency, cost in value.items())


def costs_of_all(value: Mapping[str, float | None]) -> str:
    """`1.25 USD, all suites together`: the cost of a run. Empty without token prices."""
    return f"{costs(value)}, all suites together" if value else ""


def judged(value: AnswersSummary, without: int) -> str:
    """`Wilson interval; 12 questions, 8 of 12 answers scored by the judge`: the method and the counts behind an accuracy.

    `without` is the number of answers without a score.
    """
    left = f"; {without} without a score because the scorer or its judge failed" if without else ""
    return f"Wilson interval; {value.questions:,} questions, {value.judged:,} of {value.answers:,} answers scored by the judge{left}"


def confidence(value: AnswersSummary) -> str:
    """`12 answers with a mean confidence of 0.383, 1 bin`: the data of a calibration error. Says so if no answer states its confidence."""
    if value.calibration_error is None or value.confidence is None:
        return "no answer states its confidence"
    return f"{value.confident:,} answers with a mean confidence of {value.confidence:.3f}, {count(value.bins, 'bin')}"


def drafts(value: DraftsSummary) -> str:
    """Returns the number of drafts (tries of an agent that judges them), also per rollout, and of rollouts with an accepted draft."""
    each = value.drafts / value.rollouts
    accepted = f"{value.accepted} ({percent(value.accepted / value.rollouts)}) with an accepted one"
    return f"{value.drafts} of {value.rollouts} rollouts ({each:.2f} each), {accepted}"


def draft_score(value: DraftsSummary, name: str) -> str:
    """`tsq 0.500 of the first drafts, 0.600 of the chosen ones`: two means of a score over rollouts with drafts."""
    means = value.scores[name]
    return f"{name} {means.first:.3f} of the first drafts, {means.chosen:.3f} of the chosen ones"


def quarantined_count(suite: SuiteResult) -> str:
    """`2 of 100 scenarios, excluded from gates`: the number of quarantined scenarios. Empty if there are none."""
    entries = len(suite.quarantined)
    return f"{entries} of {suite.dataset.size} scenarios, excluded from gates" if entries else ""


def quarantined(suite: SuiteResult) -> str:
    """Lists the quarantined scenarios with their owners, expiry dates and results. Empty if there are none."""
    parts = [f"{each.scenario} ({each.owner}, until {each.expires}; {quarantine_tests(each)})" for each in suite.quarantined]
    return f"{quarantined_count(suite)}: {', '.join(parts)}" if parts else ""


def quarantine_tests(entry: QuarantineResult) -> str:
    """`2 of 3 tests passed`: the result of a quarantined scenario."""
    return f"{entry.passed} of {count(entry.tests, 'test')} passed"


def unsupported_count(suite: SuiteResult) -> str:
    """`2 of 80 tasks need unsupported features`: the number of skipped tasks. Empty if none was skipped."""
    return f"{len(suite.unsupported)} of {suite.dataset.size} tasks need unsupported features" if suite.unsupported else ""


def unsupported(suite: SuiteResult) -> str:
    """Lists the tasks that were skipped because they need unsupported features. Empty if there are none."""
    return f"{len(suite.unsupported)} of {suite.dataset.size} tasks: {', '.join(suite.unsupported)}" if suite.unsupported else ""


def faulty(triage: Triage) -> str:
    """`63 of 100 rollouts have a mistake, some of them several: missing call 40, bad argument 31`: the rollouts by kind of mistake."""
    some = ", some of them several" if sum(each.rollouts for each in triage.kinds) > triage.faulty else ""
    return f"{triage.faulty:,} of {triage.rollouts:,} rollouts ha{'s' if triage.faulty == 1 else 've'} a mistake{some}: {mistakes(triage)}"


def mistakes(triage: Triage) -> str:
    """`missing call 40, bad argument 31, wrong tool 12`: the number of rollouts with each kind of mistake."""
    return ", ".join(f"{each.kind} {each.rollouts:,}" for each in triage.kinds)


def mistake_share(amount: int, total: int) -> str:
    """`9, 90.0 %`: the number and share of rollouts with a mistake."""
    return f"{amount:,}, {percent(amount / total)}"


def examples(ids: Sequence[str], detail: str) -> Text:
    """`a, b, c: no get_rate`: scenarios as examples, with a detail of the first one if that is given."""
    names = _listed([Code(each, "scenario") for each in ids])
    return (*names, ": ", Code(detail)) if detail else names


def confusion(value: Confusion) -> tuple[str | Code, ...]:
    """`get_balance instead of get_history 7 times`: a tool that was called in place of another one."""
    times = f" {value.rollouts} times" if value.rollouts > 1 else " once"
    return Code(value.actual), " instead of ", Code(value.expected), times


def tool(value: ToolMistakes) -> tuple[str | Code, ...]:
    """`get_balance (not called in 31 of 40 rollouts that should, wrong arguments in 5 rollouts)`: the mistakes with a tool."""
    parts = [f"not called in {value.missing:,} of {count(value.expected, 'rollout')} that should"] * bool(value.missing)
    parts += [f"called unexpectedly in {count(value.unexpected, 'rollout')}"] * bool(value.unexpected)
    parts += [f"wrong arguments in {count(value.bad_arguments, 'rollout')}"] * bool(value.bad_arguments)
    return Code(value.tool), f" ({', '.join(parts)})"


def tools(names: Sequence[str]) -> Text:
    """Returns the names of tools, or `none`."""
    return Code(", ".join(names) or "none")


def worst(value: WorstScore) -> str:
    """`banking-010 0.000 "Bees don't mind paperwork"`: a scenario with a low score, and its question."""
    question = f' "{value.question}"' if value.question else ""
    return f"{value.id} {value.score:.3f}{question}"


def worst_scenarios(score: str, values: Sequence[WorstScore]) -> Text:
    """`tsq 0.000 in banking-010, 0.333 in banking-017`: the scenarios with the lowest main score. Empty if there are none."""
    parts = [part for each in values for part in (", ", f"{each.score:.3f} in ", Code(each.id, "scenario"))]
    return (f"{score} ", *parts[1:]) if parts else ""


def means(values: Mapping[str, Mean | None]) -> str:
    """`parameter_accuracy 0.307 [0.025, 0.736], repeated 0.100 [0.000, 0.200]`: means with their intervals. Empty without means."""
    return ", ".join(f"{score} {phrases.mean(value)}" for score, value in values.items())


def scenarios_left(shown: int, total: int) -> str:
    """`The worst 200; 40 more are in run.json.`: a note below a table of scenarios. Empty if all are shown."""
    return f"The worst {shown}; {total - shown} more are in run.json." if total > shown else ""


def spreadsheet(run: Run) -> Text:
    """Returns the command that writes the scores of each trial as CSV."""
    command = Code(f"agentbench export {run.id} --as csv", "command")
    return "For a spreadsheet of all trials with the parts of their scores, ", command, " writes scores.csv."


def scorer_failure(value: ScorerFailure) -> str:
    """`3 rollouts: scorer mistakes failed: ValueError: no label (scorers.py:12), first in banking-003`: a cause of missing scores."""
    return f"{count(value.rollouts, 'rollout')}: scorer {value.score} failed: {brief(value.error)}, first in {value.first}"


def error_cause(value: tuple[UnmeasuredRollout, int]) -> str:
    """`TypeError: no label (agent.py:12), in banking-003 and 4 more`: why rollouts have no result."""
    first, number = value
    return f"{brief(first.reason)}, in {first.id}{f' and {number - 1} more' if number > 1 else ''}"


def more_causes(amount: int) -> str:
    """`and 2 more causes, see report.md`: further causes of missing scores. Empty if all are shown."""
    return f"and {count(amount, 'more cause')}, see report.md" if amount > 0 else ""


def tasks(value: TasksSummary) -> str:
    """`3 of 5 tasks solved in all verified trials, 1 in some of them, 1 in none`: the results of a suite of tasks."""
    total = len(value.tasks)
    always, never = sum(each.solved == each.trials for each in value.tasks), sum(each.solved == 0 for each in value.tasks)
    parts = [f"{always} of {total} tasks solved in all verified trials", f"{never} in none"]
    if some := total - always - never:
        parts.insert(1, f"{some} in some of them")
    return ", ".join(parts)


def task_failure(value: TaskFailure) -> tuple[str | Code, ...]:
    """`limit: iterations, first failed: test_port: 4 rollouts, for example fix-permissions`: how rollouts failed their tasks."""
    check = f", first failed: {value.check}" if value.check else ""
    end = "the agent finished" if value.end == "ok" else value.end
    return f"{end}{check}: {count(value.rollouts, 'rollout')}, for example ", Code(value.examples[0], "scenario")


def tasks_left(left: int) -> str:
    """Explains the table of tasks: its order, its means, and how many tasks it leaves out."""
    return f"The lowest rewards first{f'; {left} more tasks are in run.json' if left > 0 else ''}. {MEANS_OF_TRIALS}"


def solved(amount: int, trials: int) -> str:
    """`2 of 3`: the number of trials that passed or solved a task."""
    return f"{amount} of {trials}"


def role(use: RoleUse) -> str:
    """Returns calls, tokens, time and cost of a role (another model that a rollout asks), and how many calls serving metrics include."""
    failed = f" ({sum(use.failed_calls.values())} failed)" if use.failed_calls else ""
    cost = f", {text}" if (text := role_cost(use)) else ""
    timed = "all" if use.measured == use.calls else f"{use.measured}" if use.measured else "none"
    tokens = f"{use.prompt_tokens:,} + {use.output_tokens:,} tokens"
    return f"{use.calls} calls{failed}, {tokens}, {use.seconds:.1f} s{cost}, {timed} of them in the serving metrics"


def role_cost(use: RoleUse) -> str:
    """`0.0123 USD`: the cost of a role's calls. Empty without token prices."""
    return costs({use.currency: use.cost}) if use.currency else ""


def role_endpoints(use: RoleUse) -> Text:
    """Returns `the backend` and the addresses of other endpoints that serve a role (another model that a rollout asks)."""
    own = ("the backend",) if use.measured or not use.endpoints else ()
    others = _listed([Code(each) for each in use.endpoints])
    return (*own, *((", ",) if own and others else ()), *others)


def role_tokens(use: RoleUse) -> str:
    """`3,916 (2,000 cached) + 336`: the prompt tokens and the output tokens of a role."""
    return f"{use.prompt_tokens:,} ({use.cached_tokens:,} cached) + {use.output_tokens:,}"
