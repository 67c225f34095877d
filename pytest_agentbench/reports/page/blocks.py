"""Compressed blocks of report.html: whole rollouts, and the values that they refer to by number, each distinct value once.

In the conversations of a rollout (requests and replies of its calls), numbers stand for messages.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_text import whole_characters
from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.records import Json, KeptCall
from pytest_agentbench.runs.conversations import Conversations, KeptIds, NotKept, dialect_of
from pytest_agentbench.tap.dialects import Dialect

LEVEL = 6  # level of gzip; the next one takes 50 % longer and saves 1 % of the size


class ValueTable:
    """Numbers distinct JSON values, and divides them into blocks: a block has the values that no earlier block has.

    `close` ends a block, and `drop` removes the values of the open one. Each value is written once on a page, however many requests
    contain it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str | bytes, int] = {}  # hash of the JSON text, or an id in messages.jsonl -> number
        self._new: list[str] = []  # JSON texts of the open block
        self._keys: list[str | bytes] = []  # keys that were added since the open block began
        self._starts = [0]  # number of the first value of each block, the open one last
        self._used: set[int] = set()  # earlier blocks that contain a value which was requested since the last call of `used`

    def number(self, value: Any, id: str = "") -> int:
        """Returns the number of a value. `id` is its id in messages.jsonl, if it has one."""
        text = encoded(value)
        number = self._numbers.get(key := sha256(text.encode()).digest())
        if number is None:
            number = self._starts[-1] + len(self._new)
            self._new.append(text)
            self._add(key, number)
        if id:
            self._add(id, number)
        return self._seen(number)

    def known(self, id: str) -> int | None:
        """Returns the number of the value with this id, or None if it has none yet."""
        number = self._numbers.get(id)
        return None if number is None else self._seen(number)

    def used(self) -> list[int]:
        """Returns the numbers of earlier blocks with values that were requested since the last call."""
        used, self._used = sorted(self._used), set()
        return used

    @property
    def open_size(self) -> int:
        """Characters of the values in the open block."""
        return sum(map(len, self._new))

    def texts(self) -> list[str]:
        """Returns the JSON texts of the values in the open block."""
        return self._new

    def close(self) -> None:
        """Ends the open block and begins another one."""
        self._starts.append(self._starts[-1] + len(self._new))
        self._new, self._keys = [], []

    def drop(self) -> None:
        """Removes the values of the open block."""
        for key in self._keys:
            del self._numbers[key]
        self._new, self._keys = [], []

    @property
    def starts(self) -> list[int]:
        """The number of the first value of each closed block."""
        return self._starts[:-1]

    def _add(self, key: str | bytes, number: int) -> None:
        if key not in self._numbers:
            self._numbers[key] = number
            self._keys.append(key)

    def _seen(self, number: int) -> int:
        if number < self._starts[-1]:
            self._used.add(bisect_right(self._starts, number) - 1)
        return number


def block_text(rollouts: Sequence[Json], values: Sequence[str]) -> str:
    """Returns the JSON of a block. `values` are JSON texts."""
    return f'{{"rollouts":{encoded(rollouts)},"values":[{",".join(values)}]}}'


def packed(text: str) -> str:
    """Compresses a text, and returns it as base64. Equal texts give equal results."""
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def encoded(value: Any) -> str:
    """Encodes a value as JSON in valid UTF-8. Objects of user code are converted to strings."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # objects in settings of an agent, lone surrogates, or integers longer than 64 bits
        return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


UNREADABLE = (NotKept, OSError, ValueError)


class NumberedRollouts:
    """Replaces the messages in details of rollouts by numbers in a table of values.

    The details come from `rollouts.detail`, and have ids of messages.jsonl. In the result a call has `asked` and `replied`, or
    sentences that say why they are missing. A prompt is a number of messages of an earlier call's prompt, and the messages after
    those, so that sizes do not grow with the square of the number of calls.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is the directory of the run. Its messages.jsonl is opened when the first rollout refers to it."""
        self.values = ValueTable()
        self._directory = directory
        self._opened: Conversations | None = None
        self._counts: dict[str, int] = {}  # key of `_numbers` -> number of messages

    def numbered(self, detail: Json) -> Json:
        """Returns the details with numbers, and with the blocks of earlier rollouts that have some of their values (`needs`)."""
        attempts = [{**attempt, "calls": self._calls(attempt["calls"])} for attempt in detail["attempts"]]
        result = {**detail, "messages": self._transcript(detail), "attempts": attempts}
        del result["conversation"]
        return {**result, "needs": self.values.used()}

    def alone(self, detail: Json) -> str:
        """Returns the JSON of a block with one rollout."""
        rollout = self.numbered(detail)
        return block_text([rollout], self.values.texts())

    def _reader(self) -> Conversations:
        if self._opened is None:
            try:
                self._opened = Conversations(self._directory)
            except ConfigError as error:
                raise NotKept(f"the run has no {FILE}") from error
        return self._opened

    def _why(self, error: Exception) -> str:
        """Returns the message of an error without the path of the run, because a page is sent to others."""
        return str(error).replace(f"{self._directory}/", "")

    def _transcript(self, detail: Json) -> list[int]:
        if not detail["conversation"]:
            return [self.values.number(message) for message in detail["messages"]]
        try:
            return [self._item(id) for id in self._reader().message_ids(detail["conversation"])]
        except UNREADABLE:
            return []

    def _calls(self, calls: Sequence[Json]) -> list[Json]:
        asked: list[NumberedPrompt] = []
        result = []
        for call in calls:
            ids = KeptIds(KeptCall(*call["kept"]) if call["kept"] else None)
            known = {name: value for name, value in call.items() if name != "kept"}
            try:
                form, prompt = self._request(ids, call["role"])
                known["asked"] = {"form": form, **prompt.after(asked)}
            except UNREADABLE as error:
                prompt = NumberedPrompt(call["role"], [], [])
                known["asked"], known["missing"] = None, self._why(error)
            asked.append(prompt)
            result.append({**known, "replied": self._reply(ids)})
        return result

    def _request(self, call: KeptIds, role: str) -> tuple[int, NumberedPrompt]:
        """Returns the number of a request without its messages, and the prompt. Raises one of UNREADABLE."""
        reader = self._reader()
        form = reader.stored_form(call)
        number = self.values.number({**form, "parts": {name: self._part(id) for name, id in form.get("parts", {}).items()}})
        ids = reader.message_ids(call.kept.prompt if call.kept else "")
        raw, dialect = [self._item(id) for id in ids], dialect_of(form)
        if dialect is None or "body" not in form:
            return number, NumberedPrompt(role, raw, raw)
        field = _field(form)
        chat = self._numbers(f"instructions/{call.kept and call.kept.request}", lambda: dialect.chat_request(self._fixed_body(form)))
        for id in ids:
            chat += self._numbers(f"{field}/{id}", functools.partial(self._converted, dialect, field, id))
        return number, NumberedPrompt(role, raw, chat)

    def _fixed_body(self, form: Json) -> Json:
        """Returns the body of a request without its messages, and without large parts that were not kept."""
        parts = {name: self._readable(id) for name, id in form.get("parts", {}).items() if self._part(id) is not None}
        return {**form["body"], **parts}

    def _reply(self, call: KeptIds) -> Json | None:
        """Returns the numbers of a reply and of its messages, or None if it cannot be read.

        The messages of Chat Completions are replaced in the reply by null, because they are usually in the next request, too.
        """
        try:
            reader = self._reader()
            form, reply = reader.stored_form(call), reader.reply(call)
            dialect, field = dialect_of(form), _field(form)
            if dialect is None or not isinstance(reply, dict) or not dialect.chat_reply(reply):
                return {"value": self.values.number(reply), "messages": []}
            items = [message for item in reader.reply_messages(call) for message in _in_chat_form(dialect, field, item)]
        except UNREADABLE:
            return None
        choices = reply.get("choices")
        if isinstance(choices, list) and len(choices) == len(items) and all(isinstance(each.get("message"), dict) for each in choices):
            reply = {**reply, "choices": [{**choice, "message": None} for choice in choices]}
        return {"value": self.values.number(reply), "messages": [self.values.number(item) for item in items]}

    def _numbers(self, key: str, make: Callable[[], list[Any]]) -> list[int]:
        """Returns the numbers of messages, which `make` returns. They are made once for each key, because prompts repeat them."""
        known = [self.values.known(f"{key}/{place}") for place in range(self._counts.get(key, 0))]
        if key in self._counts and None not in known:
            return [number for number in known if number is not None]
        messages = make()
        self._counts[key] = len(messages)
        return [self.values.number(message, f"{key}/{place}") for place, message in enumerate(messages)]

    def _item(self, id: str) -> int:
        """Returns the number of a message of a prompt."""
        known = self.values.known(id)
        return self.values.number(self._readable(id), id) if known is None else known

    def _readable(self, id: str) -> Any:
        """Returns a message of a prompt, or one that says why it cannot be read."""
        try:
            return self._reader().value(id)
        except UNREADABLE as error:
            return {"role": "not kept", "content": self._why(error)}

    def _converted(self, dialect: Dialect, field: str, id: str) -> list[Any]:
        return _in_chat_form(dialect, field, self._readable(id))

    def _part(self, id: str) -> int | None:
        """Returns the number of a large part of a request, or None if it was not kept."""
        try:
            known = self.values.known(id)
            return self.values.number(self._reader().value(id), id) if known is None and id else known
        except UNREADABLE:
            return None


def _field(form: Json) -> str:
    """Returns the field of a request that has its messages, or an empty string."""
    return str(form.get("listed") or form.get("joined") or "")


def _in_chat_form(dialect: Dialect, field: str, item: Any) -> list[Any]:
    """Returns one message of an API in the form of Chat Completions. One without such a form is returned as it is."""
    return dialect.chat_request({field: item if isinstance(item, str) else [item]}) or [item]


@dataclass(frozen=True)
class NumberedPrompt:
    """The messages of a request as numbers."""

    role: str
    raw: list[int]  # in the form of its API
    chat: list[int]  # in the form of Chat Completions

    def after(self, earlier: Sequence[NumberedPrompt]) -> Json:
        """Returns the prompt as the first messages of an earlier prompt and the messages after those.

        `from` is the place of the earlier call, -1 for none, `same` the number of messages, and `then` has the others. `raw` is the
        same in the form of the API, or null if that is equal.
        """
        place = self._previous(earlier)
        same, same_raw = (shared(earlier[place].chat, self.chat), shared(earlier[place].raw, self.raw)) if place >= 0 else (0, 0)
        raw = None if self.raw == self.chat else {"same": same_raw, "then": self.raw[same_raw:]}
        return {"from": place, "same": same, "then": self.chat[same:], "raw": raw}

    def _previous(self, earlier: Sequence[NumberedPrompt]) -> int:
        """Returns the place of the previous call of this conversation, or -1 if this call begins one.

        That is the call of the same role whose prompt begins like this one for the most messages; of several such calls, the last one.
        """
        same = [shared(other.chat, self.chat) if other.role == self.role else 0 for other in earlier]
        most = max(same, default=0)
        return max(place for place, count in enumerate(same) if count == most) if most else -1


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns with how many equal numbers two sequences begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # Comparing slices is faster than a loop over numbers.
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
