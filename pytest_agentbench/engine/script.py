"""The policy `script`: answers, delays and faults from a file, for tests.

The file is a list of rules in YAML or JSON. The first rule that matches a request answers it.

    - match: {contains: balance, call: 1}    # all conditions must hold; a rule without `match` always matches
      status: 500                            # the first such request fails ...
    - match: {contains: balance, turn: 0}    # ... and its retry succeeds
      tool_calls: [{name: get_account_balance, arguments: {account_type: checking}}]
    - text: You have 120 dollars.

`match`
    contains       the last user message contains this text
    turn           number of assistant messages in the request
    call           this is the n-th request, counted from 1, for which the rule's other conditions hold

The answer
    text           text
    tool_calls     list of {name, arguments}; arguments that are a text are sent unchanged, so they may be malformed
    finish_reason  replaces the one that follows from the answer

Delays
    ttft_ms, itl_ms     replace those of the engine
    tokens_per_chunk    tokens per event of a stream
    stall               {after: tokens, ms: milliseconds}: a pause in the middle

Faults (`tokens` counts from 0; a number beyond the end of the answer means its end)
    status, message, retry_after    an error answer: HTTP status, message, and Retry-After header in seconds
    malformed_json_after: tokens    an event that is not JSON, then the rest; without streaming, the second half of the body is missing
    error_event_after: tokens       an error object in an answer with status 200, then the end of the stream
    cut_after: tokens               the connection is closed; without streaming, in the middle of the body
    split_utf8: true                writes end inside multi-byte characters
    empty: true                     status 200 without a body
    exit: true                      the process ends with exit code 70

A request that no rule matches gets status 400.
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
from pytest_agentbench.lib.json_text import read_text


class Match(Spec):
    """The conditions of a rule. A condition that is None always holds."""

    contains: str | None = None
    turn: int | None = Field(default=None, ge=0)
    call: int | None = Field(default=None, ge=1)

    def matches(self, text: str, turn: int) -> bool:
        """Returns whether the conditions hold that depend only on the request, so all except `call`."""
        return (self.contains is None or self.contains in text) and self.turn in (None, turn)


class ScriptedCall(Spec):
    """A tool call in the file."""

    name: str = Field(min_length=1)
    arguments: Any = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _can_be_sent(cls, arguments: Any) -> Any:
        if not isinstance(arguments, (dict, str)):
            raise ValueError("must be a mapping or a text")  # noqa: TRY004 - pydantic expects a ValueError
        orjson.dumps(arguments)
        return arguments


class ScriptEntry(Delivery):
    """One rule of a script: its conditions, its answer, and how the answer is sent."""

    match: Match = Match()
    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _error_has_a_status(self) -> ScriptEntry:
        if self.status is None and {"message", "retry_after"} & self.model_fields_set:
            raise ValueError("message and retry_after are only allowed together with status")
        return self

    def reply(self) -> PolicyReply:
        return PolicyReply(self.text, tuple(ReplyCall(call.name, call.arguments) for call in self.tool_calls), self.finish_reason, self)


class Script:
    """The policy `script`: answers each request by the first matching rule of a file.

    Its only state is how many requests each rule has matched, for rules that apply only to the n-th of them (`call`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules = load_rules(path)
        self._calls: Counter[int] = Counter()  # index of a rule -> requests for which its conditions other than `call` held

    def reply(self, request: Mapping[str, Any]) -> PolicyReply:
        text = last_user_text(request["messages"])
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        matching = [index for index, rule in enumerate(self._rules) if rule.match.matches(text, turn)]
        self._calls.update(matching)
        for index in matching:
            if self._rules[index].match.call in (None, self._calls[index]):
                return self._rules[index].reply()
        return PolicyReply(delivery=Delivery(status=400, message=f"No rule in {self._path.name} matches this request."))


def load_rules(path: Path) -> list[ScriptEntry]:
    """Returns the rules of a script. Raises ConfigError, with file, rule and key, for an invalid one."""
    rules = parse_yaml(read_text(path), str(path))
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: must be a list of rules, not {rules!r}")
    return [validate(ScriptEntry, rule, f"{path}: rule {index}") for index, rule in enumerate(rules, start=1)]
