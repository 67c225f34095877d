"""Reads what a speaker without tools wants to be run: the fenced blocks of an answer, and whether it is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_agentbench.agents.react_text import spoken

DONE = "TASK_COMPLETE"

#: A fence of as many backticks as its opening one ends a block, so that a longer one may hold a shorter one.
_OPENING = re.compile(r"^[ \t]*(?P<fence>`{3,})[ \t]*(?:bash|sh|shell)[ \t]*\r?\n", re.MULTILINE | re.IGNORECASE)
_CLOSING = re.compile(r"^[ \t]*(?P<fence>`{3,})[ \t]*\r?$", re.MULTILINE)
_DONE = re.compile(rf"^[ \t>*`]*{DONE}[ \t*`.]*\r?$", re.MULTILINE)


class FencedAnswer(NamedTuple):
    """What an answer wants: commands to run, or to be done. With neither it wants nothing that could be done."""

    commands: tuple[str, ...]
    done: bool


def read_speech(text: str) -> FencedAnswer:
    """Blocks of thoughts are not looked at, and who has a command to run is not done yet."""
    text = spoken(text)
    commands = tuple(block.strip("\r\n") for block in _blocks(text) if block.strip())
    return FencedAnswer(commands, not commands and bool(_DONE.search(text)))


def _blocks(text: str) -> Iterator[str]:
    """Yields the text of each closed block. A fence without a closing one is searched for once, so many of them cost little."""
    place, unclosed = 0, set[str]()
    while opening := _OPENING.search(text, place):
        place, fence = opening.end(), opening["fence"]
        closing = None
        if fence not in unclosed:
            closing = next((each for each in _CLOSING.finditer(text, place) if each["fence"] == fence), None)
        if closing is None:
            unclosed.add(fence)
        else:
            yield text[place : closing.start()]
            place = closing.end()
