"""The real routers of vLLM, SGLang and smg before four built-in engines, without a GPU."""

from __future__ import annotations

import json
import urllib.error
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from tests.real.booted_stack import ROOT, Booted, booted, run

pytestmark = pytest.mark.timeout(300)

#: A text of several blocks of the cache, so that a router which knows caches recognises it.
PREFIX = "The sky is blue, and the sea is as well, but it is not known why they are so. " * 20

#: Backend -> policies that promise nothing about sessions, and policies that keep the calls of a session on one engine
POLICIES = {
    "vllm-router": (["round_robin", "random", "power_of_two"], ["cache_aware", "consistent_hash", "sticky_least_loaded"]),
    "smg": (
        ["round_robin", "random", "power_of_two", "least_load"],
        ["cache_aware", "consistent_hashing", "manual", "prefix_hash"],
    ),
    "sglang-router": (["round_robin", "random", "power_of_two"], ["cache_aware", "manual"]),
}

HEADER = {"vllm-router": "x-session-id", "smg": "x-smg-routing-key", "sglang-router": "x-smg-routing-key"}


def needs(environment: str) -> Any:
    """Skips a test, with the reason, if an environment was not created."""
    reason = f"NOT TESTED with {environment}: agentbench env create {environment}"
    return pytest.param(environment, marks=pytest.mark.skipif(not is_whole(home_of(environment)), reason=reason))


each_router = pytest.mark.parametrize("router", [needs(each) for each in POLICIES])


@each_router
def test_all_policies_lose_and_repeat_nothing(router: str, tmp_path: Path) -> None:
    """With each policy the scores are the same, and the engines answered as many calls as the tap sent.

    The policies for sessions keep each session on one engine.
    """
    others, sticky = POLICIES[router]
    said = run(router, tmp_path, "--agentbench-limit=6", f"--agentbench-ab=set:backend.settings.policy={'|'.join([*others, *sticky])}")
    scores = {name: suite["scores"]["tsq"]["mean"]["value"] for name, suite in said["suites"].items()}
    used = {each["arm"]: each for each in said["engines"]}

    assert [*others, *sticky] == [*used]
    assert 1 == len({*scores.values()})
    assert len(used) == len(scores)
    assert [] == [name for name, each in used.items() if each["tap_calls"] != sum(engine["calls"] for engine in each["engines"])]
    assert 1 == len({each["tap_calls"] for each in used.values()})
    assert dict.fromkeys(sticky, (6, 6)) == {name: (used[name]["traced"], used[name]["stayed"]) for name in sticky}
    assert 1 >= max(calls := [each["calls"] for each in used["round_robin"]["engines"]]) - min(calls)


def worker(stack: Booted, text: str, **headers: str) -> str:
    """Returns the engine that answered a chat."""
    named: str = stack.chat(text, {name.replace("_", "-"): value for name, value in headers.items()})["nvext"]["worker_id"]
    return named


@each_router
def test_only_this_machine_can_reach_it(router: str, tmp_path: Path) -> None:
    """The router and its engines listen on this machine alone, and the router names the model as the engines do."""
    with booted(router, tmp_path) as stack:
        models = [each["id"] for each in json.loads(stack.get("/v1/models"))["data"]]

        assert [] == stack.exposed()
        assert {"embedded"} == {*models}


@each_router
def test_cache_aware(router: str, tmp_path: Path) -> None:
    """Chats without a session id go to the engine that has their beginning in its cache. With round-robin they go to all engines.

    vLLM's router asks engines for the tokens of each chat (`/v1/chat/completions/render`), and would route by load alone without them.
    """
    with booted(router, tmp_path) as stack:
        aware = {worker(stack, f"{PREFIX}{index}") for index in range(8)}
    with booted(router, tmp_path, [("settings.policy", "round_robin")]) as stack:
        in_turn = Counter(worker(stack, f"{PREFIX}{index}") for index in range(8))

    assert 1 == len(aware)
    assert [2] * 4 == [*in_turn.values()]


@contextmanager
def failing(router: str, folder: Path) -> Iterator[Booted]:
    """Boots the router before engines that answer chats about a flood with 503, and write a log of all chats."""
    script = folder / "flood.json"
    script.write_text(json.dumps([{"match": {"contains": "flood"}, "status": 503}, {"text": "Fine."}]))
    spec = load_backend(router, ROOT)
    assert isinstance(spec, StackSpec)
    *command, config = spec.services["engine"].run
    assert '"policy": "lexical"' in config
    own = f'"policy": "script", "script": "{script}", "request_log": "{folder}/requests-{{replica}}.jsonl"'
    run = [*command, config.replace('"policy": "lexical"', own)]
    with booted(router, folder, [("services.engine.run", run), ("ready.tools", "none")]) as stack:
        yield stack


@each_router
def test_failed_calls_are_not_repeated(router: str, tmp_path: Path) -> None:
    """A call that an engine refuses reaches one engine once, and the client gets its status. Later calls still reach all engines."""
    with failing(router, tmp_path) as stack:
        refused = []
        for index in range(8):
            with pytest.raises(urllib.error.HTTPError) as caught:
                stack.chat(f"flood {index}")
            refused.append(caught.value.code)
            caught.value.close()
        answered = stack.chat("Hello")["choices"][0]["message"]["content"]
        asked = [line for file in tmp_path.glob("requests-*.jsonl") for line in file.read_text().splitlines() if "flood" in line]

    assert [503] * 8 == refused
    assert 8 == len(asked)
    assert "Fine." == answered


@pytest.mark.skipif(not is_whole(home_of("vllm-router")), reason="NOT TESTED with vllm-router: agentbench env create vllm-router")
def test_program_scheduling(tmp_path: Path) -> None:
    """Each session is a program on one engine, and the router knows the capacity and the use of the engines from their metrics."""
    told: dict[str, set[str]] = {}
    with booted("vllm-router-program", tmp_path) as stack:
        for session in [*map(str, range(6))] * 3:
            told.setdefault(session, set()).add(worker(stack, f"Hello from {session}", x_session_id=session))
        ranks = json.loads(stack.get("/scheduling/diagnostics"))["ranks"]

    assert [1] * 6 == [len(engines) for engines in told.values()]
    assert {*told} <= {program["session_id"] for rank in ranks for program in rank["programs"]}
    assert [65536] * 4 == [rank["configured_token_capacity"] for rank in ranks]
    assert ["backend_observation"] * 4 == [rank["capacity_accounting_source"] for rank in ranks]


@pytest.mark.skipif(not is_whole(home_of("vllm-router")), reason="NOT TESTED with vllm-router: agentbench env create vllm-router")
def test_without_a_session_id(tmp_path: Path) -> None:
    """Without a session id, vLLM's router sends all chats to one engine with `consistent_hash`. The boot says so."""
    changes = [("settings.policy", "consistent_hash"), ("labels.headers", ["x-not-read"])]
    with booted("vllm-router", tmp_path, changes) as stack:
        sessions = stack.boot["sessions"]

    assert [18] == [*sessions["calls"].values()]
