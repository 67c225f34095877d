"""What all dialects share: what is changed in a request, the reading of its answer, event by event or whole, and the faults of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, TypeVar

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import OUTPUT_KINDS, Chunk, Json
from pytest_agentbench.tap.dialects.pieces import RepeatedEvents
from pytest_agentbench.tap.routing_hints import EXTRA_FIELDS
from pytest_agentbench.tap.stream import Event, NetworkRead

#: Option of streams that have a usage in every event. It says nothing where no usage is asked for, and some servers refuse it.
RUNNING = "continuous_usage_stats"


def encode_request(request: Json) -> bytes | None:
    """A request's body; None where it cannot be written."""
    try:
        return json_text.dumps(request)
    except ValueError:
        return None


def without_running_usage(request: Json) -> Json:
    """The request without the wish for a usage in every event (`continuous_usage_stats`); the same object where it has none."""
    options = request.get("stream_options")
    if not isinstance(options, dict) or RUNNING not in options:
        return request
    return {**request, "stream_options": {name: value for name, value in options.items() if name != RUNNING}}


def stream_body(request: Json, not_streamed: Collection[str], **more: Any) -> bytes | None:
    """A request body that asks for the same as a stream.

    None for one that streams already, has a field that servers refuse to stream with, or cannot be written.
    """
    if request.get("stream") not in (None, False) or any(request.get(name) for name in not_streamed):
        return None
    return encode_request({**request, "stream": True, **more})


def usage_body(request: Json) -> bytes | None:
    """The body that asks for a stream's usage as well, once; None where it does, or cannot be written."""
    options = without_running_usage(request).get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage"):
        return None
    return encode_request({**request, "stream_options": {**options, "include_usage": True}})


def in_front(salt: str, content: object) -> object:
    """The salt before a text, or before a list of parts."""
    if isinstance(content, list):
        return [{"type": "text", "text": salt}, *content]
    return f"{salt}\n{content}" if content else salt


T = TypeVar("T")

DONE = b"[DONE]"
LONGEST = 300  # characters of what a backend said that an error repeats


#: A tool call: id, name, arguments as JSON text (of a custom tool, its input).
ToolCallText = tuple[str, str, str]


class Fault(ValueError):
    """What is wrong with an answer."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind  # one of ERROR_KINDS


class AnswerReader:
    """What is known of an answer. Of this one, which nobody reads, it is nothing; those of the dialects are read."""

    name: ClassVar[str] = ""  # of the dialect

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error_kind: str | None = None  # one of ERROR_KINDS
        self.error = ""  # one sentence
        self.done = False  # the stream came to its end mark
        self.usage: Json = {}  # as the server wrote it

    @property
    def completion_tokens(self) -> int | None:
        """The server's count; without one, the number of output chunks, if there are any (`token_source` says which)."""
        return self._output_chunks or None if self._counted_tokens is None else self._counted_tokens

    @property
    def token_source(self) -> str:
        """`usage`, `continuous` when every output chunk and the last chunk have a count, `chunks`, or `none`."""
        if self._counted_tokens is None:
            return "chunks" if self._output_chunks else "none"
        counted = [chunk.tokens is not None for chunk in self.chunks if chunk.kind in OUTPUT_KINDS]
        return "continuous" if counted and all(counted) and self.chunks[-1].tokens is not None else "usage"

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the server's words."""
        return None

    @property
    def prompt_tokens(self) -> int | None:
        """By the server's count, cached ones included."""
        return None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens served from the prefix cache."""
        return None

    @property
    def response_id(self) -> str | None:
        """What the server calls its answer."""
        return None

    @property
    def server(self) -> Json | None:
        """What the server told of its own work on the call."""
        return None

    @property
    def model(self) -> str:
        """The model that the answer names; empty where it names none."""
        return ""

    @property
    def _counted_tokens(self) -> int | None:
        """Completion tokens by the server's count."""
        return None

    @property
    def _output_chunks(self) -> int:
        return sum(chunk.kind in OUTPUT_KINDS for chunk in self.chunks)


class DialectReader(AnswerReader, ABC):
    """What a backend answered, as far as it came. A dialect says how its requests, its events and its answers are made."""

    def __init__(self) -> None:
        super().__init__()
        self._over = False  # nothing that comes now is read
        self._repeated: RepeatedEvents | None = None  # what the next events may have in common with the last one
        self._without = "the stream ended without"  # how to say what is not there

    def add(self, event: Event) -> None:
        """Merges one event of a stream. A fault is named and ends the reading, as the end mark does."""
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
            bad_json = Fault("bad_json", f"an event is no chunk of an answer ({error}): {_start(text)}")
            self._fail(Fault("error_event", _start(text)) if name == "error" else bad_json)
        else:
            self.chunks.append(Chunk(at_ns, kind, own_stamp, lag_ns, tokens))

    def take_repeated(self, reads: Sequence[NetworkRead]) -> int:
        """Takes over the first of these reads, as many as need no parsing, and says how many; a new event begins with each."""
        if self._repeated is None:
            return 0
        parts = self._repeated.texts_in(reads)
        if parts:
            kind = self._repeated.kind
            self._repeated.pieces.append(b"".join(parts).decode())
            self.chunks += [Chunk(read.at_ns, kind, True, read.lag_ns) for read in reads[: len(parts)]]
        return len(parts)

    def end(self) -> None:
        """The stream is over: names what it lacks."""
        self._over = True
        if self.error_kind is None:
            try:
                self._check_events()
            except Fault as fault:
                self._fail(fault)
            except (ValueError, RecursionError) as error:
                self._fail(Fault("bad_json", f"the answer cannot be put together: {error}"))

    def whole(self, body: bytes) -> None:
        """Reads an answer that came without streaming, in place of events."""
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
            self._fail(Fault("bad_json", f"the answer is neither an event stream nor of this API ({error}): {_start(body)}"))

    def assemble(self) -> bytes:
        """The answer as a server would have given it without streaming; empty, and a fault, where it cannot be written."""
        try:
            return json_text.dumps(self._answer())
        except Fault as fault:
            self._fail(fault)
        except (ValueError, RecursionError) as error:
            self._fail(Fault("bad_json", f"the answer cannot be put together: {error}"))
        return b""

    def output(self) -> Json:
        """What the model said, `text` and `tool_calls` of {id, name, arguments}, of an answer without a fault."""
        text, calls = self._text_and_calls()
        return {"text": text, "tool_calls": [{"id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]}

    @staticmethod
    @abstractmethod
    def as_stream(request: Json) -> bytes | None:
        """The body of a request that asks for the same as a stream; None where that cannot be, or is a stream already."""

    @staticmethod
    @abstractmethod
    def with_usage(request: Json) -> bytes | None:
        """The body of a request for a stream that asks for its usage as well; None where every stream has it, or it is asked for."""

    @staticmethod
    @abstractmethod
    def salted(request: Json, salt: str) -> Json:
        """The request with a salt before its system prompt, so that it begins like no other run's: a cold prefix cache without a reset.

        It stays as it is where nobody knows of a system prompt.
        """

    @staticmethod
    @abstractmethod
    def hint_fields() -> Collection[str]:
        """Fields in which requests of this API may tell a router about their rollout; servers of some APIs refuse what they do not know."""

    @abstractmethod
    def _merge(self, data: Json) -> tuple[str, int | None]:
        """Adds one event; returns the kind of its chunk and the completion tokens so far. Raises Fault, or ValueError for bad JSON."""

    @abstractmethod
    def _read_whole(self, data: Json) -> None:
        """Takes over an answer that came whole; raises as `_merge`."""

    def _check(self) -> None:
        """Raises Fault for what an answer lacks that is over."""

    @abstractmethod
    def _answer(self) -> Json:
        """The whole answer."""

    @abstractmethod
    def _text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        """The text of the answer and its tool calls, those that the agent is to carry out."""

    def _check_events(self) -> None:
        if not self.chunks:
            raise Fault("empty", "the stream ended without a single event")
        self._check()

    def _fail(self, fault: Fault) -> None:
        self.error_kind, self.error, self._over = fault.kind, str(fault), True


def expect(kind: type[T], value: Any) -> T:
    """`value`, which is of this kind; raises ValueError if it is not."""
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} where {kind.__name__} should be")  # noqa: TRY004 - the text is at fault
    return value


def count(usage: Any, *path: str) -> int | None:
    """The number at `path` in a usage object, if there is one."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) else None


def model_of(answer: Json) -> str:
    """The model that an answer says it is by, if it does."""
    model = answer.get("model")
    return model if isinstance(model, str) else ""


def id_of(answer: Json) -> str | None:
    """What an answer calls itself, if it does."""
    id = answer.get("id")
    return id if isinstance(id, str) and id else None


def server_report(answer: Json) -> Json | None:
    """What Dynamo tells of a call in `nvext`, which is complete in the last chunk, or in a whole answer."""
    nvext = answer.get("nvext")
    report = {name: nvext[name] for name in EXTRA_FIELDS if nvext.get(name) is not None} if isinstance(nvext, dict) else {}
    return report or None


def is_error(data: Any) -> bool:
    """Whether this is an error, in any of the shapes that servers give it."""
    return isinstance(data, dict) and bool(data.get("error") or data.get("object") == "error" or data.get("type") == "error")


def error_message(data: Any) -> str:
    """The sentence in an error object, whatever its shape."""
    error = data.get("error") or data if isinstance(data, dict) else data
    try:
        return beginning(str(error.get("message", error) if isinstance(error, dict) else error), LONGEST)
    except RecursionError:
        return "an error that is nested too deeply to be shown"


def _start(text: bytes) -> str:
    return beginning(text, LONGEST)
