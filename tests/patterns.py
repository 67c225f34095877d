"""Finds every regular expression of the package, and measures each one on texts that are hard for it.

It runs as a program in a separate process and prints one line of JSON. `patterns` is their number, and `slow` describes those that need
too much time. `unknown` has the places whose pattern can neither be read from the code nor is in a table.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import pytest_agentbench
from pytest_agentbench.errors import ConfigError

PACKAGE = Path(pytest_agentbench.__file__).parent
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
GLANCE, LENGTH = 1_000, 60_000  # characters of a text: of one with which every pattern is tried, and of one for patterns that may be slow
BUDGET = 0.3  # seconds of CPU for the longer text; a pattern of linear time needs a few milliseconds, one of quadratic time a second
QUICK = BUDGET * (GLANCE / LENGTH) ** 2  # seconds for the shorter text; a pattern of quadratic time that is over the budget needs more

REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
SETS = (_constants.IN, _constants.ANY, _constants.NOT_LITERAL, _constants.CATEGORY)
COMMON = ["a", "A", "0", " ", "\n", ".", "-", "_", "*", "`", '"', "'", "\\", ",", ":", "(", "{", "[", "<", "#", "é", "\t"]

#: Tables of patterns, by the module that searches for them.
TABLES = {
    "pytest_agentbench.backends.stack.docker_engine": lambda module: module.HINTS,
    "pytest_agentbench.backends.stack.failure_details": lambda module: [hint[0] for hint in module.HINTS],
}

#: Modules that search for patterns from a suite, a backend or a test project.
OF_USERS = frozenset(
    [
        "suites.folder",
        "suites.datasets.agent_leaderboard_hub",
        "scorers.regex",
        "scorers.arguments",
        "backends.stack.spec",
        "backends.stack.failure_details",
    ]
)


class Use(NamedTuple):
    """One pattern and how it is applied."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


class TooSlow(Exception):
    """Raised during a match that has used up its budget."""


def modules() -> Iterator[tuple[str, ast.Module, ModuleType | None]]:
    """Yields all modules of the package: name, tree, and the module itself if it can be imported."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = None
        if parts[-1] != "__main__":
            with suppress(ImportError, ConfigError):
                module = importlib.import_module(name)
        yield name, ast.parse(file.read_text(encoding="utf-8")), module


def used_methods(trees: Sequence[ast.Module]) -> dict[str, set[str]]:
    """Maps each name to the methods of patterns that are called on it."""
    used: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name | ast.Attribute):
            name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            used.setdefault(name, set()).add(node.attr)
    return used


def compiled(value: object) -> Iterator[re.Pattern[Any]]:
    """Yields the patterns in a value of a module, including those in collections."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in [*value, *value.values()]:
            yield from compiled(each)
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from compiled(each)


def literal(node: ast.expr, module: ModuleType | None) -> str | bytes | None:
    """Returns the pattern that an expression makes, with `x` for parts that are only known at run time.

    Returns None if it cannot be read.
    """
    with suppress(Exception):
        value = eval(compile(ast.Expression(node), "<pattern>", "eval"), {**vars(module or ast)})
        return value if isinstance(value, str | bytes) else None
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=inner):
            return literal(inner, module) or "x"
        case ast.JoinedStr(values=values):
            return "".join(map(str, (literal(value, module) for value in values)))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return str(literal(left, module) or "x") + str(literal(right, module) or "x")
    return None


def flags(call: ast.Call) -> int:
    """Returns the flags that a call names."""
    words = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = {node.attr for word in words for node in ast.walk(word) if isinstance(node, ast.Attribute) and hasattr(re, node.attr)}
    return sum(int(getattr(re, name)) for name in names if name.isupper())


def calls(tree: ast.Module, *, compiles: bool) -> Iterator[tuple[str, ast.Call]]:
    """Yields calls such as `re.search(...)` with the name of the function. `compiles` includes calls of re.compile outside of functions."""
    in_functions = {call for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for call in ast.walk(each)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[_, *_]):
                if name in METHODS or (name == "compile" and (compiles or node in in_functions)):
                    yield name, node


def of_module(name: str, module: ModuleType, methods: Mapping[str, set[str]]) -> Iterator[Use]:
    """Yields the patterns that a module contains."""
    for attribute, value in vars(module).items():
        for pattern in compiled(value):
            yield Use(f"{name}.{attribute}", pattern, frozenset(methods.get(attribute) or ["search", "finditer"]))
    if name in TABLES:
        for text in TABLES[name](module):  # type: ignore[no-untyped-call]
            yield Use(name, re.compile(text), frozenset(["search"]))


def uses(unknown: list[str]) -> Iterator[Use]:
    """Yields every pattern of the package. `unknown` gets the places of those that cannot be read."""
    every = [*modules()]
    methods = used_methods([tree for _, tree, _ in every])
    for name, tree, module in every:
        if module is not None:
            yield from of_module(name, module, methods)
        for method, call in calls(tree, compiles=module is None):
            text = literal(call.args[0], module)
            if text is not None:
                yield Use(f"{name}:{call.lineno}", re.compile(text, flags(call)), frozenset(["search" if method == "compile" else method]))
            elif name not in TABLES and name.partition(".")[2] not in OF_USERS:
                unknown.append(f"{name}:{call.lineno}")


def chosen(element: tuple[Any, Any]) -> list[str]:
    """Returns characters that a single-character element of a parsed pattern matches, or none for other elements."""
    operator, argument = element
    if operator is _constants.LITERAL:
        return [chr(argument)]
    if operator in SETS:
        one = _compiler.compile(_parser.SubPattern(_parser.State(), [element]))
        return [each for each in COMMON if one.fullmatch(each)]
    return []


def sample(elements: Iterable[tuple[Any, Any]]) -> str:
    """Returns a short text that elements of a parsed pattern match, as far as one can be made without trying."""
    words = []
    for operator, argument in elements:
        match operator:
            case _ if characters := chosen((operator, argument)):
                words.append(characters[0])
            case _constants.SUBPATTERN:
                words.append(sample(argument[-1]))
            case _constants.BRANCH:
                words.append(sample(argument[1][0]))
            case _constants.ATOMIC_GROUP:
                words.append(sample(argument))
            case _ if operator in REPEATS:
                words.append(sample(argument[2]) * argument[0])
    return "".join(words)


def attacks(elements: Sequence[tuple[Any, Any]], before: str = "") -> Iterator[tuple[str, str]]:
    """Yields (beginning, unit): texts after which a repeat of a parsed pattern can continue forever, if the unit is repeated."""
    for place, (operator, argument) in enumerate(elements):
        head = before + sample(elements[:place])
        match operator:
            case _constants.SUBPATTERN:
                yield from attacks(argument[-1], head)
            case _constants.ATOMIC_GROUP:
                yield from attacks(argument, head)
            case _constants.BRANCH:
                for each in argument[1]:
                    yield from attacks(each, head)
            case _ if operator in REPEATS:
                body = argument[2]
                units = chosen(body[0]) if len(body) == 1 else [sample(body)]
                yield from ((head, unit) for unit in units if unit and argument[1] > 1000)
                yield from attacks(body, head)


def units(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """Returns (beginning, unit) of texts that are hard for a pattern: repeats of what its own repeats match, and of the beginning
    itself.
    """
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    found = dict.fromkeys(attacks([*_parser.parse(source, pattern.flags & ~re.UNICODE)]))
    return [*found, *((head, head) for head in dict.fromkeys(head for head, _ in found) if head), *(("", each) for each in COMMON)]


def consume(pattern: re.Pattern[Any], method: str, text: str | bytes) -> None:
    run: Callable[..., object] = getattr(pattern, method)
    if method == "sub":
        run("" if isinstance(text, str) else b"", text)
    elif method == "finditer":
        for _ in run(text):  # type: ignore[attr-defined]
            pass
    else:
        run(text)


def too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def seconds(pattern: re.Pattern[Any], method: str, text: str) -> float:
    """Returns seconds of CPU that a method needs for a text with an end that matches nothing; infinite if the budget is exceeded."""
    subject = f"{text}\x00".encode() if isinstance(pattern.pattern, bytes) else f"{text}\x00"
    # The clock of the process stands still for milliseconds while a timer of that clock runs, so the thread's clock is used.
    began = time.thread_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, BUDGET)
        consume(pattern, method, subject)
    except TooSlow:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.thread_time() - began


def slow(use: Use) -> str:
    """Describes the first text on which a pattern exceeds its budget. Returns "" if there is none."""
    for (head, unit), method in itertools.product(units(use.pattern), sorted(use.methods)):
        short, long = (head + unit * (length // len(unit)) for length in (GLANCE, LENGTH))
        if seconds(use.pattern, method, short) > QUICK and math.isinf(seconds(use.pattern, method, long)):
            return f"{use.place}: {method} of {use.pattern.pattern!r} on {long[:24]!r}..."
    return ""


def main() -> None:
    signal.signal(signal.SIGVTALRM, too_slow)
    unknown: list[str] = []
    every = {(use.pattern, use.methods): use for use in uses(unknown)}
    found = [*filter(None, map(slow, every.values()))]
    print(json.dumps({"patterns": len(every), "slow": found, "unknown": unknown, "seconds": time.process_time()}), file=sys.stdout)


if __name__ == "__main__":
    main()
