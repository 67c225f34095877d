"""Backends that are told about rollouts, from the YAML to the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from pytest_agentbench.backends.session_probe import SessionProbe
from pytest_agentbench.cli import main
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import Level
from tests.engine_router import session_stack
from tests.findings import report_of, said
from tests.labelled_router import Router, routing
from tests.project import Project
from tests.small_stacks import PASSES, own_folder

ENDINGS = """
import asyncio
from pytest_agentbench.records import Answer

class Ending:
    async def run(self, scenario, llm, tools):
        await llm.chat(scenario.messages)
        if scenario.id == "shop-1":
            raise KeyError("the agent's own fault")
        if scenario.id == "shop-2":
            await llm.chat([{"role": "user", "content": "forever"}])
        return Answer("")
"""

#: An agent that leaves a call behind, which has reached the router when the rollout ends.
LEAVING = """
import asyncio, json, threading, urllib.request
from contextlib import suppress
from pytest_agentbench.records import Answer

def leave(url):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "forever"}]}).encode()
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, {"Content-Type": "application/json"}))

class Leaving:
    async def run(self, scenario, llm, tools):
        threading.Thread(target=leave, args=(llm.base_url,), daemon=True).start()
        while not await asyncio.to_thread(lambda: json.load(urllib.request.urlopen("PROGRAMS"))):
            await asyncio.sleep(0.01)
        return Answer("")
"""

STREAMING = """
from pytest_agentbench.records import Answer

class Streaming:
    async def run(self, scenario, llm, tools):
        client = llm.openai()
        await client.chat.completions.create(model=llm.model, messages=scenario.messages)
        await client.close()
        return Answer("")
"""


@pytest.fixture
def router() -> Iterator[Router]:
    with routing() as router:
        yield router


def test_thunderagent(project: Project, router: Router) -> None:
    """All calls of a rollout name its program, which is released when the rollout ends. run.json counts programs."""
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
    project.suite(scenarios=3, trials=2)
    project.run("scenarios/shop", "--agentbench-backend=router").assert_outcomes(passed=6)
    programs = [body["program_id"] for _, body in router.chats]
    run = project.run_json

    assert (12, 6) == (len(programs), len(set(programs)))
    assert {f"shop.shop-{number}.{trial}" for number in range(3) for trial in (1, 2)} == {id.split(":")[1] for id in programs}
    assert [] == [id for id in programs if not id.startswith(f"{run['id']}-")]
    assert {(id, True) for id in programs} == set(router.releases)
    assert {"labelled": 6, "announced": 6, "released": 6, "failed": 0, "bypassed": 0, "left": 0} == run["labels"]


@pytest.mark.slow
def test_dynamo(project: Project, router: Router) -> None:
    """Sessions are named in headers, also for agents on the openai package. The server's data about a call are in the record."""
    labels = {"kind": "dynamo", "osl": 64, "priority": 2, "release": True}
    headers = {"x-team": "bench", "x-secret-of-sorts": "hidden-value"}
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": labels, "headers": headers}))
    project.suite(scenarios=2, agent={"kind": "./agent.py:Streaming"}, thresholds={})
    project.write("scenarios/shop/agent.py", STREAMING)
    project.write("scenarios/shop/test_shop.py", "def test_it(rollout):\n    assert rollout.status == 'ok'\n")
    project.run("scenarios/shop", "--agentbench-backend=router").assert_outcomes(passed=2)
    sessions = {headers["x-dynamo-session-id"] for headers, _ in router.chats}
    nvext = {"extra_fields": ["worker_id", "timing"], "agent_hints": {"priority": 2, "osl": 64}}
    told = {"worker_id": {"decode_worker_id": 7}, "timing": {"kv_hit_rate": 0.5}}

    assert [nvext] * 2 == [body["nvext"] for _, body in router.chats]
    assert [told] * 2 == [call.server for rollout in project.rollouts for call in rollout.calls]
    assert ({(id, True) for id in sessions}, 2) == (set(router.releases), len(sessions))
    assert ["bench"] * 2 == [headers["x-team"] for headers, _ in router.chats]
    assert ["x-secret-of-sorts", "x-team"] == project.run_json["backend"]["headers"]
    assert "hidden-value" not in (project.directory / "run.json").read_text()


@pytest.mark.slow
def test_learnt_hints(project: Project, router: Router, capsys: pytest.CaptureFixture[str]) -> None:
    """A table learnt from a run gives each call of a later run the hints of its turn. Run and report say how right they were."""
    labels = {"kind": "session", "headers": ["x-session-id"]}
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": labels}))
    project.write("backends/taught.yaml", json.dumps({"kind": "url", "url": router.url, "labels": {**labels, "table": "../hints.json"}}))
    project.suite(scenarios=3)
    project.run("scenarios/shop", "--agentbench-backend=router").assert_outcomes(passed=3)
    before = len(router.chats)
    assert ((), 0) == (tuple(project.run_json["hints"]), main(["hints", "learn", "latest", "-o", "hints.json"]))
    assert "agent: 6 calls, 2 turns, 2.0 calls per session" in capsys.readouterr().out
    project.run("scenarios/shop", "--agentbench-backend=taught").assert_outcomes(passed=3)
    (use,) = project.run_json["hints"]
    chats = [headers for headers, _ in router.chats[before:]]
    told = Counter(each.get("x-prefix-total-requests") for each in chats if each["x-session-id"].count(":") == 2)  # not those of the boot

    assert {"2": 6} == told
    assert ("", 6, 1.0, 0.0, 0.0) == tuple(use[name] for name in ("role", "calls", "covered", "tokens_error", "remaining_error"))
    assert 1 == len(said(report_of(project.directory, Level.FULL), routing_phrases.hints_were))


@pytest.mark.slow
def test_every_ending(project: Project, router: Router) -> None:
    """A rollout is released whether it ended well, by its agent's fault, or by a budget while the backend owes a token.

    None is released before its last call has ended, because a router would otherwise send calls that it still held.
    """
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": {"kind": "thunderagent"}}))
    project.suite(scenarios=3, agent={"kind": "./agent.py:Ending"}, thresholds={})
    project.write("scenarios/shop/agent.py", ENDINGS)
    project.write("scenarios/shop/test_shop.py", "def test_it(rollout):\n    assert rollout.status == 'ok'\n")
    project.run("scenarios/shop", "--agentbench-backend=router", "--agentbench-budget-rollout=1s", "--agentbench-retries=0")

    assert {"shop-0": "ok", "shop-1": "agent_error", "shop-2": "infra_error"} == {each.scenario: each.status for each in project.rollouts}
    assert {} == router.programs
    assert [] == router.early
    assert {"labelled": 3, "announced": 3, "released": 3, "failed": 0, "bypassed": 0, "left": 0} == project.run_json["labels"]


@pytest.mark.slow
def test_calls_that_outlive_their_agent(project: Project, router: Router) -> None:
    """A call that an agent has left behind is aborted before its rollout is released, because a router would otherwise start the program
    again.
    """
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
    project.suite(scenarios=1, agent={"kind": "./agent.py:Leaving"}, thresholds={})
    project.write("scenarios/shop/agent.py", LEAVING.replace("PROGRAMS", f"{router.url.removesuffix('/v1')}/programs"))
    project.write("scenarios/shop/test_shop.py", "def test_it(rollout):\n    assert rollout.turns == 1\n")
    project.run("scenarios/shop", "--agentbench-backend=router")

    assert ([], {}, 1) == (router.early, router.programs, len(router.releases))


@pytest.mark.slow
def test_rollouts_that_are_cancelled(project: Project, router: Router) -> None:
    """Under -x the session ends with rollouts in flight, and they are released as well."""
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
    project.suite(scenarios=3, agent={"kind": "./agent.py:Ending"}, thresholds={})
    project.write("scenarios/shop/agent.py", ENDINGS)
    project.write("scenarios/shop/test_shop.py", "def test_it(rollout):\n    assert rollout.status == 'ok'\n")
    project.run("scenarios/shop", "--agentbench-backend=router", "-x")

    assert {} == router.programs
    assert "shop-2" not in {each.scenario for each in project.rollouts}
    assert 0 == project.run_json["labels"]["left"]


@pytest.mark.slow
def test_a_program_that_lost_its_backend(project: Project, router: Router) -> None:
    """If a router pauses a program during a call, it answers 500. The rollout has no score and is attempted again as a new program."""
    router.faults = ["Program x has no valid backend"]
    project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "thunderagent"}))
    project.suite(scenarios=1)
    project.run("scenarios/shop", "--agentbench-backend=router").assert_outcomes(passed=1)
    ((failed, good),) = [each.attempts for each in project.rollouts]

    assert ("infra_error", "ok") == (failed.status, good.status)
    assert 2 == len({body["program_id"] for _, body in router.chats})
    assert {"labelled": 2, "announced": 2, "released": 2, "failed": 0, "bypassed": 0, "left": 0} == project.run_json["labels"]


@pytest.mark.slow
def test_a_rate_limit(project: Project, router: Router) -> None:
    """Delays by a rate limit are recorded, and are part of neither TTFT nor the client's delays."""
    backend = {"kind": "url", "url": router.url, "rate_limit": {"requests_per_minute": 300}}
    project.write("backends/router.yaml", json.dumps(backend))
    project.suite(scenarios=2)
    project.run("scenarios/shop", "--agentbench-backend=router").assert_outcomes(passed=2)
    run = project.run_json
    calls = sorted((call for rollout in project.rollouts for call in rollout.calls), key=lambda call: call.sent_ns or 0)

    assert None is run["labels"]
    assert 0.18 < ((calls[-1].sent_ns or 0) - (calls[0].sent_ns or 0)) / 1e9 / 3
    assert sum(call.held_ns for call in calls) / 1e9 == pytest.approx(run["performance"]["held_s"])
    assert 0.1 < run["performance"]["held_s"]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives stacks a folder of their own. Afterwards no stack may be left."""
    with own_folder(monkeypatch):
        yield


def sessions_at_boot(project: Project) -> dict[str, SessionProbe]:
    """Returns arm -> result of the test sessions, from the first page of the report."""
    ((probes,),) = said(report_of(project.directory, Level.FIRST_PAGE), routing_phrases.sessions_at_boot)
    return dict(probes)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("stacks")
def test_a_router_that_keeps_sessions(project: Project) -> None:
    """A router before two engines gets their URLs as words and the id of each rollout. The boot, the report and run.json say who stayed."""
    project.write("backends/router.yaml", json.dumps(session_stack(sticky="required")))
    project.suite(scenarios=2, test=PASSES)
    result = project.run("scenarios/shop", "--agentbench-backend=router")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["sessions at boot 6 of 6 sessions stayed on one engine (calls per engine:", " *engine[[]0[]] 9, engine[[]1[]] 9)"]
    )
    probe = SessionProbe(sessions=6, stayed=6, unknown=0, calls={"engine[0]": 9, "engine[1]": 9}, replicas=2)

    assert vars(probe) == project.run_json["backend"]["boot"]["sessions"]
    assert {"": probe} == sessions_at_boot(project)
    assert {"labelled": 2, "announced": 2, "released": 0, "failed": 0, "bypassed": 0, "left": 0} == project.run_json["labels"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("stacks")
def test_policies_of_a_router_are_arms(project: Project) -> None:
    """The policy is a setting, so that its values are arms. The report has the sessions of each arm."""
    project.write("backends/router.yaml", json.dumps(session_stack()))
    project.suite(scenarios=2, test=PASSES)
    result = project.run("--agentbench-backend=router", "--agentbench-ab=set:backend.settings.policy=session|round-robin")
    result.stdout.fnmatch_lines(["sessions at boot stayed on one engine: session 6 of 6, round_robin 0 of 6"])

    assert {"session": 6, "round_robin": 0} == {arm: probe.stayed for arm, probe in sessions_at_boot(project).items()}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("stacks")
def test_a_router_that_moves_sessions(project: Project) -> None:
    """With `sticky: required`, a stack whose sessions change engines is refused, and no rollout runs."""
    project.write("backends/router.yaml", json.dumps(session_stack("round-robin", sticky="required")))
    project.suite(scenarios=2, test=PASSES)
    result = project.run("scenarios/shop", "--agentbench-backend=router")
    result.stdout.fnmatch_lines(
        ["*`sticky` is `required`, but 0 of 6 sessions stayed on one engine (calls per engine: engine[[]0[]] 9, engine[[]1[]] 9)*"]
    )

    assert [] == [each for each in project.rollouts if each.calls]
