"""The section that a session prints at its end."""

from __future__ import annotations

import re

import pytest

from pytest_agentbench.reports import gate_phrases, serving_phrases, suite_phrases
from pytest_agentbench.reports.document import Level, plain
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.runs.run_file import read_run
from tests.findings import report_of, said
from tests.project import FIND_THEN_ANSWER, Project, page

#: Terms that need an explanation, for which the first page has no space.
JARGON = ("stamps", "adjusted", "4 times out of 5", "steady", "sha256", "TPOT", "in flight", "median, 95", "KV cache", "0.0 %")
WHOLE = ("open ", "resume ", "            agentbench show ")  # These lines are copied by users.


def test_the_first_page_of_a_run(project: Project) -> None:
    """The page begins with the verdict and the number that decided it, and ends with what to open. It has at most 12 lines."""
    project.suite(
        scenarios=12, expected=("find_item", "order_item"), scorers=["tsq", "hallucinated"], thresholds={"tsq": 0.5, "tsq.mean": 0.5}
    )

    result = project.run("scenarios/shop")

    # The line about timing quality only appears on a busy machine.
    lines = [line for line in page(result) if not line.startswith(("timings ", "            (client-saturated)"))]
    run = read_run(project.directory)
    suite, gate = run.suites["shop"], run.gate
    mean = suite.scores["tsq"].mean
    assert gate is not None and mean is not None and suite.triage is not None
    verdict = f"verdict     PASS: shop tsq.mean 0.667 [{mean.low:.3f}, {mean.high:.3f}], required >= 0.5 (this run,"
    assert [
        verdict,
        "            judged by the measured value)",
        f"shop        {suite_phrases.rollouts(suite)}",
        f"mistakes    {suite_phrases.mistakes(suite.triage)}",
        f"worst       {plain(suite_phrases.worst_scenarios('tsq', suite.worst[:3]))}",
        f"speed       {serving_phrases.speed(run.performance, run.stopwatch)}",
        f"open        reports/{run.id}/report.html",
        f"            agentbench show {run.id} shop-0",
    ] == lines
    assert [("shop-0", "0.667"), ("shop-1", "0.667"), ("shop-10", "0.667")] == [(each.id, f"{each.score:.3f}") for each in suite.worst[:3]]
    assert ("PASS", "PASS", {"missing call": 12}) == (
        *(gate.verdict, gate.rules[0].verdict),
        {each.kind: each.rollouts for each in suite.triage.kinds},
    )
    assert headline(run) == " ".join(" ".join(lines[:2]).split()[1:])
    assert len(lines) <= 12
    assert [] == [word for word in JARGON if word in "\n".join(lines)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.slow), pytest.param(120, marks=pytest.mark.slow)])
def test_the_page_fits_the_terminal(project: Project, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Whatever went wrong, no line is wider than the terminal, except for those with a path or a command."""
    monkeypatch.setenv("COLUMNS", str(width))
    project.suite(scenarios=4)
    project.backend([{"match": {"contains": "shop-1"}, "status": 500}, {"match": {"contains": "shop-2"}, "text": "No."}, *FIND_THEN_ANSWER])

    result = project.run(
        "scenarios/shop", "--agentbench-gate=tsq.mean >= 0.9", "--agentbench-retries=0", "--agentbench-threshold=tsq.mean=0.9"
    )

    lines = page(result)
    assert re.match("verdict +FAIL", lines[0])
    tests = project.run_json["tests"]
    assert (1, 1, 2) == tuple(tests[name] for name in ("failed", "errors", "passed"))
    assert "1 of 4 tests failed; 1 of 4 tests could not be measured" in " ".join(line[12:] for line in lines[:6])
    assert [] == [line for line in lines if len(line) > width and not line.startswith(WHOLE)]
    assert "required >= 0.9" in " ".join(line[12:] for line in lines)


@pytest.mark.slow
def test_the_first_page_of_an_ab_session(project: Project) -> None:
    """For an A/B session, the page has the known differences, the first score in any case, and the number of the other comparisons."""
    project.suite(scenarios=12, scorers=["tsq", "hallucinated"])
    project.backend(name="good")
    project.backend([{"text": "No."}], name="bad")

    lines = page(project.run("--agentbench-ab=good,bad"))

    assert re.match("verdict +FAIL", lines[0])
    report = report_of(project.directory, Level.FIRST_PAGE)
    [(ab,)] = said(report, gate_phrases.arms)
    assert ["good", "bad"] == [arm.name for arm in ab.arms]
    told = [each for _, each in said(report, gate_phrases.comparison)]
    assert ("tsq", 1.0, 0.0, -1.0) == next((each.metric, each.base, each.new, each.estimate) for each in told)
    undecided = sum(each.finding == "inconclusive" and "." in each.metric for each in ab.comparisons)
    assert [(len(ab.comparisons) - len(told) - undecided, undecided)] == said(report, gate_phrases.no_difference)
    assert [12, 12] == [suite.rollouts["ok"] for (suite,) in said(report, suite_phrases.rollouts)]
    assert {"shop-good", "shop-bad"} <= {line.split()[0] for line in lines}
    assert [] == [line for line in lines if line.startswith(("scores ", "worst ", "speed "))]


#: A plugin that replaces pytest's terminal reporter by one of its own, as pytest-rich does.
REPLACED = """
import pytest

class Reporter:
    def pytest_sessionfinish(self):
        print("the summary of another reporter")

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.unregister(config.pluginmanager.get_plugin("terminalreporter"))
    config.pluginmanager.register(Reporter(), "another-reporter")
"""


@pytest.mark.slow
def test_another_reporter(project: Project) -> None:
    """If another plugin has replaced pytest's terminal reporter, the section is printed after its output. Without a reporter it is not."""
    project.suite()
    project.write("conftest.py", REPLACED)

    replaced = project.run("scenarios/shop").outlines
    title = next(number for number, line in enumerate(replaced) if line.strip("=") == " agentbench ")
    place = f"open        reports/{project.directory.name}/report.html"
    project.write("conftest.py", "")
    without = project.run("scenarios/shop", "-p", "no:terminal").outlines

    assert ("the summary of another reporter", True) == (replaced[0], place in replaced[title:])
    assert [] == without
