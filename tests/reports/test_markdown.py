"""Documents as Markdown: all blocks, and the escaping of foreign texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import markdown
from pytest_agentbench.reports.document import (
    LONGEST,
    AnyBlock,
    Bullets,
    Code,
    Document,
    Fact,
    Figure,
    Level,
    Listing,
    Measure,
    Note,
    PageAddress,
    Section,
    Table,
    heads,
)
from pytest_agentbench.reports.markdown import code, fenced, prose, table, write
from tests.made_runs import run_of

HOSTILE = [
    "[click](https://evil.example)",
    "![image](https://evil.example/x.png)",
    "[click][1] [1]: https://evil.example",
    "<img src=x onerror=1> <script>",
    "`<b>` ``<i>``",
    "@everybody and a@b.example",
    "https://evil.example www.evil.example",
    "a | b \\| <img> | c \\\\| d",
    "\\<b> &lt;b&gt; &#60;b&#62;",
    "**bold** _it_ ~~gone~~",
    "\n# title\n::error::x\x1b[2J",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_is_inert(text: str) -> None:
    """Code and prose contain no foreign markup, link, image, HTML or mention, and stay in one cell of a table."""
    for cell in (code(text), prose(text)):
        assert "\n" not in cell
        outside = re.sub(r"^`[^`]*`$", "", cell)
        outside = outside.replace("<!-- -->", "\0")
        assert not re.search(r"(?<!\\)(\\\\)*[`*]", outside)
        assert not re.search(r"<[A-Za-z/!?]|&#?\w+;(?<!&lt;)(?<!&amp;)|@\w|(?<!\\)(\\\\)*\][(\[:]|https?:|www\.", outside)
        (row,) = [*table(["a"], [[cell]])][2:]
        assert 2 == len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)), row


def test_a_fence_is_longer_than_any_in_it() -> None:
    """The output of a service cannot end its code block, because the fence is longer than any fence in it."""
    assert "````text\na\n```\n<b>\\x1b\n````" == fenced("a\n```\n<b>\x1b")


def test_prose_stays_readable() -> None:
    """Our own texts are not escaped needlessly: intervals, comparisons, names with underscores."""
    text = "shop tsq.mean 0.612 [0.571, 0.653] >= 0.4: 3 infra_error, p < 0.05 & more; x_1 ~ 2"

    assert text == prose(text)


def test_tables() -> None:
    """A table has a rule under its header. Bars and line breaks do not break its cells."""
    assert ["| a | b |", "| --- | --- |", "| x \\| y | two lines |", "|  | 1 |"] == [
        *table(["a", "b"], [["x | y", "two\nlines"], ["", "1"]])
    ]


def text(*blocks: AnyBlock | Section, level: Level = Level.VERBOSE) -> str:
    """Returns the text below the title of a section with these blocks."""
    lines = markdown.lines(Document("A run", None, (Section("A section", blocks),)), level)
    return "\n".join(lines).removeprefix("# A run\n\n## A section\n\n")


def test_titles() -> None:
    """The title of a document and its headline are a heading of the given level. Nested sections have deeper levels."""
    inner = Section(("About ", Code("b")), (Note("a note"),))
    report = Document("A run", Fact("verdict", ("FAIL; ", Code("a"))), (Section("A section", (inner,)),))

    assert ["# A run: FAIL; `a`", "", "## A section", "", "### About `b`", "", "a note"] == [*markdown.lines(report, Level.VERBOSE)]
    assert "### A run: FAIL; `a`" == next(markdown.lines(report, Level.VERBOSE, depth=3))


def test_facts() -> None:
    """Facts are a list. A fact without a label continues the previous one, if there is one."""
    facts = (Fact("rule", "FAIL"), Fact("", "a reason"), Fact("", "another"), Fact("median", Measure(1.5, "ms", digits=1)))

    assert "- **rule**: FAIL\n  - a reason\n  - another\n- **median**: 1.5 ms" == text(*facts)
    assert "a note\n\n- a reason\n\nanother note" == text(Note("a note"), Fact("", "a reason"), Note("another note"))
    assert "- **rule**: FAIL\n\n### Inner\n\n- a reason" == text(Fact("rule", "FAIL"), Section("Inner", (Fact("", "a reason"),)))


def test_tables_of_documents() -> None:
    """Numbers have the decimal places of their columns, None is a dash, and names are code."""
    columns = heads("scenario", ("score", 2), "said")

    assert "| scenario | score | said |\n| --- | --- | --- |\n| `a\\|b` | 0.50 | x |\n| `c` | - | - |" == text(
        Table(columns, ((Code("a|b", "scenario"), 0.5, "x"), (Code("c"), None, None)))
    )


def test_other_blocks() -> None:
    """Lists, listings and pictures are each preceded by an empty line."""
    found = text(Bullets(("one", ("two ", Code("b")))), Listing("a\nb"), Figure("A picture", "plots/a b.svg"))

    assert "- one\n- two `b`\n\n```text\na\nb\n```\n\n![A picture](plots/a%20b.svg)" == found


def test_levels() -> None:
    """Only blocks of the level are shown."""
    facts = [Fact(level.name, "x", level=level) for level in Level]

    assert ["HEADLINE", "FIRST_PAGE", "SUMMARY"] == re.findall(r"\*\*(.*)\*\*", text(*facts, level=Level.SUMMARY))


def test_long_texts() -> None:
    """Foreign texts are truncated. Commands are not, so that they can be copied."""
    long = "x" * (LONGEST + 1)

    assert f"`{'x' * LONGEST}...`" == text(Note(Code(long)))
    assert f"`{long}`" == text(Note(Code(long, "command")))


@pytest.mark.parametrize("mark", ["# a", "- a", "+ a", "> a", "---", "[x] a"])
def test_texts_do_not_start_blocks(mark: str) -> None:
    """A text at the start of a line does not become a heading, list, quote, rule or checkbox."""
    assert f"\\{mark}" == text(Note(mark))
    assert f"- \\{mark}" == text(Bullets((mark,)))
    assert f"- \\{mark}" == text(Fact("", mark))
    assert f"- **label**: {mark}" == text(Fact("label", mark))
    assert ("1\\. a", "1.5 a", "-0.5", "#1") == tuple(text(Note(each)) for each in ("1. a", "1.5 a", "-0.5", "#1"))
    assert "a" == text(Note("\t    a"))


@pytest.mark.parametrize("reason", ["", "\n", "half a \ud83d letter"])
def test_odd_reasons_do_not_break_a_report(tmp_path: Path, reason: str) -> None:
    """A message of an agent may be empty, or not encodable in a file."""
    lost = Rollout("shop", "s-1", "default", 1, status="agent_error", reason=reason)

    assert "| `s-1` | agent_error |" in write(run_of(lost), tmp_path).read_text(encoding="utf-8")


def test_a_report_is_a_file(tmp_path: Path) -> None:
    """report.md has the whole report, also for a run without rollouts."""
    path = write(run_of(), tmp_path)

    assert tmp_path / "report.md" == path
    assert path.read_text(encoding="utf-8").startswith("# Run 20260304-050607: PASS")
    assert path.read_text(encoding="utf-8").endswith("\n")


def test_links_of_codes() -> None:
    """A code with an address is a link. An address cannot end the link early, and no other scheme than HTTP is linked."""
    facts = [
        Fact("", Code("shop-1", "scenario", PageAddress(url)))
        for url in ("https://a.example/b#L2", "https://a.example/) <b> `c`", "data:x")
    ]

    lines = [*markdown.lines(Document("t", None, (Section("", tuple(facts)),)), Level.FULL)]

    assert "- [`shop-1`](https://a.example/b#L2)" == lines[2]
    assert "  - [`shop-1`](https://a.example/%29%20%3Cb%3E%20%60c%60)" == lines[3]
    assert "  - `shop-1`" == lines[4]
