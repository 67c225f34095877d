"""Texts of models, agents, servers and data: what they may do to a terminal or a log, which is nothing, and how large they may be.

On its way to a terminal or a log, a text shows what it is, and orders nothing. Control characters, which move a cursor or make a log
lie, marks that turn the direction of reading, and halves of characters become escapes. What GitHub, Azure and TeamCity take for a
command in a log gets a backslash. Text without any of it stays as it is.

Sizes are in bytes of UTF-8. A text that is larger than it may be is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TextIO

from pytest_agentbench.lib.cut_marks import mark

#: C0 without tab and newline, DEL, C1; Arabic letter mark, left-to-right and right-to-left marks, separators of lines and
#: paragraphs, embeddings, overrides, isolates; lone surrogates.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Colours as pytest writes them into its own explanations; nothing that hides text.
_COLOUR = re.compile(r"\x1b\[(?:(?:0{0,2}|0?[14]|3[0-79]|49|9[0-7])(?:;|(?=m)))*m")
_COMMAND = re.compile(r"(?<!\S)(?=::)")  # a runner trims a line before it looks, and lines are folded where there is room
_OLD_COMMAND = re.compile(r"#(?=#\w*\[)")  # ##[...], ##vso[...], ##teamcity[...], wherever they are in a line


def block(text: str, *, colours: bool = False) -> str:
    """The text, its lines still lines. `colours`: those that pytest has put there may stay."""
    if colours and "\x1b" in text:
        parts = iter(_COLOUR.split(text))
        between = _COLOUR.findall(text)
        text = _visible(next(parts)) + "".join(colour + _visible(part) for colour, part in zip(between, parts, strict=True))
    else:
        text = _visible(text)
    return _OLD_COMMAND.sub(r"#\\", _COMMAND.sub(r"\\", text))


def one_line(text: str) -> str:
    """The text where one line is wanted: a line break in it becomes an escape too."""
    return block(text.replace("\n", "\\n"))


def _visible(text: str) -> str:
    return _HIDDEN.sub(_escape, text)


def _escape(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    return {0x0D: "\\r"}.get(code, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class ForeignOutput:
    """A stream to which others' text is written, line by line; it stands before `stream` and is all else that it is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._rest = ""  # of a line that is not whole

    def write(self, text: str) -> int:
        whole, newline, self._rest = (self._rest + text).rpartition("\n")
        if newline:
            self.stream.write(block(whole) + newline)
        return len(text)

    def flush(self) -> None:
        self.stream.write(block(self._rest))
        self._rest = ""
        self.stream.flush()

    def draw(self, sequence: str) -> None:
        """Writes a text of ours, control characters and all."""
        self.flush()
        self.stream.write(sequence)
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


KIB, MIB = 1 << 10, 1 << 20  # bytes
LEAST = KIB  # bytes; the smallest size that may be set
SLACK = 256  # bytes that a cut text stays below its size, or a quarter of a small size, so that a few more words do not have it cut again

_PART = MIB  # characters that are encoded at once when the bytes of a text are counted
_UTF8 = "utf-8", "surrogatepass"  # Texts of agents may contain halves of characters.


@dataclass(frozen=True)
class Sizes:
    """Largest sizes in bytes. Each field is an option `--agentbench-size-<field>`."""

    answer: int = MIB
    tool_result: int = MIB
    reason: int = 64 * KIB  # of the reason of a status, the error of a scorer and the explanation of a score
    record: int = 16 * MIB  # of a rollout as one line of JSON


USUAL = Sizes()


def size_of(text: str) -> int:
    """Returns the number of bytes of a text in UTF-8, without a copy of all of it; 0 for an object that an agent left instead of a text."""
    if not isinstance(text, str):
        return 0
    if text.isascii():
        return len(text)
    return sum(len(text[start : start + _PART].encode(*_UTF8)) for start in range(0, len(text), _PART))


def cut(text: str, most: int) -> str:
    """Returns a text of `most` bytes at most unchanged, and of a larger one the beginning, how many bytes were cut, and the end."""
    size = size_of(text)
    if size <= most:
        return text
    end = (most - min(SLACK, most // 4)) // 2
    first = text[:end].encode(*_UTF8)[:end].decode("utf-8", "ignore")
    last = text[-end:].encode(*_UTF8)[-end:].decode("utf-8", "ignore")
    return f"{first}\n{mark(size - size_of(first) - size_of(last))}\n{last}"


def too_large(what: str, size: int, most: int, option: str) -> str:
    """Returns the reason of a rollout that was limited by a size. `option` is a field of Sizes."""
    return f"{what}: {size:,} bytes, at most {most:,} are kept; raise --agentbench-size-{option.replace('_', '-')}"
