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
from pytest_agentbench.errors import BackendError
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
    assert "4 aggregated" in [rung["detail"] for rung in stack.boot["proof"]]


def test_round_robin(tmp_path: Path) -> None:
    """With round-robin, all workers get the same number of requests."""
    with booted("dynamo-mocker", tmp_path, [("settings.policy", "round-robin")]) as stack:
        decoded = Counter(worker["decode_worker_id"] for worker in workers(stack, 16))

    assert [4] * 4 == list(decoded.values())


def sessions(stack: Booted) -> list[set[int]]:
    """Makes three calls in each of six sessions in turns. Returns the workers that each session used."""
    used: dict[str, set[int]] = {}
    for number in range(18):
        session = str(number % 6)
        answer = stack.chat(f"{session} says {PREFIX}", {"x-dynamo-session-id": session}, **WORKER)
        used.setdefault(session, set()).add(answer["nvext"]["worker_id"]["decode_worker_id"])
    return [*used.values()]


@pytest.mark.parametrize("policy", ["round-robin-hard", "kv-hard", "kv-soft", "two-tier", "thunderagent"])
def test_policies_that_keep_sessions(tmp_path: Path, policy: str) -> None:
    """With session affinity, all calls of a session go to one worker, under each policy with it. Only this machine can reach the ports."""
    with booted("dynamo-mocker", tmp_path, [*FAST, ("settings.policy", policy)]) as stack:
        used, exposed = sessions(stack), stack.exposed()

    assert [1] * 6 == [len(workers) for workers in used]
    assert [] == exposed


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
def test_policies_without_sessions(tmp_path: Path, policy: str) -> None:
    """Without session affinity, calls of one session go to several workers if the policy ignores caches."""
    with booted("dynamo-mocker", tmp_path, [*FAST, ("settings.policy", policy)]) as stack:
        used = sessions(stack)

    assert 1 < max(map(len, used))
    assert 4 == len(set.union(*used))


def test_thunderagent_is_a_policy(tmp_path: Path) -> None:
    """The frontend starts its own ThunderAgent policy, with the parameters of the shipped file."""
    with booted("dynamo-mocker", tmp_path, [*FAST, ("settings.policy", "thunderagent"), ("env.DYN_LOG", "info")]) as stack:
        log = stack.log("frontend")

    assert "ThunderAgent admission enabled scheduler_interval_seconds=0.5" in log


def test_unknown_policy(tmp_path: Path) -> None:
    """The name of an unknown policy ends the boot with the known names."""
    with (
        pytest.raises(BackendError, match="unknown policy 'kvv'; known: round-robin, "),
        booted("dynamo-mocker", tmp_path, [("settings.policy", "kvv")]),
    ):
        pass


ARMS = ("round-robin", "kv-soft", "two-tier", "thunderagent")


def test_policies_as_arms(tmp_path: Path) -> None:
    """On synthetic sessions, the workers of each arm count as many calls as the tap. Sessions stay where the policy says so."""
    options = ("dataset.options.sessions=6", "dataset.options.calls=[3,4]", "dataset.options.think_s=0.01", "backend.settings.speedup=100")
    arms = f"--agentbench-ab=set:backend.settings.policy={'|'.join(ARMS)}"
    said = run("dynamo-mocker", tmp_path, arms, *(f"--agentbench-set={option}" for option in options), suite="sessions")
    uses = {use["arm"]: use for use in said["engines"]}

    assert [arm.replace("-", "_") for arm in ARMS] == [*uses]
    assert [4] * 4 == [len(use["engines"]) for use in uses.values()]
    assert [use["tap_calls"] for use in uses.values()] == [sum(engine["calls"] for engine in use["engines"]) for use in uses.values()]
    assert {0} == {use["uncertain_calls"] for use in uses.values()}
    assert [6] * 3 == [uses[arm]["stayed"] for arm in ("kv_soft", "two_tier", "thunderagent")]
    assert 6 > uses["round_robin"]["stayed"]


def test_calls_with_tools(tmp_path: Path) -> None:
    """Answers to requests with tools name the worker and its times. Dynamo's trace shows which rollouts arrived."""
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
