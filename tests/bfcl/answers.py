"""Answers to the leaderboard's questions as a model might give them: right, right in another form, partly right, and wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.bfcl import SINGLE_TURN, answers_file, data_folder, has_answers, lines, questions_file

CATEGORIES = tuple(category for category in SINGLE_TURN if has_answers(category))


class Made(NamedTuple):
    """Calls, the way in which they were made from right ones, and the changed value."""

    kind: str
    calls: list[Json]  # {tool: {argument: value}}
    before: Any = None
    after: Any = None


@dataclass(frozen=True)
class Answer:
    """An answer to a question, with the leaderboard's data about that question."""

    id: str
    category: str
    made: Made
    truth: list[Json]
    docs: list[Json]


def answers(per_category: int) -> Iterator[Answer]:
    """Yields answers of all kinds to about this many questions of each category, spread evenly."""
    folder = data_folder()
    for category in CATEGORIES:
        questions = {each["id"]: each for each in lines(questions_file(folder, category))}
        truths = lines(answers_file(folder, category))
        for truth in truths[:: max(1, len(truths) // per_category)]:
            docs = questions[truth["id"]]["function"]
            for made in kinds(truth["ground_truth"], docs):
                yield Answer(truth["id"], category, made, truth["ground_truth"], docs)


def kinds(truth: list[Json], docs: list[Json]) -> Iterator[Made]:
    """Yields the answers to one question. Kinds that do not change the calls are left out."""
    first, last = filled(truth, 0), filled(truth, -1)
    yield Made("first values", first)
    if last != first:
        yield Made("last values", last)
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
        ("null", lambda _: None),
    )
    for kind, change in changes:
        yield from with_one_changed(kind, last, change)
    yield from structural(last, docs)


def structural(calls: list[Json], docs: list[Json]) -> Iterator[Made]:
    """Yields answers in which the calls themselves may be wrong."""
    ((tool, arguments),) = calls[0].items()
    if arguments:
        yield Made("argument missing", [{tool: dict([*arguments.items()][1:])}, *calls[1:]])
    properties = next(doc for doc in docs if doc["name"] == tool)["parameters"]["properties"]
    yield Made("argument invented", [{tool: {**arguments, "invented": "x"}}, *calls[1:]])
    for name, field in properties.items():
        if name not in arguments and "default" in field:
            yield Made("default spelt out", [{tool: {**arguments, name: field["default"]}}, *calls[1:]], None, {name: field["default"]})
            break
    yield Made("other tool", [{f"{tool}_2": arguments}, *calls[1:]])
    yield Made("one call too many", [*calls, calls[0]])
    yield Made("no call", [])
    if len(calls) > 1:
        yield Made("one call missing", calls[1:])
        yield Made("other order", calls[::-1])


def filled(truth: list[Json], which: int) -> list[Json]:
    """Returns the calls with the first or the last accepted value of each argument.

    With the first ones, optional arguments are left out.
    """
    return [{tool: _fields(arguments, which) for tool, arguments in call.items()} for call in truth]


def _fields(fields: Json, which: int) -> Json:
    chosen: Json = {}
    for name, values in fields.items():
        given = [value for value in values if value != ""]
        if given and not (which == 0 and "" in values):
            chosen[name] = _plain(given[which])
    return chosen


def _plain(value: Any) -> Any:
    """Returns a value without the alternatives of its fields."""
    if isinstance(value, dict):
        return _fields(value, -1) if all(isinstance(each, list) for each in value.values()) else value
    if isinstance(value, list):
        return [_plain(each) if isinstance(each, dict) else each for each in value]
    return value


def with_one_changed(kind: str, calls: list[Json], change: Callable[[Any], Any]) -> Iterator[Made]:
    """Yields the calls with the first argument changed to which the change applies. Yields nothing if there is none."""
    for at, call in enumerate(calls):
        ((tool, arguments),) = call.items()
        for name, value in arguments.items():
            after = change(value)
            if repr(after) != repr(value):
                yield Made(kind, [*calls[:at], {tool: {**arguments, name: after}}, *calls[at + 1 :]], value, after)
                return


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
