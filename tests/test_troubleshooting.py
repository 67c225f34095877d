"""docs/troubleshooting.md quotes messages that the code has, and has those that do not say themselves what would work."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest_agentbench

PACKAGE = Path(pytest_agentbench.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

#: Errors that end a test, a rollout or a session. ConfigError is none of them: its sentences name a file and what would work there.
ERRORS = frozenset(
    ["UsageError", "BackendError", "NeverReady", "MissingError", "MissingData", "InfraError", "JudgeError", "LimitReached", "AgentError"]
)

#: A sentence with one of these goes on with what would work, or asks whether that is so.
ADVICE = re.compile(r"[;?]|\bmust (be|have|start|begin|not)\b")

GAP = "\0"  # in a message of the code, what differs from case to case
LETTERS = 8  # that a message has to have of its own; another one is somebody else's sentence


class Message(NamedTuple):
    """The sentence of an error, and where it is raised."""

    place: str
    text: str


def text_of(node: ast.expr) -> str:
    """The fixed words of an expression that makes a text, with gaps between them; empty for any other."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) if isinstance(value, ast.Constant) else GAP for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{text_of(left) or GAP}{text_of(right) or GAP}"
    return ""


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (text := text_of(node)):
            yield text


def raised(tree: ast.AST, place: str) -> Iterator[Message]:
    """The sentences of errors that are raised."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[argument, *_])) if name in ERRORS:
                yield Message(f"{place}:{node.lineno}", text_of(argument))


@functools.cache
def trees() -> dict[str, ast.Module]:
    """File -> what is in it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


#: The quoted messages of each entry.
ENTRIES = [re.findall(r"`([^`]+)`", line) for line in re.findall(r"^- ((?:`[^`]+`(?:, )?)+):", PAGE, re.MULTILINE)]
QUOTES = [quote for entry in ENTRIES for quote in entry]


def pattern(quote: str) -> re.Pattern[str]:
    """What finds a quoted message among those of the code, where a number may be a gap."""
    parts = (re.sub(r"\d+", r"(?:\\d+|\0)", re.escape(part.strip())) for part in quote.split("..."))
    return re.compile(".*".join(parts), re.DOTALL)


def test_every_entry_is_read() -> None:
    """An item of a list on the page begins with messages in backticks and a colon."""
    assert PAGE.count("\n- ") == len(ENTRIES)


def test_quoted_messages_are_in_the_code() -> None:
    """Whoever looks for the words of a message finds it as it is said today."""
    said = {text for tree in trees().values() for text in texts(tree)}

    assert [] == [quote for quote in QUOTES if not any(map(pattern(quote).search, said))]


def test_what_says_no_way_out_has_an_entry() -> None:
    """An error about something else than a file, whose sentence has no advice in it, is explained on the page."""
    unadvised = [
        message
        for place, tree in trees().items()
        for message in raised(tree, place)
        if len(re.sub(r"[^a-zA-Z]", "", message.text)) >= LETTERS and not ADVICE.search(message.text)
    ]
    patterns = [pattern(quote) for quote in QUOTES if len(re.sub(r"[^a-zA-Z]", "", quote)) >= LETTERS]

    assert [] == [message for message in unadvised if not any(each.search(message.text) for each in patterns)]
    assert 20 < len(unadvised)
