"""Sessions on stacks of several engines behind a router: the calls of each engine, from the YAML to the report."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from tests.engine_router import routed_stack
from tests.project import FIND_THEN_ANSWER, Project, page
from tests.small_stacks import PASSES, own_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the test's stacks. Afterwards no stack may be left."""
    with own_folder(monkeypatch) as folder:
        yield folder


def routed(project: Project, policy: str, rules: Sequence[Json] = FIND_THEN_ANSWER, *, port: int | None = None) -> None:
    """Writes a backend with the name of the policy: three engines behind a router with it."""
    project.write(f"{policy}.script.json", json.dumps(list(rules)))
    stack = routed_stack(policy, project.root / f"{policy}.script.json")
    if port is not None:
        stack["services"]["router"]["port"] = port
    project.write(f"backends/{policy}.yaml", json.dumps(stack))


def first_page(result: pytest.RunResult) -> str:
    """Returns our section at the end of a session as one line."""
    return " ".join(line.strip() for line in page(result))


def calls_of(use: Json) -> dict[str, int]:
    return {f"{each['service']}[{each['replica']}]": each["calls"] for each in use["engines"]}


def test_calls_of_each_engine(project: Project) -> None:
    """The engines answered as many calls as the tap sent, checks at boot excluded. A router that takes turns keeps no session."""
    routed(project, "round-robin")
    project.suite(scenarios=6, test=PASSES)
    result = project.run("scenarios/shop", "--agentbench-backend=round-robin", "--agentbench-concurrency=1", "-v")
    (use,) = project.run_json["engines"]

    result.assert_outcomes(passed=6)
    assert {"engine[0]": 4, "engine[1]": 4, "engine[2]": 4} == calls_of(use)
    assert {"engine-0": 4, "engine-1": 4, "engine-2": 4} == use["named"]
    assert (12, 0, 6, 6, 0, []) == tuple(use[name] for name in ("tap_calls", "uncertain_calls", "sessions", "traced", "stayed", "warnings"))
    result.stdout.fnmatch_lines(
        [
            "engines     12 calls at the engines, 12 answered calls at the tap",
            "*0 of 6 sessions with more than one call stayed on one engine",
            "engine[[]1[]]      4  33.3 %  vllm",
        ]
    )
    assert "| engine[1] | 4 | 33.3 % | vllm |" in (project.directory / "report.md").read_text()
    assert "0 of 6 sessions with more than one call stayed on one engine" in (project.directory / "report.html").read_text()


def test_a_router_that_sends_all_to_one_engine(project: Project) -> None:
    """If one engine of three gets all sessions, the summary on the terminal says so, and so does the comment for a pull request."""
    routed(project, "first")
    project.suite(scenarios=6, test=PASSES)
    result = project.run("scenarios/shop", "--agentbench-backend=first", "--agentbench-ci=gitlab")
    (use,) = project.run_json["engines"]
    warning = "all 6 sessions went to one of 3 engines, engine[0]; check the router's policy, and whether it gets a session id"

    result.assert_outcomes(passed=6)
    assert {"engine[0]": 12, "engine[1]": 0, "engine[2]": 0} == calls_of(use)
    assert ([warning], 6, 6) == (use["warnings"], use["traced"], use["stayed"])
    assert f"engines     {warning}" in first_page(result)
    assert "went to one of 3 engines" in (project.directory / "comment.md").read_text()


def test_a_router_that_repeats_calls(project: Project) -> None:
    """If a router repeats calls that engines refused, the scores do not show it. The counts do, and the summary has a sentence."""
    fails = [{"match": {"contains": "Customer", "turn": 0, "call": 1}, "status": 503}]
    routed(project, "retry", [*fails, *FIND_THEN_ANSWER])
    project.suite(scenarios=6)
    result = project.run("scenarios/shop", "--agentbench-backend=retry", "--agentbench-concurrency=1")
    (use,) = project.run_json["engines"]

    result.assert_outcomes(passed=6)
    assert (15, 12, 0) == (sum(calls_of(use).values()), use["tap_calls"], use["uncertain_calls"])
    assert [
        "the engines (vllm) answered 15 calls, the tap sent 12: a router repeated calls, or another client used the engines, too"
    ] == use["warnings"]
    assert "answered 15 calls, the tap sent 12" in first_page(result)


BY_HAND = """
import asyncio

def test_it(rollout, llm):
    assert rollout.status == "ok"
    assert asyncio.run(llm.chat([{"role": "user", "content": f"And you, {rollout.scenario}?"}])).tool_calls
"""


def test_arms(project: Project) -> None:
    """Each arm has its own counts. A sticky router keeps all sessions, and calls that tests make by hand are no difference."""
    routed(project, "sticky")
    routed(project, "first")
    project.suite(scenarios=6, test=BY_HAND)
    result = project.run("scenarios/shop", "--agentbench-ab=sticky,first", "-v")
    run = project.run_json
    sticky, first = run["engines"]

    result.assert_outcomes(passed=12)
    assert ("sticky", "first") == (sticky["arm"], first["arm"])
    # The tests of both arms make a call by hand, which goes to the arm that runs at that time.
    assert [(12, 12), (12, 12)] == [(use["tap_calls"], use["uncertain_calls"]) for use in run["engines"]]
    assert 36 == sum(sum(calls_of(use).values()) for use in run["engines"])
    assert [(6, 6, 6)] * 2 == [(use["sessions"], use["traced"], use["stayed"]) for use in run["engines"]]
    assert ([], 1) == (sticky["warnings"], len(first["warnings"]))
    assert "arm first: all 6 sessions went to one of 3 engines" in first_page(result)


def test_arms_in_sequence(project: Project) -> None:
    """If the arms need the same port, one is stopped before the next one boots. All calls of both are counted nevertheless."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for policy in ("sticky", "round-robin"):
        routed(project, policy, port=port)
    project.suite(scenarios=6, test=PASSES)
    project.run("scenarios/shop", "--agentbench-ab=sticky,turns=round-robin").assert_outcomes(passed=12)
    run = project.run_json

    assert "in sequence" == run["ab"]["order"]
    assert {"sticky": 12, "turns": 12} == {use["arm"]: sum(calls_of(use).values()) for use in run["engines"]}
    assert [[], []] == [use["warnings"] for use in run["engines"]]


#: Starts an engine with the script $0, which its next start finds replaced by $1.
ONCE = 'cp "$0" "$0.now" && cp "$1" "$0" && shift && exec "$@"'


def test_an_engine_that_is_restarted(project: Project) -> None:
    """If an engine dies and is started again, it is marked, its counts before that are kept, and nothing is compared."""
    dies = [{"match": {"contains": "shop-3", "turn": 1}, "exit": True}, *FIND_THEN_ANSWER]
    first, good = project.write("dies.json", json.dumps(dies)), project.write("good.json", json.dumps(FIND_THEN_ANSWER))
    stack = routed_stack("first", Path(f"{first}.now"), engines=1)
    engine = stack["services"]["engine"]
    engine |= {"run": ["sh", "-c", ONCE, str(first), str(good), *engine["run"]], "restart": 1}
    project.write("backends/first.yaml", json.dumps(stack))
    project.suite(scenarios=6, test=PASSES)
    project.run("scenarios/shop", "--agentbench-backend=first", "--agentbench-concurrency=1").assert_outcomes(passed=6)
    (use,) = project.run_json["engines"]
    (counts,) = use["engines"]

    assert (True, []) == (counts["restarted"], use["warnings"])
    # 7 calls before the death, of which the last look may have missed some, and 6 after it.
    assert 6 <= counts["calls"] <= 13
