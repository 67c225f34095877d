"""Writes the calls of a run as the events of the NeMo Agent Toolkit's profiler, with what agents, models and tools sent each other.

The toolkit writes the messages of LangChain (`langchain_core.messages`) as JSON.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_agentbench.exports.nat_profiler import EVENT_COLUMNS, FRAMEWORK
from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.metrics.columns import RolloutPlace
from pytest_agentbench.metrics.other_tools.measures import called_ns
from pytest_agentbench.records import OUTPUT_KINDS, Attempt, Json, LLMCall, Rollout, ToolCall
from pytest_agentbench.runs.conversations import INSTRUCTIONS, Conversations, NotKept

#: Role of a message -> LangChain's type of it.
TYPES = {"user": "human", "assistant": "ai", "developer": "system"}


class CallMessages(NamedTuple):
    """What an agent and a model sent each other in one call. The messages have the form of Chat Completions."""

    prompt: list[Json] | None = None  # messages of the request; None if they were not kept
    tools: tuple[Json, ...] = ()  # tools of the request, as it has them; empty if it has none, or if they were not kept
    reply: Json | None = None  # message of the model; None if it was not kept


class RolloutMessages(NamedTuple):
    """What agent, models and tools sent each other in a rollout: the messages of its LLM calls, and the results of its tool calls."""

    calls: Mapping[tuple[int, int], CallMessages] = MappingProxyType({})  # number of the attempt, index of the call -> messages
    results: Sequence[Any] = ()  # result of each tool call of the rollout, None if it is unknown


def question(rollout: Rollout) -> Any:
    """Returns the content of the first message of the user, or None if the transcript has none."""
    return next((message.get("content") for message in rollout.messages if message.get("role") == "user"), None)


class KeptMessages:
    """Reads the messages of a run's rollouts from messages.jsonl. Answers and tool results that it lacks come from transcripts."""

    def __init__(self, directory: Path) -> None:
        self._conversations = Conversations(directory) if (directory / FILE).is_file() else None

    def of(self, rollout: Rollout) -> RolloutMessages:
        """Returns what was sent in the calls of all attempts, and the results of the last attempt's tool calls."""
        calls = {
            (attempt.attempt, number): self._of_call(call) for attempt in rollout.attempts for number, call in enumerate(attempt.calls)
        }
        for number, answer in _answers(rollout):
            if calls[rollout.attempt, number].reply is None:
                calls[rollout.attempt, number] = calls[rollout.attempt, number]._replace(reply=answer)
        # The prompts of an agent that judges its own work belong to all its drafts, the transcript to the chosen one.
        own = () if rollout.drafts else range(len(rollout.calls))
        prompts = [calls[rollout.attempt, number].prompt or () for number in own]
        return RolloutMessages(calls, [*_results_of(rollout.tool_calls, [*prompts, rollout.messages])])

    def _of_call(self, call: LLMCall) -> CallMessages:
        if self._conversations is None:
            return CallMessages()
        return CallMessages(*self._request(self._conversations, call), self._reply(self._conversations, call))

    @staticmethod
    def _request(conversations: Conversations, call: LLMCall) -> tuple[list[Json] | None, tuple[Json, ...]]:
        """Returns the messages and the tools of an LLM call's request. The messages are None if messages.jsonl lacks a part of them."""
        try:
            form = conversations.form(call)
            messages = conversations.chat_request(call)
        except NotKept:
            return None, ()
        tools = form["parts"].get("tools") or form.get("body", {}).get("tools") or ()
        return None if INSTRUCTIONS & {*form["left_out"]} else messages, tuple(tool for tool in tools if isinstance(tool, dict))

    @staticmethod
    def _reply(conversations: Conversations, call: LLMCall) -> Json | None:
        """Returns the model's message, the first one if there are several. None if it was not kept, or if the reply contains none."""
        try:
            messages = conversations.chat_reply(call)
        except NotKept:
            return None
        return next((message for message in messages if message.get("role") == "assistant"), None)


def _answers(rollout: Rollout) -> Iterator[tuple[int, Json]]:
    """Yields the index of each successful call with its answer in the transcript, or nothing if their numbers differ."""
    good = [number for number, call in enumerate(rollout.calls) if call.error_kind is None]
    answers = [message for message in rollout.messages if message.get("role") == "assistant"]
    yield from zip(good, answers, strict=True) if len(good) == len(answers) else ()


def _results_of(calls: Sequence[ToolCall], conversations: Iterable[Sequence[Json]]) -> Iterator[Any]:
    """Yields the result of each tool call in some conversations, or None if they do not contain it.

    Calls have no ids, so each gets the first result of the same tool with the same arguments that is left.
    """
    found: dict[tuple[Any, Any, Any], Any] = {}  # id, name and arguments of a call -> its result
    for messages in conversations:
        named = {}
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call.get("function") or {}
                named[call.get("id")] = call.get("id"), function.get("name"), function.get("arguments")
            if message.get("role") == "tool" and (key := named.get(message.get("tool_call_id"))):
                found.setdefault(key, message.get("content"))
    for made in calls:
        match = next((key for key in found if key[1] == made.name and _is_same(key[2], made)), None)
        yield found.pop(match) if match else None


def _is_same(arguments: Any, call: ToolCall) -> bool:
    """Returns whether the arguments in a message are those of a tool call."""
    return bool(arguments == call.raw if call.raw is not None else _parsed(arguments) == call.arguments)


def _parsed(arguments: Any) -> Any:
    """Parses the arguments of a call. Returns None for a text that is not JSON. Arguments that are not a text are returned unchanged."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return None


def langchain_message(message: Json) -> Json:
    """Converts a message to LangChain's form. The constants are those that LangChain sets."""
    role = str(message.get("role"))
    extra = {"__openai_role__": role} if role == "developer" else {}
    if message.get("reasoning_content"):
        extra["reasoning_content"] = message["reasoning_content"]
    content = "" if message.get("content") is None else message["content"]
    common = {"additional_kwargs": extra, "response_metadata": {}, "type": TYPES.get(role, role), "name": message.get("name"), "id": None}
    more: Json = {}
    if role == "assistant":
        more = {**_tool_calls(message), "usage_metadata": None}
    elif role == "tool":
        more = {"tool_call_id": message.get("tool_call_id"), "artifact": None, "status": "success"}
    return {"content": content, **common, **more}


def _tool_calls(message: Json) -> Json:
    """Returns LangChain's fields of tool calls: the valid ones, and separately those whose arguments are not a JSON object."""
    valid: list[Json] = []
    invalid: list[Json] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = _parsed(function.get("arguments"))
        if isinstance(arguments, dict):
            valid.append({"name": function.get("name"), "args": arguments, "id": call.get("id"), "type": "tool_call"})
        else:
            known = {"id": call.get("id"), "name": function.get("name"), "args": function.get("arguments")}
            invalid.append({"type": "invalid_tool_call", **known, "error": None})
    return {"tool_calls": valid, "invalid_tool_calls": invalid}


def output_text(message: Json) -> Any:
    """Returns the output of a model as the toolkit writes it: the content, followed by the tool calls if there are any."""
    calls = message["tool_calls"]
    return f"{message['content']}\n\nTool calls: {calls}" if calls else message["content"]


def generation(message: Json, call: LLMCall) -> Json:
    """Returns LangChain's record of an answer."""
    content = message["content"]
    info = {"finish_reason": call.finish_reason, "model_name": call.answered_by or call.model}
    return {"text": content if isinstance(content, str) else "", "generation_info": info, "type": "ChatGeneration", "message": message}


def tool_schema(tool: Json) -> Json:
    """Converts a tool in a request to the toolkit's form. Its parameters may be at any of the places where an API has them."""
    function = tool.get("function") or tool
    parameters = function.get("parameters") or function.get("input_schema") or {}
    schema = {
        "properties": parameters.get("properties", {}),
        "required": parameters.get("required", []),
        "type_": "object",
        "additionalProperties": parameters.get("additionalProperties", False),
        "strict": True,
    }
    named = {"name": function.get("name", ""), "description": function.get("description", ""), "parameters": schema}
    return {"type": "function", "function": named}


TOKEN = "…"  # the text of an event with output, because the real text is not recorded
WORKFLOW = "<workflow>"


class ProfilerEvent(NamedTuple):
    """One event of the profiler, to be written: a row of the CSV file EVENTS and a step in the JSON file TRACES.

    Texts that were not kept are None.
    """

    at: int  # nanoseconds since 1970
    kind: str  # LLM_START, TOOL_END, ...
    id: str
    name: str = ""  # name of the model or the tool
    tokens: Mapping[str, int] = MappingProxyType({})
    began: int | None = None  # start of the call that ends, nanoseconds since 1970
    given: object = None  # input
    made: object = None  # output
    payload: object = None  # the whole output
    metadata: Json | None = None
    chunk: str | None = None


NOTHING_KEPT = RolloutMessages()


def events_of(place: RolloutPlace, sent: RolloutMessages = NOTHING_KEPT) -> list[ProfilerEvent]:
    """Returns the events of a rollout by time, or none if its times are unknown. `sent` are its messages."""
    rollout, calendar = place.rollout, place.origin.calendar
    start, end = (calendar.epoch_ns(rollout.session, stamp) for stamp in (rollout.started_ns, rollout.ended_ns))
    if start is None or end is None:
        return []
    whole = _id(place, "workflow")
    events = [
        ProfilerEvent(start, "WORKFLOW_START", whole, WORKFLOW, given=question(rollout)),
        ProfilerEvent(end, "WORKFLOW_END", whole, WORKFLOW, made=rollout.answer),
    ]
    for attempt in rollout.attempts:
        for number, call in enumerate(attempt.calls):
            events += _call_events(place, attempt, number, call, sent.calls.get((attempt.attempt, number), CallMessages()))
    for number, (tool, result) in enumerate(zip_longest(rollout.tool_calls, sent.results)):
        events += _tool_events(place, number, tool, result)
    return sorted(events, key=lambda event: event.at)


def _call_events(place: RolloutPlace, attempt: Attempt, number: int, call: LLMCall, sent: CallMessages) -> Iterator[ProfilerEvent]:
    """Yields the events of an LLM call. A failed call has no LLM_END, as in the toolkit."""
    calendar, id = place.origin.calendar, _id(place, "call", attempt.attempt, number)
    begun, ended = (calendar.epoch_ns(attempt.session, stamp) for stamp in (called_ns(call), call.ended_ns))
    if begun is None or ended is None:
        return
    prompt = None if sent.prompt is None else [*map(langchain_message, sent.prompt)]
    inputs = None if prompt is None else {"chat_inputs": prompt, "tools_schema": [*map(tool_schema, sent.tools)]}
    yield ProfilerEvent(begun, "LLM_START", id, call.model, given=prompt, metadata=inputs)
    shift = begun - called_ns(call)
    for chunk in call.chunks:
        yield ProfilerEvent(chunk.at_ns + shift, "LLM_NEW_TOKEN", id, chunk=TOKEN if chunk.kind in OUTPUT_KINDS else "")
    if call.error_kind is None:
        counts = {"prompt_tokens": call.prompt_tokens or 0, "completion_tokens": call.completion_tokens or 0}
        tokens = {**counts, "total_tokens": sum(counts.values()), "cached_tokens": call.cached_tokens or 0}
        given = prompt[-1]["content"] if prompt else ""  # The toolkit writes an unknown input like this, and its evaluators refuse None.
        yield ProfilerEvent(ended, "LLM_END", id, call.model, tokens, begun, given, **_answer(call, sent.reply))


def _answer(call: LLMCall, reply: Json | None) -> Json:
    """Returns the fields of an event that have the model's answer."""
    if reply is None:
        return {}
    message = langchain_message(reply)
    whole = generation(message, call)
    return {"made": output_text(message), "payload": whole, "metadata": {"chat_responses": [whole], "tool_outputs": []}}


def _tool_events(place: RolloutPlace, number: int, tool: ToolCall, result: object) -> Iterator[ProfilerEvent]:
    calendar, id = place.origin.calendar, _id(place, "tool", number)
    begun, done = (calendar.epoch_ns(place.rollout.session, stamp) for stamp in (tool.started_ns, tool.ended_ns))
    if begun is None:
        return
    yield ProfilerEvent(begun, "TOOL_START", id, tool.name, given=tool.arguments, metadata={"tool_inputs": tool.arguments})
    if done is not None:
        outputs = None if result is None else {"tool_outputs": result}
        yield ProfilerEvent(
            done, "TOOL_END", id, tool.name, began=begun, given=tool.arguments, made=result, payload=result, metadata=outputs
        )


def _id(place: RolloutPlace, *parts: object) -> str:
    """Returns the UUID of a part of a rollout, such as a call. It is the same in every export."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(map(str, (place.origin.run, *place.rollout.key, *parts)))))


def seconds(at: int) -> str:
    """Converts nanoseconds to a text with seconds, without rounding."""
    return f"{at // 10**9}.{at % 10**9:09}"


def row_of(event: ProfilerEvent, number: int) -> list[object]:
    """Converts a profiler event to a row of the CSV file EVENTS. `number` is the position of its rollout in the job."""
    whole = event.kind.startswith("LLM_")
    values: Json = {
        "event_type": event.kind,
        "event_timestamp": seconds(event.at),
        "example_number": number,
        **{name: event.tokens.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
        "llm_text_output": str(event.made) if whole and event.made is not None else None,
        "llm_new_token": event.chunk,
        "llm_name": event.name if whole else None,
        "tool_name": event.name if event.kind.startswith("TOOL_") else None,
        "function_name": WORKFLOW,
        "UUID": event.id,
        "framework": FRAMEWORK,
    }
    return [values.get(name) for name in EVENT_COLUMNS]


def step_of(event: ProfilerEvent) -> Json:
    """Converts an event to a step of the JSON file TRACES."""
    usage = {"token_usage": {**dict(event.tokens), "reasoning_tokens": 0}, "num_llm_calls": 1, "seconds_between_calls": 0}
    return {
        "parent_id": "root",
        "function_ancestry": {"function_id": "root", "function_name": WORKFLOW, "parent_id": None, "parent_name": None},
        "payload": {
            "event_type": event.kind,
            "event_timestamp": float(seconds(event.at)),  # the number that a reader of the CSV gets
            "span_event_timestamp": None if event.began is None else float(seconds(event.began)),
            "framework": FRAMEWORK,
            "name": event.name or None,
            "tags": None,
            "metadata": event.metadata,
            "data": {"input": event.given, "output": event.made, "chunk": event.chunk, "payload": event.payload},
            "usage_info": usage if event.tokens else None,
            "UUID": event.id,
        },
    }
