"""Embeddings are deterministic, close for similar texts, and available in both formats that clients use."""

from __future__ import annotations

import base64
import math
import struct

import httpx
import pytest
from openai import OpenAI

from pytest_agentbench.engine.embeddings import DIMENSIONS, embedding
from pytest_agentbench.records import Json


def cosine(one: str, other: str) -> float:
    return math.fsum(a * b for a, b in zip(embedding(one), embedding(other), strict=True))


def test_alike_is_near() -> None:
    """Texts with the same words in other forms have close vectors, and texts with other words do not.

    Case and punctuation do not matter. The length is 1.
    """
    lamp = "The brass lamp stands on the oak table."

    assert cosine(lamp, "Brass lamps are standing on oak tables!") > 0.4
    assert abs(cosine(lamp, "Quarterly revenue grew by nine percent")) < 0.2
    assert pytest.approx(1) == cosine(lamp, lamp.upper())
    assert [0.0] * DIMENSIONS == embedding(" ... ")


def test_over_http(lexical: str) -> None:
    """A request may have one or several texts, numbers or base64, and fewer dimensions. An OpenAI client can read the answers."""
    body = {"model": "embedded-lexical", "input": ["brass lamp", "oak chair"]}

    answer = httpx.post(f"{lexical}/v1/embeddings", json=body).json()

    assert [embedding(text) for text in ("brass lamp", "oak chair")] == [each["embedding"] for each in answer["data"]]
    assert {"prompt_tokens": 4, "total_tokens": 4} == answer["usage"]
    packed = httpx.post(f"{lexical}/v1/embeddings", json={**body, "encoding_format": "base64", "dimensions": 8}).json()
    assert pytest.approx(embedding("oak chair", 8), abs=1e-6) == [*struct.unpack("<8f", base64.b64decode(packed["data"][1]["embedding"]))]
    client = OpenAI(base_url=f"{lexical}/v1", api_key="x")
    read = client.embeddings.create(model="embedded-lexical", input="brass lamp").data[0].embedding
    assert pytest.approx(embedding("brass lamp"), abs=1e-6) == read


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"input": []}, 400, "'input' must be a string or a list of at least one string."),
        ({"input": [1, 2]}, 400, "'input' must be a string or a list of at least one string."),
        ({"encoding_format": "hex"}, 400, "'encoding_format' must be float or base64."),
        ({"dimensions": 0}, 400, "'dimensions' must be a whole number from 1 to 512."),
        ({"model": "other"}, 404, "The model 'other' does not exist; this server has 'embedded-lexical'."),
    ],
)
def test_invalid_requests(lexical: str, change: Json, status: int, message: str) -> None:
    """An invalid request gets an error in OpenAI's format that says what is allowed."""
    answer = httpx.post(f"{lexical}/v1/embeddings", json={"model": "embedded-lexical", "input": "a", **change})

    assert (status, message) == (answer.status_code, answer.json()["error"]["message"])
