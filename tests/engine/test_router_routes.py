"""An engine answers what routers ask of it, in the formats of vLLM and SGLang."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from pytest_agentbench.records import Json

Ask = Callable[..., httpx.Response]
QUESTION: list[Json] = [{"role": "system", "content": "You work for a bank."}, {"role": "user", "content": "What is my balance?"}]


def _post(url: str, **body: Any) -> Json:
    response = httpx.post(url, json=body).raise_for_status()
    return dict(response.json())


def test_renders_the_tokens_of_a_chat(lexical: str, serve: Callable[..., str], ask: Ask, tools: list[Json]) -> None:
    """The tokens of a prompt are as many as the usage says, the same in every engine, and a longer conversation begins with them."""
    body: Json = {"model": "embedded-lexical", "messages": QUESTION, "tools": tools}
    one, other = (_post(f"{url}/v1/chat/completions/render", **body) for url in (lexical, serve()))
    answered = [*QUESTION, {"role": "assistant", "content": "Which account?"}]
    longer = _post(f"{lexical}/v1/chat/completions/render", **{**body, "messages": answered})
    tokens = one["token_ids"]

    assert ask(lexical, messages=QUESTION, tools=tools).json()["usage"]["prompt_tokens"] == len(tokens)
    assert tokens == other["token_ids"] == longer["token_ids"][: len(tokens)]
    assert {int} == {type(token) for token in tokens}
    assert all(0 <= token < 1 << 31 for token in tokens)
    assert one["request_id"] != other["request_id"]


def test_rendering_is_no_answer(serve: Callable[..., str], ask: Ask) -> None:
    """A rendered prompt leaves nothing in the prefix cache and counts as no request."""
    url = serve()
    _post(f"{url}/v1/chat/completions/render", model="embedded-lexical", messages=QUESTION * 10)
    usage = ask(url, messages=QUESTION * 10).json()["usage"]
    counted = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith("vllm:request_success_total{")]

    assert 0 == usage["prompt_tokens_details"]["cached_tokens"]
    assert 1 == sum(float(line.rpartition(" ")[2]) for line in counted)


def test_tokenizes_texts_and_chats(lexical: str) -> None:
    """A text and a chat are tokenized as in vLLM. The model need not be named, and the texts of tokens are returned on request."""
    text = _post(f"{lexical}/tokenize", prompt="Transactions cost", return_token_strs=True)
    chat = _post(f"{lexical}/tokenize", model="embedded-lexical", messages=QUESTION)
    rendered = _post(f"{lexical}/v1/chat/completions/render", model="embedded-lexical", messages=QUESTION)

    assert (3, 65_536 * 16, ["Transa", "ctions", " cost"]) == (text["count"], text["max_model_len"], text["token_strs"])
    assert rendered["token_ids"] == chat["tokens"]
    assert (len(chat["tokens"]), None) == (chat["count"], chat["token_strs"])


@pytest.mark.parametrize("body", [{}, {"prompt": 3}, {"messages": []}, {"prompt": "x", "model": "other"}])
def test_refuses_what_it_cannot_tokenize(lexical: str, body: Json) -> None:
    """A request without a text or messages, or for another model, gets an error object."""
    response = httpx.post(f"{lexical}/tokenize", json=body)

    assert response.status_code in (400, 404)
    assert {"message", "type", "param", "code"} == response.json()["error"].keys()


def test_says_what_it_serves(serve: Callable[..., str]) -> None:
    """Server and model are described under both of SGLang's paths, with the name under which requests ask for the model."""
    url = serve(model="bank-7b", max_model_len=4096, kv_blocks=100, block_size=32)
    server, model = (httpx.get(f"{url}/{path}").json() for path in ("server_info", "model_info"))

    assert {"served_model_name": "bank-7b", "max_model_len": 4096, "max_total_num_tokens": 3200}.items() <= server.items()
    assert {"model_path": "", "tokenizer_path": "", "is_generation": True}.items() <= model.items()
    assert (server, model) == tuple(httpx.get(f"{url}/{path}").json() for path in ("get_server_info", "get_model_info"))
    assert server["version"] == httpx.get(f"{url}/version").json()["version"]


def _load(url: str) -> Json:
    (one,), (other,) = (httpx.get(f"{url}/{path}").json()["loads"] for path in ("loads", "v1/loads"))

    assert one.keys() == other.keys()
    return dict(other)


def _wait_for_requests(url: str, running: int, waiting: int) -> Json:
    """Returns the load when it has these requests, or after ten seconds."""
    for _ in range(200):
        load = _load(url)
        if (running, waiting) == (load["num_running_reqs"], load["num_waiting_reqs"]):
            break
        time.sleep(0.05)
    return load


def test_says_its_load(serve: Callable[..., str]) -> None:
    """The load counts the requests that run and wait, and the tokens of their blocks. It is zero when they have ended."""
    url = serve(max_concurrency=1, ttft_ms=60_000, kv_blocks=100)
    body = orjson.dumps({"model": "embedded-lexical", "messages": QUESTION, "stream": True})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: %d\r\n\r\n" % len(body)
    address = urlsplit(url).hostname, urlsplit(url).port
    with ExitStack() as clients:
        for _ in range(2):
            clients.enter_context(socket.create_connection(address)).sendall(head + body)
        busy = _wait_for_requests(url, 1, 1)
        (older,) = httpx.get(f"{url}/get_load").json()
    idle = _wait_for_requests(url, 0, 0)

    assert (1, 1, 2) == (busy["num_running_reqs"], busy["num_waiting_reqs"], busy["num_total_reqs"])
    assert {"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 1, "num_tokens": busy["num_used_tokens"]} == older
    assert 0 < busy["num_used_tokens"] == busy["token_usage"] * 1600
    assert [0, 0, 0] == [idle["num_running_reqs"], idle["num_waiting_reqs"], idle["num_used_tokens"]]


@pytest.mark.parametrize("path", ["reset_prefix_cache", "flush_cache"])
def test_the_cache_can_be_emptied(serve: Callable[..., str], ask: Ask, path: str) -> None:
    """The prefix cache is emptied by vLLM's path and by that of SGLang, which routers send to all engines."""
    url = serve()
    before = [_cached(ask(url, messages=QUESTION * 10)) for _ in range(2)]
    httpx.post(f"{url}/{path}").raise_for_status()

    assert before[0] == _cached(ask(url, messages=QUESTION * 10)) == 0 < before[1]


def _cached(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
