"""Answers to the leaderboard's questions as a model might give them: right, right in other words, partly right and wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from pytest_agentbench.datasets.bfcl import answers_file, data_folder, has_answers, lines, questions_file
from pytest_agentbench.records import Json

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple", "live_parallel")
CATEGORIES += ("live_parallel_multiple",)


@dataclass(frozen=True)
class Answer:
    """The calls of one answer, and what the leaderboard knows of its question."""

    id: str
    kind: str  # how it was made
    calls: list[Json]  # {tool: {argument: value}}
    truth: list[Json]
    docs: list[Json]
    category: str

    def about(self) -> str:
        return f"{self.id} {self.kind}"


def answers(per_category: int) -> Iterator[Answer]:
    """Answers of all kinds to so many questions of each category, spread evenly over it."""
    folder = data_folder()
    for category in CATEGORIES:
        assert has_answers(category)
        questions = {each["id"]: each for each in lines(questions_file(folder, category))}
        truths = lines(answers_file(folder, category))
        for at in range(0, len(truths), max(1, len(truths) // per_category)):
            truth = truths[at]
            docs = questions[truth["id"]]["function"]
            for kind, calls in kinds(truth["ground_truth"], docs):
                yield Answer(truth["id"], kind, calls, truth["ground_truth"], docs, category)


def kinds(truth: list[Json], docs: list[Json]) -> Iterator[tuple[str, list[Json]]]:
    """(kind, calls) of the answers to one question; kinds that make no difference to it are left out."""
    first, last = filled(truth, 0), filled(truth, -1)
    yield "first values", first
    if last != first:
        yield "last values", last
    changes = (
        ("upper case", _upper),
        ("no punctuation", _bare),
        ("no spaces", lambda value: value.replace(" ", "") if isinstance(value, str) else value),
        ("date in words", _in_words),
        ("number as text", _quoted),
        ("boolean as text", lambda value: str(value).lower() if isinstance(value, bool) else value),
        ("whole number with a point", _pointed),
        ("whole number without a point", lambda value: int(value) if isinstance(value, float) and value.is_integer() else value),
        ("list backwards", lambda value: value[::-1] if isinstance(value, list) else value),
        ("other value", _other),
        ("empty text", lambda value: "" if isinstance(value, str) else value),
        ("value in a list", lambda value: [value]),
        ("null", lambda value: None),
    )
    for kind, change in changes:
        changed = with_one_changed(last, change)
        if changed is not None:
            yield kind, changed
    yield from structural(last, docs)


def structural(calls: list[Json], docs: list[Json]) -> Iterator[tuple[str, list[Json]]]:
    """What may be wrong with the calls themselves."""
    ((tool, arguments),) = calls[0].items()
    if arguments:
        yield "argument missing", [{tool: dict([*arguments.items()][1:])}, *calls[1:]]
    properties = next(doc for doc in docs if doc["name"] == tool)["parameters"]["properties"]
    yield "argument invented", [{tool: {**arguments, "invented": "x"}}, *calls[1:]]
    for name, field in properties.items():
        if name not in arguments and "default" in field:
            yield "default spelt out", [{tool: {**arguments, name: field["default"]}}, *calls[1:]]
            break
    yield "other tool", [{f"{tool}_2": arguments}, *calls[1:]]
    yield "one call too many", [*calls, calls[0]]
    yield "no call", []
    if len(calls) > 1:
        yield "one call missing", calls[1:]
        yield "other order", calls[::-1]


def filled(truth: list[Json], which: int) -> list[Json]:
    """The calls with the first or the last value that is right for each argument; what may be left out is, where it has no value."""
    return [{tool: _fields(arguments, which) for tool, arguments in call.items()} for call in truth]


def _fields(fields: Json, which: int) -> Json:
    chosen: Json = {}
    for name, values in fields.items():
        given = [value for value in values if value != ""]
        if given and not (which == 0 and "" in values):
            chosen[name] = _plain(given[which])
    return chosen


def _plain(value: Any) -> Any:
    """A value without the alternatives of its fields."""
    if isinstance(value, dict):
        return _fields(value, -1) if all(isinstance(each, list) for each in value.values()) else value
    if isinstance(value, list):
        return [_plain(each) if isinstance(each, dict) else each for each in value]
    return value


def with_one_changed(calls: list[Json], change: Any) -> list[Json] | None:
    """The calls with the first argument changed that the change applies to; None where it applies to none."""
    calls = copy.deepcopy(calls)
    for call in calls:
        for arguments in call.values():
            for name, value in arguments.items():
                changed = change(value)
                if repr(changed) != repr(value):
                    arguments[name] = changed
                    return calls
    return None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _bare(value: Any) -> Any:
    return value.translate(str.maketrans("", "", ",./-_*^")) if isinstance(value, str) else value


def _quoted(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _pointed(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _in_words(value: Any) -> Any:
    try:
        return date.fromisoformat(value).strftime("%B %d, %Y")
    except (TypeError, ValueError):
        return value


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value} or so"
        case list():
            return value[:-1]
        case dict():
            return {**value, "invented": 1}
    return "something"
