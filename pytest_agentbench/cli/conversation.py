"""`agentbench conversation`: prints what the agent of one rollout and its models sent each other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.parser import RUN_HELP
from pytest_agentbench.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from pytest_agentbench.records import Json, LLMCall, Rollout
    from pytest_agentbench.runs.conversations import Conversations


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    conversation = commands.add_parser(
        "conversation",
        help="Print the requests and replies of one rollout, as the tap saw them",
        example="agentbench conversation 'banking[banking-000]' --run latest",
    )
    conversation.add_argument("rollout", metavar="ROLLOUT", help="the rollout as reports name it, for example 'banking[scenario-id]'")
    conversation.add_argument("--run", dest="name", default="latest", metavar="RUN", help=RUN_HELP)
    conversation.add_argument(
        "--json", action="store_true", help="print a JSON object for each call: attempt, role, request, exact (the same bytes), reply"
    )
    conversation.takes_reports()
    conversation.set_defaults(run=run_conversation)


def run_conversation(options: argparse.Namespace) -> None:
    """Prints the calls of all attempts in the order in which they were made. Messages and replies of the call before are not repeated."""
    from pytest_agentbench.runs.conversations import Conversations
    from pytest_agentbench.runs.run_file import find_run

    directory = find_run(options.name, options.reports)
    conversations = Conversations(directory)
    shown: list[Any] = []
    replies: list[Any] = []
    for number, (attempt, call) in enumerate(_calls(_rollout(directory, options.rollout)), 1):
        if options.json:
            print(json.dumps(_as_json(conversations, attempt, call), ensure_ascii=False))
            continue
        role = f", role {call.role}" if call.role else ""
        print(f"call {number}, attempt {attempt}{role}, {call.dialect}: {call.error or call.finish_reason or 'no finish reason'}")
        prompt = _or_reason(lambda call=call: conversations.prompt(call))
        new = prompt[len(shown) :] if prompt[: len(shown)] == shown else prompt
        repeated = {_text(reply) for reply in replies}
        replies = _or_reason(lambda call=call: conversations.reply_messages(call))
        for line in (*_lines("", [message for message in new if _text(message) not in repeated]), *_lines("-> ", replies)):
            print(line)
        shown = prompt


def _rollout(directory: Path, name: str) -> Rollout:
    """Returns a rollout by its name. Raises ConfigError with the names that are similar."""
    from pytest_agentbench.runs.journal import check_journal, read_index, read_journal

    check_journal(directory)
    names = {str(key): key for key in read_index(directory).entries}
    if name not in names:
        raise ConfigError(f"{directory}: {unknown_name('rollout', name, names)}")
    return next(rollout for rollout in read_journal(directory) if rollout.key == names[name])


def _calls(rollout: Rollout) -> Iterator[tuple[int, LLMCall]]:
    """Yields (number of the attempt, call) for each LLM call of a rollout, in order of time within an attempt."""
    for attempt in rollout.attempts:
        for call in sorted((*attempt.calls, *attempt.other_calls), key=lambda call: call.received_ns):
            yield attempt.attempt, call


def _or_reason(read: Any) -> list[Any]:
    """Returns the messages that `read` returns, or instead of them a text that says why the run did not keep them."""
    from pytest_agentbench.runs.conversations import NotKept

    try:
        return list(read())
    except NotKept as reason:
        return [f"({reason})"]


def _lines(mark: str, messages: Sequence[Any]) -> Iterator[str]:
    for message in messages:
        role = message.get("role") or message.get("type") or "" if isinstance(message, dict) else ""
        first, *rest = _text(message).split("\n")
        yield f"  {mark}{role:<{10 - len(mark)}} {first}"
        yield from (f"  {'':10} {line}" for line in rest)


def _text(message: Any) -> str:
    """Returns the text and the tool calls of a message of any API. Other parts are printed as JSON."""
    if not isinstance(message, dict):
        return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    content = message.get("content")
    parts = content if isinstance(content, list) else [content] if content else []
    texts = [_part(part) for part in (*parts, *(message.get("tool_calls") or ()))]
    return "\n".join(texts) if texts else _part(message)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        function = part.get("function") or part
        if isinstance(function, dict) and "name" in function and "arguments" in function:
            return f"{function['name']}({function['arguments']})"
    return json.dumps(part, ensure_ascii=False)


def _as_json(conversations: Conversations, attempt: int, call: LLMCall) -> Json:
    from pytest_agentbench.runs.conversations import NotKept

    record: Json = {"attempt": attempt, "role": call.role, "exact": conversations.is_exact(call)}
    for name, read in (("request", conversations.request), ("reply", conversations.reply)):
        try:
            record[name] = read(call)
        except NotKept as reason:
            record[name], record["missing"] = None, str(reason)
    return record
