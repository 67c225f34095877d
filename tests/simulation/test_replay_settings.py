"""Simulated settings, and the setting that a run records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.spec import SessionTerms, load_backend
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.runs.run_file import BackendUse
from pytest_agentbench.simulation.replay import Facts, Setting, facts_of, grid

ROOT = Path(__file__).parents[2]
OWN: Facts = {"workers": 2, "kv-blocks": 400, "block-size": 64, "router": "kv"}


def used(name: str, *changes: tuple[str, Any]) -> BackendUse:
    """Returns a backend of this repository, as in run.json."""
    backend = load_backend(name, ROOT, changes).make(SessionTerms())
    return BackendUse(name, "", backend.description["kind"], "m", "", more=backend.description)


def test_the_setting_of_the_built_in_engine() -> None:
    """The built-in engine is one worker, with the blocks of its YAML."""
    assert {"workers": 1, "kv-blocks": 700, "block-size": 16} == facts_of(used("embedded", ("kv_blocks", 700)))


def test_the_setting_of_a_dynamo_stack() -> None:
    """A Dynamo stack has the workers that it waits for, and the blocks and router of its options, with settings filled in."""
    mocker = used("dynamo-mocker", ("settings.blocks", 900), ("settings.policy", "round-robin"))

    assert {"workers": 4, "kv-blocks": 900, "block-size": 16, "router": "round_robin"} == facts_of(mocker)
    assert {"workers": 2, "block-size": 16, "router": "kv"} == facts_of(used("dynamo-container"))


@pytest.mark.parametrize("name", ["dynamo-disagg", "url", "vllm"])
def test_other_stacks_have_no_setting(name: str) -> None:
    """The setting of a URL, of disaggregated workers, and of a stack without Dynamo is unknown."""
    assert {} == facts_of(used(name))


def test_router_that_the_simulator_lacks_is_unknown() -> None:
    """An unsupported router does not count as a known one. A KV router is one with and without session affinity."""
    assert "router" not in facts_of(used("dynamo-mocker", ("settings.policy", "least-loaded")))
    assert "kv" == facts_of(used("dynamo-mocker", ("settings.policy", "kv-hard")))["router"]
    assert "router" not in facts_of(used("dynamo-mocker", ("settings.policy", "thunderagent")))


def test_every_combination_once() -> None:
    """One worker has no router. Values that were not given are as in the run."""
    texts = [setting.text for setting in grid((1, 2), (), ("kv", "round_robin"), OWN)]

    assert ["1 worker, 400 blocks", "2 workers, 400 blocks, kv", "2 workers, 400 blocks, round_robin"] == texts
    assert [Setting(2, 400, 64, "kv")] == grid((), (), (), OWN)
    assert 1_600 == Setting.of({"workers": 1, "kv-blocks": 100}).cache_tokens  # type: ignore[union-attr]


def test_missing_values_are_requested() -> None:
    """Workers, blocks and routers have no defaults. The error has the options for them."""
    with pytest.raises(
        ConfigError, match="does not record its kv-blocks and router: give values to simulate with --kv-blocks and --router"
    ):
        grid((1, 2), (), (), {"workers": 1})
    with pytest.raises(ConfigError, match="these are 65 settings, and each needs a replay; choose at most 64 at a time"):
        grid(range(1, 66), (), (), OWN)
