"""The built-in engine behind the real routers: its model, its name in answers, and what reaches it of a request."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.records import Json
from tests.real.booted_stack import ROOT, Booted, booted

pytestmark = pytest.mark.timeout(300)

ROUTERS = ("vllm-router", "smg", "sglang-router")
BANK: list[Json] = [{"role": "system", "content": "You work for a bank. " * 60}, {"role": "user", "content": "What is my balance?"}]


def engines_behind(router: str, folder: Path, **settings: object) -> str:
    """Writes a backend of two engines with these settings behind a shipped router. Returns its path."""
    engine = json.dumps({"model": "{model}", **settings})[:-1] + ', "port": {port}}'
    stack = {
        "model": "bank-7b",
        "include": str(ROOT / "backends" / "routers" / f"{router}.yaml"),
        "settings": {"policy": "round_robin", "flags": ""},
        "services": {
            "engine": {
                "python": "agentbench",
                "run": ["python", "-m", "pytest_agentbench.engine", engine],
                "replicas": 2,
                "ready": {"http": "/health"},
            }
        },
        "endpoint": "router",
        "ready": {"timeout": 120, "tools": "required"},
    }
    file = folder / f"{router}.yaml"
    file.write_text(json.dumps(stack))
    return str(file)


def names(stack: Booted, **fields: object) -> set[str | None]:
    """Returns the engines' names in four whole answers and four streams."""
    found = set()
    for stream in (False, True):
        for _ in range(4):
            body = {"model": stack.model, "messages": BANK, "max_tokens": 4, "stream": stream, **fields}
            lines = httpx.post(f"{stack.url}/chat/completions", json=body, timeout=60).raise_for_status().text.splitlines()
            first = next(line for line in lines if line)
            found.add((json.loads(first.removeprefix("data: ")).get("nvext") or {}).get("worker_id"))
    return found


@pytest.mark.parametrize("router", ROUTERS)
def test_names_pass_routers(router: str, tmp_path: Path) -> None:
    """Both engines' own names reach the client, streamed or not, and the router serves the model by the name that the engines gave."""
    with booted(engines_behind(router, tmp_path, worker_id="engine-{replica}"), tmp_path) as stack:
        assert {"engine-0", "engine-1"} == names(stack)
        assert ["bank-7b"] == [model["id"] for model in json.loads(stack.get("/v1/models"))["data"]]


@pytest.mark.parametrize("router", ROUTERS)
def test_requests_for_a_name(router: str, tmp_path: Path) -> None:
    """A request's `nvext` reaches the engine through vllm-router and smg, and not through sglang-router."""
    with booted(engines_behind(router, tmp_path), tmp_path) as stack:
        found = names(stack, nvext={"extra_fields": ["worker_id"]})

    assert ([None] if router == "sglang-router" else [True, True]) == [name and name.startswith("127.0.0.1:") for name in found]


@pytest.mark.parametrize("router", ROUTERS)
def test_lengths_pass_routers(router: str, tmp_path: Path) -> None:
    """A demanded number of tokens reaches the engine, and a cache that is emptied through the router has no hits."""
    with booted(engines_behind(router, tmp_path), tmp_path) as stack:
        answers = [stack.chat("money " * 100, max_tokens=40, ignore_eos=True) for _ in range(4)]
        httpx.post(f"{stack.url.removesuffix('/v1')}/flush_cache", timeout=60).raise_for_status()
        emptied = stack.chat("money " * 100, min_tokens=3, max_tokens=40)

    assert {40} == {answer["usage"]["completion_tokens"] for answer in answers}
    assert [False, False, True, True] == [answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in answers]
    assert 0 == emptied["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_cache_aware_router_knows_prompts(tmp_path: Path) -> None:
    """vllm-router's cache_aware gets the tokens of prompts from the engines, so that a conversation stays where its beginning is cached.

    It does so although a call runs there and none on the other engine, to which a router that knows only the load would send it.
    """
    script = tmp_path / "answers.yaml"
    script.write_text(json.dumps([{"match": {"contains": "slow"}, "ttft_ms": 600_000}, {"text": "Hello"}]))
    file = engines_behind("vllm-router", tmp_path, policy="script", script=str(script))
    changes = [("settings.policy", "cache_aware"), ("settings.flags", "--balance-abs-threshold=1000"), ("ready.tools", "none")]
    with booted(file, tmp_path, changes) as stack:
        stack.chat("money " * 200)
        slow = {"model": stack.model, "messages": [{"role": "user", "content": "money " * 200 + "slow"}], "stream": True}
        with httpx.stream("POST", f"{stack.url}/chat/completions", json=slow, timeout=60):
            answers = [stack.chat("money " * 200 + which) for which in ("one", "two", "three")]

    assert [True] * 3 == [answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192 for answer in answers]
