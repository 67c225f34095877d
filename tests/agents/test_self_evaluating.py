"""The self-evaluating agents: separate drafts, one of which counts, and verdicts of the judge."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.agents.factory import make_agent
from pytest_agentbench.agents.self_evaluating import SelfEvaluating, SelfEvaluatingWithFeedback, merit
from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.errors import AgentError, ConfigError, InfraError, LimitReached
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Access, Answer, Draft, Json, KeptCall, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.scorers.tsq import tsq
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite, Tool
from pytest_agentbench.tools.python import ToolInstance
from pytest_agentbench.tools.signatures import methods_of
from pytest_agentbench.tools.toolbox import Toolbox

KEY = RolloutKey("shop", "s-0")
TOOLS = tuple(Tool(name, f"To {name} an item.", {"type": "object"}) for name in ("find", "order", "send"))
SCENARIO = Scenario("s-0", ({"role": "user", "content": "Order a lamp {now}!"},), TOOLS, ({"tool": "order"},))
JUDGE = "Then give your verdict"  # text that every prompt of the judge contains


def verdict(is_sufficient: Any = True, confidence: Any = 0.9, **more: Any) -> str:
    said = {"reasoning": "Because.", "missing_steps": [], "suggestions": "", "is_sufficient": is_sufficient, "confidence": confidence}
    return json.dumps({**said, **more})


class Engine:
    """A real engine that answers agent and judge from a script and keeps the requests. It also replaces the tap."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.children = folder, list[Child]()
        self.open_lines: list[Access] = []

    def start(self, *rules: Json) -> None:
        (self.folder / "script.yaml").write_text(json.dumps(rules))
        config = {"policy": "script", "script": str(self.folder / "script.yaml"), "model": "m", "request_log": str(self.folder / "log")}
        self.children.append(Child("pytest_agentbench.engine", config, self.folder / "engine.log"))
        self.url = f"http://127.0.0.1:{self.children[-1].ready(Listening).port}/v1"

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        del key
        self.open_lines.append(access)
        return ModelAddress(str(len(self.open_lines)), self.url, "m")

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        del key, calls
        return []

    async def said(self, id: str) -> list[Json]:
        raise InfraError(f"nothing that was said to {id} is kept")

    async def close(self, id: str) -> list[LLMCall]:
        del id
        return []

    @property
    def requests(self) -> list[Json]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    @property
    def judged(self) -> list[str]:
        """Returns the prompts that the judge got."""
        return [text for body in self.requests if JUDGE in (text := body["messages"][-1]["content"])]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    for child in engine.children:
        child.stop()


def judging(*verdicts: str) -> list[Json]:
    """Returns rules with the judge's answers. The last one is repeated."""
    rules: list[Json] = [{"match": {"contains": JUDGE, "call": number}, "text": text} for number, text in enumerate(verdicts[:-1], 1)]
    return [*rules, {"match": {"contains": JUDGE}, "text": verdicts[-1]}]


def calling(*names: str) -> list[Json]:
    """Returns rules in which the agent's n-th draft calls the n-th tool and then says so, with one judgement between drafts."""
    rules: list[Json] = []
    for number, name in enumerate(names):
        rules.append({"match": {"turn": 0, "call": 2 * number + 1}, "tool_calls": [{"name": name}]})
        rules.append({"match": {"turn": 1, "call": number + 1}, "text": f"I did {name}."})
    return rules


#: Rules with which the agent calls `order` in each draft.
ORDERING: list[Json] = [{"match": {"turn": 0}, "tool_calls": [{"name": "order"}]}, {"text": "I did order."}]


async def ran(agent: SelfEvaluating, engine: Engine, scenario: Scenario = SCENARIO) -> Rollout:
    setup = RolloutSetup(agent, {"tsq": tsq}, {}, None, {"kind": "self_evaluating"})
    return await run_rollout(KEY, scenario, setup, engine, None, 60)


def told(rollout: Rollout) -> list[tuple[list[str], str, bool, bool]]:
    """Returns tools, answer, accepted and chosen of each draft."""
    return [([call.name for call in each.tool_calls], each.answer, each.accepted, each.chosen) for each in rollout.drafts]


async def test_a_draft_that_is_accepted(engine: Engine) -> None:
    """The first accepted draft ends the work. The record has the judge's identity."""
    engine.start(*judging(verdict(confidence=0.7)), *calling("order", "find"))

    rollout = await ran(SelfEvaluating(), engine)

    assert ("ok", "I did order.", ["order"], 1.0) == (rollout.status, rollout.answer, rollout.tools, rollout.score("tsq"))
    assert [(["order"], "I did order.", True, True)] == told(rollout)
    said = rollout.drafts[0].verdict
    assert said is not None
    assert ("m", {"temperature": 0.0}, 64) == (said["judge"]["model"], said["judge"]["parameters"], len(said["judge"]["prompt_sha256"]))
    assert ([False, True], [True, True]) == (
        [each.role == "judge" for each in engine.open_lines],
        [line.upgrade is not False for line in engine.open_lines],
    )


async def test_drafts_are_kept_apart(engine: Engine) -> None:
    """Weakness 3 of the NeMo toolkit: the judge sees only the draft's calls, and only the accepted draft is scored."""
    engine.start(*judging(verdict(False), verdict()), *calling("find", "order"))

    rollout = await ran(SelfEvaluating(), engine)

    assert [(["find"], "I did find.", False, False), (["order"], "I did order.", True, True)] == told(rollout)
    assert (["order"], "I did order.", 1.0) == (rollout.tools, rollout.answer, rollout.score("tsq"))
    assert [0.0, 1.0] == [draft.scores["tsq"] for draft in rollout.drafts]
    assert [("1. find()" in each, "1. order()" in each) for each in engine.judged] == [(True, False), (False, True)]
    assert "I did order." == rollout.messages[-1]["content"]
    assert rollout.drafts[0].started_ns < rollout.drafts[0].ended_ns <= rollout.drafts[1].started_ns


async def test_no_label_reaches_the_judge(engine: Engine) -> None:
    """An agent's judge gets only what the agent can know: no labels, goals, metadata or ids."""
    engine.start(*judging(verdict(False), verdict()), *ORDERING)
    labels: Json = {"tool": "order", "parameters": {"item": "SECRET"}, "goal": "SECRET"}
    scenario = Scenario("SECRET", SCENARIO.messages, TOOLS, (labels,), {"user_goals": ["SECRET"]})

    await ran(SelfEvaluatingWithFeedback(), engine, scenario)

    assert [] == [body for body in engine.requests if "SECRET" in str(body)]


@pytest.mark.parametrize(
    ("verdicts", "chosen"),
    [
        ([verdict(False, 0.95), verdict(True, 0.5), verdict(False, 0.1)], 2),
        ([verdict(False, 0.95), verdict(False, 0.2), verdict(False, 0.6)], 2),
        ([verdict(True, 0.5), verdict(True, 0.6), verdict(True, 0.6)], 2),
    ],
    ids=["sufficient, if not surely", "the least surely insufficient", "the first of equals"],
)
async def test_no_draft_is_accepted(engine: Engine, verdicts: list[str], chosen: int) -> None:
    """The best-judged draft counts, and high confidence in a bad draft does not make it the best. The last draft is judged, too."""
    engine.start(*judging(*verdicts), *calling("find", "order", "send"))

    rollout = await ran(SelfEvaluating(), engine)

    assert ("ok", 3, 3) == (rollout.status, len(rollout.drafts), len(engine.judged))
    assert [chosen] == [draft.number for draft in rollout.drafts if draft.chosen]
    assert rollout.tools == [call.name for call in rollout.drafts[chosen - 1].tool_calls]
    assert rollout.answer == rollout.drafts[chosen - 1].answer


@pytest.mark.parametrize("agent", [SelfEvaluating(max_retries=1), SelfEvaluatingWithFeedback(max_retries=1)])
async def test_feedback(engine: Engine, agent: SelfEvaluating) -> None:
    """Only the agent with feedback passes the judge's words on. The judge always gets the request without feedback."""
    engine.start(*judging(verdict(False, missing_steps=["order {it}"]), verdict()), *calling("find", "order"))

    await ran(agent, engine)
    # These requests have only the system's and the customer's message.
    asked = [body["messages"] for body in engine.requests if len(body["messages"]) == 2]

    assert "Order a lamp {now}!" == asked[0][1]["content"]
    assert agent.pass_feedback_to_agent == ("- order {it}" in asked[1][1]["content"])
    assert agent.pass_feedback_to_agent == (asked[0] != asked[1])
    assert [False, False] == ["PREVIOUS ATTEMPT" in each for each in engine.judged]


async def test_custom_templates(engine: Engine) -> None:
    """Other braces in templates and placeholders in the customer's message are left unchanged."""
    template = JUDGE + ' as {"ok": {tool_calls}} on {question}, {} {0}'
    engine.start(*judging(verdict(False), verdict()), *calling("find", "order"))

    rollout = await ran(SelfEvaluatingWithFeedback(evaluation_prompt_template=template, feedback_template="{x} {reasoning} {{}}"), engine)

    assert "ok" == rollout.status
    assert engine.judged[0].startswith(JUDGE + ' as {"ok": 1. find()} on Order a lamp {now}!, {} {0}')
    assert "Order a lamp {now}!\n\n{x} Because. {{}}" in [body["messages"][-1]["content"] for body in engine.requests]


@pytest.mark.parametrize(
    "nonsense", ["YES!", verdict(confidence="high"), verdict(confidence=None), verdict("perhaps"), verdict(confidence=7)]
)
async def test_a_judge_with_invalid_answers(engine: Engine, nonsense: str) -> None:
    """A judge with an invalid answer gets the error once. If the next answer is invalid, too, the rollout has no score."""
    again = {"match": {"contains": "That cannot be used", "call": 2}, "text": nonsense}
    engine.start(again, {"match": {"contains": "That cannot be used"}, "text": verdict()}, *judging(nonsense), *ORDERING)

    first, second = await ran(SelfEvaluating(), engine), await ran(SelfEvaluating(), engine)

    assert ("ok", True) == (first.status, first.drafts[0].accepted)
    assert ("infra_error", {}) == (second.status, second.scores)
    assert second.reason.endswith(f"; the judge said {nonsense!r}")


async def test_texts_for_numbers(engine: Engine) -> None:
    """`"0.9"` counts as 0.9, and `"false"` as false."""
    engine.start(*judging(verdict("false", "0.9"), verdict("true", "0.9")), *calling("find", "order"))

    rollout = await ran(SelfEvaluating(), engine)

    assert [False, True] == [draft.accepted for draft in rollout.drafts]


async def test_a_judge_without_structured_output(engine: Engine) -> None:
    """If a server refuses response_format, requests omit it from then on, also in later rollouts."""
    refusal = {"match": {"contains": JUDGE, "call": 1}, "status": 400, "message": "response_format: json_schema is not supported"}
    engine.start(refusal, *judging("-", verdict(False), verdict()), *ORDERING)

    setup = RolloutSetup(SelfEvaluating(), {}, {}, None, {})
    rollouts = [await run_rollout(KEY, SCENARIO, setup, engine, None, 60) for _ in range(2)]

    assert [("ok", 2), ("ok", 1)] == [(rollout.status, len(rollout.drafts)) for rollout in rollouts]
    assert [True, False, False, False] == [
        "response_format" in body for body in engine.requests if JUDGE in body["messages"][-1]["content"]
    ]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 500, "message": "no"}, "HTTP 500: no"),
        ({"status": 400, "message": "bad seed"}, "HTTP 400: bad seed"),
        (
            {"status": 400, "message": "maximum context length is 9"},
            "a limit of the judge was reached: context: maximum context length is 9",
        ),
    ],
)
async def test_a_judge_that_fails(engine: Engine, fault: Json, reason: str) -> None:
    """If the judge fails, the rollout is an infra_error, also if the judge's context is full. No verdict is invented."""
    engine.start({"match": {"contains": JUDGE}, **fault}, *ORDERING)

    rollout = await ran(SelfEvaluating(), engine)

    assert ("infra_error", reason, {}) == (rollout.status, rollout.reason, rollout.scores)


Work = Callable[[Toolbox], Awaitable[str]]


@dataclass(frozen=True)
class Doing:
    """An agent that does something different in each draft."""

    works: list[Work]
    heard: list[Scenario] = field(default_factory=list)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        del llm
        self.heard.append(scenario)
        return Answer(await self.works[len(self.heard) - 1](tools))


def does(name: str, error: Exception | None = None) -> Work:
    async def work(tools: Toolbox) -> str:
        await tools.call(name, "{}", 1)
        if error:
            raise error
        return f"I did {name}."

    return work


async def test_a_draft_that_fails_is_a_draft(engine: Engine) -> None:
    """An agent error or a limit ends only the draft.

    A draft that ends at a limit is judged, because it can be scored, but a failed one is not.
    """
    engine.start(*judging(verdict(False), verdict()))
    wrapped = Doing([does("find", AgentError("lost")), does("send", LimitReached("turns")), does("order")])

    rollout = await ran(SelfEvaluating(wrapped), engine)

    assert ("ok", ["order"], 2) == (rollout.status, rollout.tools, len(engine.judged))
    assert [("agent_error", "lost"), ("limit", "turns"), ("ok", "")] == [(draft.status, draft.reason) for draft in rollout.drafts]
    assert [None, 0.0, 1.0] == [draft.scores.get("tsq") for draft in rollout.drafts]


@pytest.mark.parametrize(
    ("errors", "status", "reason", "tools"),
    [
        ([AgentError("lost"), AgentError("again")], "agent_error", "lost", ["find"]),
        ([AgentError("lost"), LimitReached("turns")], "limit", "turns", ["send"]),
        ([LimitReached("turns"), AgentError("lost")], "limit", "turns", ["find"]),
        ([AgentError("lost"), InfraError("no network")], "infra_error", "no network", ["find"]),
        ([AgentError("lost"), KeyError("x")], "agent_error", "KeyError: 'x' (test_self_evaluating.py:", ["find"]),
    ],
)
async def test_every_draft_fails(engine: Engine, errors: list[Exception], status: str, reason: str, tools: list[str]) -> None:
    """The rollout gets the status of its best draft. Infrastructure failures and bugs of the agent end it at once."""
    engine.start(*judging(verdict(False)))

    rollout = await ran(
        SelfEvaluating(Doing([does(name, each) for name, each in zip(("find", "send"), errors, strict=True)]), max_retries=1), engine
    )

    assert (status, True, tools) == (rollout.status, rollout.reason.startswith(reason), rollout.tools)


@pytest.mark.parametrize(("verdicts", "kept"), [((verdict(False),), ["find"]), ((), ["find"])], ids=["in the second", "in the first"])
async def test_an_interrupted_rollout_has_its_best_draft(engine: Engine, verdicts: tuple[str, ...], kept: list[str]) -> None:
    """Whenever the rollout is interrupted, the toolbox has the best draft so far, or the unfinished first one."""
    engine.start(*judging(*(verdicts or ("-",))))
    begun = asyncio.Event()

    async def wait(tools: Toolbox) -> str:
        await tools.call("send" if verdicts else "find", "{}", 1)
        begun.set()
        await asyncio.Event().wait()
        return ""

    tools, llm = Toolbox(TOOLS), LLM(engine.url, "m", roles=judge_at(engine))
    works: list[Work] = [does("find"), wait] if verdicts else [wait]
    task = asyncio.create_task(SelfEvaluating(Doing(works)).run(SCENARIO, llm, tools))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert kept == [call.name for call in tools.calls]
    assert [True] * len(verdicts) == [draft.chosen for draft in tools.drafts]


async def test_the_state_of_an_interrupted_first_draft(engine: Engine) -> None:
    """The calls of an interrupted first draft are the rollout's, and so is the state of the tools."""

    class Shop:
        def __init__(self) -> None:
            self.state = {"sent": 0}

        def send(self) -> None:
            """Sends."""
            self.state["sent"] += 1

    engine.start(*judging("-"))
    begun = asyncio.Event()

    async def wait(tools: Toolbox) -> str:
        await tools.call("send", "{}", 1)
        begun.set()
        await asyncio.Event().wait()
        return ""

    tools = Toolbox(TOOLS, source=ToolInstance(Shop(), methods_of(Shop)))
    task = asyncio.create_task(SelfEvaluating(Doing([wait])).run(SCENARIO, LLM(engine.url, "m", roles=judge_at(engine)), tools))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    tools.settle()

    assert (["send"], {"sent": 1}) == ([call.name for call in tools.calls], tools.final_state)


def judge_at(engine: Engine) -> Callable[[str, Json | None], Awaitable[LLM]]:
    async def judge(role: str, endpoint: Json | None) -> LLM:
        del role, endpoint
        return LLM(engine.url, "m")

    return judge


async def test_further_messages_of_the_user(engine: Engine) -> None:
    """Each message of the user gets its own drafts. The work for earlier messages stays."""
    engine.start(*judging(verdict(), verdict(False), verdict()))
    scenario = Scenario("s-0", SCENARIO.messages, TOOLS, ({"tool": "order"},), turns=(({"role": "user", "content": "Send it."},),))

    rollout = await ran(SelfEvaluating(Doing([does("order"), does("find"), does("send")])), engine, scenario)

    assert ([("order", 1), ("send", 2)], [1, 2, 3]) == (
        [(call.name, call.user_turn) for call in rollout.tool_calls],
        [draft.number for draft in rollout.drafts],
    )
    assert [True, False, True] == [draft.chosen for draft in rollout.drafts]
    assert [{}, {}, {}] == [draft.scores for draft in rollout.drafts]


def test_defaults_are_those_of_the_originals() -> None:
    """Both kinds have the options and defaults of NVIDIA's agents."""
    names = ("max_retries", "min_confidence_threshold", "pass_feedback_to_agent")

    assert [(2, 0.7, False), (3, 0.85, True)] == [
        tuple(getattr(make_agent({"kind": kind}, Path()), name) for name in names)
        for kind in ("self_evaluating", "self_evaluating_with_feedback")
    ]


@pytest.mark.parametrize("wraps", ["tool_calling", {"kind": "tool_calling", "max_turns": 3}])
def test_it_wraps_any_agent(wraps: Any) -> None:
    """`wraps` is a kind or an agent's settings."""
    agent = make_agent({"kind": "self_evaluating", "wraps": wraps}, Path())

    assert isinstance(agent, SelfEvaluating)
    assert ToolCalling(max_turns=3 if isinstance(wraps, dict) else 12) == agent.wraps


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_retries": 6}, "max_retries must be a whole number from 0 to 5, not 6"),
        ({"max_retries": True}, "max_retries must be a whole number from 0 to 5, not True"),
        ({"min_confidence_threshold": "0.7"}, "min_confidence_threshold must be a number from 0 to 1, not '0.7'"),
        ({"pass_feedback_to_agent": "no"}, "pass_feedback_to_agent must be true or false, not 'no'"),
        ({"feedback_template": None}, "feedback_template must be a text, not None"),
        ({"evaluation_prompt_template": "Good?"}, "evaluation_prompt_template must be a text that contains {tool_calls}"),
        ({"evaluator_llm": {"url": "http://x"}}, "evaluator_llm must be {url, model}, with api_key the name of an environment variable"),
        ({"evaluator_llm": {"url": "http://x", "model": "m", "key": "k"}}, "evaluator_llm must be {url, model}, with api_key"),
        ({"wraps": "tool_callin"}, "wraps: no agent 'tool_callin' (did you mean 'tool_calling'?); known: "),
        ({"wraps": {"kind": "tool_calling", "max_turn": 1}}, "wraps: agent: unknown key 'max_turn'"),
        ({"wraps": 5}, "agent: wraps must be an agent's kind such as react, or settings such as {kind: react}, not 5"),
    ],
)
def test_wrong_settings(settings: Json, sentence: str) -> None:
    """Invalid settings are an error before anything runs."""
    with pytest.raises(ConfigError) as caught:
        make_agent({"kind": "self_evaluating", **settings}, Path())

    assert sentence in str(caught.value)


@pytest.mark.parametrize("wraps", ["./agent.py:Mine", {"kind": "./agent.py:Mine"}, {"kind": "self_evaluating", "wraps": "./agent.py:Mine"}])
def test_a_check_imports_no_wrapped_code(tmp_path: Path, wraps: Any) -> None:
    """The suite's own agent is imported only in other processes, even if it is wrapped."""
    mine = "class Mine:\n    async def run(self, scenario, llm, tools): ...\n"
    (tmp_path / "agent.py").write_text(f"import os\nassert os.getpid() != {os.getpid()}\n{mine}")
    data = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 1)

    checked(Suite("shop", tmp_path, (SCENARIO,), dataset=data, agent={"kind": "self_evaluating", "wraps": wraps}))


def test_ranking_of_drafts() -> None:
    """Drafts judged sufficient with high confidence rank best, and those judged insufficient with high confidence worst.

    Unjudged drafts are between, and failed ones below all.
    """
    drafts = [Draft(1, "ok", verdict=json.loads(verdict(*each))) for each in ((True, 1.0), (True, 0.1), (False, 0.1), (False, 1.0))]
    drafts.insert(2, Draft(1, "limit"))
    drafts.append(Draft(1, "agent_error"))

    assert [1.0, 0.1, 0.0, -0.1, -1.0, -2.0] == [merit(draft) for draft in drafts]
