"""The answers to `/v1/embeddings`. They need no model and are deterministic, and similar texts have close vectors.

For each word, with its ends marked, the runs of three to five characters are counted. The checksum of a run determines its position in
the vector and its sign. The vector has length 1.
"""

from __future__ import annotations

import base64
import math
import struct
import unicodedata
import zlib
from typing import Any

import orjson

from pytest_agentbench.engine.chat import ApiError, check_model, parse_object
from pytest_agentbench.engine.token_blocks import tokenise
from pytest_agentbench.records import Json

DIMENSIONS = 512
RUNS = (3, 4, 5)  # characters
FORMATS = ("float", "base64")


def embeddings_body(body: bytes, model: str) -> bytes:
    """Returns the answer to a request to /v1/embeddings. Raises ApiError if the request is invalid, or is not for `model`."""
    request = _parsed(body, model)
    texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
    dimensions = request.get("dimensions") or DIMENSIONS
    is_base64 = request.get("encoding_format") == "base64"
    vectors = [embedding(text, dimensions) for text in texts]
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = sum(len(tokenise(text)) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def embedding(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Returns the vector of a text. All its numbers are 0 if the text has no letter or digit."""
    vector = [0.0] * dimensions
    for word in "".join(char if char.isalnum() else " " for char in unicodedata.normalize("NFKC", text).casefold()).split():
        marked = f"<{word}>"
        for size in RUNS:
            for start in range(max(1, len(marked) - size + 1)):
                number = zlib.crc32(marked[start : start + size].encode())
                vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.sqrt(math.fsum(each * each for each in vector))
    return [each / length for each in vector] if length else vector


def _parsed(body: bytes, model: str) -> Json:
    request = parse_object(body)
    check_model(request, model)
    if not _is_input(request.get("input")):
        raise ApiError("'input' must be a string or a list of at least one string.", "input")
    if request.get("encoding_format") not in (None, *FORMATS):
        raise ApiError(f"'encoding_format' must be {' or '.join(FORMATS)}.", "encoding_format")
    dimensions = request.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= DIMENSIONS):
        raise ApiError(f"'dimensions' must be a whole number from 1 to {DIMENSIONS}.", "dimensions")
    return request


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value))


def _base64(vector: list[float]) -> str:
    """Encodes a vector as OpenAI's clients expect it: little-endian 32-bit floats in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
