"""Sizes that texts of agents, tools, scorers and programs may have, in bytes of UTF-8, and the cut of a text that is larger."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.lib.cut_marks import mark

KIB, MIB = 1 << 10, 1 << 20  # bytes
LEAST = KIB  # bytes; the smallest size that may be set
ROOM = 256  # bytes that a cut text stays below its size, or a quarter of a small size, so that a few more words do not have it cut again

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
    end = (most - min(ROOM, most // 4)) // 2
    first = text[:end].encode(*_UTF8)[:end].decode("utf-8", "ignore")
    last = text[-end:].encode(*_UTF8)[-end:].decode("utf-8", "ignore")
    return f"{first}\n{mark(size - size_of(first) - size_of(last))}\n{last}"


def too_large(what: str, size: int, most: int, option: str) -> str:
    """Returns the reason of a rollout that was limited by a size. `option` is a field of Sizes."""
    return f"{what}: {size:,} bytes, at most {most:,} are kept; raise --agentbench-size-{option.replace('_', '-')}"
