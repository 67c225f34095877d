"""Roles, from suite.yaml to the report: an expert at another endpoint, one at the backend under test, and the agent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Code, Level, say
from pytest_agentbench.runs.run_file import read_run
from tests.engines import engine
from tests.findings import facts, report_of, tables
from tests.project import FIND_THEN_ANSWER, TWO_WORKERS, Project
from tests.small_stacks import PASSES, SERVICE, own_folder

AGENT = """
from pytest_agentbench import Answer

async def run(scenario, llm, tools):
    search, reasoner = await llm.role("search"), await llm.role("reasoner")
    query = await search.chat([{"role": "user", "content": "What to look for?"}])
    await reasoner.chat([{"role": "user", "content": "Think about " + query.text}])
    reply = await llm.chat(scenario.messages, tools.schemas)
    for call in reply.tool_calls:
        result = await tools.call(call.name, call.arguments, 1)
        if not isinstance(result, str):
            await result
    return Answer(query.text)
"""


@pytest.fixture
def expert(tmp_path: Path) -> Iterator[str]:
    """The URL of another endpoint, whose model is called small."""
    with engine(tmp_path, [{"text": "lamps"}], model="small") as url:
        yield f"{url}/v1"


ISOLATED = pytest.param((TWO_WORKERS, "process"), id="n2", marks=pytest.mark.slow)


@pytest.mark.parametrize("way", [pytest.param(((), "none"), id="one-process"), ISOLATED])
def test_roles(project: Project, expert: str, monkeypatch: pytest.MonkeyPatch, way: tuple[tuple[str, ...], str]) -> None:
    """Each role's calls are recorded separately.

    Calls to the backend are measured, and calls to other endpoints have latency, tokens and cost.
    """
    monkeypatch.setenv("EXPERT_KEY", "very-secret-key")
    options, isolation = way
    project.backend([{"match": {"contains": "Think about"}, "text": "Hm."}, *FIND_THEN_ANSWER])
    search = {"url": expert, "model": "small", "api_key": "EXPERT_KEY", "prices": {"currency": "USD", "input": 1, "output": 1_000_000}}
    project.write("scenarios/shop/agent.py", AGENT)
    project.suite(agent={"kind": "./agent.py:run"}, roles={"search": search, "reasoner": {}}, isolation=isolation)

    result = project.run("-v", *options, "scenarios/shop")
    run = project.run_json
    roles = run["suites"]["shop"]["roles"]

    result.assert_outcomes(passed=3)
    for rollout in project.rollouts:
        assert (["reasoner", ""], ["search"], 1) == (
            [call.role for call in rollout.calls],
            [call.role for call in rollout.other_calls],
            rollout.turns,
        )
        assert ("lamps", expert, "small") == (rollout.answer, rollout.other_calls[0].endpoint, rollout.other_calls[0].model)
    assert (6, 6) == (run["performance"]["calls"], roles["agent"]["calls"] + roles["reasoner"]["calls"])
    search = roles["search"]
    assert ([expert], 3, 0, {}, "USD") == tuple(search[key] for key in ("endpoints", "calls", "measured", "failed_calls", "currency"))
    assert roles["search"]["cost"] >= 3 * 1.0  # One currency unit for each output token.
    assert run["performance"]["split"]["roles"]["share"] > 0
    assert [] == [each for each in run["serving"]["disagreements"] if "counts" in each]
    report = report_of(project.directory, Level.FULL)
    assert [[fact.content for fact in facts(report, name)] for name in ("reasoner", "search")] == [
        [say(suite_phrases.role, read_run(project.directory).suites["shop"].roles[name])] for name in ("reasoner", "search")
    ]
    [table] = tables(report_of(project.directory), "role")
    assert {"agent": 3, "search": 3, "reasoner": 3} == {row[0]: row[3] for row in table.rows}
    assert [Code("small")] == [row[1] for row in table.rows if row[0] == "search"]
    assert [] == [path for path in project.directory.rglob("*") if path.is_file() and b"very-secret-key" in path.read_bytes()]


@pytest.mark.slow
def test_limits(project: Project, expert: str) -> None:
    """If a role or a rollout exceeds its limit, the rollout ends as `limit` with a reason that names it, and is scored as it is."""
    project.write("scenarios/one/agent.py", AGENT)
    project.write("scenarios/two/agent.py", AGENT)
    project.write("scenarios/three/agent.py", AGENT)
    dear = {"url": expert, "model": "small", "prices": {"currency": "USD", "input": 1, "output": 1}}
    roles = {"search": dear, "reasoner": {}}
    run: Json = {"agent": {"kind": "./agent.py:run"}, "scenarios": 1, "thresholds": {"tsq": 0}}
    project.suite("one", roles={**roles, "reasoner": {"model": "embedded-script", "limits": {"calls": 1}}}, limits={"calls": 2}, **run)
    project.suite("two", roles={**roles, "search": {**dear, "limits": {"tokens": 1}}}, **run)
    project.suite("three", roles=roles, limits={"cost": 1}, **run)

    project.run("scenarios", "--agentbench-retries=0").assert_outcomes(passed=2, errors=1)
    one, three, two = sorted(project.rollouts, key=lambda rollout: rollout.suite)

    assert ("limit", "calls: the rollout may use 2, and used 2") == (one.status, one.reason)
    assert (["reasoner", ""], [None, "limit"]) == ([call.role for call in one.calls], [call.error_kind for call in one.calls])
    assert ("ok", "") == (two.status, two.reason)  # The agent calls its expert only once.
    assert "infra_error" == three.status
    assert three.reason.startswith("limits: cost: 1: the agent has no known price")


@pytest.mark.slow
def test_roles_of_a_backend(project: Project, expert: str) -> None:
    """`roles` of a backend's YAML override the suite's, with their own prices."""
    prices = {"currency": "EUR", "input": 1, "output": 1}
    project.backend(roles={"search": {"url": expert, "model": "small", "prices": prices}, "reasoner": {}})
    project.write("scenarios/shop/agent.py", AGENT)
    project.suite(agent={"kind": "./agent.py:run"}, roles={"search": {"url": "http://127.0.0.1:9/v1", "model": "nobody"}}, scenarios=1)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    search = project.run_json["suites"]["shop"]["roles"]["search"]
    assert ([expert], "EUR", 1) == (search["endpoints"], search["currency"], search["calls"])


@pytest.mark.slow
def test_a_service_plays_a_role(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stack with several services, one may be an expert, by its name. Its calls are not counted for the service under test."""
    engine = {"run": [sys.executable, str(SERVICE), "--port", "{port}"], "ready": {"http": "/health"}, "grace": 5}
    with own_folder(monkeypatch):
        project.write(
            "backends/small.yaml",
            json.dumps(
                {
                    "model": "tiny",
                    "warm_up": 1,
                    "services": {"small": engine, "main": engine},
                    "roles": {"search": {"service": "small", "model": "tiny"}, "reasoner": {"service": "main", "model": "tiny"}},
                }
            ),
        )
        project.write("scenarios/shop/agent.py", AGENT)
        project.suite(agent={"kind": "./agent.py:run"}, scenarios=1, test=PASSES)

        project.run("scenarios/shop", "--agentbench-backend=small").assert_outcomes(passed=1)

    roles = project.run_json["suites"]["shop"]["roles"]
    assert {"agent": 1, "reasoner": 1, "search": 0} == {name: role["measured"] for name, role in roles.items()}
    assert 1 == len(roles["search"]["endpoints"])
