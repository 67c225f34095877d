"""Formats the differences between the stored files of a reference run and those that the present code makes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator

from benchmarks.reference.store import Files

SHOWN = 200  # lines of a file's difference
LONG = 200  # characters from which on a line of JSON is spread over several


def differences(name: str, expected: Files, made: Files) -> Iterator[str]:
    """Yields the lines of a unified diff for each file that differs."""
    for file in sorted({*expected, *made}):
        if expected.get(file) != made.get(file):
            before, after = (_lines(files.get(file, b"")) for files in (expected, made))
            changed = [*difflib.unified_diff(before, after, f"stored/{name}/{file}", f"now/{name}/{file}", n=1, lineterm="")]
            yield from changed[:SHOWN]
            if len(changed) > SHOWN:
                yield f"... {len(changed) - SHOWN} more lines of {file} differ"


def _lines(content: bytes) -> list[str]:
    return [each for line in content.decode().splitlines() for each in _spread(line)]


def _spread(line: str) -> list[str]:
    """Splits a long line that contains JSON into several lines, so that the diff shows a changed value as one line."""
    start = line.find("{")
    if len(line) < LONG or start < 0:
        return [line]
    try:
        value, end = json.JSONDecoder().raw_decode(line, start)
    except ValueError:
        return [line]
    return [line[:start], *json.dumps(value, indent=1, ensure_ascii=False).splitlines(), line[end:]]
