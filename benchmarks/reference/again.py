"""Reduces a reference run to the parts that are the same if its sessions run again: everything except times and ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.reference.store import EXPECTED, INPUTS, Files, below
from pytest_agentbench.lib.json_text import opened
from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.run_file import FILE as RUN

#: Pattern of a field's name -> why two runs differ in it. A field that is left out is left out with all that is in it.
LEFT_OUT: Mapping[str, str] = {
    r".*_ns|.*_ms|.*_s|.*_at|.*_per_(s|second|hour|minute)|at|seconds.*|load": "times and rates",
    r"chunks|stamp|lag.*|repeats|cached_tokens|server": "how events came together, and the order of requests in a cache",
    r"id|response_id|run|earlier|resume|command": "ids",
    r"request_(bytes|crc)": "of requests that hold an id",
    r"performance|stopwatch|serving|processes|efficiency|ab|cache|gpus": "measurements of speed",
    r"environment|identity|code": "the machine and the version",
    r"worst|errors|failures|score_per_.*": "the same as in the rollouts, by id",
    r"log|programs|content|settings|retriever|failure": "ports and lines of logs, and hashes of what holds them",
}
_LEFT_OUT = re.compile("|".join(f"(?:{pattern})" for pattern in LEFT_OUT))


def comparable(archive: Files) -> dict[str, bytes]:
    """Returns the journal, sorted by key, and run.json, both without the fields in LEFT_OUT."""
    inputs, expected = below(INPUTS, archive), below(EXPECTED, archive)
    journal = inputs.get(JOURNAL) or expected.get(JOURNAL) or b""
    records = [json.loads(opened(line)) for line in journal.splitlines()]
    records.sort(key=lambda each: (each["suite"], each["scenario"], each["variant"], each["trial"], each["session"]))
    lines = (json.dumps(_without(record), ensure_ascii=False) for record in records)
    run = json.dumps(_without(json.loads(expected[RUN])), indent=2, ensure_ascii=False)
    return {JOURNAL: "\n".join(lines).encode(), RUN: run.encode()}


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        kept: Json = {name: _without(each) for name, each in value.items() if not _LEFT_OUT.fullmatch(name)}
        return kept
    return [*map(_without, value)] if isinstance(value, list) else value
