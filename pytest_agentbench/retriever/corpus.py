"""A corpus: one JSON object a line, each a document with an id and its text as `content` or `contents`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_file import json_in, read_json_file, read_text
from pytest_agentbench.records import Json

TEXTS = ("content", "contents")  # keys, the first of which that is there counts


def read_corpus(file: Path) -> list[Json]:
    """The documents of a file, in its order; raises ConfigError with file and line for what is none, and for an id that is there twice."""
    documents: list[Json] = []
    seen: set[str] = set()
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            document = _document(json_in(file, line, number), f"{file}:{number}")
            if (id := str(document["id"])) in seen:
                raise ConfigError(f"{file}:{number}: the id {id!r} is there twice; ids should be unique")
            seen.add(id)
            documents.append(document)
    if not documents:
        raise ConfigError(f"{file}: no documents in it; it should hold one JSON object per line")
    return documents


def text_of(document: Json) -> str:
    """What a document says."""
    return next((str(document[key]) for key in TEXTS if key in document), "")


def read_allowed(file: Path) -> dict[str, frozenset[str]]:
    """Question id -> ids of the documents that it may get; raises ConfigError for what is no such list."""
    data = read_json_file(file)
    if not isinstance(data, dict) or not all(isinstance(ids, list) for ids in data.values()):
        raise ConfigError(f"{file}: should hold an object, question id -> list of document ids")
    return {question: frozenset(map(str, ids)) for question, ids in data.items()}


def _document(document: Any, where: str) -> Json:
    """Returns the value of a line if it is a document; raises ConfigError."""
    if not isinstance(document, dict) or not isinstance(document.get("id"), str | int):
        raise ConfigError(f"{where}: a document should be an object with an `id`")
    if not any(isinstance(document.get(key), str) for key in TEXTS):
        raise ConfigError(f"{where}: a document should have its text as {' or '.join(map(repr, TEXTS))}")
    return document
