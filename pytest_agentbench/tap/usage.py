"""A stream for an agent that did not ask for its usage, although the tap did: the event that only holds the usage is left out."""

from __future__ import annotations

from pytest_agentbench.lib import json_text

#: Every event that is left out holds this.
MARK = b'"usage"'


class WithoutUsage:
    """Passes bytes on as they come. Only the beginning of an event whose end is still to come waits for it."""

    def __init__(self) -> None:
        self._end = b""  # of an event, as this stream writes it; known when its first line is there
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """What may be passed on now."""
        if self._end and not self._begun and data.endswith(self._end) and MARK not in data:
            return data
        data, self._begun = self._begun + data, b""
        self._end = self._end or _end_of_events(data)
        if self._end == b"\r":  # a form that is allowed, and that nobody uses
            return data
        whole, end, self._begun = data.rpartition(self._end or b"\n\n")
        return b"".join(event + end for event in (whole.split(end) if end else ()) if not _only_usage(event))

    def rest(self) -> bytes:
        """What is left at the end of a stream."""
        rest, self._begun = self._begun, b""
        return rest


def _end_of_events(data: bytes) -> bytes:
    if b"\r\n" in data:
        return b"\r\n\r\n"
    if b"\n" in data:
        return b"\n\n"
    return b"\r" if b"\r" in data[:-1] else b""


def _only_usage(event: bytes) -> bool:
    if MARK not in event:
        return False
    field, _, text = event.strip().partition(b":")
    data = json_text.json_object(text) if field == b"data" else None
    return data is not None and data.get("choices") == [] and isinstance(data.get("usage"), dict)
