"""Reading of texts for the policy `lexical`: stems of words, and values such as money, numbers, dates and names.

A finder is a function that takes a text and returns the values of one kind in it, in order and with their positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import snowballstemmer

WORD = re.compile(r"[^\W\d_]+")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def vocabulary(text: str) -> frozenset[str]:
    """Returns the set of words in a string."""
    return frozenset(text.split())


#: Words that do not help to choose a tool: function words, words of courtesy, and words such as "please" and "want".
STOP = vocabulary(
    "a about after again all also am an and any are as at be because been before being but by can cannot could did do does doing don "
    "down each for from further get give go going got had has have having he hello help her here hers hey hi him his how i if in into "
    "is it its just know let like ll looking m make may me more most my myself need no not now of off okay on once one only or other "
    "our out over own please plus re s same she should so some such sure t tell thank thanks that the their them then there these "
    "they this those through to too trying under until up us use ve very want was we well were what when where which while who whom "
    "why will wish with would you your"
)
_stemmer = snowballstemmer.stemmer("english")


def words(text: str) -> list[str]:
    """Returns the words in a text, or in a name such as `account_type` or `accountType`, in lower case."""
    return WORD.findall(CAMEL.sub(" ", text).lower())


def stems(text: str) -> list[str]:
    """Returns the stems of all words that are not stop words, including repetitions."""
    return [stem(word) for word in words(text) if word not in STOP]


@lru_cache(maxsize=32_768)
def stem(word: str) -> str:
    return str(_stemmer.stemWord(word[:40]))


Plain = str | int | float


class PlacedValue(NamedTuple):
    """A value and its position in the text."""

    value: Plain
    start: int
    end: int
    before: str = ""  # preposition before a phrase or name, in lower case


Finder = Callable[[str], tuple[PlacedValue, ...]]

MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LARGEST = 1e15  # no customer means a larger number, and JSON cannot represent much larger ones exactly
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
SCALES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
CURRENCIES = {
    "canadian dollar": "CAD", "australian dollar": "AUD", "dollar": "USD", "euro": "EUR", "pound": "GBP", "sterling": "GBP", "yen": "JPY",
    "franc": "CHF", "peso": "MXN", "rupee": "INR", "yuan": "CNY", "krona": "SEK",
    "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY",
}  # fmt: skip
CODES = "USD|EUR|GBP|JPY|CHF|CAD|AUD|NZD|MXN|INR|CNY|KRW|SEK|NOK|DKK|BRL|ZAR|SGD|HKD|PLN|CZK|TRY|THB"

_DIGITS = r"(?<!\d)(?:\d{1,3}(?:,\d{3}){1,9}|\d+)(?:\.\d+)?"
_AMOUNT = rf"(?P<digits>{_DIGITS})(?:\s?(?P<scale>k|m|thousand|million)\b)?"
_MONTH = rf"(?P<month>{'|'.join(MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_COUNT = rf"(?P<count>\d+|{'|'.join(WORDS)})"
_CAPITALISED = r"[A-Z][\w&'’.-]*\w|[A-Z]"
_PREPOSITIONS = "from|into|to|with|at|in|near|around|by|for|of|off|out of|between|on"

MONEY = (
    re.compile(rf"[$€£¥]\s?{_AMOUNT}", re.IGNORECASE),
    re.compile(rf"{_AMOUNT}\s?(?:{CODES}|dollars?|bucks|euros?|pounds?|yen|usd)\b", re.IGNORECASE),
)
NUMBER = re.compile(rf"(?<![\w.,#-]){_AMOUNT}(?![\w-])", re.IGNORECASE)
PERCENT = re.compile(rf"(?P<digits>{_DIGITS})\s?(?:%|percent\b|per cent\b)", re.IGNORECASE)
DURATION = re.compile(rf"\b{_COUNT}[\s-](?P<unit>years?|yrs?|months?|mos?|weeks?|days?)\b", re.IGNORECASE)
DISTANCE = re.compile(rf"\b{_COUNT}[\s-]?(?:miles?|mi|km|kilomet(?:er|re)s?)\b", re.IGNORECASE)
SPOKEN_DATES = (
    re.compile(rf"\b{_MONTH}\s+{_DAY}\b(?:,?\s+{_YEAR}\b)?", re.IGNORECASE),
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}\b(?:,?\s+{_YEAR}\b)?", re.IGNORECASE),
)
ISO_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
SLASH_DATE = re.compile(r"\b(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})\b")
NAMED_DAY = re.compile(rf"\b(?:next\s+|this\s+|last\s+)?(?:{'|'.join(DAYS)})s?\b|\b(?:today|tomorrow|yesterday|tonight)\b", re.IGNORECASE)
NAMED_SPAN = re.compile(r"\b(?:next|this|last|past)\s+(?:week|month|year|quarter)\b", re.IGNORECASE)
DAY_OF_MONTH = re.compile(r"\bthe\s+\d{1,2}(?:st|nd|rd|th)\b", re.IGNORECASE)
TIME = re.compile(
    r"\b(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s?(?P<half>[ap])\.?m\b|\b(?P<hour24>[01]?\d|2[0-3]):(?P<minute24>[0-5]\d)\b", re.IGNORECASE
)
NAMED_TIME = re.compile(r"\b(?:noon|midday|midnight)\b", re.IGNORECASE)
LAST_FOUR = re.compile(
    r"(?:\bend(?:s|ing)?(?:\s+(?:in|with))?|\blast\s+(?:four|4)(?:\s+digits)?(?:\s+(?:are|is))?|\b(?:card|account)(?:\s+number)?|[x*#]{2,12})"
    r"[\s:-]*(?P<four>\d{4})(?![\d,.-]\d|\d)",
    re.IGNORECASE,
)
EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
PHONE = re.compile(r"(?<![\w$€£-])\+?\(?\d[\d().\s-]{6,16}\d(?![\w-])")
LOCAL_PHONE = re.compile(r"\d{3}-\d{4}")
ADDRESS = re.compile(
    r"\b\d{1,5}\s+(?:[A-Z0-9][\w.]*\s+){1,4}?(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Way|Place|Pl|Terrace|Square)\b"
    r"\.?(?:,?\s+(?:Apt|Unit|Suite|#)\.?\s*\w+)?(?:,\s+[A-Z][\w ]{1,30}(?:,\s+[A-Z]{2})?(?:\s+\d{5})?)?"
)
REFERENCE = re.compile(r"(?<![\w-])#?(?P<reference>(?=[A-Z-]*\d)[A-Z][A-Z0-9-]{3,}|(?<=#)\d{3,})(?![\w-])")
QUOTED = re.compile(r"[\"“](?P<quoted>[^\"“”]{1,200})[\"”]")
#: Words after which `to` begins an infinitive, not a place or person.
_BEFORE_INFINITIVE = "want|wants|wanted|need|needs|needed|like|going|have|has|love|able|trying|how|help|wish|ready|plan|planning|due"
_INFINITIVE = "".join(rf"(?<!\b{word}\s)" for word in _BEFORE_INFINITIVE.split("|"))
CURRENCY = re.compile(rf"\b(?:{CODES})\b|(?i:(?<![^\W_])(?:{'|'.join(map(re.escape, CURRENCIES))})(?:s\b|(?![^\W\d_])))")
NAME = re.compile(
    rf"(?:\b(?P<before>{_PREPOSITIONS})\s+(?:the\s+)?)?(?P<name>(?:{_CAPITALISED})(?:\s+(?:(?:of|and|&|de)\s+)?(?:{_CAPITALISED}))*)"
)
PHRASE = re.compile(
    rf"{_INFINITIVE}\b(?P<before>{_PREPOSITIONS})\s+(?:(?:my|our|the|a|an|his|her|their|your)\s+)?(?P<phrase>[^\W\d_][\w'’-]*(?:\s+[\w'’-]+){{0,3}}?)"
    rf"(?=\s+(?:{_PREPOSITIONS}|and|then|but|please|ending|every|each|on|that|which|who|is|was|are|starting|because)\b|\s+[$€£\d]|[^\w\s'’-]|\s*$)",
    re.IGNORECASE,
)
_NO_NAMES = frozenset(
    (*MONTHS, *DAYS, "i", "i'm", "i’m", "i'd", "i’d", "i've", "i’ve", "i'll", "i’ll", "the", "my", "please", "also", "atm")
)


def _finder(function: Callable[[str], Iterator[PlacedValue]]) -> Finder:
    """Decorator for a function that yields the values of one kind (such as dates) in a text. The result returns them as a tuple.

    The values are sorted by position, and cached, because several parameters of a tool may search the same text.
    """

    @lru_cache(maxsize=512)
    def find(text: str) -> tuple[PlacedValue, ...]:
        usable = (placed for placed in function(text) if isinstance(placed.value, str) or placed.value < LARGEST)
        return tuple(sorted(usable, key=lambda placed: (placed.start, -placed.end)))

    return find


@_finder
def money(text: str) -> Iterator[PlacedValue]:
    for pattern in MONEY:
        for match in pattern.finditer(text):
            yield PlacedValue(_amount(match), *match.span())


@_finder
def numbers(text: str) -> Iterator[PlacedValue]:
    """Finds numbers that are not part of another value, such as money, a date, a duration or an account number."""
    special = (money, dates, times, percentages, months, distances, last_four, phones, references, addresses)
    special_values = [other for find in special for other in find(text)]
    for match in NUMBER.finditer(text):
        if not any(other.start < match.end() and match.start() < other.end for other in special_values):
            yield PlacedValue(_amount(match), *match.span())


@_finder
def percentages(text: str) -> Iterator[PlacedValue]:
    for match in PERCENT.finditer(text):
        yield PlacedValue(_amount(match), *match.span())


@_finder
def months(text: str) -> Iterator[PlacedValue]:
    """Finds durations in months and years, as months. Weeks and days are ignored."""
    for match in DURATION.finditer(text):
        factor = {"y": 12, "m": 1}.get(match["unit"][0].lower(), 0)
        if factor:
            yield PlacedValue(_count(match) * factor, *match.span())


@_finder
def distances(text: str) -> Iterator[PlacedValue]:
    for match in DISTANCE.finditer(text):
        yield PlacedValue(_count(match), *match.span())


@_finder
def dates(text: str) -> Iterator[PlacedValue]:
    """Finds dates. Those with day, month and year are returned in ISO format, others as their words in lower case."""
    for match in ISO_DATE.finditer(text):
        yield PlacedValue(match[0], *match.span())
    for match in SLASH_DATE.finditer(text):
        yield PlacedValue(f"{match['year']}-{int(match['month']):02}-{int(match['day']):02}", *match.span())
    for pattern in SPOKEN_DATES:
        for match in pattern.finditer(text):
            yield PlacedValue(_spoken_date(match), *match.span())
    for pattern in (NAMED_DAY, NAMED_SPAN, DAY_OF_MONTH):
        for match in pattern.finditer(text):
            yield PlacedValue(" ".join(match[0].lower().split()), *match.span())


@_finder
def times(text: str) -> Iterator[PlacedValue]:
    for match in TIME.finditer(text):
        if match["half"]:
            hour = int(match["hour"]) % 12 + (12 if match["half"] in "pP" else 0)
            yield PlacedValue(f"{hour:02}:{match['minute'] or '00'}", *match.span())
        else:
            yield PlacedValue(f"{int(match['hour24']):02}:{match['minute24']}", *match.span())
    for match in NAMED_TIME.finditer(text):
        yield PlacedValue("00:00" if match[0].lower() == "midnight" else "12:00", *match.span())


@_finder
def last_four(text: str) -> Iterator[PlacedValue]:
    for match in LAST_FOUR.finditer(text):
        yield PlacedValue(match["four"], *match.span("four"))


@_finder
def emails(text: str) -> Iterator[PlacedValue]:
    for match in EMAIL.finditer(text):
        yield PlacedValue(match[0], *match.span())


@_finder
def phones(text: str) -> Iterator[PlacedValue]:
    for match in PHONE.finditer(text):
        digits = sum(map(str.isdigit, match[0]))
        if (10 <= digits <= 15 or LOCAL_PHONE.fullmatch(match[0])) and not ISO_DATE.search(match[0]):
            yield PlacedValue(match[0], *match.span())


@_finder
def addresses(text: str) -> Iterator[PlacedValue]:
    for match in ADDRESS.finditer(text):
        yield PlacedValue(match[0].rstrip(". "), *match.span())


@_finder
def references(text: str) -> Iterator[PlacedValue]:
    for match in REFERENCE.finditer(text):
        yield PlacedValue(match["reference"], *match.span("reference"))


@_finder
def currencies(text: str) -> Iterator[PlacedValue]:
    for match in CURRENCY.finditer(text):
        yield PlacedValue(CURRENCIES.get(match[0].lower().removesuffix("s"), match[0].upper()), *match.span())


@_finder
def quotes(text: str) -> Iterator[PlacedValue]:
    for match in QUOTED.finditer(text):
        yield PlacedValue(match["quoted"].strip(), *match.span())


@_finder
def names(text: str) -> Iterator[PlacedValue]:
    """Finds capitalised words, except at the start of a sentence and those that are always capitalised."""
    for match in NAME.finditer(text):
        name = re.sub(r"['’]s$", "", match["name"])
        if name.lower() not in _NO_NAMES and (match["before"] or not _opens_sentence(text[: match.start("name")][-4:])):
            yield PlacedValue(name, *match.span("name"), before=(match["before"] or "").lower())


def _opens_sentence(before: str) -> bool:
    """Returns whether a word begins a sentence, given the few characters before it."""
    stripped = before.rstrip()
    return not stripped or stripped[-1] in ".!?:" or "\n" in before[len(stripped) :]


@_finder
def phrases(text: str) -> Iterator[PlacedValue]:
    """Finds up to four words after a preposition, without articles and possessives."""
    for match in PHRASE.finditer(text):
        yield PlacedValue(match["phrase"], *match.span("phrase"), before=match["before"].lower())


def _amount(match: re.Match[str]) -> Plain:
    groups = match.groupdict()
    value = float(groups["digits"].replace(",", "")) * SCALES.get((groups.get("scale") or "").lower(), 1)
    return int(value) if value.is_integer() else round(value, 6)


def _count(match: re.Match[str]) -> int:
    count = match["count"].lower()
    return WORDS.index(count) if count in WORDS else int(count)


def _spoken_date(match: re.Match[str]) -> str:
    month = next(index for index, name in enumerate(MONTHS, start=1) if name.startswith(match["month"].lower()[:3]))
    day = int(match["day"])
    return f"{match['year']}-{month:02}-{day:02}" if match["year"] else f"{MONTHS[month - 1]} {day}"
