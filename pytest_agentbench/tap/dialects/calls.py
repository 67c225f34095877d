"""Tool calls of Chat Completions, put together from their pieces: id and name come whole, arguments bit by bit."""

from __future__ import annotations

from typing import Any

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.pieces import TextPieces
from pytest_agentbench.tap.dialects.reader import Fault

_BAD_CALL = "bad_tool_call"


class Function:
    """A function's name and its arguments, or, with another field, a custom tool's name and its input."""

    def __init__(self, field: str = "arguments") -> None:
        self.name = ""
        self._field = field
        self._pieces = TextPieces()

    def merge(self, delta: Any) -> bool:
        """Adds a piece; returns whether it has a name or arguments."""
        if not isinstance(delta, dict):
            raise Fault(_BAD_CALL, f"what a tool call calls is no object: {delta!r:.100}")
        name, text = delta.get("name"), delta.get(self._field)
        if not isinstance(name, str | None):
            raise Fault(_BAD_CALL, f"the name of a tool is no text: {name!r:.100}")
        if not isinstance(text, str | None):  # a server that does not write them as text
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
    """One tool call."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.id: Any = None
        self._more: Json = {"type": "function"}
        self._field, self._function = "function", Function()

    def merge(self, delta: Json) -> bool:
        """Adds a piece; returns whether it has a name or arguments."""
        self.id = self.id or delta.get("id")
        if "custom" in delta and self._field != "custom":
            self._field, self._function = "custom", Function("input")
        for name, value in delta.items():
            if name not in ("index", "id", self._field) and value is not None:
                self._more[name] = value
        function = delta.get(self._field)
        return function is not None and self._function.merge(function)

    def settled(self) -> Json:
        """The call as it is without streaming, where it has no index."""
        return {"id": self.id, **self._more, self._field: self._function.settled()}


class StreamedCalls:
    """The tool calls of one message."""

    def __init__(self) -> None:
        self._calls: list[StreamedCall] = []
        self._latest: dict[int, StreamedCall] = {}  # by index

    def merge(self, pieces: Any) -> bool:
        """Adds pieces; returns whether any of them has a name or arguments."""
        if not isinstance(pieces, list | None):
            raise Fault(_BAD_CALL, f"the tool calls are no list: {pieces!r:.100}")
        said = [self._merge_piece(piece) for piece in pieces or ()]
        return any(said)

    def settled(self) -> list[Json]:
        """The calls in the order of their index; raises Fault for one that has no name."""
        return [call.settled() for call in sorted(self._calls, key=lambda call: call.place)]

    def _merge_piece(self, delta: Any) -> bool:
        if not isinstance(delta, dict):
            raise Fault(_BAD_CALL, f"a tool call is no object: {delta!r:.100}")
        index = delta.get("index")
        if not isinstance(index, int | None):
            raise Fault(_BAD_CALL, f"the index of a tool call is no number: {index!r:.100}")
        return self._call_of(index, delta).merge(delta)

    def _call_of(self, index: int | None, delta: Json) -> StreamedCall:
        """The call that a piece belongs to, a new one if need be.

        The index says which. Servers that leave it out, or give all calls the same, open each call with a name and an id of its own.
        """
        latest = self._latest.get(index) if index is not None else self._calls[-1] if self._calls else None
        if latest is not None and not (_opens(delta) and (index is None or delta.get("id") not in (None, "", latest.id))):
            return latest
        place = len(self._calls) if index is None else index
        call = self._latest[place] = StreamedCall(place)
        self._calls.append(call)
        return call


def _opens(delta: Json) -> bool:
    """Whether a piece has a name."""
    return any(isinstance(delta.get(field), dict) and delta[field].get("name") for field in ("function", "custom"))
