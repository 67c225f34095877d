"""The requested models and the models that the answers name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_agentbench.runs.provenance import ModelUse, model_names, models_of, unlisted_models
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.stream import Event

CHAT = {"model": "b", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}
OLD = {"model": "b", "choices": [{"index": 0, "text": "Hi.", "finish_reason": "stop"}]}
OUTPUT = [{"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}]
RESPONSE = {"model": "b", "status": "completed", "output": OUTPUT}
MESSAGE = {"type": "message", "model": "b", "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"}


def call(asked: str, answered: str = "") -> tuple[str, str]:
    return asked, answered


def used(calls: Sequence[tuple[str, str]]) -> tuple[ModelUse, ...]:
    return models_of([asked for asked, _ in calls], [answered for _, answered in calls])


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([], None),
        ([call("")], None),  # the call names no model
        ([call("a"), call("a")], "a"),  # the answers name no model
        ([call("a", "a"), call("a")], "a"),
        ([call("a", "b"), call("a")], "a (answered by b)"),
        ([call("a", "b"), call("a", "a")], "a (answered by a, b)"),
        ([call("c"), call("a", "a"), call("c", "d")], "a, c (answered by d)"),
    ],
)
def test_names(calls: list[tuple[str, str]], said: str | None) -> None:
    """Each requested model is named, and the answering one if it differs, independent of the number of calls."""
    assert said == model_names(used(calls)) == model_names(used(calls * 3))


def test_counts() -> None:
    """Calls are counted by requested and answering model. The latter is null for a call without an answer."""
    assert (ModelUse("a", None, 1), ModelUse("a", "b", 2)) == used([call("a", "b"), call("a", "b"), call("a")])


def test_models_that_are_not_listed() -> None:
    """A model that the backend does not list is reported with the listed ones. Without a list, nothing is reported."""
    asked = {"shop": "a", "shop-warm": "c"}

    (sentence,) = unlisted_models(asked, ["a", "b"])
    assert "shop-warm requests the model 'c', which the backend does not list (a, b); its calls request it anyway" == sentence
    assert [] == unlisted_models(asked, [])


@pytest.mark.parametrize(
    ("route", "whole", "stream"),
    [
        ("/chat/completions", CHAT, [{"model": "b", "choices": [{"index": 0, "delta": {"content": "Hi."}}]}]),
        ("/completions", OLD, [{"model": "b", "choices": [{"index": 0, "text": "Hi."}]}]),
        ("/responses", RESPONSE, [{"type": "response.completed", "response": RESPONSE}]),
        ("/messages", MESSAGE, [{"type": "message_start", "message": {**MESSAGE, "content": []}}]),
    ],
)
def test_every_api_names_its_model(route: str, whole: dict[str, Any], stream: list[Any]) -> None:
    """The answering model is read from answers of each API, streamed or not, and is unknown if the answer names none."""
    streamed, at_once, silent = (DIALECTS[route]() for _ in range(3))
    for data in stream:
        streamed.add(Event(1, None, True, "message", json.dumps(data).encode()))
    at_once.read_complete(json.dumps(whole).encode())
    silent.read_complete(json.dumps({name: value for name, value in whole.items() if name != "model"}).encode())

    assert ("b", "b", "") == (streamed.model, at_once.model, silent.model)
