"""The policy `lexical`: a deterministic baseline that chooses tools by the words that they share with the customer's message.

Each clause of the message is compared (BM25 over stems) with the name, description and parameters of each tool. A clause becomes a call
if the score of its best tool is high enough. There are two calls per turn; after all calls, a short text ends the exchange. The policy
has no state: the calls already made are in the messages. A request with the prompt of a ReAct agent gets its answer in that format.

A request for JSON with a schema is also answered by shared words, as a baseline, not as a judge to trust. The policy knows the two forms
that judges of this package fill in, with the sections `<request>`, `<goals>`, `<tool_calls>` and `<answer>` in their prompts. For any other
schema it returns the smallest object that fits, without regard to patterns and formats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

import bm25s
import orjson

from pytest_agentbench.engine.chat import PolicyReply, ReplyCall, content_text, exchange_start, forced_tool, last_user_text
from pytest_agentbench.engine.lexical.arguments import description, fill, mapping
from pytest_agentbench.engine.lexical.texts import stems
from pytest_agentbench.lib.model_texts import tagged
from pytest_agentbench.records import Json

#: Words that a system prompt with the ReAct format contains.
CONTRACT = ("Thought:", "Action:", "Action Input:", "Final Answer:")
LABELS = frozenset({"Thought", "Action", "Observation", "Question", "Note"})
#: A line with the name and description of a tool.
TOOL_LINE = re.compile(r"^(?:[-*] )?([\w.-]+): (.*)$", re.MULTILINE)
#: Text between a description and the parameters, for example `Arguments must fit this JSON schema: `.
BEFORE_PARAMETERS = re.compile(r" ?Arguments\b[^.:{\n]{0,100}: (?=\{)")
CALLED = re.compile(r"^Action: *([^ \n](?:.*[^ \n])?) *$", re.MULTILINE)


def as_native(request: Mapping[str, Any]) -> Json | None:
    """Returns the request as an agent with native tool calls would make it, or None if it is not a ReAct request."""
    system, *rest = request["messages"]
    prompt = content_text(system)
    if request.get("tools") or not rest or not all(word in prompt for word in CONTRACT):
        return None
    last_message, *scratchpad = rest
    _, _, question = content_text(last_message).rpartition("\n\nQuestion: ")
    user = {"role": "user", "content": question}
    return {"messages": [user, *_past_calls(scratchpad)], "tools": [*_tools(prompt)], "parallel_tool_calls": False}


def in_react_form(reply: PolicyReply) -> PolicyReply:
    """Returns a reply, with a tool call or text, in the ReAct format."""
    if not reply.tool_calls:
        return PolicyReply(f"Thought: I now know the final answer\nFinal Answer: {reply.text}")
    call = reply.tool_calls[0]
    arguments = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    about = call.name.replace("_", " ")
    return PolicyReply(f"Thought: The customer asks for this: {about}\nAction: {call.name}\nAction Input: {arguments}")


def _tools(prompt: str) -> Iterator[Json]:
    """Yields the tools that a ReAct prompt describes: lines whose name is also in the prompt's list of tool names."""
    for name, text in TOOL_LINE.findall(prompt):
        if name not in LABELS and len(re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", prompt)) > 1:
            between = BEFORE_PARAMETERS.search(text) if text.endswith("}") else None
            description, schema = (text[: between.start()], text[between.end() :]) if between else (text, "")
            yield {"type": "function", "function": {"name": name, "description": description, "parameters": _parameters(schema)}}


def _parameters(schema: str) -> Json:
    try:
        return dict(orjson.loads(schema))
    except orjson.JSONDecodeError:  # There is no schema, or it is incomplete.
        return {}


def _past_calls(scratchpad: Sequence[Mapping[str, Any]]) -> Iterator[Json]:
    """Yields the assistant's earlier ReAct messages as messages with native tool calls."""
    for message in scratchpad:
        if message["role"] == "assistant":
            names = CALLED.findall(content_text(message))
            yield {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name}} for name in names]}


SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
GOAL = re.compile(r"goal_(\d+)")
DEEPEST = 20  # levels of a schema that refers to itself


def wanted_schema(request: Mapping[str, Any]) -> Json | None:
    """Returns the schema that the answer must fit, or None if the request is for text."""
    response_format = request.get("response_format") or {}
    schema: Json | None = response_format["json_schema"]["schema"] if response_format.get("type") == "json_schema" else None
    return schema


def judgement(schema: Json, prompt: str) -> str:
    """Returns a JSON text that fits the schema of a request.

    If the schema is one of two that judges of this package use, the words of the prompt decide the values (see `_verdict` and
    `_completion`). For any other schema, it is the smallest object that fits.
    """
    properties = schema.get("properties")
    names = {*properties} if isinstance(properties, dict) else set()
    if {"is_sufficient", "confidence"} <= names:
        fields = {**minimal(schema, schema), **_verdict(prompt)}
        return orjson.dumps({name: fields[name] for name in fields if name in names}).decode()
    if names and all(GOAL.fullmatch(name) for name in names):
        return orjson.dumps(_completion(prompt, len(names))).decode()
    return orjson.dumps(minimal(schema, schema)).decode()


def minimal(schema: Any, whole: Json, depth: int = 0) -> Any:
    """Returns the smallest value that fits `schema`, a part of the schema `whole`."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    if values := [schema["const"]] if "const" in schema else schema.get("enum"):
        return values[0]
    if (other := _other(schema, whole)) is not None:
        return minimal(other, whole, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "array":
            return [minimal(schema.get("items"), whole, depth + 1) for _ in range(schema.get("minItems", 0))]
        case None | "object":
            properties = schema.get("properties") or {}
            return {name: minimal(properties.get(name), whole, depth + 1) for name in schema.get("required") or ()}
        case simple:
            return _simple(str(simple), schema)


def _other(schema: Json, whole: Any) -> Any:
    """Returns the schema that `schema` refers to: its first alternative (anyOf, ...) or the target of its `$ref`. None without these."""
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return schema[name][0]
    if "$ref" not in schema:
        return None
    for part in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
        whole = whole.get(part) if isinstance(whole, dict) else None
    return whole


def _simple(kind: str, schema: Json) -> Any:
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return min(least, schema.get("maximum", least))
    return {"string": "-" * schema.get("minLength", 0), "boolean": False}.get(kind)


def _verdict(prompt: str) -> Json:
    """Returns a judge's verdict on whether an agent's work is sufficient, with `is_sufficient`, `confidence` and texts.

    It is sufficient if at least half of the request's sentences share a word with the tool calls or the answer. All are in the prompt.
    """
    done = _stems_of_result(prompt)
    sentences = [each for each in SENTENCE_END.split(_section(prompt, "request")) if stems(each)]
    missing = [each for each in sentences if not done & {*stems(each)}]
    share = 1 - len(missing) / len(sentences) if sentences else 1.0
    return {
        "reasoning": f"{len(sentences) - len(missing)} of {len(sentences)} sentences share a word with the tool calls and the answer.",
        "missing_steps": missing,
        "suggestions": f"Look again at: {missing[0]}" if missing else "",
        "is_sufficient": share >= 0.5,
        "confidence": round(max(share, 1 - share), 2),
    }


def _completion(prompt: str, count: int) -> Json:
    """Returns a judge's verdict on each of the `count` goals in the prompt: `goal_1`, ... -> {reasoning, completed}.

    A goal is completed if at least half of its words occur in the agent's tool calls or answer, which are in the prompt, too.
    """
    done = _stems_of_result(prompt)
    goals = dict(re.findall(r"^(\d+)\. (.*)$", _section(prompt, "goals"), re.MULTILINE))
    judgements: Json = {}
    for number in range(1, count + 1):
        words = {*stems(goals.get(str(number), ""))}
        shared = len(words & done)
        reasoning = f"{shared} of {len(words)} words are among those of the tool calls and the answer."
        judgements[f"goal_{number}"] = {"reasoning": reasoning, "completed": bool(words) and 2 * shared >= len(words)}
    return judgements


def _stems_of_result(prompt: str) -> set[str]:
    return {*stems(f"{_section(prompt, 'tool_calls')} {_section(prompt, 'answer')}")}


def _section(prompt: str, name: str) -> str:
    sections = tagged(prompt, name)
    return sections[0].strip() if sections else ""


CALLS_PER_TURN = 2
LONGEST_MESSAGE = 4_000  # number of characters that are read
NAME_WEIGHT = 3  # how often a word in the name of a tool counts
#: A clause gets a tool if its score is at least this share of the score of one perfectly matched word that no other tool has ...
GOOD_SHARE = 0.7
#: ... and at least this share of the score of the best clause in the message.
COMPARABLE = 0.35
CLAUSE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"”')]))\s+|\n+|[;:]\s+|\s[-–—]\s+|,\s+(?!\d{4}\b)|(?<!\bI)(?<!\bwe)\s(?=(?:and|also|then|plus|but|afterwards|while)\s)",
    re.IGNORECASE,
)


class Clause(NamedTuple):
    """A part of the message, with the stems of its words."""

    start: int
    end: int
    stems: tuple[str, ...]


class Lexical:
    """The policy `lexical`. It answers each request by the words in it, and keeps no state."""

    def reply(self, request: Mapping[str, Any]) -> PolicyReply:
        if (schema := wanted_schema(request)) is not None:
            return PolicyReply(judgement(schema, last_user_text(request["messages"])))
        native = as_native(request)
        return self._reply(request) if native is None else in_react_form(self._reply(native))

    def _reply(self, request: Mapping[str, Any]) -> PolicyReply:
        text = last_user_text(request["messages"])[:LONGEST_MESSAGE]
        if not request.get("tools") or request.get("tool_choice") == "none":
            return PolicyReply(_without_tools(text))
        tools = index_tools(orjson.dumps(request["tools"]))
        forced = forced_tool(request)
        if forced is not None:
            return PolicyReply(tool_calls=(ReplyCall(forced, fill(tools.parameters(forced), text, text)),))
        past_calls = _calls_made(request["messages"])
        open_calls = _still_open(tools.plan(text), past_calls)
        if not open_calls and request.get("tool_choice") == "required":
            open_calls = [tools.likeliest(text)]
        count = 1 if request.get("parallel_tool_calls") is False else CALLS_PER_TURN
        return PolicyReply(tool_calls=tuple(open_calls[:count])) if open_calls else PolicyReply(_closing(past_calls))


class SearchableTools:
    """A search index of the tools in a request."""

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        self._functions = functions
        # Add the name as an extra word, because bm25s cannot index a tool without words.
        documents = [[f"={function['name']}", *_document(function)] for function in functions]
        self._index = bm25s.BM25(backend="numpy")
        self._index.index(documents, show_progress=False)
        self._perfect = log(1 + (len(functions) - 0.5) / 1.5)  # maximum score of one word that only one tool has

    def parameters(self, name: str) -> Any:
        return next(function.get("parameters") for function in self._functions if function["name"] == name)

    def plan(self, message: str) -> list[ReplyCall]:
        """Returns the tool calls that the clauses of a message ask for, in the order of the clauses."""
        clauses = split_clauses(message)
        ranked = [self._best(clause.stems) for clause in clauses]
        threshold = max(GOOD_SHARE * self._perfect, COMPARABLE * max((score for _, score in ranked), default=0))
        picked = [(clause, tool) for clause, (tool, score) in zip(clauses, ranked, strict=True) if score >= threshold]
        # The text between two picked clauses is mostly about the first of them.
        starts = [0, *(clause.start for clause, _ in picked[1:]), len(message)]
        owned = (message[start:end] for start, end in pairwise(starts))
        return _merged(self._call(tool, own, message) for (_, tool), own in zip(picked, owned, strict=False))

    def likeliest(self, message: str) -> ReplyCall:
        """Returns a call of the tool that matches the words of the message best, even if its score is low."""
        return ReplyCall(*self._call(self._best(stems(message))[0], message, message))

    def _call(self, tool: int, own: str, whole: str) -> tuple[str, Json]:
        function = self._functions[tool]
        return function["name"], fill(function.get("parameters"), own, whole)

    def _best(self, words: Sequence[str]) -> tuple[int, float]:
        """Returns the index and score of the best tool for these stems, the first one if scores are equal."""
        scores = self._index.get_scores_from_ids(self._index.get_tokens_ids([*dict.fromkeys(words)]))
        best = int(scores.argmax())
        return best, float(scores[best])


@lru_cache(maxsize=64)
def index_tools(tools: bytes) -> SearchableTools:
    """Returns the search index of tools in JSON. It is cached by content, because a benchmark sends the same few toolsets repeatedly."""
    return SearchableTools([tool["function"] for tool in orjson.loads(tools)])


def split_clauses(message: str) -> list[Clause]:
    """Splits a message into clauses. A clause with fewer than two stems is joined with the one before it, or the next."""
    ends = [0, *(match.end() for match in CLAUSE_END.finditer(message)), len(message)]
    clauses: list[Clause] = []
    for start, end in pairwise(ends):
        words = tuple(stems(message[start:end]))
        if clauses and min(len(words), len(clauses[-1].stems)) < 2:
            last = clauses.pop()
            clauses.append(Clause(last.start, end, last.stems + words))
        else:
            clauses.append(Clause(start, end, words))
    return clauses


def _document(function: Mapping[str, Any]) -> list[str]:
    properties = mapping(mapping(function.get("parameters")).get("properties"))
    texts = [function["name"]] * NAME_WEIGHT + [description(function)]
    for name, schema in properties.items():
        choices = mapping(schema).get("enum")
        texts += [name, description(mapping(schema)), *(map(str, choices) if isinstance(choices, list) else ())]
    return stems(" ".join(texts))


def _merged(calls: Iterable[tuple[str, Json]]) -> list[ReplyCall]:
    """Merges calls of the same tool if their arguments do not contradict each other, because they probably mean the same thing."""
    merged: list[tuple[str, Json]] = []
    for name, arguments in calls:
        twin = next((known for tool, known in merged if tool == name and _agree(known, arguments)), None)
        if twin is None:
            merged.append((name, arguments))
        else:
            twin.update(arguments)
    return [ReplyCall(name, arguments) for name, arguments in merged]


def _agree(one: Json, other: Json) -> bool:
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _calls_made(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the tools that were called since the last user message."""
    calls = [call for message in messages[exchange_start(messages) :] for call in message.get("tool_calls") or ()]
    return [call["function"]["name"] for call in calls]


def _still_open(plan: Sequence[ReplyCall], past_calls: Sequence[str]) -> list[ReplyCall]:
    left = Counter(past_calls)
    still_open = []
    for call in plan:
        if left[call.name]:
            left[call.name] -= 1
        else:
            still_open.append(call)
    return still_open


def _closing(past_calls: Sequence[str]) -> str:
    if not past_calls:
        return "I could not find anything I can do about this. Could you tell me in other words what I should look up or change for you?"
    done = ", ".join(dict.fromkeys(name.replace("_", " ") for name in past_calls))
    return f"I have taken care of your request with these steps: {done}. Please let me know if there is anything else I can do for you."


def _without_tools(text: str) -> str:
    about = " ".join(text.split())[:60]
    return f'You wrote "{about}". I have no tools at hand for this, so I can only confirm that I have read your message.'
