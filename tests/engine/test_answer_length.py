"""Requests can demand a number of tokens, as benchmarks do, and answers name their engine on request."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from pytest_agentbench.engine.token_blocks import tokenise
from pytest_agentbench.records import Json

Ask = Callable[..., httpx.Response]


def _lengths(answer: Json) -> tuple[int, int, str]:
    """Returns the tokens that the usage counts, those in the text, and the reason for the end of the answer."""
    choice = answer["choices"][0]
    return answer["usage"]["completion_tokens"], len(tokenise(choice["message"]["content"])), choice["finish_reason"]


def test_answers_are_filled_up(lexical: str, ask: Ask) -> None:
    """An answer has at least `min_tokens`, and with `ignore_eos` as many tokens as its limit allows."""
    short = ask(lexical, "Hello", min_tokens=2).json()

    assert ask(lexical, "Hello").json()["choices"] == short["choices"]
    assert (50, 50, "stop") == _lengths(ask(lexical, "Hello", min_tokens=50).json())
    assert (50, 50, "length") == _lengths(ask(lexical, "Hello", max_tokens=50, ignore_eos=True).json())
    assert (3, 3, "length") == _lengths(ask(lexical, "Hello", max_tokens=3, ignore_eos=True).json())


def test_a_stop_sequence_ends_an_answer_that_ignores_its_end(lexical: str, ask: Ask) -> None:
    """`ignore_eos` concerns the model's own end of an answer, not the stop sequences of the request."""
    choice = ask(lexical, "Hello", max_tokens=50, ignore_eos=True, stop=[" wrote"]).json()["choices"][0]

    assert ("You", "stop") == (choice["message"]["content"], choice["finish_reason"])


def test_calls_are_kept(lexical: str, ask: Ask, tools: list[Json]) -> None:
    """A tool call that is too short stays whole: the filling is text before it."""
    question = "What is the balance of my joint account?"
    plain, filled = (ask(lexical, question, tools=tools, min_tokens=fewest).json() for fewest in (0, 80))

    assert plain["choices"][0]["message"]["tool_calls"] == filled["choices"][0]["message"]["tool_calls"]
    assert (80, "tool_calls") == (filled["usage"]["completion_tokens"], filled["choices"][0]["finish_reason"])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": "9"}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"ignore_eos": 3, "max_tokens": 8}, "ignore_eos"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_refuses_impossible_lengths(lexical: str, ask: Ask, change: Json, param: str) -> None:
    """A faulty length is refused, as is an answer without end."""
    response = ask(lexical, **change)

    assert (400, param) == (response.status_code, response.json()["error"]["param"])


def _names(response: httpx.Response) -> list[str | None]:
    """Returns the engine's name in each event of a stream, or in the one answer."""
    texts = [line.removeprefix("data: ") for line in response.text.splitlines() if line and "[DONE]" not in line]
    return [(json.loads(text).get("nvext") or {}).get("worker_id") for text in texts]


def test_names_itself_on_request(lexical: str, ask: Ask) -> None:
    """An answer has the engine's address if the request asks for it as clients of Dynamo do. In a stream the first event has it."""
    nvext = {"extra_fields": ["timing", "worker_id"]}
    address = lexical.removeprefix("http://")

    assert [address] == _names(ask(lexical, nvext=nvext))
    assert [address, None, None] == _names(ask(lexical, nvext=nvext, stream=True, max_tokens=1))
    assert [None] == _names(ask(lexical)) == _names(ask(lexical, nvext={"extra_fields": ["timing"]})) == _names(ask(lexical, nvext=3))


def test_names_itself_always(serve: Callable[..., str], ask: Ask) -> None:
    """With a name in its settings, an engine names itself in each answer, because some routers remove the request's field."""
    url = serve(worker_id="engine-0")

    assert ["engine-0"] == _names(ask(url)) == _names(ask(url, nvext={"extra_fields": ["worker_id"]}))
    assert ["engine-0", None, None] == _names(ask(url, stream=True, max_tokens=1))
