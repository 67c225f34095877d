"""Writes a recording to a single file, without what is not needed to answer requests from it, for example for a project's repository.

The file has lines with checksums, as messages.jsonl. The first line describes the recording. The calls follow, and then the messages and
other parts of their requests and replies. The file has no timestamps of events, no scores and no transcripts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.lib.kept_values import parsed
from pytest_agentbench.recordings.recording import CALL_RECORD, Recording
from pytest_agentbench.records import Json
from pytest_agentbench.runs.message_file import MessageFile, with_changed_ids


def trim(recording: Recording, facts: Json, file: Path, redact: Callable[[str], str]) -> None:
    """Writes a recording to a file atomically. `redact` removes secrets. `facts` describes the recorded backend, for example its model."""
    with tempfile.TemporaryDirectory() as draft:
        with MessageFile(Path(draft), redact) as values:
            changed = values.add(_needed_lines(recording))
        calls = (json_text.dumps_any({CALL_RECORD: codec.plain(call)}) for call in recording.calls)
        records = [
            redact(json_text.dumps_any({"recording": facts}).decode()).encode(),
            *(with_changed_ids(each, changed) for each in calls),
        ]
        head = b"".join(sealed(record) + b"\n" for record in records)
        write_whole(file, (head + values.path.read_bytes()).decode())


def _needed_lines(recording: Recording) -> Iterator[bytes]:
    """Yields the lines of messages.jsonl that the calls need, for requests and replies. A line comes after the lines that it refers to."""
    needed: set[str] = set()
    for call in recording.calls:
        recording.conversations.add_ids(call, needed)
    with recording.conversations.path.open("rb") as lines:
        for line in lines:
            try:
                record = opened(line.removesuffix(b"\n"))
                id = parsed(record).id
            except ValueError:  # A damaged line, or a line of a trimmed file that is not a value.
                continue
            if id in needed:
                yield record
