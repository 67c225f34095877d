"""The second part of docs/start/troubleshooting.md quotes messages of the code, and explains those that do not say what to do."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest_agentbench

PACKAGE = Path(pytest_agentbench.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "start/troubleshooting.md").read_text(encoding="utf-8").partition("\n## By message\n")[2]

#: Errors that end a test, a rollout or a session. ConfigError is not included, because its messages name a file and a valid value.
ERRORS = frozenset(
    ["UsageError", "BackendError", "NeverReady", "MissingError", "MissingData", "InfraError", "JudgeError", "LimitReached", "AgentError"]
)

#: A message that matches says what would work, or asks whether something is the case.
ADVICE = re.compile(r"[;?]|\bmust (be|have|start|begin|not)\b")

GAP = "\0"  # The variable parts in a message of the code.
LETTERS = 8  # Letters that a message must have; a shorter one only passes on another program's message.


class Message(NamedTuple):
    """The message of an error, and the place where it is raised."""

    place: str
    text: str


def text_of(node: ast.expr) -> str:
    """Returns the fixed words of an expression that makes a text, with gaps between them. Returns "" for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) if isinstance(value, ast.Constant) else GAP for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{text_of(left) or GAP}{text_of(right) or GAP}"
    return ""


def texts(tree: ast.AST) -> Iterator[str]:
    """Yields all texts in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (text := text_of(node)):
            yield text


def raised(tree: ast.AST, place: str) -> Iterator[Message]:
    """Yields the messages of errors that are raised."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[argument, *_])) if name in ERRORS:
                yield Message(f"{place}:{node.lineno}", text_of(argument))


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Maps each file to its tree."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


#: The quoted messages of each entry.
ENTRIES = [re.findall(r"`([^`]+)`", line) for line in re.findall(r"^- ((?:`[^`]+`(?:, )?)+):", PAGE, re.MULTILINE)]
QUOTES = [quote for entry in ENTRIES for quote in entry]


def pattern(quote: str) -> re.Pattern[str]:
    """Returns a pattern that finds a quoted message among those of the code, in which a number may be a gap."""
    parts = (re.sub(r"\d+", r"(?:\\d+|\0)", re.escape(part.strip())) for part in quote.split("..."))
    return re.compile(".*".join(parts), re.DOTALL)


def test_every_entry_is_read() -> None:
    """An item of a list in the part of the page on messages begins with messages in backticks and a colon."""
    assert PAGE.count("\n- ") == len(ENTRIES)


def test_quoted_messages_are_in_the_code() -> None:
    """Each quoted message is in the code, so that a search for its words finds it."""
    said = {text for tree in trees().values() for text in texts(tree)}

    assert [] == [quote for quote in QUOTES if not any(map(pattern(quote).search, said))]


def test_messages_without_advice_have_an_entry() -> None:
    """An error message without advice, except for those about files, is explained on the page."""
    unadvised = [
        message
        for place, tree in trees().items()
        for message in raised(tree, place)
        if len(re.sub(r"[^a-zA-Z]", "", message.text)) >= LETTERS and not ADVICE.search(message.text)
    ]
    patterns = [pattern(quote) for quote in QUOTES if len(re.sub(r"[^a-zA-Z]", "", quote)) >= LETTERS]

    assert [] == [message for message in unadvised if not any(each.search(message.text) for each in patterns)]
    assert 20 < len(unadvised)
