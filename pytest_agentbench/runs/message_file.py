"""messages.jsonl, beside the journal of a run: the requests and replies of its calls, each distinct value once.

Calls in the journal refer to its lines by their ids (`KeptCall`). An id is a hash of the redacted value, so equal values have equal ids in
all runs, and an id does not help to guess a secret. The prompts of a run form a tree: a node is a message with the id
of the node before it. So the file grows with the number of messages, and not with the sizes of all requests.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.chat_messages import reply_messages
from pytest_agentbench.lib.checked_lines import opened, sealed
from pytest_agentbench.lib.kept_values import (
    FILE,
    FORM,
    LARGEST_VALUE,
    NODE,
    OMITTED,
    QUOTED_ID,
    STYLES,
    NodeLine,
    ValueLine,
    node_id,
    parsed,
    value_id,
)
from pytest_agentbench.records import Json, KeptCall, LLMCall, Rollout

RECENT = 1000  # values that are kept in memory, because many conversations begin alike
LARGEST_FILE = 1_000_000_000  # bytes; later values are not written


class MessageFile:
    """The open messages.jsonl of a run: redacts lines and appends those that the file does not have yet.

    Each line begins with a CRC-32, as lines of the journal do. Lines are written before the record that refers to them, so that a session
    that is killed leaves no record with missing lines. Beyond LARGEST_FILE bytes, nothing is written.

    Not thread-safe. The lock of the journal makes sure that one session writes at a time.
    """

    def __init__(self, directory: Path, redact: Callable[[str], str], most: int = LARGEST_FILE) -> None:
        """Opens the file, reads the ids in it, and removes an incomplete last line."""
        self.path = directory / FILE
        self._redact, self._most = redact, most
        self._known: set[str] = set()  # ids in the file
        self._changed: dict[str, str] = {}  # id of a value or node before redaction -> id in the file
        self.size = 0  # bytes of the file
        self._file = io.FileIO(self.path, "a+")  # stays open, so nothing is lost if the run directory is removed
        index = _Index(self.path)
        index.update()
        self._known.update(index.places)
        self.size = index.end
        self._file.truncate(self.size)

    @property
    def is_full(self) -> bool:
        """Whether values were left out because the file would become too large."""
        return self.size >= self._most

    def add(self, lines: Iterable[bytes]) -> Mapping[str, str]:
        """Appends lines without newlines, as `lib/kept_values` defines them. Returns the ids that redaction changed: before -> after.

        Raises OSError if the disk is full. The file then ends with a complete line.
        """
        new: dict[str, bytes] = {}
        changed: dict[str, str] = {}
        for line in lines:
            record = parsed(line)
            id = self._changed.get(record.id, record.id)
            if id == record.id and id not in self._known and id not in new:
                clean = self._redacted(record)
                id = clean.id
                if id not in self._known and not self.is_full:
                    new[id] = sealed(clean.written()) + b"\n"
            if id != record.id:
                self._changed[record.id] = changed[record.id] = id
        self._write(b"".join(new.values()))
        self._known.update(new)
        return changed

    def _redacted(self, record: ValueLine | NodeLine) -> ValueLine | NodeLine:
        if isinstance(record, NodeLine):
            before, message = (self._changed.get(each, each) for each in (record.before, record.message))
            return record if (before, message) == record[1:] else NodeLine(node_id(before, message), before, message)
        text = record.written()
        if record.id[0] == FORM:  # A form has the ids of its parts.
            text = with_changed_ids(text, self._changed)
        clean = self._redact(text.decode())
        found = parsed(clean.encode())
        assert isinstance(found, ValueLine)
        return record if found.text == record.text else ValueLine(value_id(record.id[0], found.text), found.text)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._file.write(data) != len(data):
            self._file.truncate(self.size)
            raise OSError(errno.ENOSPC, "no space left for messages", str(self.path))
        self.size += len(data)

    def restore_file(self) -> None:
        """Writes the file again if it was deleted during the session. Raises FileExistsError if it exists."""
        self._file.seek(0)
        with self.path.open("xb") as file:
            shutil.copyfileobj(self._file, file)

    def close(self) -> None:
        """Closes the file, and removes it if it is empty."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()
            if not self.size:
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def with_changed_ids(line: bytes, changed: Mapping[str, str]) -> bytes:
    """Returns the line of a record with other ids of values and nodes."""
    if not changed:
        return line
    return QUOTED_ID.sub(lambda found: b'"%b"' % changed.get(id := found[1].decode(), id).encode(), line)


def copy_messages(source: Path, target: Path, redact: Callable[[str], str]) -> Mapping[str, str]:
    """Copies messages.jsonl of the run directory `source`, redacted once more. Returns the ids that redaction changed: before -> after.

    Writes nothing if the run has no such file. Damaged lines are left out.
    """
    changed: dict[str, str] = {}
    if (source / FILE).is_file():
        with MessageFile(target, redact) as copy, (source / FILE).open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    changed |= copy.add([opened(line.removesuffix(b"\n"))])
    return changed


class _Index:
    """The offset and the size in bytes of each line of messages.jsonl, by id. Damaged and incomplete lines are left out."""

    def __init__(self, path: Path) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        self.end = 0  # offset after the last complete line that was read
        self._path = path

    def update(self) -> None:
        """Reads the lines that were added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                with suppress(ValueError):  # A damaged value is missing for those who need it.
                    self.places[parsed(opened(line[:-1])).id] = self.end, len(line) - 1
                self.end += len(line)


class NotKept(LookupError):
    """A request or a reply that messages.jsonl does not contain, with the reason."""


class KeptRequest(Protocol):
    """A call whose request and reply can be read: an `LLMCall`, or a call of a recording."""

    @property
    def kept(self) -> KeptCall | None:
        """The ids of its request and reply, or None if nothing was kept."""


class Conversations:
    """Reads messages.jsonl of a run, also while a session writes it. Only the index is in memory; values are read when they are needed."""

    def __init__(self, directory: Path) -> None:
        """Takes the directory of a run, or a file of `agentbench cassette trim`. Raises ConfigError if the run has no messages.jsonl."""
        self.path = directory if directory.is_file() else directory / FILE
        if not self.path.is_file():
            raise ConfigError(f"{directory} has no {FILE}; runs have one unless they are made with --agentbench-keep=none")
        self._index = _Index(self.path)
        self._index.update()
        self._nodes: dict[str, NodeLine] = {}
        self._value = functools.lru_cache(maxsize=RECENT)(self._read_value)

    def prompt(self, call: KeptRequest) -> list[Any]:
        """Returns the messages of a request, as the agent sent them. Raises NotKept."""
        return self.messages(self._id(call, "prompt"))

    def messages(self, node: str) -> list[Any]:
        """Returns the messages up to a node, for example `Rollout.conversation`. Raises NotKept."""
        return [self._value(each.message) for each in reversed([*self._nodes_before(node)])]

    def reply(self, call: KeptRequest) -> Any:
        """Returns the complete answer of a call as the backend would have sent it without streaming, parsed. Raises NotKept."""
        return self._value(self._id(call, "reply"))

    def reply_messages(self, call: KeptRequest) -> list[Any]:
        """Returns the messages in the reply of a call, in the form of its API, or an error response as it is. Raises NotKept."""
        return reply_messages(self.reply(call))

    def request(self, call: KeptRequest) -> Json:
        """Returns `path`, `headers` and the parsed `body` of a request. Raises NotKept."""
        form, body = self.form(call), self.body(call)
        return {"path": form["path"], "headers": form["headers"], "body": form["text"] if "text" in form else json_text.loads(body)}

    def form(self, call: KeptRequest) -> Json:
        """Returns a request without its messages, as a mapping. Raises NotKept.

        `body` has its small fields, `parts` its large ones (field -> value), `left_out` the names of large ones that were not kept, and
        `written` is the style of its JSON. A request that is not JSON has `text` instead.
        """
        form: Json = self._value(self._id(call, "request"))
        ids = form.get("parts", {})
        parts = {name: self._value(id) for name, id in ids.items() if id}
        return {**form, "parts": parts, "left_out": [name for name, id in ids.items() if not id]}

    def parsed_body(self, call: KeptRequest, form: Json) -> Json:
        """Returns the body of a request that is a JSON object. `form` is that of the request. Raises NotKept."""
        body = {**form["body"], **form["parts"]}
        if "listed" in form:
            body[form["listed"]] = self.prompt(call)
        elif "joined" in form:
            body[form["joined"]] = "".join(self.prompt(call))
        return body

    def body(self, call: KeptRequest) -> bytes:
        """Returns the body of a request, written as the agent wrote it. Raises NotKept.

        `is_exact` says whether it has the same bytes.
        """
        form = self.form(call)
        if "text" in form:
            return str(form["text"]).encode("latin-1", "replace")
        return STYLES[form["written"] or "orjson"](self.parsed_body(call, form))

    def add_ids(self, call: KeptRequest, ids: set[str]) -> None:
        """Adds the ids of all lines that a request and its reply need to a set. Raises NotKept."""
        form: Json = self._value(self._id(call, "request"))
        ids.update((self._id(call, "request"), self._id(call, "reply"), *filter(None, form.get("parts", {}).values())))
        for node in self._nodes_before(call.kept.prompt if call.kept else ""):
            if node.id in ids:
                break
            ids.update((node.id, node.message))

    def is_exact(self, call: LLMCall) -> bool:
        """Returns whether `body` returns the bytes that the agent sent: nothing is missing or redacted, and the checksum fits."""
        try:
            return zlib.crc32(self.body(call)) == call.request_crc
        except (NotKept, ValueError):
            return False

    def _id(self, call: KeptRequest, name: str) -> str:
        if call.kept is None:
            raise NotKept("the session kept no requests and replies of this call (--agentbench-keep)")
        if call.kept.missing:
            raise NotKept("the tap had no memory left for requests and replies; run fewer rollouts at a time")
        id: str = getattr(call.kept, name)
        if not id:
            raise NotKept(f"the call has no {name}")
        return id

    def _line(self, id: str) -> ValueLine | NodeLine:
        if id not in self._index.places:
            self._index.update()
        if id not in self._index.places:
            raise NotKept(f"{self.path} does not contain {id}: it is damaged, or had reached its largest size ({LARGEST_FILE:,} bytes)")
        start, size = self._index.places[id]
        with self.path.open("rb") as file:
            file.seek(start)
            return parsed(opened(file.read(size)))

    def _read_value(self, id: str) -> Any:
        line = self._line(id)
        assert isinstance(line, ValueLine)
        value = json_text.loads(line.text)
        if isinstance(value, dict) and value.keys() == {OMITTED}:
            raise NotKept(f"a value of {value[OMITTED]:,} bytes was too large to be kept (at most {LARGEST_VALUE:,})")
        return value

    def _nodes_before(self, id: str) -> Iterator[NodeLine]:
        """Yields a node and all nodes before it, the last message first."""
        while id:
            if id not in self._nodes:
                line = self._line(id)
                assert isinstance(line, NodeLine)
                self._nodes[id] = line
            yield self._nodes[id]
            id = self._nodes[id].before


class Transcripts:
    """Fills the transcripts of rollouts from messages.jsonl of their run."""

    def __init__(self, directory: Path, on_damage: Callable[[str], object]) -> None:
        """`on_damage` is called with a sentence if transcripts are missing, once."""
        self._directory, self._on_damage = directory, on_damage
        self._conversations: Conversations | None = None
        self._missing = False  # whether a transcript was missing

    def completed(self, rollout: Rollout) -> Rollout:
        """Returns a rollout with its messages. Without them, if they are missing in messages.jsonl."""
        messages = self._messages(rollout.conversation, rollout.key)
        return rollout if messages is None else dataclasses.replace(rollout, messages=tuple(messages))

    def completed_line(self, line: bytes) -> bytes:
        """Returns the JSON text of a record with its messages in it, and without the reference to them."""
        if b'"conversation":"%b' % NODE.encode() not in line:
            return line
        record = json.loads(line)
        record |= {"messages": self._messages(record["conversation"], record["scenario"]) or record["messages"], "conversation": ""}
        return json_text.dumps(record)

    def _messages(self, node: str, rollout: object) -> list[Any] | None:
        if not node:
            return None
        try:
            if self._conversations is None:
                self._conversations = Conversations(self._directory)
            return self._conversations.messages(node)
        except (ConfigError, NotKept, OSError) as error:
            if not self._missing:
                self._missing = True
                self._on_damage(f"the transcript of {rollout} is missing: {error}")
            return None
