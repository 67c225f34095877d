"""When two JSON values are the same argument, by the schema of the parameter. `docs/scorers.md` has the rules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pytest_agentbench.records import Json

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_NUMERIC = frozenset({"integer", "number"})
_DAY_THEN_MONTH = re.compile(r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<month>[a-z]+)\.?,? (?P<year>\d{4})", re.ASCII)
_MONTH_THEN_DAY = re.compile(r"(?P<month>[a-z]+)\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?P<year>\d{4})", re.ASCII)
_SAYS_DATE = re.compile(r"\bdates?\b|\bYYYY\b", re.IGNORECASE)
_DAY_FIRST = re.compile(r"\bDD?([/.-])MM?\1YYYY\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"\bMM?([/.-])DD?\1YYYY\b", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
_MONTH = {name: number for names in (_MONTHS, _NAMES) for number, name in enumerate(names, 1)} | {"sept": 9}


def same(expected: Any, actual: Any, schema: Json) -> bool:
    """Whether two values, neither of them a list or an object, mean the same under a JSON schema. `{}` is a schema that says nothing."""
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    if isinstance(schema.get("enum"), list):
        one, other = _of_enum(expected, schema["enum"]), _of_enum(actual, schema["enum"])
        if one in schema["enum"] or other in schema["enum"]:
            return bool(one == other)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            around = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")}
            return any(same(expected, actual, {**around, **each}) for each in schema[union] if isinstance(each, dict))
    if isinstance(expected, str) and isinstance(actual, str) and _is_date(schema):
        one, other = _moment(expected, schema), _moment(actual, schema)
        if one is not None and other is not None:
            return type(one) is type(other) and one == other
    return _same_scalar(expected, actual, types_of(schema))


def types_of(schema: Json) -> frozenset[str]:
    """The types that a schema allows; empty when it does not say."""
    kind = schema.get("type")
    return frozenset(map(str, kind)) if isinstance(kind, list) else frozenset({str(kind)} if kind else ())


def _same_scalar(expected: Any, actual: Any, types: frozenset[str]) -> bool:
    texts = isinstance(expected, str) and isinstance(actual, str)
    if texts and not (types & _NUMERIC and "string" not in types):
        return plain(expected) == plain(actual)
    if types & {"string"} and not types & _NUMERIC and (isinstance(expected, str) or isinstance(actual, str)):
        return plain(_text(expected)) == plain(_text(actual))  # "0042" is not 42 where a text is wanted
    one, other = _number(expected), _number(actual)
    if one is None or other is None:
        return texts and plain(expected) == plain(actual)
    return one == other


def plain(text: str) -> str:
    """A text without case and outer spaces, and with one space where there are several."""
    return " ".join(text.split()).casefold()


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _number(value: Any) -> Decimal | None:
    """The number that a value is or spells, exactly."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        return Decimal(value.strip() if isinstance(value, str) else repr(value))
    except InvalidOperation:  # lists and objects
        return None


def _of_enum(value: Any, values: list[Any]) -> Any:
    """The value of an enum that is meant; the value itself when it is none of them, or may be two."""
    if value in values:
        return value
    alike = [each for each in values if not isinstance(each, bool) and plain(_text(each)) == plain(_text(value))]
    return alike[0] if len(alike) == 1 else value


def _is_date(schema: Mapping[str, Any]) -> bool:
    return schema.get("format") in ("date", "date-time") or bool(_SAYS_DATE.search(str(schema.get("description", ""))))


def _moment(text: str, schema: Mapping[str, Any]) -> date | datetime | None:
    """The day, or the day and time, that a text writes in ISO form, in words or in figures; None when it could be two days."""
    text = " ".join(text.split())
    for read in (date.fromisoformat, datetime.fromisoformat):
        try:
            return read(text)
        except ValueError:
            continue
    return _in_words(text) or _in_figures(text, str(schema.get("description", "")))


def _in_words(text: str) -> date | None:
    """`5 March 2026`, `5th of Mar. 2026`, `March 5, 2026`, `Thursday, March 5th 2026`."""
    words = re.sub(r"^[a-z]+day,? ", "", text.casefold())
    match = _DAY_THEN_MONTH.fullmatch(words) or _MONTH_THEN_DAY.fullmatch(words)
    if match and match["month"] in _MONTH:
        return _day(int(match["year"]), _MONTH[match["month"]], int(match["day"]))
    return None


def _in_figures(text: str, description: str) -> date | None:
    """`2026/3/5`, `5.3.2026`; `03/05/2026` where the description says which comes first, or where only one can be the month."""
    if match := re.fullmatch(r"(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})", text, re.ASCII):
        return _day(*map(int, match.groups()))
    if not (match := re.fullmatch(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})", text, re.ASCII)):
        return None
    first, second, year = int(match[1]), int(match[3]), int(match[4])
    day_first, month_first = _DAY_FIRST.search(description), _MONTH_FIRST.search(description)
    if day_first or (match[2] == "." and not month_first):
        return _day(year, second, first)
    if month_first:
        return _day(year, first, second)
    one, other = _day(year, second, first), _day(year, first, second)
    return (one or other) if one is None or other is None or one == other else None


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None
