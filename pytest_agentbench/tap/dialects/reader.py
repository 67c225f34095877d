"""Base classes and helpers of all dialects: changes to a request, parsing of its answer (streamed or not), and the faults found there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, TypeVar

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import OUTPUT_KINDS, Chunk, Json
from pytest_agentbench.tap.dialects.pieces import RepeatedEvents
from pytest_agentbench.tap.routing_hints import EXTRA_FIELDS, worker_in
from pytest_agentbench.tap.stream import Event, NetworkRead

#: Option of streams with a usage in every event. It has no effect unless usage is requested, and some servers reject it.
RUNNING = "continuous_usage_stats"


def encode_request(request: Json) -> bytes | None:
    """Returns a request as JSON, or None if that is not possible."""
    try:
        return json_text.dumps(request)
    except ValueError:
        return None


def without_running_usage(request: Json) -> Json:
    """Returns the request without the option `continuous_usage_stats`, or the same object if it does not have it."""
    options = request.get("stream_options")
    if not isinstance(options, dict) or RUNNING not in options:
        return request
    return {**request, "stream_options": {name: value for name, value in options.items() if name != RUNNING}}


def stream_body(request: Json, not_streamed: Collection[str], **more: Any) -> bytes | None:
    """Returns a request body that requests the same answer as a stream.

    Returns None if the request streams already, uses one of the fields in `not_streamed`, or cannot be encoded.
    """
    if request.get("stream") not in (None, False) or any(request.get(name) for name in not_streamed):
        return None
    return encode_request({**request, "stream": True, **more})


def usage_body(request: Json) -> bytes | None:
    """Returns a body that also requests the usage at the end of the stream, or None if the request already does or cannot be encoded."""
    options = without_running_usage(request).get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage"):
        return None
    return encode_request({**request, "stream_options": {**options, "include_usage": True}})


def in_front(salt: str, content: object) -> object:
    """Returns a prompt (a text, or a list of content parts) with a salt before it, a text that prevents cache hits."""
    if isinstance(content, list):
        return [{"type": "text", "text": salt}, *content]
    return f"{salt}\n{content}" if content else salt


T = TypeVar("T")

DONE = b"[DONE]"
LONGEST = 300  # characters of a backend's text that are quoted in an error

#: A tool call: id, name, and arguments as JSON text (or the input of a custom tool).
ToolCallText = tuple[str, str, str]


class Fault(ValueError):
    """A fault in a backend's answer. Readers catch it, and the record of the call gets its kind and its sentence."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind  # one of ERROR_KINDS


class AnswerReader:
    """The facts about an answer that go into the record of a call: tokens, finish reason, model, chunks and any fault.

    This class itself is used for calls without an answer, so all facts are missing. Dialects override the properties.
    """

    name: ClassVar[str] = ""  # name of the dialect

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error_kind: str | None = None  # one of ERROR_KINDS
        self.error = ""  # one sentence; empty without a fault
        self.done = False  # whether the end mark of the stream has arrived
        self.usage: Json = {}  # usage object of the server

    @property
    def completion_tokens(self) -> int | None:
        """Output tokens as counted by the server, or else the number of output chunks if there are any (see `token_source`)."""
        return self._output_chunks or None if self._counted_tokens is None else self._counted_tokens

    @property
    def token_source(self) -> str:
        """Where the number of output tokens comes from.

        `usage`: the server's report. `continuous`: its reports in every output chunk and the last chunk. `chunks`: the number of output
        chunks. `none`: it is unknown.
        """
        if self._counted_tokens is None:
            return "chunks" if self._output_chunks else "none"
        counted = [chunk.tokens is not None for chunk in self.chunks if chunk.kind in OUTPUT_KINDS]
        return "continuous" if counted and all(counted) and self.chunks[-1].tokens is not None else "usage"

    @property
    def finish_reason(self) -> str | None:
        """The reason for the end of the answer, as reported by the server."""
        return None

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens as counted by the server, including cached ones."""
        return None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens served from the prefix cache."""
        return None

    @property
    def response_id(self) -> str | None:
        """The id that the server gave its answer."""
        return None

    @property
    def server(self) -> Json | None:
        """The server's report on how it processed the call, or None."""
        return None

    @property
    def model(self) -> str:
        """The model that the answer names, or an empty string."""
        return ""

    @property
    def _counted_tokens(self) -> int | None:
        """Output tokens as counted by the server."""
        return None

    @property
    def _output_chunks(self) -> int:
        return sum(chunk.kind in OUTPUT_KINDS for chunk in self.chunks)


class DialectReader(AnswerReader, ABC):
    """One API: its static methods change requests, and an instance reads one answer.

    For a stream, call `add` for each event (or `take_repeated` for several reads), then `end`. For an answer without streaming, call
    `read_complete` instead. A fault sets `error_kind` and `error`, and ends the reading, as the end mark does. Without a fault,
    `assemble` returns the answer as if it had not been streamed, and `output` its text and tool calls.

    Subclasses implement the abstract methods; those that parse raise Fault, or ValueError for bad JSON.
    """

    def __init__(self) -> None:
        super().__init__()
        self._over = False  # whether the rest of the data is ignored
        self._repeated: RepeatedEvents | None = None  # pattern for events that continue the last one
        self._without = "the stream ended without"  # beginning of messages about missing parts

    def add(self, event: Event) -> None:
        """Merges one event of a stream. A fault or the end mark ends the reading."""
        if self._over:
            return
        at_ns, lag_ns, own_stamp, name, text = event
        if text == DONE:
            self.done = self._over = True
            return
        try:
            data = json_text.loads(text)
            if name == "error" or is_error(data):
                raise Fault("error_event", error_message(data))
            kind, tokens = self._merge(expect(dict, data))
        except Fault as fault:
            self._fail(fault)
        except (ValueError, RecursionError) as error:
            bad_json = Fault("bad_json", f"an event is not a chunk of an answer ({error}): {_start(text)}")
            self._fail(Fault("error_event", _start(text)) if name == "error" else bad_json)
        else:
            self.chunks.append(Chunk(at_ns, kind, own_stamp, lag_ns, tokens))

    def take_repeated(self, reads: Sequence[NetworkRead]) -> int:
        """Merges network reads without parsing them, as long as each of them only continues the same text of the answer.

        Returns how many reads were merged; the caller has to parse the others. Each read must begin with a new event.
        """
        if self._repeated is None:
            return 0
        parts = self._repeated.texts_in(reads)
        if parts:
            kind = self._repeated.kind
            self._repeated.pieces.append(b"".join(parts).decode())
            self.chunks += [Chunk(read.at_ns, kind, True, read.lag_ns) for read in reads[: len(parts)]]
        return len(parts)

    def end(self) -> None:
        """Ends the stream. Sets a fault if something is missing in the answer."""
        self._over = True
        if self.error_kind is None:
            try:
                self._check_events()
            except Fault as fault:
                self._fail(fault)
            except (ValueError, RecursionError) as error:
                self._fail(Fault("bad_json", f"the answer cannot be assembled: {error}"))

    def read_complete(self, body: bytes) -> None:
        """Reads an answer without streaming."""
        self._over, self._without = True, "the answer came without"
        try:
            data = json_text.loads(body)
            if is_error(data):
                raise Fault("error_event", error_message(data))
            self._read_whole(expect(dict, data))
            self._check()
        except Fault as fault:
            self._fail(fault)
        except (ValueError, RecursionError) as error:
            self._fail(Fault("bad_json", f"the answer is neither an event stream nor an answer of this API ({error}): {_start(body)}"))

    def assemble(self) -> bytes:
        """Returns the answer as a server would have sent it without streaming. If that fails, sets a fault and returns b""."""
        try:
            return json_text.dumps(self._answer())
        except Fault as fault:
            self._fail(fault)
        except (ValueError, RecursionError) as error:
            self._fail(Fault("bad_json", f"the answer cannot be assembled: {error}"))
        return b""

    def output(self) -> Json:
        """Returns the `text` and the `tool_calls` ({id, name, arguments}) of an answer without a fault."""
        text, calls = self._text_and_calls()
        return {"text": text, "tool_calls": [{"id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]}

    @staticmethod
    @abstractmethod
    def as_stream(request: Json) -> bytes | None:
        """Returns a body that requests the same answer as a stream, or None if it already streams or cannot be streamed."""

    @staticmethod
    @abstractmethod
    def with_usage(request: Json) -> bytes | None:
        """Returns a body that also requests the usage of the stream, or None if the stream reports it anyway."""

    @staticmethod
    @abstractmethod
    def salted(request: Json, salt: str) -> Json:
        """Returns the request with a salt before its system prompt, or the same request if it has no place for one.

        A prompt with a salt begins like that of no other run, so the prefix cache is cold without a reset.
        """

    @staticmethod
    @abstractmethod
    def chat_request(request: Json) -> list[Json]:
        """Returns the messages of a request in the form of Chat Completions: its instructions, if it has any, and its prompt."""

    @staticmethod
    @abstractmethod
    def chat_reply(reply: Json) -> list[Json]:
        """Returns the messages of an answer without streaming in the form of Chat Completions: usually one, none for an error."""

    @abstractmethod
    def _merge(self, data: Json) -> tuple[str, int | None]:
        """Merges one event. Returns the kind of its chunk and the output tokens so far. Raises Fault, or ValueError for bad JSON."""

    @abstractmethod
    def _read_whole(self, data: Json) -> None:
        """Reads an answer without streaming. Raises Fault, or ValueError for bad JSON."""

    def _check(self) -> None:
        """Raises Fault if something is missing in an answer that has ended."""

    @abstractmethod
    def _answer(self) -> Json:
        """Returns the answer as if it had not been streamed."""

    @abstractmethod
    def _text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        """Returns the text of the answer and the tool calls that the agent must carry out."""

    def _check_events(self) -> None:
        if not self.chunks:
            raise Fault("empty", "the stream ended without a single event")
        self._check()

    def _fail(self, fault: Fault) -> None:
        self.error_kind, self.error, self._over = fault.kind, str(fault), True


def expect(kind: type[T], value: Any) -> T:
    """Returns a JSON value from an answer. Raises ValueError if it does not have the type `kind`."""
    if not isinstance(value, kind):
        raise ValueError(f"a JSON value in it must be of type {kind.__name__}, not {type(value).__name__}")  # noqa: TRY004 - the data is wrong, not the code
    return value


def count(usage: Any, *path: str) -> int | None:
    """Returns the whole number at `path` in a usage object, or None."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) else None


def model_of(answer: Json) -> str:
    """Returns the model that an answer names, or an empty string."""
    model = answer.get("model")
    return model if isinstance(model, str) else ""


def id_of(answer: Json) -> str | None:
    """Returns the id of an answer, or None."""
    id = answer.get("id")
    return id if isinstance(id, str) and id else None


def server_report(answer: Json) -> Json | None:
    """Returns the fields that Dynamo adds to `nvext` of an answer (the worker and its timing), or None without them.

    They are complete in the last chunk of a stream and in an answer without streaming. The built-in engine names itself there, too.
    """
    nvext = answer.get("nvext")
    told = {**nvext, "worker_id": worker_in(nvext)} if isinstance(nvext, dict) else {}
    return {name: told[name] for name in EXTRA_FIELDS if told.get(name) is not None} or None


def is_error(data: Any) -> bool:
    """Returns whether data is an error in any of the formats that servers use."""
    return isinstance(data, dict) and bool(data.get("error") or data.get("object") == "error" or data.get("type") == "error")


def error_message(data: Any) -> str:
    """Returns the message of an error object of any format."""
    error = data.get("error") or data if isinstance(data, dict) else data
    try:
        return beginning(str(error.get("message", error) if isinstance(error, dict) else error), LONGEST)
    except RecursionError:
        return "an error that is nested too deeply to be shown"


def _start(text: bytes) -> str:
    return beginning(text, LONGEST)
