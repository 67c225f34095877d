"""The orchestrator with a scripted model, experts, a retriever on a real socket, and bash in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pytest_agentbench.agents.experts import LONGEST, ContextBudget, Notebook, budget, newest
from pytest_agentbench.agents.factory import make_agent, needs_task
from pytest_agentbench.agents.orchestrator import CHOOSE, SYSTEM_PROMPT, Orchestrator
from pytest_agentbench.errors import ConfigError, InfraError, LimitReached
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox
from tests.agents.scripted import staged
from tests.sandbox.local import LocalSandbox
from tests.web import listening

PROBLEM = "What is six times seven?"
SCENARIO = Scenario("hle-7", ({"role": "user", "content": PROBLEM},))
DOCUMENTS = [
    {"document": {"id": 1, "content": "The best one."}, "score": 0.9},
    {"document": {"contents": "The second best."}},
]
PROGRAM = "Let us see.\n```python\nprint(6 * 7)\n```"


def calls(name: str, model: str) -> Json:
    return {"tool_calls": [{"name": name, "arguments": {"model": model}}]}


SEARCH, REASON, ANSWER = calls("search", "search-2"), calls("enhance_reasoning", "reasoner-1"), calls("answer", "answer-math-1")
ALL = [SEARCH, {"text": f"<query>{'seven ' * 100}</query>"}, REASON, {"text": PROGRAM}, ANSWER, {"text": "So <answer> 42 </answer>"}]


class Retriever:
    """Gives the same answer to each question."""

    def __init__(self, status: int, documents: Any) -> None:
        self.status, self.documents = status, documents
        self.url = ""
        self.bodies: list[Json] = []

    async def retrieve(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response(self.documents, status=self.status)


@asynccontextmanager
async def retrieving(documents: Any = (DOCUMENTS,), status: int = 200) -> AsyncIterator[Retriever]:
    retriever, application = Retriever(status, documents), web.Application()
    application.router.add_post("/retrieve", retriever.retrieve)
    async with listening(application) as url:
        retriever.url = url
        yield retriever


class Played:
    """The result of an agent's work."""

    def __init__(self, tools: Toolbox) -> None:
        self.tools = tools
        self.answer: Answer | None = None
        self.refusal: Exception | None = None
        self.requests: list[Json] = []
        self.roles: list[str] = []

    def told(self, request: int) -> str:
        """Returns the last message of a request."""
        return str(self.requests[request]["messages"][-1]["content"])


async def play(folder: Path, answers: Sequence[Json], **options: Any) -> Played:
    """Runs the agent and its experts with one model, which gives these answers one after the other."""
    (folder / "work").mkdir()
    async with staged(folder, answers) as stage:
        played = Played(Toolbox((), LocalSandbox(folder / "work")))

        async def role(name: str, endpoint: Json | None) -> LLM:
            assert endpoint is None
            played.roles.append(name)
            return stage.llm

        llm = LLM(stage.llm.base_url, stage.llm.model, roles=role)
        try:
            played.answer = await Orchestrator(**options).run(SCENARIO, llm, played.tools)
        except (InfraError, LimitReached) as error:
            played.refusal = error
        played.requests = stage.requests
    return played


async def test_a_problem_is_solved(tmp_path: Path) -> None:
    """Experts search, compute and answer. Each gets the results so far, and each tool call is recorded with its time."""
    async with retrieving() as retriever:
        played = await play(tmp_path, ALL, retriever=retriever.url, topk=2, roles={"answer-math-1": "mathematician"})

    assert Answer("42") == played.answer
    assert ["search", "reasoner", "mathematician"] == played.roles
    assert [("search", "search-2", 1), ("enhance_reasoning", "reasoner-1", 2), ("answer", "answer-math-1", 3)] == [
        (call.name, call.arguments["model"], call.turn) for call in played.tools.calls
    ]
    assert all(call.started_ns and call.ended_ns and call.started_ns < call.ended_ns for call in played.tools.calls)
    query = ("seven " * 100).strip()[:LONGEST]
    assert [{"queries": [query], "topk": 2, "return_scores": True, "eid": "hle-7"}] == retriever.bodies
    known = "Documents:\nDoc 1: The second best.\n\nDoc 2: The best one."
    computed = "Python code and execution outputs:\n```python\nprint(6 * 7)\n```\n\n```output\n42\n\n```"
    assert f"Problem: {PROBLEM}\n\n{known}\n\n{computed}\n\n{CHOOSE}" == played.told(4)
    assert played.told(5).startswith(f"{known}\n\n{computed}\n\nQuestion: {PROBLEM}\n\n")
    assert [(1.0, 4000), (1.0, 40000), (0.2, 8000)] == [
        (each["temperature"], each["max_tokens"]) for each in (played.requests[number] for number in (1, 3, 5))
    ]
    assert SYSTEM_PROMPT == played.requests[0]["messages"][0]["content"]
    assert ["search", "enhance_reasoning", "answer"] == [tool["function"]["name"] for tool in played.requests[0]["tools"]]


@pytest.mark.parametrize(("context", "grows"), [("rebuild", False), ("transcript", True)])
async def test_what_the_model_is_sent(tmp_path: Path, context: str, grows: bool) -> None:
    """`transcript` only appends, so that a cached prefix stays valid. `rebuild` sends everything again in two messages."""
    async with retrieving() as retriever:
        played = await play(tmp_path, ALL, retriever=retriever.url, context=context)
    rounds = [each["messages"] for each in played.requests if each["messages"][0]["role"] == "system"]

    assert ("42", 3) == (played.answer and played.answer.text, len(rounds))
    assert grows == all(later[: len(earlier)] == earlier for earlier, later in pairwise(rounds))
    assert ([2, 4, 6] if grows else [2, 2, 2]) == [*map(len, rounds)]
    assert "The best one." in rounds[1][-1]["content"]


async def test_a_transcript_that_is_too_long(tmp_path: Path) -> None:
    """The oldest rounds are dropped, and enough of them that the next rounds fit without another drop."""
    rounds = [each for _ in range(6) for each in (REASON, {"text": f"```python\nprint('{'x' * 400}')\n```"})]
    played = await play(tmp_path, [*rounds, ANSWER, {"text": "42"}], context="transcript", context_tokens=1500)
    sent = [each["messages"] for each in played.requests if each["messages"][0]["role"] == "system"]
    lengths = [*map(len, sent)]

    assert any(later < earlier for earlier, later in pairwise(lengths))
    cuts = [at for at, (earlier, later) in enumerate(pairwise(lengths)) if later <= earlier]
    assert all(later - earlier > 1 for earlier, later in pairwise(cuts))
    assert all(["system", "user"] == [message["role"] for message in messages[:2]] for messages in sent)
    assert all("tool" != message["role"] for messages in sent for message in messages[2:3])


async def test_rounds_without_a_result(tmp_path: Path) -> None:
    """An unknown expert or tool and an answer without a call are rounds of their own. Calls are recorded."""
    both = {"tool_calls": [*calls("answer", "x")["tool_calls"], *ANSWER["tool_calls"]]}
    wrong = [calls("answer", "gpt"), calls("sing", "search-1"), {"text": "Hm."}, both]
    played = await play(tmp_path, [*wrong, {"text": "42"}], run_code=False)

    assert Answer("42") == played.answer
    assert ["invalid_arguments", "unknown_tool", None] == [call.problem for call in played.tools.calls]
    # `search` is missing, because there is nothing to search.
    assert ["enhance_reasoning", "answer"] == [tool["function"]["name"] for tool in played.requests[0]["tools"]]


async def test_rounds_are_used_up(tmp_path: Path) -> None:
    """After the last round the rollout ends at its limit, with its work so far."""
    played = await play(tmp_path, [REASON, {"text": PROGRAM}, {"text": "Hm."}], max_rounds=2)

    assert "rounds: 2 were not enough (max_rounds)" == str(played.refusal)
    assert ["enhance_reasoning"] == [call.name for call in played.tools.calls]


async def test_code_that_does_not_run(tmp_path: Path) -> None:
    """Without `run_code` programs are written but not run, and the model is told so."""
    played = await play(tmp_path, [REASON, {"text": PROGRAM}, ANSWER, {"text": "42"}], run_code=False)

    assert "```output\n(not run)\n```" in played.told(2)


def test_a_retriever_is_a_url() -> None:
    """An invalid retriever address is refused before anything boots."""
    with pytest.raises(ValueError, match=r"retriever must start with http:// or https://, not "):
        Orchestrator(retriever="127.0.0.1:1401")


def test_code_needs_a_sandbox() -> None:
    """An orchestrator that runs programs needs a sandbox, which is checked before anything boots."""
    assert (True, False) == tuple(needs_task(make_agent({"kind": "orchestrator", "run_code": run}, Path())) for run in (True, False))


@pytest.mark.parametrize(
    ("status", "documents", "sentence"),
    [
        (500, {"error": "boom"}, "answered HTTP 500"),
        (200, {"no": "list"}, "which is not a list of documents; correct `retriever`"),
        (200, [[{}]], "which is not a list"),
    ],
)
async def test_a_retriever_that_fails(tmp_path: Path, status: int, documents: Any, sentence: str) -> None:
    """A failed retriever is an infra_error, because it is not the agent's fault."""
    async with retrieving(documents, status) as retriever:
        played = await play(tmp_path, ALL, retriever=retriever.url)

    assert isinstance(played.refusal, InfraError)
    assert sentence in str(played.refusal)
    assert ["search"] == [call.name for call in played.tools.calls]


async def test_queries_that_are_not_sent(tmp_path: Path) -> None:
    """A query that is too short is not sent, and known documents are not returned again."""
    answers = [SEARCH, {"text": "<query>x</query>"}, SEARCH, {"text": "a good query"}, SEARCH, {"text": "the same"}, ANSWER, {"text": "42"}]
    async with retrieving() as retriever:
        played = await play(tmp_path, answers, retriever=retriever.url, context="transcript")

    assert ["a good query", "the same"] == [body["queries"][0] for body in retriever.bodies]
    assert "fewer than five characters" in played.told(2)
    assert "Nothing new was found." == played.told(6)


def test_a_notebook_leaves_out_whole_pieces() -> None:
    """The context has the newest code and documents that fit, documents with their own numbers. No text is cut."""
    notebook = Notebook("p" * 40, 20)
    notebook.add_documents([letter * 20 for letter in "abcd"])
    notebook.add_documents(["d" * 20, "e" * 30])
    notebook.add_code("1", "one")
    notebook.add_code("2", "two")
    lines = notebook.context(ContextBudget(29, 12)).splitlines()

    assert ["a" * 20, "b" * 20, "c" * 20, "d" * 20, "e" * 20 + " ..."] == notebook.documents
    assert ["Doc 5: " + "e" * 20 + " ..."] == [line for line in lines if line.startswith("Doc ")]
    assert (["2"], ["two"]) == ([line for line in lines if line == "2"], [line for line in lines if line == "two"])
    assert "1" not in lines
    assert ["bb", "cc"] == newest(["aaaaaaaaaa", "bb", "cc"], 2)
    assert "" == Notebook("p" * 400, 20).context(ContextBudget(10, 10))


def test_experts_that_do_not_exist() -> None:
    """A role for an unknown expert is refused, with the known names."""
    with pytest.raises(ConfigError, match=r"roles: no expert 'gpt'; known: .*search-1, search-2"):
        make_agent({"kind": "orchestrator", "roles": {"gpt": "search"}}, Path())


@pytest.mark.parametrize(
    ("tool", "context_length", "expected"),
    [
        ("enhance_reasoning", None, (120000, 40000)),
        ("enhance_reasoning", 400000, (120000, 40000)),
        ("enhance_reasoning", 32000, (24000, 8000)),  # 32,000 tokens are a fifth of the 160,000 that notebook and answer take together
        ("search", 32768, (24000, 12000)),
        ("answer", 16000, (12000, 6000)),
    ],
)
def test_the_size_of_a_notebook(tool: str, context_length: int | None, expected: tuple[int, int]) -> None:
    """The notebook fits into the expert's context together with its answer. A shorter context gets the same shares of it."""
    given = budget(tool, context_length)

    assert expected == (given.all, given.code)
