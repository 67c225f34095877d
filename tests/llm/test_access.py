"""The addresses of an attempt: which model each belongs to, and that all of them are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pytest_agentbench.agents import Agent
from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.access import ModelAddress, ModelAddresses
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Access, Answer, Endpoint, Json, KeptCall, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.pool.model_addresses import role_facts
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox

KEY = RolloutKey("shop", "s-0")
SCENARIO = Scenario("s-0", ({"role": "user", "content": "A lamp?"},))
OTHER: Json = {"url": "http://127.0.0.1:9/v1", "model": "judge"}


class Tap:
    """A tap without calls. It stores which addresses are opened and closed, and invents one call for each."""

    def __init__(self, lost: str = "") -> None:
        self.events: list[str] = []
        self.accounts: list[tuple[str, Json]] = []
        self.lost = lost  # the address whose calls the tap has lost

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        del key
        id = f"{access.role or 'agent'}{' elsewhere' if (access.endpoint or {}).get('url') else ''}"
        self.accounts.append((access.account, access.limits))
        self.events.append(f"open {id}")
        return ModelAddress(id, f"http://127.0.0.1:9/r/{id}/v1", (access.endpoint or {}).get("model", "served"))

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        del key, calls
        return []

    async def said(self, id: str) -> list[Json]:
        raise InfraError(f"nothing that was said to {id} is kept")

    async def close(self, id: str) -> list[LLMCall]:
        self.events.append(f"close {id}")
        if id == self.lost:
            raise InfraError("the tap is gone")
        role, _, place = id.removeprefix("agent").partition(" ")
        return [LLMCall(len(self.events), 0, 9, model=id, role=role, endpoint=place)]


class Judged:
    """An agent that asks two judges, one of them twice."""

    def __init__(self) -> None:
        self.models: list[str] = []

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del scenario, tools
        judges = [await llm.judge(OTHER), await llm.judge(), await llm.judge(dict(reversed(OTHER.items())))]
        self.models = [each.model for each in judges]
        assert judges[0] is judges[2]
        return Answer("")


async def by_judge(scenario: Scenario, rollout: Rollout, judge: LLM) -> Score:
    del scenario
    assert ("served", 1, 0) == (judge.model, len(rollout.calls), len(rollout.other_calls))
    return Score(1.0)


async def ran(tap: Tap, agent: Agent, **roles: Json) -> Rollout:
    return await run_rollout(KEY, SCENARIO, RolloutSetup(agent, {"by_judge": by_judge}, {}, None, {}, roles), tap, None, 60)  # type: ignore[dict-item]


async def test_the_order_of_closing() -> None:
    """The agent's address is closed before the scorers run, the judges' after them. A judge that is requested twice has one address."""
    tap, agent = Tap(), Judged()
    rollout = await ran(tap, agent)

    assert ["open agent", "open judge elsewhere", "open judge", "close agent"] == tap.events[:4]
    assert {"close judge elsewhere", "close judge"} == {*tap.events[4:]}
    assert (2, ["judge", "served", "judge"]) == (len(tap.events[4:]), agent.models)
    assert (["agent"], {"judge", "judge elsewhere"}) == (
        [call.model for call in rollout.calls],
        {call.model for call in rollout.other_calls},
    )
    assert {} == rollout.score_errors
    assert [*rollout.other_calls] == sorted(rollout.other_calls, key=lambda call: call.received_ns)


@pytest.mark.parametrize(("lost", "status"), [("agent", "infra_error"), ("judge", "ok")])
async def test_calls_that_are_lost(lost: str, status: str) -> None:
    """Without the agent's calls the rollout fails. Without a judge's calls, its verdict is still valid. All addresses are closed."""
    tap = Tap(lost)
    rollout = await ran(tap, Judged())

    assert (status, status == "ok") == (rollout.status, "by_judge" in rollout.scores)
    assert {"close agent", "close judge", "close judge elsewhere"} == {each for each in tap.events if each.startswith("close")}
    assert 6 == len(tap.events)


async def test_a_cancelled_attempt_closes_its_addresses() -> None:
    """All open addresses are closed when a rollout is cancelled."""
    tap, asked = Tap(), asyncio.Event()

    class Waiting(Judged):
        async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
            await super().run(scenario, llm, tools)
            asked.set()
            await asyncio.Event().wait()
            return Answer("")

    task = asyncio.create_task(ran(tap, Waiting()))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ["close agent", "close judge", "close judge elsewhere"] == sorted(each for each in tap.events if each.startswith("close"))


async def test_there_is_no_judge_outside_of_rollouts() -> None:
    """A client outside of a rollout has no judge."""
    with pytest.raises(InfraError, match="no model for the role 'judge' is available here"):
        await LLM("http://127.0.0.1:9/v1", "m").judge()


async def test_nothing_is_closed_twice() -> None:
    """A second `close_all` does nothing."""
    tap = Tap()
    lines = ModelAddresses(tap, KEY, None)
    await lines.agent(Access(), {})
    await lines.close_all()
    await lines.close_all()

    assert ["open agent", "close agent"] == tap.events


async def test_tasks_that_ask_for_a_role_at_once() -> None:
    """Concurrent tasks of an agent share the address of a role, and each opened address is closed."""
    tap, opened = Tap(), asyncio.Event()

    class Slow(Tap):
        async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
            await opened.wait()
            return await tap.open(key, access)

    lines = ModelAddresses(Slow(), KEY, None, roles={"search": OTHER})
    tasks = [asyncio.create_task(lines.role("search")) for _ in range(3)]
    await asyncio.sleep(0)
    opened.set()
    asked = await asyncio.gather(*tasks)

    assert (["open search elsewhere"], 1) == (tap.events, len({id(each) for each in asked}))


class Asking:
    """An agent that requests roles by name."""

    def __init__(self, *names: str) -> None:
        self.names, self.models = names, list[str]()

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del scenario, tools
        asked = [await llm.role(name) for name in self.names]
        self.models = [each.model for each in asked]
        return Answer("")


async def test_roles_have_addresses_of_their_own() -> None:
    """Each role has one address of its own, which is closed together with the agent's.

    Only calls that reached the backend under test count.
    """
    tap, agent = Tap(), Asking("search", "reasoner", "search")
    rollout = await ran(tap, agent, search=OTHER, reasoner={"model": "large"})

    assert ["open agent", "open search elsewhere", "open reasoner"] == tap.events[:3]
    assert ["close agent", "close search elsewhere", "close reasoner", "open judge", "close judge"] == tap.events[3:]
    assert ["judge", "large", "judge"] == agent.models
    assert (["", "reasoner"], ["search", "judge"]) == ([each.role for each in rollout.calls], [each.role for each in rollout.other_calls])
    assert 1 == rollout.turns


async def test_the_suites_judge_is_a_role() -> None:
    """An agent that requests a judge without an endpoint gets the judge of the suite's scorers."""
    tap, agent = Tap(), Asking("judge")
    rollout = await ran(tap, agent, judge=OTHER)

    assert (["judge"], 0) == (agent.models, len(rollout.scores))  # `by_judge` gives no score, because it expects the backend's model
    assert ["open agent", "open judge elsewhere", "close agent", "close judge elsewhere"] == tap.events


@pytest.mark.parametrize("limits", [{"calls": 3}, {}])
async def test_one_account_for_a_rollout(limits: Json) -> None:
    """An agent and its roles share one account of limits. Judges do not use it."""
    tap = Tap()
    setup = RolloutSetup(Asking("search"), {"by_judge": by_judge}, {}, None, {}, {"search": OTHER}, limits)  # type: ignore[dict-item]
    await run_rollout(KEY, SCENARIO, setup, tap, None, 60)
    agent, search, judge = tap.accounts

    assert (bool(limits), limits, ("", {})) == (bool(agent[0]), agent[1], judge)
    assert agent == search


BACKEND = Endpoint("http://backend/v1", "served", roles={"search": {"url": "http://fast/v1", "model": "fast"}})


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        (Access(), {}),
        (Access(role="judge"), {}),
        (Access(role="judge", endpoint=OTHER), OTHER),
        (Access(role="reasoner", endpoint={}), {}),
        (Access(role="search", endpoint=OTHER), {"url": "http://fast/v1", "model": "fast"}),
        (Access(role="search"), {"url": "http://fast/v1", "model": "fast"}),
        (Access(role="reasoner", endpoint={"url": "http://backend/v1/", "model": "x", "prices": {}}), {"model": "x"}),
    ],
)
def test_the_endpoint_of_a_role(access: Access, expected: Json) -> None:
    """The backend's YAML has priority over the suite's, and an endpoint that is the backend under test is not a separate one."""
    assert expected == role_facts(access, BACKEND)


def test_a_backend_that_plays_all_roles() -> None:
    """A recording plays a role for which the suite names another endpoint: only its model name remains."""
    access = Access(role="reasoner", endpoint={"url": "http://elsewhere/v1", "model": "x", "api_key": "KEY", "prices": {}})

    assert {"model": "x"} == role_facts(access, Endpoint("http://backend/v1", "served", plays_roles=True))


def test_an_undefined_role() -> None:
    """A role that neither suite nor backend defines is an InfraError."""
    with pytest.raises(InfraError, match="no model plays the role 'serach'"):
        role_facts(Access(role="serach"), BACKEND)
