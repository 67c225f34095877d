"""The identity of a run: each part changes only with its own inputs, and unknown values are null."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.runs.identity import PARTS, run_identity, suite_setup, tools_hash
from pytest_agentbench.runs.provenance import Git, Hardware, ModelIdentity, RunIdentity
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite, Tool
from tests.made_runs import session_facts

LAMP = Scenario("shop-0", ({"role": "user", "content": "A lamp?"},), (Tool("find", "finds", {"type": "object"}),))


def shop(folder: Path, scenario: Scenario = LAMP, **keys: Any) -> Suite:
    return Suite("shop", folder, (scenario,), dataset=DatasetInfo("shop", "agent-leaderboard", "data.json", "abc", "hand", 1), **keys)


def identity(suite: Suite, trials: int = 1, **changes: Any) -> RunIdentity:
    """Returns the identity of a run of a suite on a backend. `changes` apply to the run, the backend or its facts."""
    base = session_facts()
    run = replace(
        base,
        environment=replace(base.environment, git=changes.get("git"), more=changes.get("more", {})),
        settings=replace(base.settings, concurrency=changes.get("concurrency", 8)),
        backend=replace(base.backend, served_model=changes.get("served_model", "m")),
    )
    return run_identity(
        run, {"shop": suite_setup(suite, "default", trials)}, changes.get("backend", {"kind": "url"}), changes.get("facts", {})
    )


def differing(one: RunIdentity, other: RunIdentity) -> set[str]:
    return {part for part in PARTS if one.hashes[part] != other.hashes[part]}


@pytest.mark.parametrize(
    ("part", "suite", "run"),
    [
        ("tools", {"scenario": replace(LAMP, tools=(Tool("find", "looks for", {"type": "object"}),))}, {}),
        ("agent", {"agent": {"kind": "tool_calling", "temperature": 1.0}}, {}),
        ("scoring", {"scorers": {"exact_match": {}}}, {}),
        ("options", {"timeout": 5.0}, {}),
        ("options", {}, {"trials": 3}),
        ("options", {}, {"concurrency": 4}),
        ("code", {}, {"git": Git("a", dirty=False, diff=None)}),
        ("backend", {}, {"backend": {"kind": "embedded"}}),
        ("backend", {}, {"facts": {"services": {"engine": {"packages": {"vllm": "1"}}}}}),
        ("backend", {}, {"facts": {"server": {"version": "1", "owned_by": "vllm"}}}),
        ("model", {}, {"served_model": "n"}),
        ("model", {}, {"facts": {"model": {"revision": "abc", "files": None}}}),
        ("hardware", {}, {"facts": {"hardware": {"gpus": ["NVIDIA H200"], "driver": "570"}}}),
        ("more", {}, {"more": {"rack": 7}}),
    ],
)
def test_a_change_is_in_its_part(tmp_path: Path, part: str, suite: Json, run: Json) -> None:
    """A single change changes the hash of one part."""
    assert {part} == differing(identity(shop(tmp_path)), identity(shop(tmp_path, **suite), **run))


def test_equal_setups_have_equal_identities(tmp_path: Path) -> None:
    """Equal setups have equal identities."""
    assert identity(shop(tmp_path)) == identity(shop(tmp_path))


def test_prompts(tmp_path: Path) -> None:
    """Each prompt of a built-in agent, and of an agent within it, has a hash. The prompts of a suite's own code are unknown."""
    plain = suite_setup(shop(tmp_path), "default", 1).prompts
    wrapped = suite_setup(shop(tmp_path, agent={"kind": "self_evaluating", "wraps": "react"}), "default", 1).prompts
    other = suite_setup(shop(tmp_path, agent={"kind": "tool_calling", "system_prompt": "Help."}), "default", 1).prompts

    assert plain is not None and wrapped is not None and other is not None
    assert ["system_prompt"] == [*plain]
    assert {
        "wraps.system_prompt",
        "wraps.additional_instructions",
        "evaluation_prompt_template",
        "feedback_template",
    } == {*wrapped}
    assert plain["system_prompt"] != other["system_prompt"]
    assert suite_setup(shop(tmp_path, agent={"kind": "./agent.py:Mine"}), "default", 1).prompts is None


def test_tools_of_several_scenarios(tmp_path: Path) -> None:
    """The hash of tools does not depend on the order of scenarios, and accepts integers beyond 64 bits."""
    one, two = LAMP, replace(LAMP, id="shop-1", tools=(Tool("big", "", {"maximum": 1 << 70}),))

    forth, back = (replace(shop(tmp_path), scenarios=each) for each in ((one, two), (two, one)))

    assert tools_hash(forth) == tools_hash(back) != tools_hash(shop(tmp_path))


def test_unknown_values_are_null(tmp_path: Path) -> None:
    """If a backend reports nothing, the values are null."""
    found = identity(shop(tmp_path))

    assert (None, None, None) == (found.backend.services, found.backend.files, found.backend.server)
    assert ModelIdentity("m", None, None) == found.model
    assert Hardware(None, None) == found.hardware
    assert found.code is None
