"""Runs agents in the test's own process with a real engine that answers from a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pytest_agentbench.engine.config import EngineConfig
from pytest_agentbench.engine.server import Engine
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.toolbox import Toolbox
from tests.web import listening

FIND = Tool("find_item", "Finds an\nitem.", {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]})
ORDER = Tool("order_item", "Orders an item.", {"type": "object"})
QUESTION: Json = {"role": "user", "content": "Is there a lamp?"}
SCENARIO = Scenario("s-0", (QUESTION,), (FIND, ORDER))


class Stage:
    """A model that follows a script, the tools, and the requests that the model got."""

    def __init__(self, llm: LLM, log: Path) -> None:
        self.llm, self.tools = llm, Toolbox(SCENARIO.tools)
        self._log = log

    @property
    def requests(self) -> list[Json]:
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    @property
    def called(self) -> list[tuple[str, Json]]:
        return [(call.name, call.arguments) for call in self.tools.calls]


@asynccontextmanager
async def staged(folder: Path, answers: Sequence[Json], **sampling: Any) -> AsyncIterator[Stage]:
    """An engine that gives the answers of a list one after the other."""
    script, log = folder / "script.json", folder / "requests.jsonl"
    script.write_text(json.dumps(in_turn(answers)))
    engine = Engine(EngineConfig(policy="script", script=str(script), request_log=str(log)))
    async with listening(engine.application()) as url:
        yield Stage(LLM(f"{url}/v1", "embedded-lexical", sampling), log)


def in_turn(answers: Sequence[Json]) -> list[Json]:
    """Returns rules that give one answer after the other to any request. The last one is repeated."""
    first = [{"match": {"call": number}, **answer} for number, answer in enumerate(answers, start=1)]
    return [*first, {**answers[-1]}]
