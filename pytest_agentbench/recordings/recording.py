"""The recorded calls of a run: read from its directory, or from the single file that `agentbench cassette trim` writes.

The file is for example for a project's repository. It lacks what is not needed to answer requests: it has no timestamps of events, no
scores and no transcripts. It has lines with checksums, as messages.jsonl. The first line describes the recording. The calls follow, and
then the messages and other parts of their requests and replies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.lib.kept_values import parsed
from pytest_agentbench.records import Json, KeptCall, LLMCall, RolloutKey
from pytest_agentbench.runs.conversations import Conversations, NotKept
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.message_file import MessageFile, with_changed_ids

CALL_RECORD = "call"  # only key of the record of a call in a trimmed file
_CALL = b'{"%b":' % CALL_RECORD.encode()  # beginning of such a record


@dataclass(frozen=True)
class RecordedCall:
    """What is needed to answer a recorded call again."""

    key: RolloutKey  # its rollout
    role: str  # role that made the call; empty for the agent itself
    kept: KeptCall  # ids of its request and reply
    status: int = 200  # HTTP status of the answer
    retry_after_s: float | None = None  # value of the header Retry-After; None without it
    first_s: float = 0.0  # seconds from the request to the first output
    end_s: float = 0.0  # seconds from the request to the end of the answer
    pieces: int = 1  # events with output


class Recording:
    """The calls of a recording, in the order in which they were made, and their requests and replies."""

    def __init__(self, path: Path) -> None:
        """Reads the calls. Requests and replies are read when they are needed.

        Raises ConfigError if `path` is neither a run with messages.jsonl nor a file of `agentbench cassette trim`, or has no complete call.
        """
        self.path = path
        self.conversations = Conversations(path)
        calls = [*(calls_of_run(path) if path.is_dir() else _calls_of_file(path))]
        self.calls = [call for call in calls if call.kept.request and call.kept.reply]
        self.incomplete = len(calls) - len(self.calls)  # calls without a reply, for example because the connection was cut
        if not self.calls:
            raise ConfigError(f"{path} contains no call with a request and a reply; record a run with --agentbench-keep=all")

    def request(self, call: RecordedCall) -> tuple[str, Json]:
        """Returns the path and the parsed body of a recorded request. Raises NotKept if messages.jsonl does not have all of it."""
        form = self.conversations.form(call)
        if "body" not in form:
            raise NotKept("the body of the recorded request is not a JSON object, so no request can be compared with it")
        if form["left_out"]:
            raise NotKept(f"{', '.join(form['left_out'])} were not kept; record with --agentbench-keep=all")
        return str(form["path"]), self.conversations.parsed_body(call, form)

    def reply(self, call: RecordedCall) -> Any:
        """Returns the complete answer to a recorded request, parsed. Raises NotKept if messages.jsonl does not have it."""
        return self.conversations.reply(call)


def calls_of_run(directory: Path) -> Iterator[RecordedCall]:
    """Yields the recorded calls of a run, rollout by rollout, those of a rollout in the order in which the tap received them."""
    for rollout in read_journal(directory):
        calls = (call for attempt in rollout.attempts for call in (*attempt.calls, *attempt.other_calls))
        for call in sorted(calls, key=lambda call: call.received_ns):
            yield recorded(rollout.key, call)


def recorded(key: RolloutKey, call: LLMCall) -> RecordedCall:
    sent = call.received_ns if call.sent_ns is None else call.sent_ns
    first = call.output[0].at_ns if call.output else call.ended_ns
    seconds = ((first - sent) / 1e9, (call.ended_ns - sent) / 1e9)
    return RecordedCall(key, call.role, call.kept or KeptCall(), call.http_status or 200, call.retry_after_s, *seconds, len(call.output))


def _calls_of_file(file: Path) -> Iterator[RecordedCall]:
    with file.open("rb") as lines:
        for line in lines:
            try:
                record = opened(line.removesuffix(b"\n"))
                call = codec.read(RecordedCall, json_text.loads(record)[CALL_RECORD], CALL_RECORD) if record.startswith(_CALL) else None
            except ValueError as error:
                raise ConfigError(f"{file} is damaged: {error}; write it again with `agentbench cassette trim`") from error
            if call is not None:
                yield call


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
