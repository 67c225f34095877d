"""The HTTP server of the engine behaves like any other server to an OpenAI client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from pytest_agentbench.records import Json

Ask = Callable[..., httpx.Response]
TWO_WISHES = "Please move $250 from my checking account to my savings account, and tell me the balance of my joint account."


def _events(response: httpx.Response) -> list[Json]:
    *events, done = [line.removeprefix("data: ") for line in response.text.splitlines() if line]

    assert "[DONE]" == done
    return [json.loads(event) for event in events]


def _metrics(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def test_lists_its_model(lexical: str) -> None:
    """/v1/models lists the only model that requests may name."""
    client = openai.OpenAI(base_url=f"{lexical}/v1", api_key="none")

    assert ["embedded-lexical"] == [model.id for model in client.models.list()]


def test_a_model_has_a_length(serve: Callable[..., str], ask: Ask) -> None:
    """The context length is listed as in vLLM. A request whose prompt and answer may exceed it is refused with both numbers."""
    url = serve(max_model_len=1000)
    fits, too_long = ask(url, TWO_WISHES, max_tokens=900), ask(url, TWO_WISHES, max_tokens=990)

    assert [1000] == [model["max_model_len"] for model in httpx.get(f"{url}/v1/models").json()["data"]]
    assert (200, 400) == (fits.status_code, too_long.status_code)
    prompt = fits.json()["usage"]["prompt_tokens"]
    words = f"This model's maximum context length is 1000 tokens. However, your request has {prompt} input tokens plus 990 'max_tokens'."
    assert too_long.json()["error"]["message"].startswith(words)


def test_streams_as_openai_does(lexical: str, ask: Ask, tools: list[Json]) -> None:
    """A stream has the role, one token per chunk, a call's name before its arguments, the finish reason, the usage, and [DONE]."""
    events = _events(ask(lexical, TWO_WISHES, tools=tools, stream=True, stream_options={"include_usage": True}))
    role, *tokens, finish, usage = events
    calls = [token["choices"][0]["delta"]["tool_calls"][0] for token in tokens]
    opening = {"index": 0, "id": calls[0]["id"], "type": "function", "function": {"name": "transfer_funds", "arguments": ""}}

    assert {"role": "assistant", "content": None} == role["choices"][0]["delta"]
    assert opening == calls[0]
    assert all({"index", "function"} == set(call) for call in calls if call["function"].get("name") is None)
    assert 2 == len({call["id"] for call in calls if "id" in call})
    assert ({}, "tool_calls") == (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"])
    assert ([], len(tokens)) == (usage["choices"], usage["usage"]["completion_tokens"])
    assert {"chat.completion.chunk"} == {event["object"] for event in events}
    assert 1 == len({event["id"] for event in events})


def test_a_usage_in_every_event(lexical: str, ask: Ask, tools: list[Json]) -> None:
    """As in vLLM, usage can be requested in each event, but only together with the usage at the end."""
    running = {"continuous_usage_stats": True}
    *events, last = _events(ask(lexical, TWO_WISHES, tools=tools, stream=True, stream_options={"include_usage": True, **running}))
    alone = _events(ask(lexical, TWO_WISHES, tools=tools, stream=True, stream_options=running))
    written = len(events) - 2  # events between the role and the finish reason

    assert [*range(written + 1), written] == [event["usage"]["completion_tokens"] for event in events]
    assert events[-1]["usage"].items() <= last["usage"].items()
    assert {False} == {"usage" in event for event in alone}


def test_sdk_gets_the_same_message_streamed_or_not(lexical: str, tools: list[Json]) -> None:
    """With the openai SDK, streaming does not change the message or the usage."""
    client = openai.OpenAI(base_url=f"{lexical}/v1", api_key="none")
    request: Any = {"model": "embedded-lexical", "messages": [{"role": "user", "content": TWO_WISHES}], "tools": tools}
    client.chat.completions.create(**request)  # From here on the prompt is cached.
    whole = client.chat.completions.create(**request)
    with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    message = whole.choices[0].message
    assert message.tool_calls is not None

    assert "tool_calls" == whole.choices[0].finish_reason == streamed.choices[0].finish_reason
    assert message.model_dump() == _without_parsed(streamed.choices[0].message.model_dump())
    assert ["transfer_funds", "get_balance"] == [call.function.name for call in message.tool_calls if call.type == "function"]
    assert whole.usage == streamed.usage


def _without_parsed(message: Json) -> Json:
    for call in message["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    return {key: value for key, value in message.items() if key != "parsed"}


def test_text_is_the_same_streamed_or_not(lexical: str, ask: Ask) -> None:
    """The joined pieces of a streamed text equal the text without streaming."""
    whole = ask(lexical, "Grüße 🙂").json()["choices"][0]["message"]["content"]
    events = _events(ask(lexical, "Grüße 🙂", stream=True))

    assert "Grüße 🙂" in whole
    assert whole == "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_same_request_same_answer_in_two_processes(lexical: str, serve: Callable[..., str], ask: Ask, tools: list[Json]) -> None:
    """The answer, including the ids of tool calls, depends only on the request."""
    one, other = (ask(url, TWO_WISHES, tools=tools).json()["choices"] for url in (lexical, serve()))

    assert one == other


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_stops_at_the_token_limit(lexical: str, ask: Ask, key: str) -> None:
    """An answer longer than the limit is truncated there, streamed or not, with the finish reason `length`."""
    answer = ask(lexical, **{key: 5}).json()
    events = _events(ask(lexical, stream=True, **{key: 5}))

    assert ("length", 5) == (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"])
    assert 5 == sum(bool(event["choices"][0]["delta"].get("content")) for event in events)
    assert "length" == events[-1]["choices"][0]["finish_reason"]


def test_stops_before_a_stop_sequence(lexical: str, ask: Ask) -> None:
    """The text ends before the first stop sequence."""
    choice = ask(lexical, "Hello", stop=["never", " wrote"]).json()["choices"][0]

    assert ("You", "stop") == (choice["message"]["content"], choice["finish_reason"])


def test_tool_choice(lexical: str, ask: Ask, tools: list[Json]) -> None:
    """`none` prevents calls, `required` and a name force a call, and an answer with a named call ends with `stop`, as with OpenAI."""
    named = {"type": "function", "function": {"name": "find_branch"}}
    none, required, forced = (ask(lexical, "Thank you!", tools=tools, tool_choice=choice).json() for choice in ("none", "required", named))

    assert "tool_calls" not in none["choices"][0]["message"]
    assert 1 == len(required["choices"][0]["message"]["tool_calls"])
    assert "find_branch" == forced["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    assert ["stop", "tool_calls", "stop"] == [answer["choices"][0]["finish_reason"] for answer in (none, required, forced)]


def test_cached_tokens_grow_with_a_repeated_prefix(serve: Callable[..., str], ask: Ask, tools: list[Json]) -> None:
    """A first request has no cached tokens. A repeated or continued conversation has its prefix cached, another question only the tools."""
    url = serve()
    question = [{"role": "system", "content": "You work for a bank. " * 20}, {"role": "user", "content": "What is my balance?"}]
    longer = [*question, {"role": "assistant", "content": "Which account?"}, {"role": "user", "content": "The joint one."}]
    usages = [ask(url, messages=messages, tools=tools).json()["usage"] for messages in (question, question, longer)]
    other = ask(url, "Good morning", tools=tools).json()["usage"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]

    assert 0 == cached[0] < cached[1] <= cached[2] < usages[2]["prompt_tokens"]
    assert cached[1] == (usages[1]["prompt_tokens"] - 1) // 16 * 16
    assert 0 < other["prompt_tokens_details"]["cached_tokens"] < cached[1]
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)


@pytest.mark.parametrize(
    ("change", "status", "param", "sentence"),
    [
        ({"model": "gpt-4"}, 404, "model", "The model 'gpt-4' does not exist; this server has 'embedded-lexical'."),
        ({"model": None}, 400, "model", "'model' is missing or not a string."),
        ({"messages": []}, 400, "messages", "'messages' must be a list with at least one message."),
        ({"messages": ["Hello"]}, 400, "messages[0]", "'messages[0]' must be an object."),
        ({"messages": [{"role": "cat"}]}, 400, "messages[0].role", None),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content", None),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, 400, "messages[0].tool_calls", None),
        ({"tools": {}}, 400, "tools", "'tools' must be a list."),
        ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0]", None),
        ({"tool_choice": "required"}, 400, "tool_choice", "'tool_choice' is only allowed when 'tools' are specified."),
        ({"max_tokens": 0}, 400, "max_tokens", "'max_tokens' must be a whole number of at least 1."),
        ({"n": 2}, 400, "n", "'n' must be 1."),
        ({"stop": 3}, 400, "stop", "'stop' must be a string or a list of strings."),
        ({"stream_options": {}}, 400, "stream_options", "'stream_options' is only allowed when 'stream' is true."),
    ],
)
def test_refuses_in_openai_shape(lexical: str, ask: Ask, change: Json, status: int, param: str, sentence: str | None) -> None:
    """An invalid request gets a status, the parameter and a sentence."""
    response = ask(lexical, **change)
    error = response.json()["error"]

    assert (status, param, "invalid_request_error") == (response.status_code, error["param"], error["type"])
    assert sentence in (None, error["message"])


def test_refuses_a_choice_of_an_unknown_tool(lexical: str, ask: Ask, tools: list[Json]) -> None:
    """`tool_choice` must name one of the tools in the request."""
    for choice in ("sometimes", {"type": "function", "function": {"name": "fly"}}):
        assert 400 == ask(lexical, tools=tools, tool_choice=choice).status_code


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b"\xff", 400),
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/v1/embeddings", b"{}", 400),
        ("POST", "/v1/images/generations", b"{}", 404),
    ],
)
def test_refuses_what_it_does_not_know(lexical: str, method: str, path: str, body: bytes, status: int) -> None:
    """Broken bodies and unknown paths get an error object, too."""
    response = httpx.request(method, f"{lexical}{path}", content=body)

    assert status == response.status_code
    assert {"message", "type", "param", "code"} == set(response.json()["error"])


def test_metrics_count_what_was_answered(serve: Callable[..., str], ask: Ask) -> None:
    """The metrics have vLLM's names, and their sums equal the usage of the answers."""
    url = serve(model="m")
    usages = [ask(url, "Hello there, " * 20, model="m", **extra).json()["usage"] for extra in ({}, {"max_tokens": 3})]
    metrics = _metrics(url)
    label = '{model_name="m"}'
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    generated = sum(usage["completion_tokens"] for usage in usages)

    assert prompt == metrics[f"vllm:prompt_tokens_total{label}"] == metrics[f"vllm:prefix_cache_queries_total{label}"]
    assert generated == metrics[f"vllm:generation_tokens_total{label}"]
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] == metrics[f"vllm:prefix_cache_hits_total{label}"] > 0
    assert 2 == metrics[f"vllm:time_to_first_token_seconds_count{label}"]
    assert generated - 2 == metrics[f"vllm:inter_token_latency_seconds_count{label}"]
    assert [1, 1, 0] == [
        metrics[f'vllm:request_success_total{{finished_reason="{reason}",model_name="m"}}'] for reason in ("stop", "length", "abort")
    ]
    assert [0, 0, 0] == [metrics[f"vllm:{name}{label}"] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]


def test_http_requests_are_counted(serve: Callable[..., str], ask: Ask) -> None:
    """As in vLLM, refused requests are in this counter only, and requests for health and metrics are in none."""
    url = serve(model="m")
    ask(url, "Hello", model="m")
    ask(url, "Hello", model="unknown")
    for path in ("/health", "/v1/models", "/version"):
        httpx.get(url + path)
    metrics = _metrics(url)

    assert {
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}': 1,
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"}': 1,
        'http_requests_total{handler="/v1/models",method="GET",status="2xx"}': 1,
    }.items() <= {name: value for name, value in metrics.items() if name.startswith("http_requests_total")}.items()
    assert not [name for name in metrics if "/health" in name or "/metrics" in name or "/version" in name]
    assert 1 == sum(value for name, value in metrics.items() if name.startswith("vllm:request_success_total"))


def test_says_its_cache(serve: Callable[..., str], ask: Ask) -> None:
    """The capacity of the cache is reported as in vLLM, because routers use it. A request that can never fit is refused."""
    url = serve(kv_blocks=8, block_size=32)
    told = [name for name, value in _metrics(url).items() if name.startswith("vllm:cache_config_info{") and value == 1]
    too_long = ask(url, "word " * 300)

    assert [("32", "8")] == [re.findall(r'block_size="(\d+)".*num_gpu_blocks="(\d+)"', name)[0] for name in told]
    assert 400 == too_long.status_code
    assert "This model's maximum context length is 256 tokens" in too_long.json()["error"]["message"]
