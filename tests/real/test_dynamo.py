"""The real NVIDIA Dynamo without a GPU: its mocker in every form that is in backends/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import environments_folder, resolve_python
from pytest_agentbench.records import Json
from tests.real.booted_stack import ROOT, Booted, booted, run

#: A text that is long enough to fill most of each prompt, so that the router recognises it.
PREFIX = "The sky is blue, and the sea is as well, but nobody knows why they are so. " * 20

WORKER: Json = {"nvext": {"extra_fields": ["worker_id", "timing"]}}

FAST = [("settings.speedup", 100)]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo writes nothing to the folder of temporary files or to the user's home."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(environments_folder()))
    here = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))  # a short path, because paths of sockets are limited
    for variable, name in (("HOME", "h"), ("TMPDIR", "t")):
        (here / name).mkdir()
        monkeypatch.setenv(variable, str(here / name))
    yield
    left = [str(path) for path in here.rglob("*") if path.is_file()]
    shutil.rmtree(here)

    assert [] == left


def workers(stack: Booted, count: int) -> list[Json]:
    """Returns the worker ids of answers to requests with the same beginning."""
    return [stack.chat(f"{PREFIX}{index}", **WORKER)["nvext"]["worker_id"] for index in range(count)]


def test_kv_router(tmp_path: Path) -> None:
    """Requests with the same beginning go to the worker that has this beginning in its cache."""
    with booted("dynamo-mocker", tmp_path) as stack:
        decoded = Counter(worker["decode_worker_id"] for worker in workers(stack, 16))
        hits = stack.metric("dynamo_component_router_kv_hit_rate_sum") / stack.metric("dynamo_component_router_kv_hit_rate_count")

    assert [16] == list(decoded.values())
    assert 0.5 < hits
    assert "2 aggregated" in [rung["detail"] for rung in stack.boot["proof"]]


def test_round_robin(tmp_path: Path) -> None:
    """With round-robin, both workers get the same number of requests."""
    with booted("dynamo-mocker", tmp_path, [("settings.router_mode", "round-robin")]) as stack:
        decoded = Counter(worker["decode_worker_id"] for worker in workers(stack, 16))

    assert [8, 8] == list(decoded.values())


def test_sessions_stay_with_their_worker(tmp_path: Path) -> None:
    """Both workers get sessions, and all calls of a session go to one worker. Only this machine can reach the HTTP ports."""
    told: dict[str, set[int]] = {}
    with booted("dynamo-mocker", tmp_path, [*FAST, ("settings.router_mode", "round-robin")]) as stack:
        for session in [*map(str, range(8))] * 3:
            answer = stack.chat(f"Hello from {session}", {"x-dynamo-session-id": session}, **WORKER)
            told.setdefault(session, set()).add(answer["nvext"]["worker_id"]["decode_worker_id"])
        exposed = stack.exposed()

    assert [1] * 8 == [len(workers) for workers in told.values()]
    assert 2 == len(set.union(*told.values()))
    assert [] == exposed


def test_calls_with_tools(tmp_path: Path) -> None:
    """Answers to requests with tools name no worker and no times, so both are read from Dynamo's trace.

    The trace also shows which rollouts arrived.
    """
    said = run("dynamo-embedded", tmp_path, "--agentbench-limit", "5", "--agentbench-set", "backend.settings.ttft_ms=0")
    rollouts = map(json.loads, (tmp_path / "latest" / "rollouts.jsonl").read_text().splitlines())
    told = {rollout["scenario"]: [call["server"] for call in rollout["calls"]] for rollout in rollouts}

    assert {"labelled": 5, "announced": 5, "released": 0, "failed": 0, "bypassed": 0, "left": 0} == said["labels"]
    assert 5 == len(told)
    assert {"worker_id", "timing"} == set.intersection(*(set(server or {}) for calls in told.values() for server in calls))
    assert {float} == {type(server["timing"]["ttft_ms"]) for calls in told.values() for server in calls}
    assert [1] * 5 == [len({server["worker_id"]["decode_worker_id"] for server in calls}) for calls in told.values()]


def test_disaggregated(tmp_path: Path) -> None:
    """One worker prefills each prompt, and another one decodes the answer."""
    with booted("dynamo-mocker-disagg", tmp_path, FAST) as stack:
        exposed = stack.exposed()
        pairs = {(worker["prefill_worker_id"], worker["decode_worker_id"]) for worker in workers(stack, 8)}

    assert 1 == len(pairs)
    assert 2 == len(set(*pairs))
    assert [] == exposed


def test_etcd_and_nats(tmp_path: Path) -> None:
    """Workers find each other in etcd, and KV events reach the router through NATS."""
    if missing := [program for program in ("etcd", "nats-server") if not shutil.which(program)]:
        pytest.skip(f"NOT TESTED: {' and '.join(missing)} not found: apt-get install etcd-server nats-server")
    with booted("dynamo-mocker-etcd-nats", tmp_path, FAST) as stack:
        decoded = Counter(worker["decode_worker_id"] for worker in workers(stack, 16))
        hits = stack.metric("dynamo_component_router_kv_hit_rate_sum") / stack.metric("dynamo_component_router_kv_hit_rate_count")
        monitor = re.findall(r"nats-server .* -m (\d+) ", stack.log("stack_daemon"))[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/connz", timeout=30) as answer:
            connections = json.load(answer)["num_connections"]
        exposed = stack.exposed()

    assert [16] == list(decoded.values())
    assert 0.5 < hits
    assert 3 <= connections
    assert [] == exposed


def test_thunderagent(tmp_path: Path) -> None:
    """A session is a program of the router until its final request. The engine does not answer that request."""
    session = {"x-dynamo-session-id": "rollout-1"}
    with booted("dynamo-mocker-thunderagent", tmp_path, FAST) as stack:
        turns = [stack.chat("Hello", session, max_tokens=20)["usage"]["completion_tokens"] for _ in range(2)]
        final = stack.chat("-", {**session, "x-dynamo-session-final": "true"}, max_tokens=1)
        log, exposed = stack.log("router"), stack.exposed()

    assert [20, 20] == turns
    assert [] == exposed
    assert [] == final["choices"]
    assert "Released program rollout-1 (0 remaining)" in log


def test_rollouts_are_programs(tmp_path: Path) -> None:
    """In a session every rollout is a program of the ThunderAgent router, and no program is left at its end."""
    said = run("dynamo-mocker-thunderagent", tmp_path, "--agentbench-limit", "5", "--agentbench-set", "backend.settings.speedup=100")
    log = (tmp_path / "latest" / "backend" / "router.log").read_text()

    assert 5 == said["suites"]["banking"]["rollouts"]["limit"]  # the mocker writes until its limit
    released = re.findall(r"Released program \S+:banking\.(\S+?)\.1:\w+ \((\d+) remaining\)", log)
    assert [f"banking-00{index}" for index in range(5)] == sorted(scenario for scenario, _ in released)
    assert "0" == released[-1][1]


#: A conversation with all parts that the template handles, and the prompt that Llama should get.
TALK: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Rome and Oslo?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "find", "arguments": '{"city": "Rome"}'}},
            {"id": "call-2", "type": "function", "function": {"name": "find", "arguments": '{"city": "Oslo"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": "warm"},
    {"role": "tool", "tool_call_id": "call-2", "content": "cold"},
]
PROMPT = """<|end|><|start_header_id|>system<|end_header_id|>

Environment: ipython

Be brief.

You have these functions. {instructions}

{tool}

<|eot_id|><|start_header_id|>user<|end_header_id|>

Rome and Oslo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{{"name": "find", "parameters": {{"city": "Rome"}}}}; {{"name": "find", "parameters": {{"city": "Oslo"}}}}<|eot_id|>\
<|start_header_id|>ipython<|end_header_id|>

warm<|eot_id|><|start_header_id|>ipython<|end_header_id|>

cold<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""


def test_llama_template(tmp_path: Path) -> None:
    """With backends/llama3_json.jinja, Dynamo writes prompts in the form that Llama 3.3 was trained on, also for several calls per turn."""
    model = tmp_path / "model"
    make = f"from pathlib import Path; import tiny_tokenizer; tiny_tokenizer.make(Path({str(model)!r}))"
    subprocess.run([resolve_python("dynamo", ROOT), "-c", make], cwd=ROOT / "backends", check=True, timeout=60)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    template = (ROOT / "backends" / "llama3_json.jinja").read_text()
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|end|>", "chat_template": template}))
    run = ["python", "{here}/dynamo_mocker.py", str(model), "--model-name={model}", "--speedup-ratio=1000"]
    with booted("dynamo-mocker", tmp_path, [("services.worker.run", run)]) as stack:
        tool = {
            "type": "function",
            "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}},
        }
        prompt = stack.prompt(TALK, tools=[tool])

    instructions = re.findall(r"You have these functions\. (.*)", prompt)[0]
    assert PROMPT.format(instructions=instructions, tool=json.dumps(tool)) == prompt
    assert '{"name": function, "parameters": {argument: value}}' in instructions
