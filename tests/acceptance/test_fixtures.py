"""The fixtures: the values that they give to tests, and their errors."""

from __future__ import annotations

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from tests.project import BOTH_WAYS, FIND_THEN_ANSWER, WAYS, Project

ALL = """
import json
import urllib.request

def test_backend(backend):
    assert backend.backend == "embedded"
    assert backend.url.endswith("/v1")
    assert backend.model == "embedded-script"
    with urllib.request.urlopen(f"{backend.url}/models") as answer:
        assert json.load(answer)["data"][0]["id"] == backend.model

def test_suite(suite):
    assert (suite.name, suite.description, suite.trials, suite.label_source) == ("shop", "A shop.", 1, "hand")
    assert (suite.ids, suite.scorers, suite.variants) == (("shop-0", "shop-1"), ("tsq",), ("default",))
    assert suite.thresholds == {"tsq": 0.25, "tsq.mean": 0.5}
    assert suite.quarantined == {}

def test_thresholds(thresholds):
    assert thresholds == {"tsq": 0.25, "tsq.mean": 0.5}
    thresholds["tsq"] = 2.0  # a test cannot change them for others

def test_all(rollout, scenario, thresholds, backend, suite):
    assert thresholds["tsq"] == 0.25
    assert rollout.scenario == scenario.id
    assert rollout.expected_tools == [call["tool"] for call in scenario.expected] == rollout.tools == ["find_item"]
    assert float(rollout.score("tsq")) == 1.0
    assert rollout.score("tsq").parts["precision"] == 1.0
    assert all(call.chunks for call in rollout.calls)
"""


@WAYS
def test_values_of_fixtures(project: Project, way: tuple[str, ...]) -> None:
    """Each fixture provides the values that its docstring describes."""
    project.suite(scenarios=2, test=ALL, description="A shop.", thresholds={"tsq": 0.25, "tsq.mean": 0.5})

    project.run(*way, "scenarios/shop").assert_outcomes(passed=5)


OWN = """
import pytest

@pytest.fixture
def tools(rollout):
    return rollout.tools

@pytest.mark.parametrize("tool", ["find_item", "order_item"])
def test_parametrized(tools, tool):
    assert (tool in tools) is (tool == "find_item")

class TestInAClass:
    def test_answer(self, rollout):
        assert rollout.answer

def test_too_late(request):
    request.getfixturevalue("rollout")
"""


@pytest.mark.slow
def test_a_projects_own_fixtures(project: Project) -> None:
    """Fixtures may build on `rollout`, and tests may have their own parameters.

    Requesting `rollout` at run time is an error that says what to do.
    """
    project.suite(scenarios=2, test=OWN)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=6, failed=1)
    assert 2 == len(project.rollouts)
    result.stdout.fnmatch_lines(
        ["test_too_late: `rollout` and `scenario` have to be arguments of the test or of a fixture that it uses, *"]
    )


@pytest.mark.slow
def test_fixtures_outside_of_a_suite(project: Project) -> None:
    """In folders without a suite, our fixtures are unknown and ordinary tests run, whether or not the session has suites."""
    project.suite(scenarios=1)
    test = """
def test_thresholds(thresholds):
    pass

def test_llm(llm):
    pass

def test_ordinary():
    pass
"""
    project.write("elsewhere/test_elsewhere.py", test)

    result = project.run("elsewhere", "scenarios")
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines_random(["*fixture 'thresholds' not found", "*fixture 'llm' not found"])

    alone = project.run("elsewhere")
    alone.assert_outcomes(passed=1, errors=2)
    assert "pytest_agentbench/" not in result.stdout.str() + alone.stdout.str()


@pytest.mark.slow
def test_fixtures_of_a_suite_that_does_not_load(project: Project) -> None:
    """A broken suite is an error of its own tests only. The other tests run, and the session fails."""
    project.suite("shop", scenarios=2)
    project.suite("bank", scenarios=2, colour="red")

    result = project.run("--continue-on-collection-errors", "scenarios")

    result.assert_outcomes(passed=2, errors=1)
    assert {"shop[shop-0]", "shop[shop-1]"} == {str(rollout.key) for rollout in project.rollouts}
    result.stdout.fnmatch_lines(["*scenarios/bank/suite.yaml: unknown key 'colour'; known keys: *"])
    assert pytest.ExitCode.OK != result.ret


@pytest.mark.slow
def test_an_unavailable_backend(project: Project) -> None:
    """Each test whose fixture needs the backend is an ERROR with the reason."""
    test = "def test_backend(backend):\n    pass\n\ndef test_llm(llm):\n    pass\n\ndef test_rollout(rollout):\n    pass\n"
    project.suite(scenarios=1, test=test)

    result = project.run("--agentbench-backend=http://127.0.0.1:9/v1", "scenarios/shop")

    result.assert_outcomes(errors=3)
    assert 3 <= result.stdout.str().count("GET http://127.0.0.1:9/v1/models got no answer")
    assert CANNOT_MEASURE == result.ret


@pytest.mark.slow
@BOTH_WAYS
def test_setup_only(project: Project, way: tuple[str, ...]) -> None:
    """--setup-only sets fixtures up, so it runs rollouts; --setup-show shows them."""
    project.suite(scenarios=2)

    result = project.run(*way, "--setup-only", "scenarios/shop")

    assert pytest.ExitCode.OK == result.ret
    assert 2 == len(project.rollouts)
    if not way:
        result.stdout.fnmatch_lines(["*SETUP    F rollout*"])


@pytest.mark.slow
def test_llm_in_a_suite_without_rollouts(project: Project) -> None:
    """A suite whose tests only use `llm` has a journal. No rollout was planned, so none is missing."""
    test = """
import asyncio

def test_llm(llm):
    assert asyncio.run(llm.chat([{"role": "user", "content": "Hello?"}])).tool_calls[0].name == "find_item"
"""
    project.suite(scenarios=3, test=test, thresholds={})
    project.backend(FIND_THEN_ANSWER)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=1)
    (rollout,) = project.rollouts
    assert ("adhoc", "scenarios/shop/test_shop.py::test_llm", 1) == (rollout.kind, rollout.scenario, len(rollout.calls))
    assert {"rollouts": 0, "finished": 0, "not_run": 0} == project.run_json["plan"]
