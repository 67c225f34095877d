"""A reason for which many tests are not measured is shown once, and a session in which nothing more can run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.project import FIND_THEN_ANSWER, TEST_FILE, WAYS, Project

pytestmark = pytest.mark.slow

DIES_AT_SHOP_3 = [{"match": {"contains": "Customer shop-3:"}, "exit": True}, *FIND_THEN_ANSWER]
DIES_FROM_SHOP_3_ON = [*({"match": {"contains": f"Customer shop-{n}:"}, "exit": True} for n in range(3, 8)), *FIND_THEN_ANSWER]
GONE = "infra_error: the backend 'url' is gone: for 1 s GET "


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that the session has not started, and that dies at the fourth scenario."""
    script = tmp_path / "mortal.script.json"
    script.write_text(json.dumps(DIES_AT_SHOP_3))
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_agentbench.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as engine:
        assert engine.stdin is not None and engine.stdout is not None
        engine.stdin.write(json.dumps({"policy": "script", "script": str(script), "model": "mortal", "host": "127.0.0.1"}) + "\n")
        engine.stdin.flush()
        yield f"http://127.0.0.1:{json.loads(engine.stdout.readline())['port']}/v1"


@WAYS
def test_a_server_that_dies(project: Project, mortal: str, way: tuple[str, ...]) -> None:
    """If a server that the session has not started accepts no connection for the connect budget, there is one ERROR, and the
    session ends.
    """
    project.suite(scenarios=40)

    result = project.run(
        *way,
        f"--agentbench-backend={mortal}",
        "--agentbench-budget-connect=1s",
        "--agentbench-concurrency=3",
        "--junitxml=junit.xml",
        "-rE",
        "scenarios/shop",
    )

    counts, output = result.parseoutcomes(), result.stdout.str()
    errors = counts.get("error", 0) + counts.get("errors", 0)
    assert 6 == result.ret
    # The fourth scenario may begin while the second and third are still in flight.
    assert counts["passed"] >= 1
    # A worker continues while another one still has tests to judge.
    assert 1 <= errors <= (4 if way else 1)
    assert 1 == output.count(GONE)
    assert errors == output.count("\nERROR scenarios/shop/")
    result.stdout.fnmatch_lines(
        [f"*finished rollouts are saved in {project.directory}/rollouts.jsonl", "*! *agentbench: nothing more can run: *"]
    )
    run = project.run_json
    assert 40 == run["plan"]["finished"] + run["plan"]["not_run"]
    assert run["plan"]["not_run"] >= 30
    assert ("NOT MEASURED", errors) == (run["verdict"], run["tests"]["errors"])
    cases = ET.parse(project.root / "junit.xml").iter("error")
    assert [True] + [False] * (errors - 1) == sorted((GONE in (case.text or "") for case in cases), reverse=True)


@WAYS
def test_stored_rollouts_are_judged(project: Project, way: tuple[str, ...]) -> None:
    """If nothing more can run, tests of finished rollouts still run before the session ends."""
    project.backend(DIES_FROM_SHOP_3_ON)
    project.suite(scenarios=8, test=f"{TEST_FILE}\ndef test_answers(rollout):\n    assert rollout.answer\n")

    result = project.run(*way, "--agentbench-concurrency=1", "scenarios/shop")

    assert 6 == result.parseoutcomes()["passed"]
    assert 1 == result.stdout.str().count("the end of engine.log:\n")
    assert 6 == result.ret


@pytest.mark.parametrize("ci", ["", "true"], ids=["by-hand", "in-ci"])
def test_other_tests_run(project: Project, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    """Tests without a rollout run even if the backend is gone. Further tests of the suite refer to the first error in one line.

    The short summary does so, too, even if pytest does not truncate its lines.
    """
    monkeypatch.setenv("CI", ci)
    project.backend(DIES_FROM_SHOP_3_ON)
    project.suite(scenarios=8)
    project.write("test_plain.py", "def test_plain(): pass\n")

    result = project.run("--agentbench-concurrency=1", "scenarios/shop", "test_plain.py")

    result.assert_outcomes(passed=4, errors=5)
    output = result.stdout.str()
    assert 1 == output.count("the end of engine.log:\n")
    assert (4 if ci else 2) == output.count(": infra_error: the same as test_tools[shop-5]: the backend 'embedded' is gone: ")
    assert 2 == output.count("agentbench shop[")  # These are the sections about a rollout.


@WAYS
def test_a_scorer_that_always_fails(project: Project, way: tuple[str, ...]) -> None:
    """The error of a scorer is shown once, with the place in the test. Other tests refer to that one."""
    project.suite(
        scenarios=5, scorers=["./scorer.py:fussy"], thresholds={}, test="def test_it(rollout):\n    assert rollout.score('fussy')\n"
    )
    project.write("scenarios/shop/scorer.py", "def fussy(scenario, rollout):\n    raise KeyError('colour')\n")

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(errors=5)
    output = result.stdout.str()
    assert 1 == output.count(">       assert rollout.score('fussy')") + output.count(">   assert rollout.score('fussy')")
    assert 4 == output.count(": the same as test_it[shop-")
    assert 6 == result.ret


@WAYS
def test_an_agent_that_always_fails(project: Project, way: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an agent is shown once, from the frame of the user on; other tests refer to that one, also in the summary of all
    rollouts, which has the error and the number. A line of pytest's short summary begins with the error.
    """
    monkeypatch.setenv("COLUMNS", "80")
    project.suite(scenarios=4, agent={"kind": "./agent.py:run"})
    project.write("scenarios/shop/agent.py", "def run(scenario):\n    raise KeyError('colour')\n")

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(failed=4)
    output = result.stdout.str()
    assert 1 == output.count("Traceback (most recent call last):\n  File ")
    assert "pytest_agentbench/" not in output
    assert 3 == output.count(": agent_error: the same as test_tools[shop-")
    assert 1 == output.count("]: no score 'tsq', because the rollout ended as agent_error: KeyError: 'colour' (agent.py:2)")
    result.stdout.re_match_lines([r"error +KeyError: 'colour' \(agent.py:2\), in shop-0 and 3 more"])
    result.stdout.re_match_lines([r"FAILED scenarios/shop/test_shop.py::test_tools\[shop-\d\] - KeyError: 'co.*"])


def test_a_missing_resource_is_one_line(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped tests have the same reason, which pytest shows once."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "")
    stack = {"kind": "stack", "model": "m", "services": {"engine": {"run": ["engine", "{port}"], "gpus": 1, "ready": {"http": "/health"}}}}
    project.write("backends/embedded.yaml", json.dumps({**stack, "endpoint": "engine"}))
    project.suite(scenarios=4)

    result = project.run("-rs", "scenarios/shop")

    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["SKIPPED [[]4[]] *1 GPU needed*"])
