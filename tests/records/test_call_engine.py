"""The engine that answered a call, as the answer names it."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Json, LLMCall


@pytest.mark.parametrize(
    ("server", "name"),
    [
        (None, None),
        ({"timing": {"total_ms": 5}}, None),
        ({"worker_id": {"decode_worker_id": 7, "prefill_worker_id": 8}}, "7"),
        ({"worker_id": {"decode_worker_id": 0}}, "0"),
        ({"worker_id": {"prefill_worker_id": 8}}, None),
        ({"worker_id": "engine-2"}, "engine-2"),
    ],
)
def test_the_engine_that_answered(server: Json | None, name: str | None) -> None:
    """The name is that of the worker that made the output. An answer that names none has no engine."""
    assert name == LLMCall(0, 0, 0, server=server).engine
