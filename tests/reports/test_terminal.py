"""Documents on a terminal, at each level."""

from __future__ import annotations

import sys
from typing import Any

from pytest_agentbench.records import Rollout, Score, ToolCall
from pytest_agentbench.reports.columns import columns, table_lines
from pytest_agentbench.reports.document import (
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
    Section,
    Table,
    heads,
)
from pytest_agentbench.reports.terminal import INDENT, MOST, headline_lines, lines, rollout_lines, write_run
from tests.paper import Paper

FIRST = Level.FIRST_PAGE


class Coloured(Paper):
    """A terminal that records the markup of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[dict[str, bool]] = []

    def write_line(self, line: str, **markup: bool) -> None:
        super().write_line(line, **markup)
        self.marks.append(markup)


def document(*blocks: AnyBlock | Section, headline: Fact | None = None) -> Document:
    return Document("A run", headline, (Section("A section", blocks),))


def fact(label: str, content: Any, level: Level = FIRST, **how: Any) -> Fact:
    return Fact(label, content, level=level, **how)


def page(*blocks: AnyBlock | Section, width: int = 30, level: Level = FIRST) -> list[str]:
    """Returns the lines of a report on a terminal of the given width."""
    return [line.text for line in lines(document(*blocks), level, width)]


def test_labels_and_texts() -> None:
    """Labels are in a column as wide as the longest. Texts are folded, truncated or whole."""
    assert [
        "verdict    FAIL because of",
        "           that",
        "a_long_score 0.5",
        "lowest     a question that...",
        "go on with pytest --agentbench-resume=x --and=so on",
    ] == page(
        fact("verdict", "FAIL because of that"),
        fact("a_long_score", "0.5"),
        fact("lowest", "a question that is cut", one_line=True),
        fact("go on with", Code("pytest --agentbench-resume=x --and=so on", "command")),
    )


def test_the_column_of_labels() -> None:
    """The column of labels is as wide as the longest label, but at most a third of the terminal."""
    wide = page(fact("a_very_long_score", "0.5"), fact("b", "1"), width=90)
    narrow = page(fact("a_very_long_score", "0.5"), fact("b", "1"), width=36)

    assert ["a_very_long_score 0.5", "b                 1"] == wide
    assert ["a_very_long_score 0.5", "b            1"] == narrow


def test_a_fact_without_a_label() -> None:
    """A fact without a label continues the previous one."""
    assert ["rule       FAIL", "           a reason"] == page(fact("rule", "FAIL"), fact("", "a reason"))


def test_wide_characters() -> None:
    """Wide characters take two columns in labels, folded and truncated texts, and tables."""
    assert ["温度       1"] == page(fact("温度", "1"))
    folded = page(fact("a", "日本 " * 12))
    assert 12 == sum(line.count("日本") for line in folded)
    assert all(columns(line) <= 30 for line in folded)
    [short] = page(fact("a", "日本" * 12, one_line=True))
    assert (True, True) == (short.endswith("..."), columns(short) <= 30)
    assert ["a     n", "日本  1", "b     2"] == [*table_lines(Table(heads("a", ("n", 0)), (("日本", 1), ("b", 2))))]


def test_levels_above_the_first_page() -> None:
    """With -v, each fact is one line of any length, below the title of its section."""
    text = "so many words " * 20

    assert ["A section", f"a           {text}".rstrip()] == page(fact("a", text), width=sys.maxsize, level=Level.FULL)
    assert ["a          so many"] == page(fact("a", "so many"), width=30)


def test_other_blocks() -> None:
    """Lists have dashes, notes have no label, listings are indented, pictures have their path, and nested sections their titles."""
    blocks = (
        Bullets(("one", ("two ", Code("b")))),
        Note("a note"),
        Listing("line 1\nline 2"),
        Figure("A picture", "plots/a b.svg"),
        Section("Inner", (Fact("a", Measure(1.5, "ms", digits=1)),)),
    )

    assert [
        "A section",
        "- one",
        "- two b",
        "a note",
        f"{'':11} {INDENT}line 1",
        f"{'':11} {INDENT}line 2",
        "picture     A picture: plots/a b.svg",
        "Inner",
        "a           1.5 ms",
    ] == page(*blocks, width=sys.maxsize, level=Level.FULL)


TABLE = Table(
    heads("metric", "better", ("run a", 1), ("run b", 1), "found"), (("ttft", "low", 1.25, None, "slower"), ("tsq", "high", 10, 2, ""))
)


def test_tables() -> None:
    """Columns are as wide as their longest cell, numbers are right-aligned, and None is a dash."""
    assert [
        "metric  better  run a  run b  found",
        "ttft    low       1.2      -  slower",
        "tsq     high     10.0    2.0",
    ] == [*table_lines(TABLE)]


def test_colours() -> None:
    """A tone is shown as a colour. The headline and titles are bold."""
    paper = Coloured()
    blocks = (Fact("a", "1", "bad"), Fact("b", "2", "open"), Fact("c", "3"), Note("d", "good"))

    write_run(paper, document(*blocks, headline=Fact("verdict", "FAIL", "bad", level=Level.HEADLINE)), 1)

    bold = {"bold": True}
    assert [{**bold, "red": True}, bold, {"red": True}, {"yellow": True}, {}, {"green": True}] == paper.marks


def verbosities(*blocks: AnyBlock) -> list[list[str]]:
    """Returns the lines with -q, without an option, with -v and with -vv."""
    written = []
    for verbosity in (-1, 0, 1, 2):
        paper = Paper()
        write_run(paper, document(*blocks, headline=Fact("verdict", "PASS", level=Level.HEADLINE)), verbosity)
        written.append(paper.lines)
    return written


def test_verbosities() -> None:
    """Each option shows more: -q the headline, no option the first page, -v all lines, and -vv also tables."""
    quiet, first, full, verbose = verbosities(*(Fact(level.name, "x", level=level) for level in Level))

    assert ["agentbench: PASS; x"] == quiet
    assert ["= agentbench", "verdict     PASS", "HEADLINE    x", "FIRST_PAGE  x"] == first
    assert (4, 5) == tuple(sum(line.endswith(" x") for line in each) for each in (full, verbose))
    assert "A section" in full
    assert verbosities(Fact("a", "b"))[3] == verbosities(Fact("a", "b"))[2]


def test_one_line() -> None:
    """With -q, the headline and its facts are one line. Each command has a line with its label."""
    command, level = Code("pytest --agentbench-resume=x", "command"), Level.HEADLINE
    report = document(
        *(fact("rule", "rule FAIL", level), fact("go on with", command, level), fact("report", Code("a.md", "command"), level)),
        *(Note("no fact", level=level), fact("more", "elsewhere")),
        headline=fact("verdict", "FAIL\n::error::x", level),
    )

    assert [
        "agentbench: FAIL\\n::error::x; rule FAIL",
        "agentbench: go on with pytest --agentbench-resume=x",
        "agentbench: report a.md",
    ] == [*headline_lines(report)]
    assert ["agentbench: a"] == [*headline_lines(document(fact("b", "a", level)))]


def test_foreign_texts_start_no_line() -> None:
    """Foreign text cannot start a line or a command, neither in facts nor in the lines of rollouts."""
    paper = Paper()

    write_run(paper, document(fact("model", "said\n::error::and more ::error::")), 0, 30, ["a\n::error::b\x1b[2J"])

    assert [
        "= agentbench",
        "model      said\\n::error::and",
        "           more \\::error::",
        "a\\n::error::b\\x1b[2J",
    ] == paper.lines


def test_rollouts() -> None:
    """With -v each rollout has its status, its scores or its reason, and its time. With -vv it also has its tools."""
    made = Rollout(
        *("shop", "a", "default", 1, "ok"),
        ended_ns=1_500_000_000,
        scores={"tsq": Score(0.5)},
        tool_calls=(ToolCall("find", {}, 1),),
        expected=({"tool": "find"}, {"tool": "order"}),
    )
    lost = Rollout("shop", "b", "default", 1, "infra_error", reason="no GPU")

    [line] = rollout_lines(made, with_tools=False)
    assert ["shop[a]", "ok", "tsq", "0.500", "1.50", "s"] == line.split()
    assert line == next(rollout_lines(made, with_tools=True))
    assert ["expected", "find,", "order;", "actual", "find"] == [*rollout_lines(made, with_tools=True)][1].split()
    assert ["shop[b]", "infra_error", "no", "GPU", "0.00", "s"] == next(rollout_lines(lost, with_tools=False)).split()


def first_page(*blocks: AnyBlock) -> list[str]:
    """Returns the lines of a first page with a verdict, some blocks and a command."""
    command = fact("open", Code("reports/x/report.html", "command"), Level.HEADLINE)
    report = document(*blocks, command, headline=fact("verdict", "FAIL", level=Level.HEADLINE))
    return [line.text for line in lines(report, FIRST, 60)]


def test_the_first_page_has_at_most_twelve_lines() -> None:
    """If there are more, the blocks that can be spared are left out, the last ones first. The verdict and what to open stay."""
    suites = [fact(f"suite {number}", "10 rollouts", spare=2) for number in range(8)]
    scores = [fact(f"score {number}", "0.5", spare=4) for number in range(4)]
    shown = first_page(*scores, *suites, fact("timings", "unreliable"))

    assert MOST == len(shown) == 12
    assert ["verdict", "score 0", *(f"suite {number}" for number in range(8)), "timings", "open"] == [line[:11].rstrip() for line in shown]


def test_a_long_log_on_the_first_page() -> None:
    """Of a log, the last lines are shown. A fact without a label stays with the one that it continues."""
    log = Listing("\n".join(f"line {number}" for number in range(50)), level=FIRST, spare=1)
    shown = first_page(fact("backend", "is gone"), log, fact("worst", "a", spare=3), fact("rule", "FAIL"), fact("", "a reason"))

    assert MOST == len(shown)
    assert [f"line {number}" for number in range(43, 50)] == [line.strip() for line in shown if "line " in line]
    assert ["FAIL", "a reason"] == [line[11:].strip() for line in shown[-3:-1]]
    assert [] == [line for line in shown if line.startswith("worst")]
