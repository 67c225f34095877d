"""Finds the recorded call for a request: by its content, or else by its place in the rollout. Counts requests and unused calls.

Requests are compared in a form that contains only what matters. It also shows what differs between two requests.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple, Self

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.redact import MARK
from pytest_agentbench.recordings.recording import RecordedCall, Recording
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.runs.conversations import NotKept
from pytest_agentbench.runs.run_file import Playback
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


class CallPlace(NamedTuple):
    """The rollout that makes a call, and the role in it."""

    key: RolloutKey
    role: str = ""  # empty for the agent itself


class NotRecorded(LookupError):
    """A request that the recording does not contain, with a sentence that compares it with the nearest recorded one."""


class Tape:
    """Finds recorded calls for requests, and remembers which calls were used.

    A request is found by its content, first in its own rollout and then in all others. If it was recorded several times, repeating it
    gets the next recorded answer each time, and then the last one again. If texts of the recorded request were redacted, it is found by
    its place: the recorded call is of the same rollout and role, and the requests differ only in redacted texts.
    """

    def __init__(self, recording: Recording, redact: Callable[[str], str], run: str = "") -> None:
        """Takes the calls of `recording`. `redact` is the function that removes secrets from a text, `run` the id of the recorded run."""
        self._recording, self._redact, self._run = recording, redact, run
        self._same: defaultdict[bytes, list[int]] = defaultdict(list)  # digest of a request -> numbers of its calls
        self._places: defaultdict[CallPlace, list[int]] = defaultdict(list)  # place -> numbers of its calls
        self._redacted: set[int] = set()  # numbers of calls with redacted texts
        self._taken: Counter[tuple[CallPlace | None, bytes]] = Counter()  # requests that a place has made
        self._asked: set[int] = set()  # numbers of calls that were asked for
        self._played: set[RolloutKey] = set()  # rollouts that asked for something
        self._found: Counter[str] = Counter()  # how requests were found: by_content, by_place or missed
        self.models: set[str] = set()  # model names in the recorded requests
        self._content = functools.lru_cache(maxsize=10_000)(self._read_content)
        for number, call in enumerate(recording.calls):
            self._places[CallPlace(call.key, call.role)].append(number)
            try:
                content = self._content(number)
            except NotKept:
                continue
            self._same[content.digest()].append(number)
            self._redacted.update([number] if is_redacted(content) else [])
            self.models.update([content.settings["model"]] if isinstance(content.settings.get("model"), str) else [])

    @property
    def playback(self) -> Playback:
        """The use of the recording so far."""
        played = {number for place, numbers in self._places.items() if place.key in self._played for number in numbers}
        by_content, by_place, missed = (self._found[how] for how in ("by_content", "by_place", "missed"))
        return Playback(self._run, len(self._recording.calls), by_content, by_place, missed, len(played), len(played - self._asked))

    def find(self, path: str, body: Json, place: CallPlace | None) -> RecordedCall:
        """Returns the recorded call for a request, or raises NotRecorded. `place` is the rollout and role that make it, if known."""
        if place is not None:
            self._played.add(place.key)
        asked = RequestContent.of(path, body)
        number = self._by_content(asked, place)
        if number is None:
            asked = RequestContent.of(path, self._without_secrets(body))
            number = self._by_content(asked, place)
        if number is not None:
            self._found["by_content"] += 1
        elif (number := self._by_place(asked, place)) is not None:
            self._found["by_place"] += 1
        else:
            self._found["missed"] += 1
            raise NotRecorded(self._miss(asked, place))
        self._asked.add(number)
        return self._recording.calls[number]

    def _by_content(self, asked: RequestContent, place: CallPlace | None) -> int | None:
        digest = asked.digest()
        if (numbers := self._same.get(digest)) is None:
            return None
        own = [number for number in numbers if number in self._places.get(place, ())] if place else []
        taken = place if own else None, digest
        self._taken[taken] += 1
        return (own or numbers)[min(self._taken[taken], len(own or numbers)) - 1]

    def _by_place(self, asked: RequestContent, place: CallPlace | None) -> int | None:
        numbers = [number for number in self._places.get(place, ()) if number in self._redacted] if place else []
        same = [number for number in numbers if fits(self._content(number), asked)]
        return next((number for number in same if number not in self._asked), same[-1] if same else None)

    def _without_secrets(self, body: Json) -> Json:
        """Returns the body as messages.jsonl would have it: with the secrets of this machine redacted."""
        line = self._redact(f'{{"id":"","value":{json_text.dumps(body).decode()}}}')
        changed: Json = json_text.loads(line.encode())["value"]
        return changed

    def _read_content(self, number: int) -> RequestContent:
        return RequestContent.of(*self._recording.request(self._recording.calls[number]))

    def _miss(self, asked: RequestContent, place: CallPlace | None) -> str:
        """Returns a sentence about a request that was not found: how it differs from the recorded request that is most like it."""

        def likeness(number: int) -> tuple[bool, int, int, bool, int]:
            known = self._content(number)
            same = common_messages(known, asked)
            beyond = len(known.messages) + len(asked.messages) - 2 * same
            return known.path == asked.path, same, -beyond, number in own, -len(different_settings(known, asked))

        own = set(self._places.get(place, ())) if place else set()
        known = [number for numbers in self._same.values() for number in numbers]
        if not known:
            return "not recorded: no request of the recording can be compared"
        nearest = max(known, key=likeness)
        call = self._recording.calls[nearest]
        order = self._places[CallPlace(call.key, call.role)].index(nearest) + 1
        where = f"call {order} of {call.key}{f' as {call.role}' if call.role else ''}"
        what = "; ".join(differences(self._content(nearest), asked))
        return f"not recorded; the nearest recorded request is {where}: {what or 'the same, but in another rollout'}"
