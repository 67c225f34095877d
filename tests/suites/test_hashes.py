"""Hashes of the data that a rollout depends on: they change with that data, and with nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.suites.hashes import ContentHashes, differences, digest, suite_identity
from pytest_agentbench.suites.suite import DatasetInfo, PoolSuite, Scenario, Suite, Tool
from tests.sent import sent

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
LAMP = Scenario("s", ({"role": "user", "content": "A lamp?"},), (Tool("find", "finds", {"type": "object"}),), ({"tool": "find"},))
KEY = RolloutKey("shop", "s")


def shop(folder: Path, scenario: Scenario = LAMP, **keys: Any) -> Suite:
    return Suite("shop", folder, (scenario,), dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 1), **keys)


def no_prompts(suite: PoolSuite, variant: str) -> Json | None:
    """Returns no prompts, as for agents that send a model only the scenario."""
    return {}


def content(suite: PoolSuite, key: RolloutKey = KEY) -> Json:
    return ContentHashes({suite.name: suite}, "b", no_prompts).of(key)


@given(JSON)
def test_equal_values_have_equal_digests(value: Any) -> None:
    """A value that was written to a file or sent to another process has the same digest. The order of keys does not matter."""
    assert digest(value) == digest(json.loads(json.dumps(value)))
    assert digest({"ttft_ms": 0, "rates": [1]}) == digest({"ttft_ms": 0.0, "rates": (1.0,)}) != digest({"ttft_ms": 0.5, "rates": [1]})
    if isinstance(value, dict):
        assert digest(value) == digest(dict(reversed(value.items())))


@given(JSON, JSON)
def test_differences_are_found(old: Any, new: Any) -> None:
    """Two values have differences if, and only if, their digests differ. A missing key and null are equal."""
    assert [] == differences(old, old)
    if digest(old) == digest(new):
        assert [] == differences(old, new)


def test_differences_name_the_place() -> None:
    """Only differing values are listed, each with its path, its old and its new value."""
    old = {"agent": {"temperature": 0.0, "kind": "a", "tools": ("x",)}, "gone": 1}
    new = {"agent": {"temperature": 0.6, "kind": "a", "tools": ["x"]}, "new": "é"}

    assert ["agent.temperature 0.0 is now 0.6", "gone 1 is now unset", 'new unset is now "é"'] == differences(old, new)


@pytest.mark.parametrize(
    "change",
    [
        {"messages": ({"role": "user", "content": "A chair?"},)},
        {"tools": (Tool("find", "looks for", {"type": "object"}),)},
        {"expected": ()},
        {"turns": (({"role": "user", "content": "Thanks."},),)},
        {"metadata": {"ground_truth": "a lamp"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_of_a_scenario(tmp_path: Path, change: Json) -> None:
    """All fields that the agent sees or that scores use are in the hash of the scenario, and in no other hash."""
    before, after = content(shop(tmp_path)), content(shop(tmp_path, replace(LAMP, **change)))

    assert {"scenario"} == {part for part in before if before[part] != after[part]}


def test_the_hashes_of_settings(tmp_path: Path) -> None:
    """The agent's settings under a variant, scorers with options, and the judge each change their own hash. Limits change none."""
    plain = content(shop(tmp_path))

    def changed(key: RolloutKey = KEY, **keys: Any) -> set[str]:
        after = content(shop(tmp_path, **keys), key)
        return {part for part in plain if plain[part] != after[part]}

    assert {"agent"} == changed(agent={"kind": "tool_calling", "temperature": 1.0})
    assert {"agent"} == changed(KEY._replace(variant="warm"), variants={"warm": {"temperature": 1.0}})
    assert {"scorers"} == changed(scorers={"tsq": {"weight": 1}})
    assert {"scorers"} == changed(roles={"judge": {"url": "http://judge", "model": "m"}})
    assert {"agent"} == changed(roles={"search": {"url": "http://expert", "model": "m"}})
    assert {"scorers"} == changed(arguments={"find": {"item": "ignore"}})
    assert {"agent"} == changed(answers={"default": {"find": {"error_rate": 0.1}}})
    priced = {"currency": "USD", "input": 1, "output": 2}
    assert changed(roles={"search": {}}) == changed(roles={"search": {"prices": priced, "limits": {"calls": 3}}}) == {"agent"}
    assert set() == changed(thresholds={"tsq": 0.5}, limits={"calls": 3}, trials=3, timeout=5.0, xdist_workers=4, description="a shop")
    assert set() == changed(KEY._replace(trial=2))


def test_prompts(tmp_path: Path) -> None:
    """Prompts that are part of an agent have a hash of their own, because they may change while all settings stay equal."""
    before, after = (ContentHashes({"shop": shop(tmp_path)}, "b", lambda *_, text=text: {"system": text}).of(KEY) for text in ("1", "2"))

    assert {"prompts"} == {part for part in before if before[part] != after[part]}


def test_each_score_has_a_hash(tmp_path: Path) -> None:
    """A new scorer of a suite, or other options of a scorer, change no hash of another score. A different judge changes all of them."""

    def scores(**keys: Any) -> Json:
        found: Json = content(shop(tmp_path, **keys))["scorers"]
        return found

    one = scores(scorers={"tsq": {}})
    two = scores(scorers={"tsq": {}, "regex": {"pattern": "a"}})
    assert one["tsq"] == two["tsq"]
    assert two["regex"] != scores(scorers={"regex": {"pattern": "b"}})["regex"]
    assert one["tsq"] != scores(scorers={"tsq": {}}, roles={"judge": {"url": "http://judge", "model": "m"}})["tsq"]


def test_code_of_a_suite(tmp_path: Path) -> None:
    """If an agent or a scorer is a file of the suite, a change of the file changes its hash, wherever in the settings it is named."""
    suite = shop(tmp_path, agent={"kind": "self_evaluating", "wraps": {"kind": "./agent.py:Mine"}}, scorers={"./agent.py:nice": {}})
    found = []
    for code in ("a = 1", "a = 2"):
        (tmp_path / "agent.py").write_text(code)
        found.append((content(suite), suite_identity(suite, no_prompts)))

    (before, was), (after, now) = found
    assert {"agent", "scorers"} == {part for part in before if before[part] != after[part]}
    first, second = differences(was, now)
    assert first.startswith("agents.default.code of ./agent.py ")
    assert second.startswith("scorers.code of ./agent.py ")


def test_an_unknown_scenario(tmp_path: Path) -> None:
    """A scenario that does not exist has an empty hash. Calls that a test makes directly depend only on the backend."""
    assert "" == content(shop(tmp_path), RolloutKey("shop", "other"))["scenario"]
    assert {"scenario": "", "agent": "", "prompts": "", "scorers": {}, "backend": "b"} == content(
        shop(tmp_path), RolloutKey("", "test_x.py::test_x")
    )


def test_another_process_has_the_same_hashes(tmp_path: Path) -> None:
    """The pool receives its suites as JSON, and calculates the same hashes as the controller."""
    suite = shop(tmp_path, agent={"kind": "tool_calling", "temperature": 0.5})

    assert content(suite) == content(sent(suite.for_pool()))
