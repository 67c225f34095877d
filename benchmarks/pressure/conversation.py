"""Code of the benchmark's suite: data set, agent and scorer. A task has several steps, each an LLM call and then a tool.

Texts and times depend only on the task, so they are the same in each arm.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from pytest_agentbench import LLM, Rollout, Scenario, Score

WORDS = ("account", "balance", "blue", "card", "city", "customer", "date", "family", "garden", "lamp", "letter", "market")
INSTRUCTIONS = 250  # words that all tasks begin with
DOCUMENT = 500  # words of a task, at the least and on average half as many again
TOOL_S = (0.1, 0.5)  # seconds that a tool takes
RESULT = (50, 250)  # words that it says


def text(words: int, seed: str) -> str:
    """Returns a number of random words, which are the same for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def load(file: Path) -> Iterator[Scenario]:
    """Yields a scenario for each id in a file. This is the format of the data set."""
    for id in json.loads(file.read_text(encoding="utf-8")):
        document = text(random.Random(id).randint(DOCUMENT, 2 * DOCUMENT), id)
        messages = ({"role": "system", "content": text(INSTRUCTIONS, "instructions")}, {"role": "user", "content": document})
        yield Scenario(id=id, messages=messages, metadata={"label_source": "generated"})


async def run(scenario: Scenario, llm: LLM, client: AsyncOpenAI, *, steps: int) -> str:
    """The agent. Ignores what the model answers, because the words of the mocker are random."""
    messages: list[Any] = [*scenario.messages]
    for step in range(steps):
        random_step = random.Random(f"{scenario.id} {step}")
        stream = await client.chat.completions.create(model=llm.model, messages=messages, stream=True, **llm.sampling)
        pieces = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        messages.append({"role": "assistant", "content": "".join(pieces) or "-"})
        await asyncio.sleep(random_step.uniform(*TOOL_S))
        messages.append({"role": "user", "content": text(random_step.randint(*RESULT), f"{scenario.id} {step}")})
    return "done"


def finished(scenario: Scenario, rollout: Rollout) -> Score:
    """The scorer: 1 if the rollout finished. It exists only because each suite needs a score."""
    return Score(float(rollout.status == "ok"))
