"""The conversations of a rollout in report.html: requests and replies of its calls, in which numbers stand for messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.records import Json, KeptCall
from pytest_agentbench.reports.page.blocks import ValueTable, block_text
from pytest_agentbench.runs.conversations import Conversations, KeptIds, NotKept, dialect_of
from pytest_agentbench.tap.dialects import Dialect

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
