"""A judge for tests of scorers that ask one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json

Judge = Callable[..., LLM]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    """A judge on a real engine that says the given texts in turn, the last one from then on."""
    children: list[Child] = []

    def start(*texts: str) -> LLM:
        rules: list[Json] = [{"match": {"call": number}, "text": text} for number, text in enumerate(texts[:-1], 1)]
        (tmp_path / "script.yaml").write_text(json.dumps([*rules, {"text": texts[-1]}]))
        config = {"policy": "script", "script": str(tmp_path / "script.yaml"), "model": "m", "request_log": str(tmp_path / "log")}
        children.append(Child("pytest_agentbench.engine", config, tmp_path / "engine.log"))
        return LLM(f"http://127.0.0.1:{children[-1].ready()['port']}/v1", "m")

    yield start
    for child in children:
        child.stop()
