"""Synthetic sessions of many calls: the data format that writes them, the agent that replays them, and their score.

Their texts are random words, so answers to them mean nothing. They are a load with the shape of an agent's: prompts that grow from call
to call, a beginning that all sessions share, and pauses between calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

from pytest_agentbench import LLM, Rollout, Scenario, Score, scorer


def load(
    file: Path,
    *,
    sessions: int = 24,
    calls: Sequence[int] = (10, 20),
    system_tokens: int = 220,
    first_tokens: Sequence[int] = (400, 800),
    message_tokens: Sequence[int] = (90, 230),
    answer_tokens: int = 24,
    think_s: float = 0.3,
    seed: int = 1,
) -> list[Scenario]:
    """Returns the sessions. Equal settings give equal sessions, on every machine.

    Args:
        file: A list of words, one on each line, from which all texts are drawn. A word is about one token.
        sessions: The number of sessions, each of which is one scenario.
        calls: The least and the greatest number of calls in a session.
        system_tokens: The length of the system message, which all sessions share.
        first_tokens: The least and the greatest length of the first message after it.
        message_tokens: The least and the greatest length of each later message, which stands for the result of a tool.
        answer_tokens: The length of each answer.
        think_s: The mean of the pauses between an answer and the next call, in seconds. They are distributed exponentially.
        seed: Another number gives other texts, numbers of calls and pauses.
    """
    for name, (least, most) in {"calls": calls, "first_tokens": first_tokens, "message_tokens": message_tokens}.items():
        if not 1 <= least <= most:
            raise ValueError(f"{name} must be two numbers, the least and the greatest, such as [10, 20], not {[least, most]}")
    if min(sessions, answer_tokens, think_s) <= 0:
        raise ValueError("sessions, answer_tokens and think_s must be above 0")
    words = file.read_text(encoding="utf-8").split()
    system = {"role": "system", "content": text(Random(f"{seed} system"), words, system_tokens)}

    def session(number: int) -> Scenario:
        # A generator for each session, so that more sessions leave the others as they are.
        random = Random(f"{seed} {number}")
        first = {"role": "user", "content": text(random, words, random.randint(*first_tokens))}
        later = [
            {
                "answer": text(random, words, answer_tokens),
                "message": text(random, words, random.randint(*message_tokens)),
                "think_s": round(random.expovariate(1 / think_s), 3),
            }
            for _ in range(random.randint(*calls) - 1)
        ]
        metadata = {"answer_tokens": answer_tokens, "later": later, "label_source": "none"}
        return Scenario(f"session-{number:03}", (system, first), metadata=metadata)

    return [session(number) for number in range(1, sessions + 1)]


def text(random: Random, words: Sequence[str], length: int) -> str:
    return " ".join(random.choices(words, k=length))


async def run(scenario: Scenario, llm: LLM, *, same_length: bool = True) -> str:
    """Makes the calls of a session, with its pauses. Returns the last answer.

    The history of a call contains texts of the session and not the model's answers, so every backend gets the same prompts. With
    `same_length`, each request has the fields `min_tokens` and `ignore_eos`, with which vLLM and SGLang write answers of the full length.
    They are left out once a server has refused them.
    """
    tokens = scenario.metadata["answer_tokens"]
    length = {"max_tokens": tokens} | ({"min_tokens": tokens, "ignore_eos": True} if same_length else {})
    messages = [*scenario.messages]
    reply = await llm.chat(messages, **length)
    for later in scenario.metadata["later"]:
        messages += [{"role": "assistant", "content": later["answer"]}, {"role": "user", "content": later["message"]}]
        await asyncio.sleep(later["think_s"])
        reply = await llm.chat(messages, **length)
    return reply.text


@scorer(range=(0, 1))
def answered(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the share of the session's calls that got an answer which is not empty. What the answers say does not count."""
    planned = 1 + len(scenario.metadata["later"])
    count = sum(call.error_kind is None and bool(call.output or call.completion_tokens) for call in rollout.calls)
    return Score(count / planned, explanation=f"{count} of {planned} calls were answered")
