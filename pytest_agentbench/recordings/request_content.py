"""Requests in the form in which they are compared with recorded ones, and what differs between two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple, Self

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.redact import MARK
from pytest_agentbench.records import Json
from pytest_agentbench.tap.conversations import growing_field

#: Fields that decide how an answer is sent, or who asks, but not what it says: streaming, labels of stacks, the name of a user.
IGNORED = frozenset({"stream", "stream_options", "user", "nvext", "program_id", "job_id", "is_last_step"})

_SHOWN = 60  # characters of a value in a message
_ABSENT = object()


class RequestContent(NamedTuple):
    """The parts of a request that matter for its answer, in which requests are compared. Requests with equal digests count as the same."""

    path: str  # path below /v1, with its query
    settings: Json  # fields of the body, without the messages and IGNORED
    messages: list[Any]

    @classmethod
    def of(cls, path: str, body: Json) -> Self:
        growing = growing_field(body)
        settings = {name: value for name, value in body.items() if name != growing and name not in IGNORED}
        content = body[growing] if growing else []
        return cls(path, settings, content if isinstance(content, list) else [content])

    def digest(self) -> bytes:
        """Returns a hash of the request. The order of the keys of objects does not matter."""
        return digest(self)


def digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode(errors="surrogatepass")).digest()


def fits(recorded: Any, value: Any) -> bool:
    """Returns whether a value equals a recorded value. Where a text was redacted in the recorded value, any text is accepted."""
    if isinstance(recorded, dict) and isinstance(value, dict):
        return recorded.keys() == value.keys() and all(fits(each, value[name]) for name, each in recorded.items())
    if isinstance(recorded, list | tuple) and isinstance(value, list | tuple):
        return len(recorded) == len(value) and all(map(fits, recorded, value))
    if isinstance(recorded, str) and isinstance(value, str) and MARK in recorded:
        return _contains_in_order(value, recorded.split(MARK))
    return bool(recorded == value)


def _contains_in_order(text: str, parts: list[str]) -> bool:
    """Returns whether a text begins with the first part, ends with the last, and has the others between them in this order."""
    first, *inner, last = parts
    at, end = len(first), len(text) - len(last)
    for part in inner:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end and text.startswith(first) and text.endswith(last)


def is_redacted(value: Any) -> bool:
    return MARK in json.dumps(value, ensure_ascii=False)


def common_messages(recorded: RequestContent, asked: RequestContent) -> int:
    """Returns how many messages at the beginning of two requests are the same, redacted texts aside."""
    same = 0
    for one, other in zip(recorded.messages, asked.messages, strict=False):
        if not fits(one, other):
            break
        same += 1
    return same


def different_settings(recorded: RequestContent, asked: RequestContent) -> list[str]:
    """Returns the names of the fields in which a request differs from a recorded one, in alphabetical order.

    The messages and IGNORED fields are not compared.
    """
    names = sorted(recorded.settings.keys() | asked.settings.keys())
    return [name for name in names if not fits(recorded.settings.get(name, _ABSENT), asked.settings.get(name, _ABSENT))]


def differences(recorded: RequestContent, asked: RequestContent) -> Iterator[str]:
    """Yields a phrase for each difference between a recorded request and another request, for an error message."""
    if recorded.path != asked.path:
        yield f"it was sent to {recorded.path}, and this one to {asked.path}"
    for name in different_settings(recorded, asked):
        yield f"{name!r} {_change(recorded.settings.get(name, _ABSENT), asked.settings.get(name, _ABSENT))}"
    same, before, now = common_messages(recorded, asked), len(recorded.messages), len(asked.messages)
    if same < min(before, now):
        redacted = ", which was redacted in the recording and may differ there as well" if is_redacted(recorded.messages[same]) else ""
        yield f"message {same + 1} of {now} {_change(recorded.messages[same], asked.messages[same])}{redacted}"
    elif before != now:
        yield f"it has {before} message{'s' * (before != 1)}, and this one {now}"


def _change(before: Any, now: Any) -> str:
    """Returns a phrase such as `was X, and is now Y` for a recorded value and the new one. Long values begin near the first difference."""
    if before is _ABSENT or now is _ABSENT:
        return f"was not sent, and is now {_shown(now)}" if before is _ABSENT else f"was {_shown(before)}, and is not sent any more"
    one, other = _text(before), _text(now)
    place = next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    start = max(0, place - _SHOWN // 3) if max(len(one), len(other)) > _SHOWN else 0
    cut = "..." if start else ""
    return f"was {cut}{beginning(one[start:], _SHOWN)}, and is now {cut}{beginning(other[start:], _SHOWN)}"


def _shown(value: Any) -> str:
    return beginning(_text(value), _SHOWN)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
