"""A judge for tests of scorers that call one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json
from tests.engines import engine

Judge = Callable[..., LLM]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    """Returns a judge on a real engine that gives the texts one after the other, and then repeats the last one."""
    with ExitStack() as engines:

        def start(*texts: str) -> LLM:
            rules: list[Json] = [{"match": {"call": number}, "text": text} for number, text in enumerate(texts[:-1], 1)]
            url = engines.enter_context(engine(tmp_path, [*rules, {"text": texts[-1]}], model="m", request_log=str(tmp_path / "log")))
            return LLM(f"{url}/v1", "m")

        yield start
