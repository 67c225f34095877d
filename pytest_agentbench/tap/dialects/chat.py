"""Chat Completions: https://platform.openai.com/docs/api-reference/chat

Tool calls are assembled from their pieces: the id and the name each arrive in one piece, the arguments in many.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import chat_form
from pytest_agentbench.tap.dialects.chat_form import Choice, ChoicesReader
from pytest_agentbench.tap.dialects.pieces import RepeatedEvents, TextPieces, grown, repeated, settled
from pytest_agentbench.tap.dialects.reader import Fault, ToolCallText, expect, in_front
from pytest_agentbench.tap.stream import Event

_BAD_CALL = "bad_tool_call"


class Function:
    """The name and arguments in a tool call, which arrive in pieces. A custom tool has an input instead: `field` is then `input`."""

    def __init__(self, field: str = "arguments") -> None:
        self.name = ""
        self._field = field
        self._pieces = TextPieces()

    def merge(self, delta: Any) -> bool:
        """Adds a piece of the tool call. Returns whether the piece contains a name or arguments."""
        if not isinstance(delta, dict):
            raise Fault(_BAD_CALL, f"the function of a tool call is not an object: {delta!r:.100}")
        name, text = delta.get("name"), delta.get(self._field)
        if not isinstance(name, str | None):
            raise Fault(_BAD_CALL, f"the name of a tool is not a text: {name!r:.100}")
        if not isinstance(text, str | None):  # Some servers send arguments as JSON values instead of text.
            text = json_text.dumps(text).decode()
        self.name = name or self.name
        if text:
            if not self.name:
                raise Fault(_BAD_CALL, f"{self._field} of a tool call came before its name: {beginning(text, 100)}")
            self._pieces.append(text)
        return bool(name or text)

    def settled(self) -> Json:
        if not self.name:
            raise Fault(_BAD_CALL, "a tool call has no name")
        return {"name": self.name, self._field: "".join(self._pieces)}


class StreamedCall:
    """A tool call that arrives in pieces."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.id: Any = None
        self._more: Json = {"type": "function"}
        self._field, self._function = "function", Function()

    def merge(self, delta: Json) -> bool:
        """Adds a piece of the tool call. Returns whether the piece contains a name or arguments."""
        self.id = self.id or delta.get("id")
        if "custom" in delta and self._field != "custom":
            self._field, self._function = "custom", Function("input")
        for name, value in delta.items():
            if name not in ("index", "id", self._field) and value is not None:
                self._more[name] = value
        function = delta.get(self._field)
        return function is not None and self._function.merge(function)

    def settled(self) -> Json:
        """Returns the complete tool call in the form that an answer without streaming has: as JSON without the index."""
        return {"id": self.id, **self._more, self._field: self._function.settled()}


class StreamedCalls:
    """All tool calls of one message, which arrive in pieces."""

    def __init__(self) -> None:
        self._calls: list[StreamedCall] = []
        self._latest: dict[int, StreamedCall] = {}  # by index

    def merge(self, pieces: Any) -> bool:
        """Adds pieces of tool calls. Returns whether any of the pieces contains a name or arguments."""
        if not isinstance(pieces, list | None):
            raise Fault(_BAD_CALL, f"the tool calls are not a list: {pieces!r:.100}")
        results = [self._merge_piece(piece) for piece in pieces or ()]
        return any(results)

    def settled(self) -> list[Json]:
        """Returns the calls in the order of their index. Raises Fault if one has no name."""
        return [call.settled() for call in sorted(self._calls, key=lambda call: call.place)]

    def _merge_piece(self, delta: Any) -> bool:
        if not isinstance(delta, dict):
            raise Fault(_BAD_CALL, f"a tool call is not an object: {delta!r:.100}")
        index = delta.get("index")
        if not isinstance(index, int | None):
            raise Fault(_BAD_CALL, f"the index of a tool call is not a number: {index!r:.100}")
        return self._call_of(index, delta).merge(delta)

    def _call_of(self, index: int | None, delta: Json) -> StreamedCall:
        """Returns the tool call that a piece belongs to, which may be a new one.

        The index decides. Some servers omit the index, or use the same index for all calls. There, a piece with a name and a new id
        starts a new call.
        """
        latest = self._latest.get(index) if index is not None else self._calls[-1] if self._calls else None
        if latest is not None and not (_opens(delta) and (index is None or delta.get("id") not in (None, "", latest.id))):
            return latest
        place = len(self._calls) if index is None else index
        call = self._latest[place] = StreamedCall(place)
        self._calls.append(call)
        return call


def _opens(delta: Json) -> bool:
    """Returns whether a piece of a tool call contains the name, as the first piece of each call does."""
    return any(isinstance(delta.get(field), dict) and delta[field].get("name") for field in ("function", "custom"))


#: Fields of a delta and the kinds of chunk that they make. If a delta has several of them, the first in this list counts.
_KINDS = (("content", "content"), ("refusal", "content"), ("reasoning_content", "reasoning"), ("reasoning", "reasoning"), ("role", "role"))

#: Fields of a message that are output.
_OUTPUT_FIELDS = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call", "audio")

#: Fields with the reasoning of the model.
_REASONING = ("reasoning_content", "reasoning")


class ChatChoice(Choice):
    """A choice of Chat Completions: a message, which arrives in pieces called deltas."""

    _OWN = frozenset({"index", "finish_reason", "delta", "message"})

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._more["logprobs"] = None
        self._message: Json = {"content": None, "refusal": None}
        self._calls = StreamedCalls()
        self._function: Function | None = None  # `function_call`, which preceded tool calls

    def pieces_of(self, name: str) -> Any:
        """Returns what has arrived of a field of the message, or None."""
        return self._message.get(name)

    @property
    def has_output(self) -> bool:
        message = self._content()["message"]
        return any(message.get(name) for name in _OUTPUT_FIELDS)

    def text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        message = self._content()["message"]
        functions = [(str(call["id"] or ""), call.get("function") or call["custom"]) for call in message.get("tool_calls") or ()]
        if "function_call" in message:
            functions.append(("", message["function_call"]))
        content = message["content"]
        calls = [(id, each["name"], each.get("arguments") or each.get("input") or "") for id, each in functions]
        return content if isinstance(content, str) else "", calls

    def _merge_content(self, data: Json) -> str:
        delta = expect(dict, data.get("delta") or {})
        called = False
        for name, value in delta.items():
            before = self._message.get(name)
            if isinstance(before, TextPieces) and isinstance(value, str):
                before.append(value)
            elif name == "tool_calls":
                called |= self._calls.merge(value)
            elif name == "function_call":
                called |= bool(value) and self._merge_function(value)
            elif name != "role":
                self._message[name] = grown(before, value)
        if called:
            return "tool_call"
        for name, kind in _KINDS:
            if delta.get(name):
                return kind
        return "other"

    def _merge_function(self, delta: Json) -> bool:
        self._function = self._function or Function()
        return self._function.merge(delta)

    def _content(self) -> Json:
        message = {"role": "assistant", **{name: settled(value) for name, value in self._message.items()}}
        calls = self._calls.settled()
        if calls or any(message.get(name) for name in _REASONING):  # A stream begins with an empty content in any case.
            message["content"] = message["content"] or None
        if calls:
            message["tool_calls"] = calls
        if self._function is not None:
            message["function_call"] = self._function.settled()
        return {"message": message}


class ChatReader(ChoicesReader):
    """Reads an answer of Chat Completions."""

    name = "chat"
    _OBJECT: ClassVar[str] = "chat.completion"
    _CHOICE = ChatChoice

    def __init__(self) -> None:
        super().__init__()
        self._last: Json = {}  # last event that was parsed

    @staticmethod
    def salted(request: Json, salt: str) -> Json:
        """Puts the salt (a text that prevents cache hits) into the first message if it is a system message, else into a new one."""
        messages = request.get("messages")
        if not isinstance(messages, list):
            return request
        first = messages[0] if messages and isinstance(messages[0], dict) else {}
        if first.get("role") in ("system", "developer"):
            return {**request, "messages": [{**first, "content": in_front(salt, first.get("content"))}, *messages[1:]]}
        return {**request, "messages": [{"role": "system", "content": salt}, *messages]}

    @staticmethod
    def chat_request(request: Json) -> list[Json]:
        return chat_form.objects(request.get("messages"))

    @staticmethod
    def chat_reply(reply: Json) -> list[Json]:
        return chat_form.objects([choice.get("message") for choice in chat_form.objects(reply.get("choices"))[:1]])

    def add(self, event: Event) -> None:
        super().add(event)
        self._repeated = None if self._over else self._repeating(event.data)

    def _merge(self, data: Json) -> tuple[str, int | None]:
        self._last = data
        return super()._merge(data)

    def _repeating(self, data: bytes) -> RepeatedEvents | None:
        """Returns a pattern for events that only continue the text of the event that was just merged, or None."""
        last, kind = self._last, self.chunks[-1].kind
        choices = last.get("choices") or []
        if kind not in ("content", "reasoning") or len(choices) != 1 or last.get("usage"):
            return None
        choice = choices[0]
        delta = choice["delta"]
        name = next(name for name, _ in _KINDS if delta.get(name))
        head = {"event": {**last, "choices": None}, "choice": {**choice, "delta": None}}
        merged = self._choices[choice.get("index", 0)]
        assert isinstance(merged, ChatChoice)
        return repeated(data, head, delta, name, kind, merged.pieces_of(name))

    @staticmethod
    def _as_piece(choice: Json) -> Json:
        message = expect(dict, choice.get("message") or {})
        calls = message.get("tool_calls")
        if isinstance(calls, list):  # Without an index, a call without a name would be merged into the call before it.
            numbered = [{**call, "index": index} if isinstance(call, dict) else call for index, call in enumerate(calls)]
            message = {**message, "tool_calls": numbered}
        return {**choice, "delta": message}
