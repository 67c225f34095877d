"""Engines of Dynamo's mocker that look like vLLM servers (backends/mocker_engine.py), alone and behind real routers of others."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json
from tests.real.booted_stack import ANSWER, Booted, booted, run
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(240)

FAST = [("settings.speedup", 100)]
ALONE = [*FAST, ("endpoint", "engine"), ("services.engine.replicas", 1), ("labels", "none")]

#: Fields that vLLM and SGLang know or ignore, and that Dynamo's frontend refuses.
STRANGE: Json = {"include_reasoning": True, "rid": None, "vllm_xargs": {"a": 1}, "priority": 0, "session_id": "x"}

WORDS = "the sky is blue and the sea is as well but it is not known why " * 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """One engine of vllm-router-mocker."""
    with booted("vllm-router-mocker", tmp_path_factory.mktemp("engine"), ALONE) as stack:
        yield stack


def post(stack: Booted, path: str, body: Json) -> Any:
    request = urllib.request.Request(stack.url.removesuffix("/v1") + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=ANSWER)


def chat(text: str, **fields: Any) -> Json:
    return {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **fields}


def cached(answer: Json) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_facts(engine: Booted) -> None:
    """What routers ask about server and model, in the formats of vLLM and SGLang."""
    versions = {engine.boot["services"]["engine"]["packages"]["ai-dynamo"], json.loads(engine.get("/version"))["version"]}
    model = json.loads(engine.get("/v1/models"))["data"][0]
    info = json.loads(engine.get("/get_server_info"))

    assert 1 == len(versions)
    assert ("tiny", "vllm", 131_072) == (model["id"], model["owned_by"], model["max_model_len"])
    assert ("tiny", 16384 * 16) == (info["served_model_name"], info["max_total_num_tokens"])
    assert 0 == json.loads(engine.get("/loads"))["loads"][0]["num_total_reqs"]


TOOL: Json = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}
TURNS_OF_A_CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": f"{WORDS}it's <b> & é"},
    {"role": "assistant", "content": "It is \n so."},
    {"role": "user", "content": "Why? "},
]


@pytest.mark.parametrize("tools", [[], [TOOL], [TOOL, {"type": "function", "function": {**TOOL["function"], "description": "Finds {x}."}}]])
def test_tokens_of_a_prompt(engine: Booted, tools: list[Json]) -> None:
    """The tokens of a prompt are those that the frontend counts. Each call of a conversation has the tokens of the one before."""
    chats = [chat("", messages=TURNS_OF_A_CHAT[:turns], tools=tools or None) for turns in (1, 2, 4)]
    rendered = [json.load(post(engine, "/v1/chat/completions/render", each))["token_ids"] for each in chats]
    tokenised = [json.load(post(engine, "/tokenize", each))["count"] for each in chats]
    counted = [json.load(post(engine, "/v1/chat/completions", each))["usage"]["prompt_tokens"] for each in chats]

    assert counted == [*map(len, rendered)] == tokenised
    assert rendered[0][:-2] == rendered[1][: len(rendered[0]) - 2]
    assert rendered[1][:-2] == rendered[2][: len(rendered[1]) - 2]


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_are_ignored(engine: Booted, stream: bool) -> None:
    """Requests with fields that Dynamo's frontend refuses are answered, and the answer names the engine. Other faults are refused."""
    with post(engine, "/v1/chat/completions", chat("Hello", stream=stream, **STRANGE)) as answer:
        text = answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(engine, "/v1/chat/completions", chat("Hello", max_tokens="many"))

    whole = [json.loads(event) for event in re.findall(r"^data: (\{.*)$", text, re.MULTILINE)] if stream else [json.loads(text)]
    assert (1 if not stream else 9) == len(whole)  # a stream has an event for each token, and one for the end
    assert {"engine-0"} == {each["nvext"]["worker_id"] for each in whole}


def test_a_stream_is_not_held_back(engine: Booted) -> None:
    """The first event arrives while the mocker is at work on the answer."""
    with post(engine, "/v1/chat/completions", chat("Hello", stream=True, max_tokens=100_000)) as answer:
        first = answer.readline()
        at_work = [load(engine)]

    assert b'"content":' in first
    assert [1] == at_work


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave(engine: Booted, stream: bool) -> None:
    """The mocker stops if the client leaves, even before the first byte of the answer."""
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://").removesuffix("/v1"), timeout=ANSWER)
    body = json.dumps(chat("Hello", stream=stream, max_tokens=250_000))  # more than a minute of work
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    wait_for(lambda: load(engine), "the mocker to begin")
    connection.close()

    wait_for(lambda: not load(engine), "the mocker to stop")


def load(engine: Booted) -> int:
    running: int = json.loads(engine.get("/loads"))["loads"][0]["num_total_reqs"]
    return running


COUNTERS = ("request_success", "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")


def test_metrics_and_reset(engine: Booted) -> None:
    """Metrics have vLLM's names and the numbers of the answers. After a reset, prompts find nothing in the cache."""
    before = counters(engine)
    answers = [engine.chat(WORDS) for _ in range(2)]
    post(engine, "/reset_prefix_cache", {}).close()
    answers.append(engine.chat(WORDS))
    after = counters(engine)

    prompts = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert [0, prompts[0] // 16 * 16, 0] == [cached(answer) for answer in answers]
    assert [3, sum(prompts), cached(answers[1]), sum(prompts), 24] == [after[name] - before[name] for name in COUNTERS]
    assert 'vllm:cache_config_info{block_size="16",num_gpu_blocks="16384"' in engine.get("/metrics")


def counters(engine: Booted) -> dict[str, float]:
    return {name: engine.metric(f"vllm:{name}_total") for name in COUNTERS}


def answered_by_each(stack: Booted) -> list[int]:
    """Returns the number of calls that each engine of a stack has answered."""
    ports = re.findall(r"mocker_engine.py .* --port=(\d+) ", stack.log("stack_daemon"))
    pages = [urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER).read().decode() for port in ports]
    return [sum(map(int, re.findall(r"^vllm:request_success_total\{.*\} (\d+)$", page, re.MULTILINE))) for page in pages]


SESSIONS, TURNS = 8, 3


def conversations(stack: Booted) -> dict[int, list[str]]:
    """Session -> the engines that answered its calls, each of which has the whole history.

    The first calls are sent together, so that policies that look at the load distribute them. Later calls are sent one after the other.
    """
    histories = {session: f"Session {session}. " * 200 for session in range(SESSIONS)}

    def call(session: int, tokens: int) -> str:
        headers = dict.fromkeys(("x-session-id", "x-smg-routing-key"), f"session {session}")
        engine: str = stack.chat(histories[session], headers, max_tokens=tokens)["nvext"]["worker_id"]
        return engine

    with ThreadPoolExecutor(SESSIONS) as threads:
        engines = {session: [engine] for session, engine in enumerate(threads.map(lambda session: call(session, 2000), range(SESSIONS)))}
    for _ in range(TURNS - 1):
        for session, answered in engines.items():
            histories[session] += f"More of session {session}. "
            answered.append(call(session, 8))
    return engines


#: Router, policy or preset
STICKY = [
    ("vllm-router", "consistent_hash"),
    ("vllm-router", "sticky_least_loaded"),
    ("smg", "consistent_hashing"),
    ("smg", "manual"),
    ("sglang-router", "manual"),
    ("thompson", "sticky"),
]


@pytest.mark.parametrize(("router", "policy"), STICKY)
def test_sessions_stay(router: str, policy: str, tmp_path: Path) -> None:
    """All calls of a session go to one engine. No call is lost or repeated, and only this machine can reach the stack."""
    setting = "settings.preset" if router == "thompson" else "settings.policy"
    with booted(f"{router}-mocker", tmp_path, [*FAST, (setting, policy)]) as stack:
        before = answered_by_each(stack)
        engines = conversations(stack)
        calls = [after - earlier for after, earlier in zip(answered_by_each(stack), before, strict=True)]
        exposed = stack.exposed()

    counted = Counter(name for names in engines.values() for name in names)
    assert {1} == {len(set(names)) for names in engines.values()}
    assert [counted[f"engine-{replica}"] for replica in range(4)] == calls
    assert 2 <= len(counted)
    assert [] == exposed


def test_cache_aware(tmp_path: Path) -> None:
    """vllm-router's cache_aware keeps most sessions on an engine without their ids, because engines tell it the tokens of prompts.

    Without these tokens it would look at the load alone. Then all but the first calls, which come one after the other, go to one engine.
    """
    with booted("vllm-router-mocker", tmp_path, [*FAST, ("settings.policy", "cache_aware")]) as stack:
        engines = conversations(stack)

    assert SESSIONS / 2 < [len(set(names)) for names in engines.values()].count(1)


@pytest.mark.parametrize("router", ["vllm-router", "smg", "sglang-router"])
def test_round_robin(router: str, tmp_path: Path) -> None:
    """Each engine gets the same number of calls."""
    with booted(f"{router}-mocker", tmp_path, [*FAST, ("settings.policy", "round_robin")]) as stack:
        before = answered_by_each(stack)
        conversations(stack)
        calls = [after - earlier for after, earlier in zip(answered_by_each(stack), before, strict=True)]

    assert [SESSIONS * TURNS // 4] * 4 == calls


def test_program_scheduling(tmp_path: Path) -> None:
    """vllm-router gets all seven numbers of the engines' profile, reads the load of the engines, and keeps each program on one of them."""
    with booted("vllm-router-program-mocker", tmp_path, FAST) as stack:
        engines = conversations(stack)
        diagnostics = json.loads(stack.get("/scheduling/diagnostics"))
        log = stack.log("router")

    sources = {rank["capacity_accounting_source"] for rank in diagnostics["ranks"] if rank["programs"]}
    assert {1} == {len(set(names)) for names in engines.values()}
    assert {"backend_observation"} == sources
    assert {262_144} == {rank["configured_token_capacity"] for rank in diagnostics["ranks"]}
    assert "program_scheduling_reference_calibration" not in log  # a warning about numbers that are not set


def test_arms(tmp_path: Path) -> None:
    """Policies of one router are arms of a session, whose blocks begin with empty caches. Answers name the engines that counted them."""
    arms = ["--agentbench-ab=set:backend.settings.policy=round_robin|sticky_least_loaded", "--agentbench-cache=cold"]
    said = run("vllm-router-mocker", tmp_path, "--agentbench-limit", "4", "--agentbench-set", "backend.settings.speedup=100", *arms)

    counted = [{f"engine-{each['replica']}": each["calls"] for each in arm["engines"] if each["calls"]} for arm in said["engines"]]
    assert [4, 4] == [sum(arm.values()) for arm in counted] == [arm["tap_calls"] for arm in said["engines"]]
    assert [arm["named"] for arm in said["engines"]] == counted
    assert [4] * 4 == [len(block["reset"]) for block in said["cache"]["blocks"]]
