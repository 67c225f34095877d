"""Reads what a speaker without tools wants to be run: the fenced blocks of an answer, and whether it is done."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_agentbench.agents.react_text import spoken

DONE = "TASK_COMPLETE"

#: A fence of as many backticks as its opening one ends a block, so that a longer one may hold a shorter one.
_BLOCK = re.compile(
    r"^[ \t]*(?P<fence>`{3,})[ \t]*(?:bash|sh|shell)[ \t]*\r?\n(?P<command>.*?)^[ \t]*(?P=fence)[ \t]*\r?$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_DONE = re.compile(rf"^[ \t>*`]*{DONE}[ \t*`.]*\r?$", re.MULTILINE)


class FencedAnswer(NamedTuple):
    """What an answer wants: commands to run, or to be done. With neither it wants nothing that could be done."""

    commands: tuple[str, ...]
    done: bool


def read_speech(text: str) -> FencedAnswer:
    """Blocks of thoughts are not looked at, and who has a command to run is not done yet."""
    text = spoken(text)
    commands = tuple(match["command"].strip("\r\n") for match in _BLOCK.finditer(text) if match["command"].strip())
    return FencedAnswer(commands, not commands and bool(_DONE.search(text)))
