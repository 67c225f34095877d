"""Output of a run: on the terminal at every verbosity, of a failing test, and as properties in JUnit XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pytest_agentbench.reports import phrases, serving_phrases, suite_phrases, terminal
from pytest_agentbench.reports.document import Document, Level
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import read_run
from tests.findings import measure, report_of, said, tables
from tests.project import FIND_THEN_ANSWER, WAYS, Project, page

#: Matches a place in this package in pytest's tracebacks.
OUR_FRAME = re.compile(r"pytest_agentbench/\S+\.py:\d+")


def shown(project: Project) -> Document:
    """Returns the report of the last run, with the run directory relative to the project's root."""
    return document(RunView(read_run(project.directory), project.directory, f"reports/{project.directory.name}"))


def rollouts(project: Project, *, with_tools: bool) -> list[str]:
    """Returns the terminal's lines about the last run's rollouts, sorted."""
    return sorted(line for each in project.rollouts for line in terminal.rollout_lines(each, with_tools=with_tools))


@WAYS
def test_verbosity(project: Project, way: tuple[str, ...]) -> None:
    """-q prints one line and the report's path, and the default is a page.

    -v prints everything with each rollout, and -vv also each rollout's tools.
    """
    project.suite(scenarios=2, expected=("find_item", "order_item"))

    quiet = project.run(*way, "-q", "scenarios/shop")
    assert [*terminal.headline_lines(shown(project))] == [line for line in quiet.outlines if "agentbench" in line]
    assert 2 == quiet.stdout.str().count("agentbench:")
    assert f"reports/{project.directory.name}/report.html" in quiet.stdout.str()

    normal = project.run(*way, "scenarios/shop")
    normal.stdout.fnmatch_lines(
        [
            "agentbench: backend embedded",
            "agentbench: suites shop (2 scenarios)",
            f"agentbench: {2 if way else 8} rollouts in flight, run directory reports/*",
        ]
    )
    assert [line.text for line in terminal.lines(shown(project), Level.FIRST_PAGE, terminal.WIDTH)] == page(normal)
    first = report_of(project.directory, Level.FIRST_PAGE)
    assert [2] == [suite.rollouts["ok"] for (suite,) in said(first, suite_phrases.rollouts)]
    mean = measure(report_of(project.directory, Level.SUMMARY), "tsq")
    assert mean.value is not None and mean.low is not None and mean.high is not None
    assert pytest.approx(2 / 3) == mean.value

    detailed = project.run(*way, "-v", "scenarios/shop")
    lines = [line.text for line in terminal.lines(shown(project), Level.FULL)]
    assert lines == page(detailed)[: len(lines)]
    assert rollouts(project, with_tools=False) == sorted(page(detailed)[len(lines) :])
    full = report_of(project.directory, Level.FULL)
    [(suite,)] = said(full, suite_phrases.dataset)
    assert ("data", 2, "hand") == (suite.dataset.name, suite.dataset.size, suite.dataset.label_source)
    assert suite.dataset.sha256[:12] in "\n".join(lines)
    worst = [(each.id, f"{each.score:.3f}", each.question) for (each,) in said(full, suite_phrases.worst)]
    assert [(f"shop-{number}", "0.667", f"Customer shop-{number}: is there a lamp?") for number in range(2)] == worst
    tools = said(full, phrases.expected_and_actual)
    assert [(("find_item", "order_item"), ("find_item",))] * 2 == tools
    assert [4] == [performance.calls for (performance,) in said(full, serving_phrases.calls)]
    assert said(full, serving_phrases.throughput) and tables(full, "ms")

    most = project.run(*way, "-vv", "scenarios/shop")
    lines = [line.text for line in terminal.lines(shown(project), Level.VERBOSE)]
    assert lines == page(most)[: len(lines)]
    assert rollouts(project, with_tools=True) == sorted(page(most)[len(lines) :])


@pytest.mark.slow
@WAYS
def test_junit_properties(project: Project, way: tuple[str, ...]) -> None:
    """Each test case has its scores and timings as properties. Its time is the rollout's duration, without the wait for it."""
    project.suite(scenarios=3)
    project.backend([{"ttft_ms": 600, **rule} for rule in FIND_THEN_ANSWER])

    project.run(*way, "--agentbench-concurrency=1", "--junitxml=junit.xml", "scenarios/shop").assert_outcomes(passed=3)

    rollouts = {rollout.key.id: rollout for rollout in project.rollouts}
    cases = [*ET.parse(project.root / "junit.xml").iter("testcase")]
    assert {"test_tools[shop-0]", "test_tools[shop-1]", "test_tools[shop-2]"} == {case.get("name") for case in cases}
    for case in cases:
        rollout = rollouts[str(case.get("name")).removeprefix("test_tools[").removesuffix("]")]
        found = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        assert ("ok", "1.0", "2", "1") == (found["status"], found["tsq"], found["llm_calls"], found["attempt"])
        assert 600 <= float(found["ttft_ms_p50"])
        assert rollout.duration_s == pytest.approx(float(found["rollout_s"]), abs=0.001)
        own_time = float(str(case.get("time"))) - rollout.duration_s
        # The waits for the rollouts, 1.2 s and more, are in no test's time.
        assert 0 <= own_time < 1


TALKING = """
import logging
from dataclasses import dataclass
from pytest_agentbench.agents.tool_calling import ToolCalling

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        print("printed for", scenario.id)
        logging.getLogger("shop.agent").warning("logged for %s", scenario.id)
        return await super().run(scenario, llm, tools)
"""


@pytest.mark.slow
@WAYS
def test_a_failing_test_explains_itself(project: Project, way: tuple[str, ...]) -> None:
    """A failure shows its own rollout: score, expected and actual tools, the end of the transcript and the log.

    It shows none of our code.
    """
    project.suite(scenarios=3, agent={"kind": "./agent.py:Agent"}, expected=("find_item", "order_item"))
    project.write("scenarios/shop/agent.py", TALKING)
    project.backend(
        [
            {"match": {"contains": "shop-1", "turn": 0}, "tool_calls": [{"name": "return_item", "arguments": {"item": "my lamp"}}]},
            *FIND_THEN_ANSWER,
        ]
    )

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*def test_tools(rollout, thresholds):",
            '>       assert rollout.score("tsq") >= thresholds["tsq"]',
            "E       assert 0.000 >= 0.5",
            "E         precision 0.00, recall 0.00; missing: find_item, order_item; unexpected: return_item",
            "-* agentbench shop[[]shop-1[]] -*",
            "status    ok, 2 LLM calls, * s",
            "tsq       0.000  precision 0.00, *",
            "tool *expected actual",
            "find_item * 1 * 0  missing",
            "order_item * 1 * 0  missing",
            "return_item * 0 * 1  unexpected",
            "the end of the transcript (5 messages):",
            "  user      Customer shop-1: is there a lamp?",
            '  assistant *return_item({"item":*"my lamp"})',
            '  tool      {"done":true}',
            "  assistant Here is what was found for you.",
            "log and output of the rollout:",
            "printed for shop-1",
            "WARNING shop.agent: logged for shop-1",
        ]
    )
    shown = result.stdout.str()
    assert "for shop-0" not in shown
    assert not OUR_FRAME.search(shown)
    assert "1 failed, 2 passed" in shown


@pytest.mark.slow
@WAYS
def test_unmeasured_rollouts_and_scores_are_explained(project: Project, way: tuple[str, ...]) -> None:
    """An infra_error is an ERROR, and so is a test that reads a score whose scorer raised. Other tests of that rollout are not affected.

    A score that the suite does not measure is a FAILURE. Each has a sentence with the reason, and JUnit separates errors from failures.
    """
    test = """
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]

def test_misspelt(rollout):
    assert rollout.score("tqs") >= 0.5

def test_fussy(rollout):
    assert rollout.score("fussy") >= 0.5
"""
    scorer = """
def fussy(scenario, rollout):
    if scenario.id == "shop-1":
        raise KeyError("colour")
    return 1.0
"""
    project.suite(scenarios=3, test=test, scorers=["tsq", "./scorer.py:fussy"])
    project.write("scenarios/shop/scorer.py", scorer)
    project.backend([{"match": {"contains": "shop-2"}, "status": 500, "message": "out of memory"}, *FIND_THEN_ANSWER])

    result = project.run(*way, "--agentbench-retries=0", "--junitxml=junit.xml", "scenarios/shop")

    result.assert_outcomes(passed=3, failed=2, errors=4)
    lines = result.stdout.str()
    assert "ScorerFailed: shop[shop-1]: no score 'fussy', because the scorer failed: KeyError: 'colour' (scorer.py:" in lines
    [(failure,)] = said(report_of(project.directory, Level.FIRST_PAGE), suite_phrases.scorer_failure)
    assert ("fussy", 1, "shop-1") == (failure.score, failure.rollouts, failure.first)
    assert re.search(r"KeyError: 'colour' \(scorer\.py:\d+\)$", failure.error)
    assert any(line.startswith("no score ") for line in page(result))
    assert 'errors="4" failures="2"' in (project.root / "junit.xml").read_text()
    assert "shop[shop-2]: infra_error: " in lines
    assert "out of memory" in lines
    assert "NoScore: shop[shop-0]: no score 'tqs'; this suite measures: fussy, tsq" in lines
    assert not OUR_FRAME.search(lines)
