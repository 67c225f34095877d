"""Writes one rollout as text: result, scores with explanations, tools expected and called, timeline, conversation, log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_agentbench.lib.foreign import one_line
from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.runs.conversations import NotKept
from pytest_agentbench.tools.toolbox import wire_names

if TYPE_CHECKING:
    from pytest_agentbench.records import Json, LLMCall, ToolCall
    from pytest_agentbench.runs.conversations import Conversations

BAR = 50  # columns of the timeline
LOG = 20  # last lines of the log that are shown
TRACEBACK = "Traceback (most recent call last)"

NO_CALL = "conversation: none, because no LLM call of this rollout went through agentbench"
LEGEND = "`-` waiting for the first token, `=` answer, `#` tool"
WHOLE = "`-` waiting for the answer (no call was streamed), `#` tool"


def rollout_text(rollout: Rollout, conversations: Conversations | None, directory: str) -> Iterator[str]:
    """Yields the lines about a rollout. `conversations` is None if the run kept no requests. `directory` is the run's path as shown."""
    yield str(rollout.key)
    yield from _labelled("result", [f"{rollout.status}{f': {rollout.reason}' if rollout.reason else ''}, {_took(rollout)}"])
    yield from _labelled("scores", [*_scores(rollout)])
    yield from _labelled("expected", [_tool(each.get("tool"), each.get("parameters", {})) for each in rollout.expected])
    yield from _labelled("called", [_called(each) for each in rollout.tool_calls] or ["none"] * bool(rollout.expected))
    yield from _labelled("offered", [", ".join(offered(rollout, conversations))] if conversations else [])
    yield from _labelled("not run", [*not_run(rollout, conversations)] if conversations else [])
    yield from _labelled("timeline", [*timeline(rollout)])
    talk = [*conversation(rollout, conversations)]
    yield from ("", *talk, "")
    is_new = rollout.answer and not any(line.endswith(rollout.answer.partition("\n")[0]) for line in talk)
    yield from _labelled("answer", [rollout.answer] if is_new else [])  # The answer of most agents is the last reply.
    yield from _labelled("log", log_end(rollout.log))
    yield from _labelled("record", [f"{directory}/rollouts.jsonl", f"{directory}/backend/pool.log is the log of the process that ran it"])


def log_end(log: str) -> list[str]:
    """Returns the last lines of a log: at least LOG, and more if the first of them is in a traceback, which is then whole."""
    lines = log.strip().split("\n") if log.strip() else []
    first = start = max(0, len(lines) - LOG)
    while start and lines[start].startswith(" "):
        start -= 1
    start = start if lines[start:] and lines[start].startswith(TRACEBACK) else first
    return [*([f"... {start:,} lines before these are in the record"] if start else []), *lines[start:]]


def offered(rollout: Rollout, conversations: Conversations) -> list[str]:
    """Returns the names of the tools in the requests of the agent's last attempt, as the model saw them, in the order of the first one."""
    names: dict[str, None] = {}
    for call in rollout.calls:
        with suppress(NotKept):
            form = conversations.form(call)
            tools = {**form.get("body", {}), **form["parts"]}.get("tools") or ()
            names |= dict.fromkeys(name for tool in tools if (name := _tool_name(tool)))
    return [*names]


def not_run(rollout: Rollout, conversations: Conversations) -> Iterator[str]:
    """Yields a sentence for each tool that the model asked for more often than the agent called it. Skips agents that call no tools."""
    if rollout.drafts or not (rollout.expected or rollout.tool_calls):  # Of several drafts only the chosen one has its calls recorded.
        return
    asked: Counter[str] = Counter()
    for call in (call for call in rollout.calls if not call.role and call.error_kind is None):
        with suppress(NotKept):
            calls = [each for message in conversations.chat_reply(call) for each in message.get("tool_calls") or ()]
            asked.update(name for name in map(_tool_name, calls) if name)
    wire = wire_names(dict.fromkeys(each.name for each in rollout.tool_calls))
    for name, number in (asked - Counter(wire[each.name] for each in rollout.tool_calls)).items():
        yield f"{name}: the model asked for it {phrases.count(number, 'more time')} than the agent called it with tools.call"


def _tool_name(tool: Any) -> str:
    """Returns the name of a tool, or of the tool in a tool call, in any API. Empty if it has none."""
    function = tool.get("function") or tool if isinstance(tool, dict) else {}
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def brief_text(rollout: Rollout, command: str) -> Iterator[str]:
    """Yields the lines about one of several rollouts: what it is, its tools, and the command that shows the whole."""
    yield f"{phrases.rollout(rollout)}"
    if rollout.scores and rollout.reason:
        yield f"    {one_line(rollout.reason.partition(chr(10))[0])}"
    yield from (f"    {name}: {one_line(why.partition(chr(10))[0])}" for name, why in rollout.score_errors.items())
    if rollout.expected:
        yield f"    {phrases.expected_and_actual(rollout.expected_tools, rollout.tools)}"
    yield f"    {command}"


def conversation(rollout: Rollout, conversations: Conversations | None) -> Iterator[str]:
    """Yields the calls of all attempts in order, with the messages of each request that the call before did not have, and the reply."""
    if not any(calls_of(rollout)):
        yield NO_CALL
        return
    if conversations is None:
        yield "conversation: not kept (--agentbench-keep)"
        return
    shown: list[Any] = []
    replies: list[Any] = []
    for number, (attempt, call) in enumerate(calls_of(rollout), 1):
        role = f", role {call.role}" if call.role else ""
        yield f"call {number}, attempt {attempt}{role}, {call.dialect}: {call.error or call.finish_reason or 'no finish reason'}"
        prompt = _or_reason(lambda call=call: conversations.chat_request(call) or conversations.prompt(call))  # type: ignore[misc]
        new = prompt[len(shown) :] if prompt[: len(shown)] == shown else prompt
        repeated = {_text(reply) for reply in replies}
        replies = _or_reason(lambda call=call: conversations.chat_reply(call) or conversations.reply_messages(call))  # type: ignore[misc]
        yield from _messages("", [message for message in new if _text(message) not in repeated])
        yield from _messages("-> ", replies)
        shown = prompt


def calls_of(rollout: Rollout) -> Iterator[tuple[int, LLMCall]]:
    """Yields (number of the attempt, call) for each LLM call of a rollout, in order of time within an attempt."""
    for attempt in rollout.attempts:
        for call in sorted((*attempt.calls, *attempt.other_calls), key=lambda call: call.received_ns):
            yield attempt.attempt, call


def timeline(rollout: Rollout) -> Iterator[str]:
    """Yields a line for each LLM call and tool call of the last attempt, with a bar whose width is the time of the attempt."""
    begin, length = rollout.started_ns, rollout.ended_ns - rollout.started_ns
    if length <= 0:
        return
    rows: list[tuple[int, int, int, str, str]] = []
    for number, call in enumerate(sorted((*rollout.calls, *rollout.other_calls), key=lambda call: call.received_ns), 1):
        first = call.output[0].at_ns if call.output else call.ended_ns
        name = f"call {number}{f' ({call.role})' if call.role else ''}"
        rows.append((call.begun_ns, first, call.ended_ns, name, "-="))
    rows += [
        (tool.started_ns, tool.ended_ns, tool.ended_ns, tool.name, "##")
        for tool in rollout.tool_calls
        if tool.started_ns is not None and tool.ended_ns is not None
    ]
    width = max((len(name) for *_, name, _ in rows), default=0)
    for started, middle, ended, name, marks in sorted(rows):
        yield f"{name:<{width}} |{_bar(started - begin, middle - begin, ended - begin, length, marks)}| {(ended - started) / 1e6:.1f} ms"
    if rows:
        yield LEGEND if any(call.output for call in (*rollout.calls, *rollout.other_calls)) else WHOLE


def _bar(started: int, middle: int, ended: int, length: int, marks: str) -> str:
    first, second, last = (min(BAR, max(0, round(each / length * BAR))) for each in (started, middle, ended))
    first = min(first, BAR - 1)
    last = max(last, first + 1)
    text = " " * first + marks[0] * (second - first) + marks[1] * (last - max(second, first))
    return f"{text:<{BAR}}"[:BAR]


def _took(rollout: Rollout) -> str:
    attempts = f", attempt {rollout.attempt}" if rollout.attempt > 1 else ""
    return (
        f"{phrases.seconds_text(rollout.duration_s)}, {phrases.count(len(rollout.calls) + len(rollout.other_calls), 'LLM call')}{attempts}"
    )


def _scores(rollout: Rollout) -> Iterator[str]:
    for name, score in rollout.scores.items():
        yield f"{name} {score!r}{f': {score.explanation}' if score.explanation else ''}"
    yield from (f"{name} missing: {why}" for name, why in rollout.score_errors.items())


def _called(call: ToolCall) -> str:
    problem = f"  ({call.problem}: {call.detail})" if call.problem else f"  (refused: {call.refusal})" if call.refusal else ""
    return f"{_tool(call.name, call.arguments if call.raw is None else call.raw)}{problem}"


def _tool(name: Any, arguments: Any) -> str:
    return f"{name}({arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)})"


def _labelled(label: str, texts: Sequence[str]) -> Iterator[str]:
    """Yields texts under each other, the first one with a label. Further lines of a text are indented."""
    for line in (line for text in texts for line in text.split("\n")):
        yield f"{label:<11} {line}".rstrip()
        label = ""


def _messages(mark: str, messages: Sequence[Any]) -> Iterator[str]:
    for message in messages:
        role = message.get("role") or message.get("type") or "" if isinstance(message, dict) else ""
        first, *rest = _text(message).split("\n")
        yield f"  {mark}{role:<{10 - len(mark)}} {first}"
        yield from (f"  {'':10} {line}" for line in rest)


def _or_reason(read: Callable[[], Sequence[Any]]) -> list[Any]:
    """Returns the messages that `read` returns, or instead of them a text that says why the run did not keep them."""
    try:
        return list(read())
    except NotKept as reason:
        return [f"({reason})"]


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


def call_as_json(conversations: Conversations, attempt: int, call: LLMCall) -> Json:
    """Returns a call with its whole request and reply, or the reason why they are missing."""
    record: Json = {"attempt": attempt, "role": call.role, "exact": conversations.is_exact(call)}
    for name, read in (("request", conversations.request), ("reply", conversations.reply)):
        try:
            record[name] = read(call)
        except NotKept as reason:
            record[name], record["missing"] = None, str(reason)
    return record
