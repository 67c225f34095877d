"""Text of models, agents, servers and data on its way to a terminal or a log: it shows what it is, and orders nothing.

Control characters, which move a cursor or make a log lie, marks that turn the direction of reading, and halves of characters
become escapes. What GitHub, Azure and TeamCity take for a command in a log gets a backslash. Text without any of it stays as it is.
"""

from __future__ import annotations

import re
from typing import Any, TextIO

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
