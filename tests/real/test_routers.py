"""The real routers of vLLM, SGLang and smg before four built-in engines, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.records import Json
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
    assert {name: (6, 6) for name in sticky} == {name: (used[name]["traced"], used[name]["stayed"]) for name in sticky}
    assert 1 >= max(calls := [each["calls"] for each in used["round_robin"]["engines"]]) - min(calls)
