"""The suite's own code: tasks worked on in steps, a call and then a tool each; texts and times depend on the task alone."""

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
    """So many words, the same ones for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def load(file: Path) -> Iterator[Scenario]:
    """A task for each id."""
    for id in json.loads(file.read_text(encoding="utf-8")):
        document = text(random.Random(id).randint(DOCUMENT, 2 * DOCUMENT), id)
        messages = ({"role": "system", "content": text(INSTRUCTIONS, "instructions")}, {"role": "user", "content": document})
        yield Scenario(id=id, messages=messages, metadata={"label_source": "generated"})


async def run(scenario: Scenario, llm: LLM, client: AsyncOpenAI, *, steps: int) -> str:
    """What the model says does not matter: the mocker's words are random."""
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
    """Whether it came to its end; a suite has to have a score."""
    return Score(float(rollout.status == "ok"))
