"""What a run shows: on the terminal at every verbosity, of a failing test, and as properties in JUnit XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.project import FIND_THEN_ANSWER, WAYS, Project

#: How pytest's tracebacks name a place in this package.
OUR_FRAME = re.compile(r"pytest_agentbench/\S+\.py:\d+")


@WAYS
def test_verbosity(project: Project, way: tuple[str, ...]) -> None:
    """-q says it in one line, without it there is a page, -v has everything and each rollout, -vv each rollout's tools."""
    project.suite(scenarios=2, expected=("find_item", "order_item"))
    rollout, tools = "  shop[[]shop-?[]]  ok  tsq 0.667  * s", "      expected find_item, order_item; actual find_item"

    quiet = project.run(*way, "-q", "scenarios/shop").stdout
    quiet.fnmatch_lines(["agentbench: PASS; shop tsq 0.667 * (reports/*/report.md)"])
    assert 1 == quiet.str().count("agentbench")

    normal = project.run(*way, "scenarios/shop").stdout
    normal.fnmatch_lines(
        [
            "agentbench: backend embedded",
            "agentbench: suites shop (2 scenarios)",
            f"agentbench: {2 if way else 8} rollouts in flight, run directory reports/*",
            "=* agentbench =*",
            "verdict     PASS; shop tsq 0.667 *",
            "shop        2 rollouts, all ok",
            "tsq         0.667 (95 % interval *)",
            "report      reports/*/report.md",
        ]
    )
    normal.no_fnmatch_line(rollout)

    detailed = project.run(*way, "-v", "scenarios/shop").stdout
    detailed.fnmatch_lines(
        [
            "=* agentbench =*",
            "verdict     PASS; shop tsq 0.667 *",
            "shop",
            "data set    data: 2 scenarios, labels: hand, sha256 ????????????",
            "rollouts    2 ok",
            "tsq         0.667 * mean, 95 % interval of the suite over 2 scenarios",
            "worst       shop-0 0.667: expected find_item, order_item",
            "                          actual   find_item",
            "                          asks     Customer shop-0: is there a lamp?",
            "worst       shop-1 0.667: *",
            rollout,
            rollout,
            "serving",
            "calls       4 LLM calls *",
            "throughput  * output tok/s *, * rollouts/h, *",
            "TTFT *",
            "report      reports/*/report.md (and run.json, rollouts.jsonl)",
        ]
    )
    detailed.no_fnmatch_line(tools)

    project.run(*way, "-vv", "scenarios/shop").stdout.fnmatch_lines([rollout, tools, rollout, tools])


@pytest.mark.slow
@WAYS
def test_junit_properties(project: Project, way: tuple[str, ...]) -> None:
    """Each test case carries its scores and timings, and its time is the rollout's own, not the wait for a turn."""
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
        assert 0 <= own_time < 1  # the wait for each rollout, 1.2 s and more, is in no test's time


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
    """A failure shows its own rollout: score, expected against actual tools, the transcript's tail and the log; and no code of ours."""
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
            "what the rollout logged and printed:",
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
def test_what_cannot_be_measured_is_an_error_in_a_sentence(project: Project, way: tuple[str, ...]) -> None:
    """infra_error is an ERROR, and so is a test that asks for a score whose scorer raised; other tests of that rollout stand.

    A score that nobody measures is a FAILURE. Each is a sentence with its reason, and JUnit tells errors and failures apart as well.
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
    assert "ScorerFailed: shop[shop-1]: no fussy, the scorer failed: KeyError: 'colour' (scorer.py:" in lines
    assert re.search(
        r"^no score    1 rollout: scorer fussy failed: KeyError: 'colour' \(scorer\.py:\d+\),\s+first in shop-1$", lines, re.MULTILINE
    )
    assert 'errors="4" failures="2"' in (project.root / "junit.xml").read_text()
    assert "shop[shop-2]: infra_error: " in lines
    assert "out of memory" in lines
    assert "NoScore: shop[shop-0]: no score 'tqs'; this suite measures: fussy, tsq" in lines
    assert not OUR_FRAME.search(lines)
