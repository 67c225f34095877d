"""Runs whose messages.jsonl contains the requests and replies that a test names."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from pytest_agentbench.records import Json, LLMCall, Rollout
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request
from tests.made_runs import run_directory
from tests.tables.shop import call, rollout

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages", "completions": "/completions"}


def asked(at: int, body: Json, answer: Json | None = None, dialect: str = "chat", end: int | None = None) -> tuple[LLMCall, Json, Json]:
    """Returns a call that was sent `at` milliseconds after the start, its request and its reply."""
    made = call(at, at + 10, end=at + 50 if end is None else end, dialect=dialect, request_crc=zlib.crc32(orjson.dumps(body)))
    return made, body, answer or {"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}


def kept_run(directory: Path, *conversations: Sequence[tuple[LLMCall, Json, Json]]) -> Path:
    """Writes a run with a rollout for each conversation. Returns its directory."""
    keepers = [ConversationKeeper(KeptBytes()) for _ in conversations]
    rollouts: list[Rollout] = []
    for number, (keeper, conversation) in enumerate(zip(keepers, conversations, strict=True)):
        calls = tuple(
            replace(made, kept=keeper.call(Request(b"POST", PATHS[made.dialect], [], orjson.dumps(body)), body, orjson.dumps(reply)))
            for made, body, reply in conversation
        )
        rollouts.append(rollout(f"shop-{number}", calls=calls))
    run_directory(directory, *rollouts)
    with MessageFile(directory, lambda text: text) as file:
        for keeper in keepers:
            file.add(keeper.lines)
    return directory
