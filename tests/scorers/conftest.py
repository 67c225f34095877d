"""A judge for tests of scorers that ask one."""

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
    """A judge on a real engine that says the given texts in turn, the last one from then on."""
    with ExitStack() as engines:

        def start(*texts: str) -> LLM:
            rules: list[Json] = [{"match": {"call": number}, "text": text} for number, text in enumerate(texts[:-1], 1)]
            url = engines.enter_context(engine(tmp_path, [*rules, {"text": texts[-1]}], model="m", request_log=str(tmp_path / "log")))
            return LLM(f"{url}/v1", "m")

        yield start
