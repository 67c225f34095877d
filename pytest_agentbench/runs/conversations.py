"""Reads what the calls of a run requested and what was answered, from messages.jsonl or before it is written."""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.json_text import opened
from pytest_agentbench.lib.kept_values import FILE, LARGEST_VALUE, NODE, OMITTED, STYLES, NodeLine, ValueLine, parsed
from pytest_agentbench.records import Json, KeptCall, LLMCall, Rollout
from pytest_agentbench.runs.message_file import LARGEST_FILE, MessageIndex
from pytest_agentbench.tap.dialects import DIALECTS, Dialect

#: Fields of a request with a system prompt that is not a message, in the APIs Messages and Responses.
INSTRUCTIONS = frozenset({"system", "instructions"})

RECENT = 1000  # values that are kept in memory, because many conversations begin alike


class NotKept(LookupError):
    """A request or a reply that messages.jsonl does not contain, with the reason."""


class KeptRequest(Protocol):
    """A call whose request and reply can be read: an `LLMCall`, or a call of a recording."""

    @property
    def kept(self) -> KeptCall | None:
        """The ids of the request and the reply in messages.jsonl, or None if nothing was kept."""


class KeptIds(NamedTuple):
    """A call of which only the ids of its request and reply are known."""

    kept: KeptCall | None


class ConversationReader(ABC):
    """Reads requests and replies from lines of messages.jsonl. Subclasses say where the lines are."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeLine] = {}
        self.value = functools.lru_cache(maxsize=RECENT)(self._read_value)  # value of an id; raises NotKept

    def prompt(self, call: KeptRequest) -> list[Any]:
        """Returns the messages of a request, as the agent sent them. Raises NotKept."""
        return self.messages(self._id(call, "prompt"))

    def messages(self, node: str) -> list[Any]:
        """Returns the messages of a conversation. Raises NotKept.

        `node` is the id of the line with the last message, for example `Rollout.conversation`. Each such line has the id of the one before.
        """
        return [self.value(id) for id in self.message_ids(node)]

    def message_ids(self, node: str) -> list[str]:
        """Returns the ids of the messages of a conversation, in their order. `node` is as for `messages`. Raises NotKept."""
        return [each.message for each in reversed([*self._nodes_before(node)])]

    def reply(self, call: KeptRequest) -> Any:
        """Returns the complete answer of a call as the backend would have sent it without streaming, parsed. Raises NotKept."""
        return self.value(self._id(call, "reply"))

    def reply_messages(self, call: KeptRequest) -> list[Any]:
        """Returns the messages in the reply of a call, in the form of its API, or an error response as it is. Raises NotKept."""
        reply = self.reply(call)
        match reply:
            case {"choices": [*choices]}:  # Chat Completions and Completions
                return [choice.get("message") or {"role": "assistant", "content": choice.get("text")} for choice in choices]
            case {"output": [*items]}:  # Responses
                return items
            case {"role": role, "content": content}:  # Messages
                return [{"role": role, "content": content}]
            case _:
                return [reply]

    def conversation(self, calls: Sequence[KeptRequest]) -> list[Json]:
        """Returns prompt and reply of the last of some calls, as messages of Chat Completions. Raises NotKept.

        If the server keeps the history (the request has a `previous_response_id` or a `conversation`), the messages of the earlier calls
        in that history come first. An API without messages has none.
        """
        turns: list[list[Json]] = []
        rest = [*calls]
        while rest:
            call = rest.pop()
            turns.append([*self.chat_request(call), *self.chat_reply(call)])
            previous, history = self._history(call)
            if not previous and not history:
                break
            while rest and not (self._reply_id(rest[-1]) == previous if previous else self._history(rest[-1])[1] == history):
                rest.pop()
        return [message for turn in reversed(turns) for message in turn]

    def chat_request(self, call: KeptRequest) -> list[Json]:
        """Returns the messages of a request, system prompt included, in the form of Chat Completions. Raises NotKept.

        Returns nothing for a request of an API without messages. A system prompt that was not kept is missing.
        """
        form = self.form(call)
        dialect = dialect_of(form)
        return dialect.chat_request(self.parsed_body(call, form)) if dialect and "body" in form else []

    def chat_reply(self, call: KeptRequest) -> list[Json]:
        """Returns the messages in a reply in the form of Chat Completions: usually one, none for an error response. Raises NotKept."""
        dialect, reply = dialect_of(self.form(call)), self.reply(call)
        return dialect.chat_reply(reply) if dialect and isinstance(reply, dict) else []

    def _history(self, call: KeptRequest) -> tuple[Any, Any]:
        """Returns (reply before this one, conversation) as a request names them if the server keeps the history.

        Each is None if the request does not name it.
        """
        body = self.form(call).get("body", {})
        return body.get("previous_response_id"), body.get("conversation")

    def _reply_id(self, call: KeptRequest) -> str | None:
        reply = self.reply(call) if call.kept and call.kept.reply else None
        return reply.get("id") if isinstance(reply, dict) else None

    def request(self, call: KeptRequest) -> Json:
        """Returns `path`, `headers` and the parsed `body` of a request. Raises NotKept."""
        form, body = self.form(call), self.body(call)
        return {"path": form["path"], "headers": form["headers"], "body": form["text"] if "text" in form else json_text.loads(body)}

    def form(self, call: KeptRequest) -> Json:
        """Returns a request without its messages, as a mapping. Raises NotKept.

        `body` has its small fields, `parts` its large ones (field -> value), `left_out` the names of large ones that were not kept, and
        `written` is the style of its JSON. A request that is not JSON has `text` instead.
        """
        form = self.stored_form(call)
        ids = form.get("parts", {})
        parts = {name: self.value(id) for name, id in ids.items() if id}
        return {**form, "parts": parts, "left_out": [name for name, id in ids.items() if not id]}

    def stored_form(self, call: KeptRequest) -> Json:
        """Returns a request without its messages and large parts, as `form` does, but `parts` has their ids. Raises NotKept."""
        form: Json = self.value(self._id(call, "request"))
        return form

    def parsed_body(self, call: KeptRequest, form: Json) -> Json:
        """Returns the JSON object that is the body of a request. `form` is what the method `form` returns for it. Raises NotKept."""
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
        form = self.stored_form(call)
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
            raise NotKept("the session kept no requests and replies of this call; repeat the run with --agentbench-keep=all")
        if call.kept.missing:
            raise NotKept("the tap had no memory left for requests and replies; run fewer rollouts at a time")
        id: str = getattr(call.kept, name)
        if not id:
            raise NotKept(f"the call has no {name} in messages.jsonl")
        return id

    @abstractmethod
    def _line(self, id: str) -> ValueLine | NodeLine:
        """Returns the line of messages.jsonl with this id. Raises NotKept."""

    def _read_value(self, id: str) -> Any:
        line = self._line(id)
        assert isinstance(line, ValueLine)
        value = json_text.loads(line.text)
        if isinstance(value, dict) and value.keys() == {OMITTED}:
            raise NotKept(f"a part of the request or reply was too large to be kept: {value[OMITTED]:,} bytes, at most {LARGEST_VALUE:,}")
        return value

    def _nodes_before(self, id: str) -> Iterator[NodeLine]:
        """Yields the lines (nodes) of a conversation, from the one with this id, which has the last message, back to the first."""
        while id:
            if id not in self._nodes:
                line = self._line(id)
                assert isinstance(line, NodeLine)
                self._nodes[id] = line
            yield self._nodes[id]
            id = self._nodes[id].before


def dialect_of(form: Json) -> Dialect | None:
    """Returns the API of a request, or None for a request that is no LLM call."""
    return DIALECTS.get(str(form["path"]).partition("?")[0])


class Conversations(ConversationReader):
    """Reads messages.jsonl of a run, also while a session writes it.

    Values are read when they are needed. The index, the nodes that were read, and up to RECENT values are in memory.
    """

    def __init__(self, directory: Path) -> None:
        """Takes the directory of a run, or a file of `agentbench cassette trim`. Raises ConfigError if the run has no messages.jsonl."""
        super().__init__()
        self.path = directory if directory.is_file() else directory / FILE
        if not self.path.is_file():
            raise ConfigError(
                f"{directory} has no {FILE}; imported runs and runs without calls or with --agentbench-keep=none may have none"
            )
        self._index = MessageIndex(self.path)
        self._index.update()

    def _line(self, id: str) -> ValueLine | NodeLine:
        if id not in self._index.places:
            self._index.update()
        if id not in self._index.places:
            raise NotKept(f"{self.path} does not contain {id}: it is damaged, or had reached its largest size ({LARGEST_FILE:,} bytes)")
        start, size = self._index.places[id]
        with self.path.open("rb") as file:
            file.seek(start)
            return parsed(opened(file.read(size)))


class Transcripts:
    """Fills the transcripts of rollouts from messages.jsonl of their run."""

    def __init__(self, directory: Path, on_damage: Callable[[str], object]) -> None:
        """Takes the directory of the run. `on_damage` is called with a sentence for the first transcript that is missing."""
        self._directory, self._on_damage = directory, on_damage
        self._conversations: Conversations | None = None
        self._missing = False  # whether a transcript was missing

    def completed(self, rollout: Rollout) -> Rollout:
        """Returns a rollout with its messages, or unchanged if messages.jsonl does not contain them."""
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
