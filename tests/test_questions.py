"""The documentation answers the questions of users within two clicks of its entry page, and is not longer than it has to be.

`python -m tests.test_questions` prints the table of questions with the clicks of today and of the commit that is given.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pytest_agentbench.records import Json

ROOT = Path(__file__).parents[1]
QUESTIONS: list[Json] = yaml.safe_load((ROOT / "tests" / "questions.yaml").read_text(encoding="utf-8"))

#: Words that people have to write and to read: outside code and outside the tables of `tests.generated`.
MOST_WORDS = 60_000


def read(page: str) -> str:
    """Returns the text of a page of this checkout, or "" if it does not exist."""
    file = ROOT / page
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def clicks(entry: str, text_of: Callable[[str], str]) -> dict[str, int]:
    """Maps each page that can be reached from an entry page to the number of links on the shortest way."""
    found, queue = {entry: 0}, [entry]
    for page in queue:
        for target in re.findall(r"\]\(([^)\s#]+\.md)", text_of(page)):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if path not in found:
                found[path] = found[page] + 1
                queue.append(path)
    return found


def handwritten(text: str) -> str:
    """Returns a page without generated tables and without code."""
    text = re.sub(r"<!-- ([\w-]+): python -m [\w.]+ -->\n.*?<!-- \1 -->\n", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda each: each["question"])
def test_question_is_answered_in_two_clicks(asked: Json) -> None:
    page = f"docs/{asked['page']}"

    assert clicks("docs/index.md", read).get(page, 99) <= 2
    assert asked["says"] in read(page)


def test_every_page_is_found() -> None:
    """Every page of docs/ is at most two clicks from the entry page."""
    near = {page for page, number in clicks("docs/index.md", read).items() if number <= 2}
    pages = {file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")}

    assert set() == pages - near
    assert 60 == len(QUESTIONS)


def test_documentation_is_short() -> None:
    words = {page: len(handwritten(page.read_text(encoding="utf-8")).split()) for page in (ROOT / "docs").rglob("*.md")}
    words[ROOT / "README.md"] = len(handwritten(read("README.md")).split())

    assert sum(words.values()) <= MOST_WORDS


def table(commit: str) -> str:
    """Returns a table of all questions: where each is answered, and with how many clicks, at a commit and today."""

    def old(page: str) -> str:
        done = subprocess.run(["git", "show", f"{commit}:{page}"], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout

    then, now = clicks("README.md", old), clicks("docs/index.md", read)
    rows = []
    for asked in QUESTIONS:
        before, page = asked["before"], asked["page"]
        clicks_then = then.get(before, then.get(f"docs/{before}", "-"))
        cells = (asked["question"], before or "none", clicks_then, page, now.get(f"docs/{page}", "-"))
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(["| question | page before | clicks | page | clicks |", "|---|---|---|---|---|", *rows])


if __name__ == "__main__":
    sys.stdout.write(f"{table(sys.argv[1])}\n")
