"""Finding values in sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.engine.lexical import texts
from pytest_agentbench.engine.lexical.texts import Finder

FINDERS: list[Finder] = [
    texts.money, texts.numbers, texts.percentages, texts.months, texts.distances, texts.dates, texts.times, texts.last_four,
    texts.emails, texts.phones, texts.addresses, texts.references, texts.currencies, texts.quotes, texts.names, texts.phrases,
]  # fmt: skip


@pytest.mark.parametrize(
    ("find", "text", "expected"),
    [
        (texts.money, "$1,250.50, £20, 3k euros, $2.5k and 40 bucks", [1250.5, 20, 3000, 2500, 40]),
        (texts.numbers, "12 tickets for $30 on May 3 at 4pm, 5% off, card ending 4471, within 3 miles, 2 years", [12]),
        (texts.numbers, "9999999999999999 is too large to mean anything, 12 is not", [12]),
        (texts.percentages, "6.5% or 7 percent", [6.5, 7]),
        (texts.months, "over 5 years, a 12-month term, two months or 3 weeks", [60, 12, 2]),
        (texts.distances, "within 5 miles or ten km", [5, 10]),
        (texts.dates, "2026-03-14, 3/4/2026, March 5th, 2026, June 14, 3rd of May, next Friday, tomorrow", None),
        (texts.times, "at 3:30 pm, 9am, 14:05, noon or midnight", ["15:30", "09:00", "14:05", "12:00", "00:00"]),
        (texts.last_four, "ending in 4471, last four digits are 0012, ****9023, account 1234 for 5678", ["4471", "0012", "9023", "1234"]),
        (texts.emails, "write to jo.r+x@mail.example.org.", ["jo.r+x@mail.example.org"]),
        (
            texts.phones,
            "call 555-201-8890, (555) 201 8890, 555-0199 but not 2026-03-14 or $1234567890",
            ["555-201-8890", "(555) 201 8890", "555-0199"],
        ),
        (texts.addresses, "I live at 12 Elm Street, Springfield, IL 62704 now", ["12 Elm Street, Springfield, IL 62704"]),
        (texts.references, "reference WT-88213, ticket #4711 and USA", ["WT-88213", "4711"]),
        (texts.currencies, "500 dollars in euros, Canadian dollars or CHF", ["USD", "EUR", "CAD", "CHF"]),
        (texts.quotes, 'with the note "rent share" please', ["rent share"]),
        (texts.names, "I paid Whole Foods and went to Bank of America with Ana on Friday.", ["Whole Foods", "Bank of America", "Ana"]),
    ],
)
def test_finds_values(find: Finder, text: str, expected: list[texts.Plain] | None) -> None:
    """Each finder returns values of its kind in the order of the text, and no others."""
    if expected is None:
        expected = ["2026-03-14", "2026-03-04", "2026-03-05", "june 14", "may 3", "next friday", "tomorrow"]

    assert expected == [found.value for found in find(text)]


def test_phrases_know_their_preposition() -> None:
    """A phrase is the text after a preposition, without the article. An infinitive is not a phrase."""
    found = texts.phrases("I want to move $5 from my checking account to the savings ending in 4471.")

    assert [("from", "checking account"), ("to", "savings")] == [(phrase.before, phrase.value) for phrase in found]


@given(st.text(max_size=200))
def test_finders_never_fail(text: str) -> None:
    """For any text, the values are inside the text and in order."""
    for find in FINDERS:
        found = find(text)

        assert all(0 <= each.start < each.end <= len(text) for each in found)
        assert sorted(each.start for each in found) == [each.start for each in found]
