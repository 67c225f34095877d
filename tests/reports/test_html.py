"""Documents as HTML: the first screen, and the elements of all blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.reports import gate_phrases, phrases
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
    Section,
    Table,
    heads,
)
from pytest_agentbench.reports.html import no_address
from pytest_agentbench.reports.page.layout import run_html
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from tests.made_runs import gate_result, rule_result, run_of

SUMMARY, VERBOSE = Level.SUMMARY, Level.VERBOSE
EMPTY = {"br", "hr", "img", "input", "meta"}


class Element:
    """An element of a page: its name, attributes and content."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes = name, attributes
        self.content: list[Element | str] = []

    @property
    def text(self) -> str:
        return "".join(each if isinstance(each, str) else each.text for each in self.content)

    def all(self, name: str = "", of_class: str = "") -> list[Element]:
        """Returns the elements with a name, a class, or both, in their order."""
        return [
            each
            for each in self._below()
            if name in ("", each.name) and (not of_class or of_class in each.attributes.get("class", "").split())
        ]

    def _below(self) -> Iterator[Element]:
        for each in self.content:
            if isinstance(each, Element):
                yield each
                yield from each._below()


class Parser(HTMLParser):
    """Parses HTML, and checks that each element is closed by its own end tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(element)
        if tag not in EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop().name

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parsed(html: str) -> Element:
    parser = Parser()
    parser.feed(html)
    parser.close()
    assert 1 == len(parser.open)
    return parser.open[0]


def html_of(*blocks: AnyBlock | Section, address: Callable[[str, tuple[str, ...]], str] = no_address) -> tuple[Element, Element]:
    """Returns the first screen and the whole report of a document with one section."""
    [run] = parsed(run_html(Document("Run x", Fact("verdict", "PASS", "good"), (Section("Part", blocks),)), address)).all("section", "run")
    [report] = run.all("details")
    run.content.remove(report)
    return run, report


def texts(elements: list[Element]) -> list[str]:
    return [each.text for each in elements]


def test_measures_are_cards() -> None:
    """A card has number, unit, statistic, interval and remark. A share has no unit."""
    latency = Measure(11.27, "ms", "median", 9.6, 10.9, 1, "p90 12.0 ms")
    time = Fact("TTFT", latency, level=SUMMARY)
    share = Fact("prefix cache", Measure(0.959, "%"), level=SUMMARY)
    missing = Fact("tsq", Measure(None, about="0 or more"), level=SUMMARY)
    screen, _ = html_of(time, share, missing, Note("a table", level=VERBOSE))

    cards = [
        (texts(card.all("h2")), [" ".join(each.text.split()) for each in card.all("p", "value")], texts(card.all("p", "soft")))
        for card in screen.all("div", "figure")
    ]
    assert (["TTFT"], ["11.3 ms, median"], [f"{phrases.interval(latency)}; p90 12.0 ms"]) == cards[0]
    assert ([["prefix cache"], ["95.9 %"], [""]], [["tsq"], ["not measured"], ["0 or more"]]) == tuple(map(list, cards[1:]))
    assert [] == screen.all("dd")  # no measure is repeated


def test_reasons_come_before_numbers() -> None:
    """The order is: headline, texts of the first page, cards, and the rest below its titles."""
    late, early = Fact("stopwatch", "ok", level=SUMMARY), Fact("gate", "PASS", "good", level=Level.FIRST_PAGE)
    screen, _ = html_of(late, Fact("tsq", Measure(0.5), level=SUMMARY), early, Note("more", level=VERBOSE))

    assert ["Run x", "PASS", "PASS", "0.500", "ok"] == [
        each.text.strip()
        for each in screen.all()
        if each.name in ("h1", "dd") or each.attributes.get("class") == "value" or each.text == "Run x"
    ]
    assert ["verdict good"] == [each.attributes["class"] for each in screen.all("h1")]
    assert ["Part"] == texts([each for each in screen.all("h2") if each.text != "tsq"])


def test_tables_are_below() -> None:
    """The first screen has no tables and no notes on them, but the report has both. If the summary has everything, there is no report."""
    table = Table(heads("test", "said"), (("a", "b"),), level=SUMMARY)
    inner = Section("Failed tests", (table, Note("and 4 more", level=SUMMARY)))
    screen, report = html_of(
        Fact("tests", "1 failed", level=SUMMARY), Note("how to read it", level=SUMMARY), inner, Listing("log", level=VERBOSE)
    )

    assert ([], ["Run x", "how to read it"]) == (screen.all("table"), texts(screen.all("p", "soft")))
    assert (1, ["how to read it", "and 4 more"]) == (len(report.all("table")), texts(report.all("p", "soft")))
    assert "<details" not in run_html(Document("Run x", None, (Section("Part", (Fact("a", "b", level=SUMMARY),)),)), no_address)


def test_findings_are_not_repeated() -> None:
    """A list leaves out items that a fact of the first screen has. An empty list is left out."""
    twice, once = "a rule failed", "calls failed"
    rule = Fact("rule", twice, level=SUMMARY)
    screen, report = html_of(Bullets((twice, once), level=SUMMARY), rule, Note("more", level=VERBOSE))
    without, _ = html_of(Section("First", (Bullets((twice,), level=SUMMARY),)), rule, Note("more", level=VERBOSE))

    assert (["calls failed"], ["a rule failed"]) == (texts(screen.all("li")), texts(screen.all("dd")))
    assert ["a rule failed", "calls failed"] == texts(report.all("li"))
    assert ([], ["Part"]) == (without.all("ul"), texts(without.all("h2")))


def test_tables_have_labels_and_headers() -> None:
    """A table is labelled with its section. Header cells have a scope, and numbers a class."""
    columns = heads("scenario", ("tsq", 3), "reason")
    table = Table(columns, (("a", 0.5, Code("gone")), ("b", None, None)), level=VERBOSE)
    _, report = html_of(Section("Every scenario", (table,)))

    [found] = report.all("table")
    assert "Every scenario" == found.attributes["aria-label"]
    heads_of_columns, *rows = found.all("tr")
    assert [("col", ""), ("col", "number"), ("col", "")] == [
        (each.attributes["scope"], each.attributes.get("class", "")) for each in heads_of_columns.all("th")
    ]
    assert [["row"], ["row"]] == [[each.attributes["scope"] for each in row.all("th")] for row in rows]
    assert [("a", ["0.500", "gone"]), ("b", ["-", "-"])] == [(row.all("th")[0].text, texts(row.all("td"))) for row in rows]
    assert ["0.500", "-"] == texts(found.all("td", "number"))


def test_headings_are_in_order() -> None:
    """Nested sections have headings of the next level, at most the sixth, which is the last in HTML."""
    inner = Section("5", (Section("6", (Section("also 6", (Note("deep", level=VERBOSE),)),)),))
    _, report = html_of(Section("4", (inner,)))

    assert [("h2", phrases.WHOLE_REPORT), ("h3", "Part"), ("h4", "4"), ("h5", "5"), ("h6", "6"), ("h6", "also 6")] == [
        (each.name, each.text) for each in report.all() if each.name in {f"h{level}" for level in range(1, 7)}
    ]


def test_facts_are_terms_with_descriptions() -> None:
    """Consecutive facts are one list. A fact without a label is another description of the previous term."""
    facts = (Fact("rule", "FAIL", "bad", level=VERBOSE), Fact("", "too few", level=VERBOSE), Fact("gate", "FAIL", level=VERBOSE))
    _, report = html_of(*facts, Note("between", level=VERBOSE), Fact("calls", "2", level=VERBOSE))

    assert [["dt", "dd", "dd", "dt", "dd"], ["dt", "dd"]] == [[each.name for each in found.all()] for found in report.all("dl", "facts")]
    assert ["FAIL"] == texts(report.all("dd", "bad"))


def test_links() -> None:
    """The name of a rollout is a link to its address in this section. Other names, and names without an address, are not links."""
    asked = []

    def address(name: str, titles: tuple[str, ...]) -> str:
        asked.append((name, titles))
        return '#a"b' if name == "known" else ""

    names = ((Code("known", "scenario"),), (Code("unknown", "scenario"),), (Code("known"),))
    _, report = html_of(Section("shop", (Table(heads("scenario"), names, level=VERBOSE),)), address=address)

    assert [('#a"b', "known")] == [(each.attributes["href"], each.text) for each in report.all("a")]
    assert ["known", "unknown", "known"] == texts(report.all("code"))
    assert [("known", ("Part", "shop")), ("unknown", ("Part", "shop"))] == asked


@pytest.mark.parametrize("words", ["<script>", '"><img src=x onerror="x">', "&lt;b&gt;", "\u202eevil", "\x1b[31m", "\ud83d half", "a\nb"])
def test_foreign_texts_are_text(words: str) -> None:
    """Foreign texts never become elements or attributes, and their hidden characters are visible."""
    seen = words.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b").replace("\ud83d", "\\ud83d")
    blocks = (
        *(Fact(words, words, level=SUMMARY), Fact(words, Measure(1.0, words, words, about=words), level=SUMMARY)),
        *(Bullets((words, Code(words)), level=VERBOSE), Note((words, Code(words, "scenario")), level=VERBOSE)),
        *(Table(heads(words), ((words,),), level=VERBOSE), Listing(words, level=VERBOSE), Figure(words, words, level=VERBOSE)),
    )
    html = run_html(Document(words, Fact("verdict", words), (Section(words, (*blocks, Section(words, blocks))),)), no_address)
    found = parsed(html)

    known = {
        "section",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "div",
        "span",
        "dl",
        "dt",
        "dd",
        "ul",
        "li",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
    }
    assert {each.name for each in found.all()} <= {*known, "pre", "a", "details", "summary"}
    assert {name for each in found.all() for name in each.attributes} <= {"class", "aria-label", "scope", "href"}
    assert seen.replace("\n", "\\n") == found.all("h1")[0].text
    assert seen == found.all("pre")[0].text
    assert not {"\u202e", "\x1b", "\ud83d"} & {*html}


def test_long_names_are_truncated() -> None:
    """Foreign texts are truncated. Commands are not, so that they can be copied."""
    long = "x" * 1000
    _, report = html_of(Bullets((Code(long), Code(long, "scenario"), Code(long, "command")), level=VERBOSE))

    assert [f"{'x' * LONGEST}...", f"{'x' * LONGEST}...", long] == texts(report.all("code"))


@pytest.mark.parametrize(
    ("verdict", "mark"),
    [
        *(("PASS", "verdict good"), ("FAIL", "verdict bad"), ("INCONCLUSIVE", "verdict open"), ("NOT MEASURED", "verdict open")),
        ("NO GATE", "verdict"),
    ],
)
def test_colours(verdict: str, mark: str) -> None:
    """The headline has the colour of the verdict. Without a gate it has no colour."""
    run = run_of(verdict=verdict)
    found = parsed(run_html(document(RunView(run, Path("reports/x"))), no_address))

    assert [mark] == [each.attributes["class"] for each in found.all("h1")]


def test_the_first_screen_of_a_run() -> None:
    """The first screen has the reason before the numbers, in the heading and with its rule."""
    rule = rule_result("tsq.mean >= 0.8 of run", "FAIL", 0.5)
    run = run_of(Rollout("shop", "s", "default", 1, "ok", scores={"tsq": Score(0.5)}), verdict="FAIL", gate=gate_result("FAIL", rule))
    html = run_html(document(RunView(run, Path("reports/x"))), no_address)
    screen = html.partition("<details")[0]

    assert screen.index("<h1") <= screen.index(gate_phrases.result(rule).replace(">", "&gt;")) - len('<h1 class="verdict bad">')
    assert screen.index(gate_phrases.result(rule).replace(">", "&gt;")) < screen.index('class="figures"')
    assert 2 == screen.count("required &gt;= 0.8")
