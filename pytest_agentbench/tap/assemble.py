"""What an answer of the completions APIs says: a stream of chunks becomes one answer, and the facts that a call's record needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pytest_agentbench.records import OUTPUT_KINDS, Chunk, Json
from pytest_agentbench.tap import jsontext
from pytest_agentbench.tap.stream import Event

T = TypeVar("T")

DONE = b"[DONE]"
LONGEST = 300  # characters of what a backend said that an error repeats

#: What a delta holds decides its kind; where it holds several, the first of these counts.
_KINDS = (("content", "content"), ("refusal", "content"), ("reasoning_content", "reasoning"), ("reasoning", "reasoning"), ("role", "role"))
_RANKS = ("tool_call", "content", "reasoning", "role")


@dataclass
class Answer:
    """What a backend answered, as far as it came."""

    chunks: list[Chunk] = field(default_factory=list)
    choices: dict[int, Json] = field(default_factory=dict)  # index -> choice with a whole message
    head: Json = field(default_factory=dict)  # id, model, created, ... as the first chunk that had them said
    usage: Json = field(default_factory=dict)
    error_kind: str | None = None  # bad_json | error_event | incomplete | empty
    error: str = ""
    done: bool = False  # the stream came to its [DONE], and nothing was wrong before it

    @property
    def finish_reason(self) -> str | None:
        return next((str(choice["finish_reason"]) for choice in self.choices.values() if choice.get("finish_reason")), None)

    @property
    def output_chunks(self) -> int:
        return sum(chunk.kind in OUTPUT_KINDS for chunk in self.chunks)

    def count(self, *path: str) -> int | None:
        """The number at `path` in the usage, if there is one."""
        value: Any = self.usage
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, int) else None

    def assemble(self) -> bytes:
        """The answer as a server would have given it without streaming; empty, and a fault, where it cannot be written."""
        choices = [_whole(self.choices[index]) for index in sorted(self.choices)]
        usage = {"usage": self.usage} if self.usage else {}
        try:
            return jsontext.dumps({**self.head, "object": "chat.completion", "choices": choices, **usage})
        except ValueError as error:
            _failed(self, "bad_json", f"the answer cannot be put together: {error}")
            return b""


def read_stream(events: Sequence[Event]) -> Answer:
    """Merges all events; a fault ends the reading and is named."""
    answer = Answer()
    for event in events:
        if event.data == DONE:
            return _checked(answer, ended=True)
        try:
            data = jsontext.loads(event.data)
            if event.name == "error" or _is_error(data):
                return _failed(answer, "error_event", error_message(data))
            answer.chunks.append(Chunk(event.at_ns, _merge(answer, _object(data)), event.own_stamp))
        except (ValueError, RecursionError) as error:
            if event.name == "error":
                return _failed(answer, "error_event", _start(event.data))
            return _failed(answer, "bad_json", f"an event is no chunk of an answer ({error}): {_start(event.data)}")
    return _checked(answer, ended=False)


def read_whole(body: bytes) -> Answer:
    """What an answer says that came without streaming."""
    answer = Answer()
    try:
        data = _object(jsontext.loads(body))
        if _is_error(data):
            return _failed(answer, "error_event", error_message(data))
        answer.choices = dict(enumerate(map(_object, _list(data.get("choices")))))
        _keep_usage(answer, data)
    except ValueError as error:
        return _failed(answer, "bad_json", f"the answer is neither an event stream nor a completion ({error}): {_start(body)}")
    return answer if answer.choices else _failed(answer, "empty", "the answer has no choice")


def error_message(data: Any) -> str:
    """The sentence in an error object, whatever its shape."""
    error = data.get("error") or data if isinstance(data, dict) else data
    try:
        return str(error.get("message", error) if isinstance(error, dict) else error)[:LONGEST]
    except RecursionError:
        return "an error that is nested too deeply to be shown"


def _start(text: bytes) -> str:
    return text[:LONGEST].decode(errors="replace")


def _checked(answer: Answer, ended: bool) -> Answer:
    """Names what a stream lacks; `ended` says that it came to its [DONE]."""
    if not answer.chunks:
        return _failed(answer, "empty", "the stream ended without a single event")
    if not answer.choices:
        return _failed(answer, "empty", "the stream ended without a choice")
    if not all(choice.get("finish_reason") for choice in answer.choices.values()):
        return _failed(answer, "incomplete", "the stream ended without a finish_reason")
    answer.done = ended
    return answer


def _failed(answer: Answer, kind: str, message: str) -> Answer:
    answer.error_kind, answer.error = kind, message
    return answer


def _is_error(data: Any) -> bool:
    return isinstance(data, dict) and bool(data.get("error") or data.get("object") == "error")


def _expect(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} where {kind.__name__} should be")  # noqa: TRY004 - the text is at fault
    return value


def _object(value: Any) -> Json:
    return _expect(dict, value)


def _list(value: Any) -> list[Any]:
    return _expect(list, value or [])


def _merge(answer: Answer, data: Json) -> str:
    """Adds one chunk; returns its kind."""
    for name, value in data.items():
        if name not in ("choices", "usage", "object", "error") and answer.head.get(name) is None:
            answer.head[name] = value
    _keep_usage(answer, data)
    kinds = [_merge_choice(answer, _object(choice)) for choice in _list(data.get("choices"))]
    if not kinds:
        return "usage" if data.get("usage") else "other"
    return next((kind for kind in _RANKS if kind in kinds), "other")


def _keep_usage(answer: Answer, data: Json) -> None:
    if isinstance(data.get("usage"), dict):
        answer.usage = data["usage"]


def _merge_choice(answer: Answer, delta_choice: Json) -> str:
    index = _expect(int, delta_choice.get("index", 0))
    choice = answer.choices.get(index)
    if choice is None:
        message = {"role": "assistant", "content": None, "refusal": None}
        choice = answer.choices[index] = {"index": index, "message": message, "logprobs": None, "finish_reason": None}
    for name, value in delta_choice.items():
        if name == "finish_reason":
            choice[name] = value or choice[name]
        elif name not in ("index", "delta", "message"):
            choice[name] = _joined(choice.get(name), value)
    if "text" in delta_choice:  # the older completions API
        return "content" if delta_choice["text"] else "other"
    return _merge_delta(choice["message"], _object(delta_choice.get("delta") or {}))


def _merge_delta(message: Json, delta: Json) -> str:
    called = False
    for name, value in delta.items():
        if name == "tool_calls":
            for call in _list(value):
                called |= _merge_call(message.setdefault(name, []), _object(call))
        elif name == "function_call":  # what tool_calls were before there could be several
            called |= bool(value) and _merge_function(message.setdefault(name, _no_function()), _object(value))
        elif name != "role":
            message[name] = _joined(message.get(name), value)
    if called:
        return "tool_call"
    return next((kind for name, kind in _KINDS if delta.get(name)), "other")


def _merge_call(calls: list[Json], delta: Json) -> bool:
    """A tool call comes in pieces: id and name whole, arguments bit by bit. Returns whether a name or arguments came."""
    function = _object(delta.get("function") or {})
    call = _call_of(calls, delta, bool(function.get("name")))
    call["id"] = call["id"] or delta.get("id")
    for name, value in delta.items():
        if name not in ("index", "id", "function"):
            call[name] = value if value is not None else call.get(name)
    return _merge_function(call["function"], function)


def _call_of(calls: list[Json], delta: Json, named: bool) -> Json:
    """The call that a piece belongs to, a new one if need be.

    The index says which. Servers that leave it out, or give all calls the same, open each call with a name and an id of its own.
    """
    index = delta.get("index")
    same = [call for call in calls if index is None or call["index"] == index][-1:]
    if same and not (named and (index is None or delta.get("id") not in (None, "", same[0]["id"]))):
        return same[0]
    place = len(calls) if index is None else _expect(int, index)
    calls.append({"index": place, "id": None, "type": "function", "function": _no_function()})
    return calls[-1]


def _no_function() -> Json:
    return {"name": "", "arguments": ""}


def _merge_function(function: Json, delta: Json) -> bool:
    name, arguments = delta.get("name"), delta.get("arguments")
    if not isinstance(arguments, str | None):  # a server that does not write them as text
        arguments = jsontext.dumps(arguments).decode()
    function["name"] = name or function["name"]
    function["arguments"] += arguments or ""
    return bool(name or arguments)


def _joined(before: Any, more: Any) -> Any:
    """What two pieces of a field are together: texts and lists continue, objects do so field by field."""
    if isinstance(before, str) and isinstance(more, str):
        return before + more
    if isinstance(before, list) and isinstance(more, list):
        return [*before, *more]
    if isinstance(before, dict) and isinstance(more, dict):
        return {**before, **{name: _joined(before.get(name), value) for name, value in more.items()}}
    return before if more is None else more


def _whole(choice: Json) -> Json:
    """A choice in the shape that it has without streaming: tool calls without an index, and no text beside them unless there is some."""
    message = choice["message"]
    if not message.get("tool_calls"):
        return choice
    calls = sorted(message["tool_calls"], key=lambda call: int(call["index"]))
    bare = [{name: value for name, value in call.items() if name != "index"} for call in calls]
    return {**choice, "message": {**message, "content": message["content"] or None, "tool_calls": bare}}
