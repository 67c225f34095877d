"""Markdown of what models, agents, servers and data say: no mention, link, image, HTML or markup comes out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_agentbench.lib.foreign import block, one_line

WIDTH = 300  # characters of what a test, a tool or a model said
WHOLE = 1 << 16  # of a command or of settings, which are there to be copied

_MARKUP = re.compile(r"[\\`*]|(?<!\w)_|_(?!\w)|~(?=~)|\](?=[(\[:])|!(?=\[)")  # a backslash in front takes its meaning
_TAG, _ENTITY = re.compile(r"<(?=[A-Za-z/!?])"), re.compile(r"&(?=#?\w+;)")
_MENTION, _ADDRESS = re.compile(r"@(?=\w)"), re.compile(r"\b(https?|ftp|mailto|www)(?=:|\.)", re.IGNORECASE)
_BAR = re.compile(r"(?<!\\)((?:\\\\)*)\|")  # that no backslash, or a backslash which is itself escaped, stands before
_NOTHING = "<!-- -->"  # what GitHub and GitLab show nothing of, and what is no mention and no address with it inside


def code(text: str, width: int = WIDTH) -> str:
    """A name, or what somebody said, as it is; `width`: so many characters of it."""
    short = one_line(" ".join(text.split()))
    short = f"{short[:width]}..." if len(short) > width else short
    plain = short.replace("`", "'")
    return f"`{plain}`" if plain else ""


def known_name(text: str | None) -> str:
    """A name as it is; `unknown` where nobody knows it."""
    return code(text or "") or "unknown"


def prose(text: str) -> str:
    """A sentence with names and words of others in it, which are to be read as they are."""
    inert = _MARKUP.sub(lambda mark: f"\\{mark[0]}", _ENTITY.sub("&amp;", one_line(text)))
    inert = _TAG.sub("&lt;", inert)
    return _ADDRESS.sub(lambda scheme: f"{scheme[0]}{_NOTHING}", _MENTION.sub(f"@{_NOTHING}", inert))


def fenced(text: str) -> str:
    """Several lines as they are; the fence is longer than any in them."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{block(text)}\n{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; bars and line breaks inside cells are escaped."""
    for row in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(_BAR.sub(r"\1\\|", cell).replace("\n", " ") for cell in row) + " |"
