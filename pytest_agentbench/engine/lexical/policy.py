"""The policy `lexical`: a deterministic baseline that finds tools by the words they share with the customer's.

Each clause of the customer's message is compared (BM25 over stems) with every tool's name, description and parameters. The clauses
whose best tool is good enough become calls, two per turn; when all were made, a short text closes the exchange. It keeps no state:
what was called already is read off the messages. A request with the prompt of a ReAct agent is answered in its text (`lexical_react`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

import bm25s
import orjson

from pytest_agentbench.engine.chat import exchange_start, forced_tool, last_user_text
from pytest_agentbench.engine.lexical.arguments import description, fill, mapping
from pytest_agentbench.engine.lexical.judge import judgement, wanted_schema
from pytest_agentbench.engine.lexical.react import as_native, spoken
from pytest_agentbench.engine.lexical.words import stems
from pytest_agentbench.engine.protocol import PolicyReply, ReplyCall
from pytest_agentbench.records import Json

CALLS_PER_TURN = 2
LONGEST_MESSAGE = 4_000  # characters that are read
NAME_WEIGHT = 3  # a word in a tool's name counts as often as this
#: A clause has a tool if it scores at least as much as this share of one perfectly matched word that no other tool has ...
ENOUGH = 0.7
#: ... and at least this share of the message's best clause.
COMPARABLE = 0.35
CLAUSE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"”')]))\s+|\n+|[;:]\s+|\s[-–—]\s+|,\s+(?!\d{4}\b)|(?<!\bI)(?<!\bwe)\s(?=(?:and|also|then|plus|but|afterwards|while)\s)",
    re.IGNORECASE,
)


class Clause(NamedTuple):
    """A part of the message, and the words it is about."""

    start: int
    end: int
    stems: tuple[str, ...]


class Lexical:
    """Answers every request from its own words."""

    def reply(self, request: Mapping[str, Any]) -> PolicyReply:
        if (schema := wanted_schema(request)) is not None:
            return PolicyReply(judgement(schema, last_user_text(request["messages"])))
        native = as_native(request)
        return self._reply(request) if native is None else spoken(self._reply(native))

    def _reply(self, request: Mapping[str, Any]) -> PolicyReply:
        text = last_user_text(request["messages"])[:LONGEST_MESSAGE]
        if not request.get("tools") or request.get("tool_choice") == "none":
            return PolicyReply(_without_tools(text))
        tools = index_tools(orjson.dumps(request["tools"]))
        forced = forced_tool(request)
        if forced is not None:
            return PolicyReply(tool_calls=(ReplyCall(forced, fill(tools.parameters(forced), text, text)),))
        made = _calls_made(request["messages"])
        open_calls = _still_open(tools.plan(text), made)
        if not open_calls and request.get("tool_choice") == "required":
            open_calls = [tools.likeliest(text)]
        count = 1 if request.get("parallel_tool_calls") is False else CALLS_PER_TURN
        return PolicyReply(tool_calls=tuple(open_calls[:count])) if open_calls else PolicyReply(_closing(made))


class SearchableTools:
    """The tools of a request, ready to be searched."""

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        self._functions = functions
        # The name as a word of its own, so that no tool is without words, which bm25s cannot index.
        documents = [[f"={function['name']}", *_document(function)] for function in functions]
        self._index = bm25s.BM25(backend="numpy")
        self._index.index(documents, show_progress=False)
        self._perfect = log(1 + (len(functions) - 0.5) / 1.5)  # the most that one word of one tool can score

    def parameters(self, name: str) -> Any:
        return next(function.get("parameters") for function in self._functions if function["name"] == name)

    def plan(self, message: str) -> list[ReplyCall]:
        """The calls that the message asks for, in its order."""
        clauses = split_clauses(message)
        ranked = [self._best(clause.stems) for clause in clauses]
        floor = max(ENOUGH * self._perfect, COMPARABLE * max((score for _, score in ranked), default=0))
        picked = [(clause, tool) for clause, (tool, score) in zip(clauses, ranked, strict=True) if score >= floor]
        # What stands between two picked clauses tells more about the first of them.
        starts = [0, *(clause.start for clause, _ in picked[1:]), len(message)]
        owned = (message[start:end] for start, end in pairwise(starts))
        return _merged(self._call(tool, own, message) for (_, tool), own in zip(picked, owned, strict=False))

    def likeliest(self, message: str) -> ReplyCall:
        """The call that is closest to the message, however far that is."""
        return ReplyCall(*self._call(self._best(stems(message))[0], message, message))

    def _call(self, tool: int, own: str, whole: str) -> tuple[str, Json]:
        function = self._functions[tool]
        return function["name"], fill(function.get("parameters"), own, whole)

    def _best(self, words: Sequence[str]) -> tuple[int, float]:
        """Index and score of the best tool for stems of words; the first of equals."""
        scores = self._index.get_scores_from_ids(self._index.get_tokens_ids([*dict.fromkeys(words)]))
        best = int(scores.argmax())
        return best, float(scores[best])


@lru_cache(maxsize=64)
def index_tools(tools: bytes) -> SearchableTools:
    """By content, because a benchmark sends the same few toolsets again and again."""
    return SearchableTools([tool["function"] for tool in orjson.loads(tools)])


def split_clauses(message: str) -> list[Clause]:
    """The message in clauses; one with fewer than two words of meaning joins the one before it, or the next."""
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
    """One call for those of the same tool that do not contradict each other: they are about the same thing."""
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
    """Names of the tools called since the user last spoke."""
    calls = [call for message in messages[exchange_start(messages) :] for call in message.get("tool_calls") or ()]
    return [call["function"]["name"] for call in calls]


def _still_open(plan: Sequence[ReplyCall], made: Sequence[str]) -> list[ReplyCall]:
    left = Counter(made)
    still_open = []
    for call in plan:
        if left[call.name]:
            left[call.name] -= 1
        else:
            still_open.append(call)
    return still_open


def _closing(made: Sequence[str]) -> str:
    if not made:
        return "I could not find anything I can do about this. Could you tell me in other words what I should look up or change for you?"
    done = ", ".join(dict.fromkeys(name.replace("_", " ") for name in made))
    return f"I have taken care of your request with these steps: {done}. Please let me know if there is anything else I can do for you."


def _without_tools(text: str) -> str:
    about = " ".join(text.split())[:60]
    return f'You wrote "{about}". I have no tools at hand for this, so I can only confirm that I have read your message.'
