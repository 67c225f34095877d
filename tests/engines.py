"""Embedded engines as real processes, which are not the backend of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json


@contextmanager
def engine(folder: Path, rules: Sequence[Json] = (), **config: Any) -> Iterator[str]:
    """Yields the address (without /v1) of an engine that ends with the block. With rules, it follows them as its script.

    Its log is FOLDER/engine.log and its script FOLDER/script.yaml.
    """
    if rules:
        script = folder / "script.yaml"
        script.write_text(json.dumps(list(rules), ensure_ascii=False), encoding="utf-8")
        config = {"policy": "script", "script": str(script), **config}
    child = Child("pytest_agentbench.engine", config, folder / "engine.log")
    try:
        yield f"http://127.0.0.1:{child.ready(Listening).port}"
    finally:
        child.stop()
