"""Phrases of reports that compare: the values in them, and their order."""

from __future__ import annotations

import pytest

from pytest_agentbench.gate.run_pair import setup_changes
from pytest_agentbench.records import Json
from pytest_agentbench.reports import comparison_phrases
from tests.gate.test_run_pair import run


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"prompt": "q"}, ["shop.system_prompt", "hash p", "q"]),
        ({"backend": {"run": ["vllm", "--len", "8", "-v"]}}, ["spec.run: 4 -> 8"]),
        ({"gpus": ["NVIDIA H200"]}, ["gpus", "nothing", "NVIDIA H200"]),
        ({"agent": {"kind": "tool_calling", "note": "long " * 50}}, ["shop.note", "unset", f"{('long ' * 50)[:57]}..."]),
    ],
)
def test_changes(change: Json, values: list[str]) -> None:
    """Prompts differ by hash and lists by their differing words. Every text fits in a line, and a value that one run lacks is described."""
    old = run(backend={"run": ["vllm", "--len", "4", "-v"]} if "backend" in change else {})

    [said] = [comparison_phrases.change(each) for each in setup_changes(old, run(**change))]

    places = [said.index(value) for value in values]
    assert sorted(places) == places
    assert said.endswith(values[-1] if "prompt" not in change else ")")
