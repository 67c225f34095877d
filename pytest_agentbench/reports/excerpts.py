"""Markdown that has to stay below a size: whole lines, and a sentence that says what is left out."""

from __future__ import annotations

from itertools import accumulate

SPARE = 1200  # bytes: more than the sentence, with the titles in it, can have
TITLES = 5  # of sections that are left out, named in the sentence
WIDTH = 80  # characters of such a title


def cut(text: str, limit: int, where: str) -> str:
    """The text in at most `limit` bytes; `where` has all of it. Empty where not even the sentence would fit."""
    if size(text) <= limit:
        return text
    if limit < SPARE:
        return ""
    lines = text.splitlines(keepends=True)
    kept = sum(total <= limit - SPARE for total in accumulate(map(size, lines)))
    fence = "```\n" if sum(line.startswith("```") for line in lines[:kept]) % 2 else ""
    titles = [line.strip("# \n")[:WIDTH] for line in lines[kept:] if line.startswith("#")]
    more = f" and {len(titles) - TITLES} more sections" if len(titles) > TITLES else ""
    sections = f", among them {'; '.join(titles[:TITLES])}{more}" if titles else ""
    note = f"**Cut here: {len(lines) - kept} of {len(lines)} lines are left out{sections}. {where} has them.**"
    return f"{''.join(lines[:kept])}{fence}\n{note}\n"


def whole_report(run_id: str) -> str:
    """Returns which file has all of a text that is cut."""
    return f"`report.md` of run {run_id}"


def size(text: str) -> int:
    return len(text.encode(errors="backslashreplace"))
