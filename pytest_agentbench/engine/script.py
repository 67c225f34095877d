"""The policy `script`: answers, delays and faults from a file, for tests.

The file is a list of rules in YAML or JSON; the first rule that fits a request answers it.

    - match: {contains: balance, call: 1}    # every condition must hold; a rule without `match` always fits
      status: 500                            # the first such request fails ...
    - match: {contains: balance, turn: 0}    # ... and when it is tried again
      tool_calls: [{name: get_account_balance, arguments: {account_type: checking}}]
    - text: You have 120 dollars.

`match`
    contains       the last user message contains this text
    turn           number of assistant messages in the request
    call           this is the n-th request, counted from 1, for which the rule's other conditions hold

The answer
    text           text
    tool_calls     list of {name, arguments}; arguments that are a text are sent as they are, so they may be malformed
    finish_reason  instead of the one that follows from the answer

Delays
    ttft_ms, itl_ms     instead of the engine's
    tokens_per_chunk    tokens per event of a stream
    stall               {after: tokens, ms: milliseconds}: a pause in the middle

Faults (`tokens` counts from 0; a number beyond the answer's end means its end)
    status, message, retry_after    an error answer: HTTP status, its message, its Retry-After header in seconds
    malformed_json_after: tokens    an event that is no JSON, then the rest; a whole answer loses its second half
    error_event_after: tokens       an error object inside the 200, and the end of the stream
    cut_after: tokens               the connection is closed; a whole answer is cut in the middle
    split_utf8: true                writes end inside multi-byte characters
    empty: true                     a 200 without a body
    exit: true                      the process dies with exit code 70

A request that no rule fits gets a 400 that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, field_validator, model_validator

from pytest_agentbench.engine.chat import Delivery, PolicyReply, ReplyCall, last_user_text
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, parse_yaml, validate
from pytest_agentbench.lib.json_file import read_text


class Match(Spec):
    """Which requests a rule is for; None stands for any."""

    contains: str | None = None
    turn: int | None = Field(default=None, ge=0)
    call: int | None = Field(default=None, ge=1)

    def matches(self, text: str, turn: int) -> bool:
        """Whether the conditions hold that a request alone can tell."""
        return (self.contains is None or self.contains in text) and self.turn in (None, turn)


class ScriptedCall(Spec):
    """A tool call as the file has it."""

    name: str = Field(min_length=1)
    arguments: Any = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _can_be_sent(cls, arguments: Any) -> Any:
        if not isinstance(arguments, (dict, str)):
            raise ValueError("should be a mapping or a text")  # noqa: TRY004 - pydantic wants a ValueError
        orjson.dumps(arguments)
        return arguments


class ScriptEntry(Delivery):
    """One entry of a script: whom it is for, what it says, and how that is delivered."""

    match: Match = Match()
    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _error_has_a_status(self) -> ScriptEntry:
        if self.status is None and {"message", "retry_after"} & self.model_fields_set:
            raise ValueError("message and retry_after only go with status")
        return self

    def reply(self) -> PolicyReply:
        return PolicyReply(self.text, tuple(ReplyCall(call.name, call.arguments) for call in self.tool_calls), self.finish_reason, self)


class Script:
    """Answers by the rules of a file; it remembers only how often each rule was concerned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules = load_rules(path)
        self._calls: Counter[int] = Counter()  # by the rule's index

    def reply(self, request: Mapping[str, Any]) -> PolicyReply:
        text = last_user_text(request["messages"])
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        matching = [index for index, rule in enumerate(self._rules) if rule.match.matches(text, turn)]
        self._calls.update(matching)
        for index in matching:
            if self._rules[index].match.call in (None, self._calls[index]):
                return self._rules[index].reply()
        return PolicyReply(delivery=Delivery(status=400, message=f"No rule of {self._path.name} fits this request."))


def load_rules(path: Path) -> list[ScriptEntry]:
    """The rules of a script; raises ConfigError, with file, rule and key, for what it cannot mean."""
    rules = parse_yaml(read_text(path), str(path))
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: should be a list of rules, not {rules!r}")
    return [validate(ScriptEntry, rule, f"{path}: rule {index}") for index, rule in enumerate(rules, start=1)]
