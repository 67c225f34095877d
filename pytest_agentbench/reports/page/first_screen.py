"""What is read first, as HTML that needs no script: the verdict and why, the numbers with their intervals, what changed, where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.metrics.answers import AnswersSummary
from pytest_agentbench.metrics.registry import METRICS
from pytest_agentbench.reports import first_look
from pytest_agentbench.reports.gates import change_text, claims_of, gate_text, reason_text, result_text, worst_first
from pytest_agentbench.reports.outcome import headline, tone
from pytest_agentbench.reports.words import number, percent, score_of, split_text, statuses_text, verdict_text
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.results import Mean, SuiteResult
from pytest_agentbench.runs.verdicts import RuleResult

RULES = CLAIMS = 10  # lines of each
LATENCIES = ("ttft", "itl", "e2e")


def text(words: str) -> str:
    """Words of others as HTML that shows them and does nothing."""
    return escape(one_line(words))


def name(words: str) -> str:
    return f"<code>{text(words)}</code>"


HTML = first_look.Notation(text, name)


def first_screen(runs: Sequence[Run]) -> str:
    """The HTML of the page's beginning; of several runs each has its verdict and its numbers, the first one first."""
    return "\n".join(line for run in runs for line in _of_run(run))


def _of_run(run: Run) -> Iterator[str]:
    first = headline(run)
    yield f'<section class="run" aria-label="Run {text(run.id)}">'
    yield f'<p class="soft">{text(run.backend.name)}, {text(run.backend.served_model or "no model")}; {text(run.id)}</p>'
    yield f'<h1 class="{f"verdict {first.tone}".rstrip()}">{text(str(first))}</h1>'
    yield from _why(run)
    yield '<div class="figures">'
    for suite_name, suite in run.suites.items():
        yield from _suite_figures(suite_name, suite, several=len(run.suites) > 1)
    yield from _speed_figures(run)
    yield "</div>"
    yield '<div class="pair">'
    yield from _list("What to look at first", first_look.lines(run, HTML), "Nothing stands out.")
    yield from _list(f"Against the baseline{_baseline(run)}", [*_changes(run)], "There is no baseline to compare with.")
    yield "</div>"
    yield f'<p class="soft">{text(_conditions(run))}</p>'
    yield "</section>"


def _why(run: Run) -> Iterator[str]:
    """The gate and its rules, the worst first; without one what became of the rollouts and the tests."""
    if run.backend.failure:
        yield f'<p class="bad">The backend failed: {text(run.backend.failure.partition(chr(10))[0])}</p>'
    tests = run.tests
    if tests.failed or tests.errors:
        yield f'<p class="bad">{tests.failed} tests failed, {tests.errors} could not be measured, {tests.passed} passed.</p>'
    if run.damaged:
        yield f'<p class="bad">{len(run.damaged)} lines of the journal are damaged, and left out here: {text(run.damaged[0])}</p>'
    if run.plan.not_run:
        yield f'<p class="open">{run.plan.not_run} of {run.plan.rollouts} planned rollouts did not run.</p>'
    if run.gate:
        rules = [_rule(rule) for rule in worst_first(run.gate.rules)[:RULES]]
        yield f"<p>Gate: {text(gate_text(run.gate, run.rounds))}</p>"
        yield f'<ul class="rules">{"".join(rules)}</ul>'


def _rule(rule: RuleResult) -> str:
    reason = f'<br><span class="soft">{text(reason_text(rule))}</span>' if reason_text(rule) else ""
    return f'<li class="{tone(rule.verdict)}">{text(result_text(rule))}{reason}</li>'


def figure(title: str, value: str, unit: str, about: str) -> str:
    """A number, its unit, and what is to be known of it, as HTML."""
    shown = f' <span class="unit">{text(unit)}</span>' if unit else ""
    return f'<div class="figure"><h2>{text(title)}</h2><p class="value">{text(value)}{shown}</p><p class="soft">{text(about)}</p></div>'


def _suite_figures(group: str, suite: SuiteResult, *, several: bool) -> Iterator[str]:
    for score in suite.scorers[: 1 if several else None]:
        mean = suite.scores[score].mean
        better = suite.scales[score].text
        value = "not measured" if mean is None else number(mean.value, 3)
        yield figure(f"{group} {score}" if several else score, value, "", f"{_interval(mean)}{better}")
    for score, answers in suite.answers.items():
        yield from _answer_figures(" ".join([*([group] if several else []), *([score] if len(suite.answers) > 1 else [])]), answers)
    total = sum(suite.rollouts.values())
    yield figure(f"{group} rollouts" if several else "rollouts", f"{total:,}", "", statuses_text(suite.rollouts))


def _answer_figures(of: str, answers: AnswersSummary) -> Iterator[str]:
    """How often they are right, and whether they know it."""
    by = f"{answers.questions:,} questions, {answers.judged:,} of {answers.answers:,} answers by the judge"
    between = f"95 % interval by Wilson {answers.accuracy_low:.3f} to {answers.accuracy_high:.3f}"
    yield figure(f"{of} accuracy".strip(), number(answers.accuracy, 3), "", f"{between}; {by}")
    if answers.calibration_error is None or answers.confidence is None:
        yield figure(f"{of} calibration".strip(), "unknown", "", "no answer says how sure it is")
        return
    ends = "" if answers.calibration_low is None else f"95 % interval {answers.calibration_low:.3f} to {answers.calibration_high:.3f}; "
    sure = f"{ends}{answers.confident:,} answers are {percent(answers.confidence)} sure in the mean"
    yield figure(f"{of} calibration error".strip(), number(answers.calibration_error, 3), "RMS", sure)


def _interval(mean: Mean | None) -> str:
    return "" if mean is None or mean.low is None else f"95 % interval {mean.low:.3f} to {mean.high:.3f}; "


def _speed_figures(run: Run) -> Iterator[str]:
    titles = {metric.name: metric.title for metric in METRICS}
    for metric in LATENCIES:
        if spread := run.performance.latency(metric):
            high = "" if spread.p90 is None else f"; p90 {number(spread.p90)} ms"
            ends = spread.intervals.get("p50")
            interval = f"95 % interval {number(ends[0])} to {number(ends[1])} ms" if ends else ""
            yield figure(titles.get(metric, metric), number(spread.p50), "ms, median", f"{interval}{high}".removeprefix("; "))
    rate, hits = (run.performance.number(name) for name in ("output_tokens_per_s", "prefix_cache_hit_ratio"))
    if rate:
        about = f"{run.performance.output_tokens:,} tokens of {run.performance.calls:,} calls in {run.performance.span_s:.1f} s"
        yield figure("throughput", number(rate), "output tokens/s", about)
    if hits is not None:
        yield figure("prefix cache", percent(hits), "", "of the prompt tokens were found there")


def _list(title: str, lines: Sequence[str], otherwise: str) -> Iterator[str]:
    yield f"<div><h2>{title}</h2>"
    yield f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else f'<p class="soft">{otherwise}</p>'
    yield "</div>"


def _baseline(run: Run) -> str:
    names = sorted({each.run for each in run.gate.baselines.values()}) if run.gate else []
    return f" {', '.join(map(name, names))}" if names else ""


def _changes(run: Run) -> Iterator[str]:
    """How each metric compares with the baseline, and the scenarios that got worse, as links to them."""
    rules = run.gate.rules if run.gate else ()
    yield from (text(result_text(rule)) for rule in rules if rule.vs_baseline)
    claims = [(score_of(rule), each) for rule in rules for each in claims_of(rule)]
    for score, each in claims[:CLAIMS]:
        yield f'worse: <a href="#{text(each.scenario)}">{text(change_text(score, each))}</a>'
    if len(claims) > CLAIMS:
        yield f"and {len(claims) - CLAIMS} more scenarios got worse"


def _conditions(run: Run) -> str:
    """When, how, and how far the times can be trusted."""
    split = split_text(run.performance.split) if run.performance.split else ""
    parts = [
        f"{run.finished_at}, {run.settings.concurrency} rollouts in flight at most",
        f"stopwatch: {verdict_text(run.stopwatch)}",
        f"time of the rollouts: {split}" if split else "",
    ]
    return "; ".join(filter(None, parts))
