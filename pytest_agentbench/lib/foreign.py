"""Makes texts of others (models, agents, servers, data sets) harmless for terminals and logs, and limits their size.

- Control characters, marks that change the reading direction, and lone surrogates are replaced by escapes.
- Words that GitHub, Azure and TeamCity would execute as commands in a log get a backslash.
- All other text stays unchanged.

Sizes are in bytes of UTF-8. A text above its limit is truncated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TextIO

from pytest_agentbench.lib.cut_marks import mark

#: C0 without tab and newline, DEL, C1; Arabic letter mark, left-to-right and right-to-left marks, separators of lines and
#: paragraphs, embeddings, overrides, isolates; lone surrogates.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Colours that pytest writes into its explanations. Sequences that hide text do not match.
_COLOUR = re.compile(r"\x1b\[(?:(?:0{0,2}|0?[14]|3[0-79]|49|9[0-7])(?:;|(?=m)))*m")
_STYLE = re.compile(r"\x1b\[[\d;]*m")  # colours and other styles, also those that hide text
_COMMAND = re.compile(r"(?<!\S)(?=::)")  # Also inside a line: runners strip lines, and wrapping may break a line there.
_OLD_COMMAND = re.compile(r"#(?=#\w*\[)")  # ##[...], ##vso[...], ##teamcity[...], anywhere in a line


def block(text: str, *, colours: bool = False) -> str:
    """Makes a text harmless for terminals and CI logs, and keeps its lines. `colours` keeps the colours that pytest has added."""
    if colours and "\x1b" in text:
        parts = iter(_COLOUR.split(text))
        between = _COLOUR.findall(text)
        text = _visible(next(parts)) + "".join(colour + _visible(part) for colour, part in zip(between, parts, strict=True))
    else:
        text = _visible(text)
    return _OLD_COMMAND.sub(r"#\\", _COMMAND.sub(r"\\", text))


def one_line(text: str) -> str:
    """Makes a text harmless for terminals and CI logs, and a single line: its line breaks are escaped."""
    return block(text.replace("\n", "\\n"))


def without_styles(text: str) -> str:
    """Returns a text without the sequences with which programs colour their output. Text that they hide is visible."""
    return _STYLE.sub("", text)


def _visible(text: str) -> str:
    return _HIDDEN.sub(_escape, text)


def _escape(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    return {0x0D: "\\r"}.get(code, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class ForeignOutput:
    """Wraps a text stream. Text written to it is made harmless for terminals and CI logs, line by line, and passed to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._rest = ""  # beginning of an incomplete line

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
        """Writes a trusted text unchanged, including control characters."""
        self.flush()
        self.stream.write(sequence)
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


KIB, MIB = 1 << 10, 1 << 20  # bytes
LEAST = KIB  # smallest size limit that may be set, in bytes
#: Bytes by which a truncated text is below its limit (a quarter of a small limit). Adding a few words does not truncate it again.
SLACK = 256

_PART = MIB  # characters that are encoded at once when the bytes of a text are counted
_UTF8 = "utf-8", "surrogatepass"  # Texts of agents may contain lone surrogates.


@dataclass(frozen=True)
class Sizes:
    """Size limits in bytes. Each field is an option `--agentbench-size-<field>`."""

    answer: int = MIB
    tool_result: int = MIB
    reason: int = 64 * KIB  # limit for the reason of a status, the error of a scorer and the explanation of a score
    record: int = 16 * MIB  # limit for a rollout as one line of JSON


USUAL = Sizes()


def size_of(text: str) -> int:
    """Returns the size of a text in UTF-8, without encoding all of it at once. Returns 0 if an agent returned another object as a text."""
    if not isinstance(text, str):
        return 0
    if text.isascii():
        return len(text)
    return sum(len(text[start : start + _PART].encode(*_UTF8)) for start in range(0, len(text), _PART))


def cut(text: str, most: int) -> str:
    """Truncates a text of more than `most` bytes to its beginning and end, with the number of omitted bytes between them."""
    size = size_of(text)
    if size <= most:
        return text
    end = (most - min(SLACK, most // 4)) // 2
    first = text[:end].encode(*_UTF8)[:end].decode("utf-8", "ignore")
    last = text[-end:].encode(*_UTF8)[-end:].decode("utf-8", "ignore")
    return f"{first}\n{mark(size - size_of(first) - size_of(last))}\n{last}"


def too_large(what: str, size: int, most: int, option: str) -> str:
    """Returns the failure reason of a rollout that exceeded a size limit. `option` is a field of Sizes."""
    return f"{what}: {size:,} bytes, at most {most:,} are kept; raise --agentbench-size-{option.replace('_', '-')}"
