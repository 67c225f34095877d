"""Fills the arguments of a tool from a customer's text. The tool's JSON schema decides the type or the allowed values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pytest_agentbench.engine.lexical import texts
from pytest_agentbench.engine.lexical.texts import Finder, stem, stems, vocabulary, words
from pytest_agentbench.records import Json

NEGATIONS = vocabulary("no not don without exclude excluding except never skip")
NEAR = 4  # distance in words at which a negation applies to a later word


class _Match(NamedTuple):
    """The quality of a match between a value and a text. Matches are compared as tuples; the greatest is the best."""

    names_it: bool  # whether all words of the value are in the text
    share: float  # share of the value's words that are in the text
    gloss_hits: int  # number of words of its explanation that are in the text
    earliness: int  # minus the index of its first word in the text


def choose(text: str, choices: Sequence[Any], description: str, *, partly: bool) -> Any:
    """Returns the allowed value (of `choices`) that matches the text best, or None if that one does not match well enough.

    The parameter's description may explain values, for example `auto (car or vehicle)`. With `partly`, one word of the value in the text
    is enough; otherwise all of its words, or a word of its explanation, must be in the text.
    """
    text_stems = stems(text)
    gloss_words = [{word for word in gloss if word in text_stems} for gloss in _glosses(tuple(map(str, choices)), description)]
    matches = [_match(text_stems, str(choice), len(gloss)) for choice, gloss in zip(choices, gloss_words, strict=True)]
    best = max(range(len(choices)), key=matches.__getitem__)
    fits = matches[best].names_it or matches[best].gloss_hits or (partly and matches[best].share > 0)
    return choices[best] if fits else None


def flag(text: str, name: str) -> bool | None:
    """Returns the value of the boolean parameter `name`, or None if the last word of the name is not in the text.

    For example, `include_pending` is false if the text has a negation shortly before "pending", and true if "pending" is not negated.
    """
    name_stems, text_words = stems(name), words(text)
    place = next((index for index, word in enumerate(text_words) if name_stems and stem(word) == name_stems[-1]), None)
    return None if place is None else not NEGATIONS & set(text_words[max(0, place - NEAR) : place])


def _match(text_stems: Sequence[str], choice: str, gloss_hits: int) -> _Match:
    own = stems(choice)
    shared = [word for word in own if word in text_stems]
    earliness = -min((text_stems.index(word) for word in shared), default=len(text_stems))
    return _Match(bool(own) and len(shared) == len(own), len(shared) / len(own) if own else 0.0, gloss_hits, earliness)


@lru_cache(maxsize=4096)
def _glosses(choices: tuple[str, ...], description: str) -> list[frozenset[str]]:
    """Returns, for each choice, the stems of the words that explain it in parentheses and occur nowhere else in the description."""
    matches = [re.search(rf"(?<!\w){re.escape(choice)}\s*\(([^)]{{0,1000}})\)", description) for choice in choices]
    glosses = [frozenset(stems(match[1])) if match else frozenset[str]() for match in matches]
    uses = Counter(word for gloss in glosses for word in gloss)
    uses.update(stems(re.sub(r"\([^)]{0,1000}\)", "", description)))
    return [frozenset(word for word in gloss if uses[word] == 1) for gloss in glosses]


class Hint(NamedTuple):
    """A rule for finding the value of a parameter whose name has one of `words`. In a list of hints, the first that applies decides."""

    words: frozenset[str]
    finders: tuple[Finder, ...] = ()
    before: tuple[str, ...] = ()  # prepositions before such a value, best first


def _hint(names: str, *finders: Finder, before: Sequence[str] = ()) -> Hint:
    return Hint(vocabulary(names), finders, tuple(before))


#: These hints also apply to the words of a description, for a parameter whose name matches no hint.
PLAIN_HINTS = (
    _hint("email mail", texts.emails),
    _hint("phone mobile telephone", texts.phones),
    _hint("address street", texts.addresses),
    _hint("four", texts.last_four),
    _hint("currency", texts.currencies),
)
TEXT_HINTS = (
    *PLAIN_HINTS,
    _hint("time hour", texts.times),
    _hint("date day when on since until deadline", texts.dates),
    _hint("id reference number code confirmation", texts.references, texts.last_four),
)
NUMBER_HINTS = (
    _hint("rate percent percentage apr interest", texts.percentages),
    _hint("month months term year years", texts.months),
    _hint("mile miles radius distance km", texts.distances),
    _hint("", texts.money, texts.numbers),
)
PHRASE_HINTS = (
    _hint("from source origin", before=("from", "out of", "off")),
    _hint("to destination target recipient payee beneficiary", before=("to", "into", "for", "with")),
    _hint("location city place where near town area", before=("in", "near", "at", "around", "to")),
    _hint("merchant store shop vendor company", before=("at", "from", "by", "with", "to")),
    _hint("counterparty sender person name", before=("from", "to", "with", "by", "for")),
    _hint("purpose reason memo note topic", texts.quotes, before=("for", "of")),
)
ANY_PHRASE = _hint("", before=("to", "from", "with", "at", "by", "for", "in", ""))
#: Words in the names of parameters that get the whole text.
FREE_TEXT = vocabulary("query question text message prompt input content search")
#: A bound (a parameter such as `min_amount`) is only set if the text has one of these words.
BOUNDS = {
    "min": vocabulary("over above more least exceed exceeding larger bigger"),
    "max": vocabulary("under below less most smaller within"),
}
#: Words between an account and four digits which show that the digits belong to something else.
ANOTHER_ACCOUNT = vocabulary("from to into and card")


def fill(parameters: Any, own: str, whole: str) -> Json:
    """Returns the arguments that are found for `parameters`, a JSON schema that may be invalid.

    `own` is the part of the customer's message that is about this tool. Only required arguments are also searched in the `whole`
    message. An argument that is not found is left out, unless it is required and its schema has a default or an enum.
    """
    properties = mapping(mapping(parameters).get("properties"))
    listed = mapping(parameters).get("required")
    required = [name for name in properties if isinstance(listed, list) and name in listed]
    filler = _Filler(own, whole)
    values_by_name = {name: filler.required(name, _plain(properties[name])) for name in required}
    values_by_name |= {name: filler.optional(name, _plain(schema)) for name, schema in properties.items() if name not in values_by_name}
    return {name: values_by_name[name] for name in properties if values_by_name[name] is not None}


def mapping(data: Any) -> Mapping[str, Any]:
    """Returns data if it is a mapping, or else an empty mapping."""
    return data if isinstance(data, Mapping) else {}


def description(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description") or "")


class _Filler:
    """Fills the arguments of one tool call with values from a message.

    A finder is a function that finds the values of one kind in a text, such as dates. A value that it found for one parameter is not used
    again if it searches for another parameter.
    """

    def __init__(self, own: str, whole: str) -> None:
        self._own, self._whole = own, whole
        self._taken: set[tuple[Finder, texts.Plain]] = set()

    def required(self, name: str, schema: Mapping[str, Any]) -> Any:
        for text in (self._own, self._whole):
            value = self._in_text(text, name, schema, is_required=True)
            if value is not None:
                return value
        choices = schema.get("enum")
        return schema.get("default", choices[0] if isinstance(choices, list) and choices else None)

    def optional(self, name: str, schema: Mapping[str, Any]) -> Any:
        return self._in_text(self._own, name, schema, is_required=False)

    def _in_text(self, text: str, name: str, schema: Mapping[str, Any], *, is_required: bool) -> Any:
        choices, kind = schema.get("enum"), schema.get("type")
        if isinstance(choices, list) and choices:
            return choose(text, choices, description(schema), partly=is_required)
        match kind:
            case "boolean":
                return flag(text, name)
            case "integer" | "number":
                return self._number(text, name, is_whole=kind == "integer")
            case "array":
                return self._list(text, name, _plain(schema.get("items")), is_required=is_required)
            case "object" | "null":
                return None
        return self._text(text, name, description(schema), is_required=is_required)

    def _list(self, text: str, name: str, items: Mapping[str, Any], *, is_required: bool) -> Any:
        if items.get("type") == "array":
            return None
        item = self._in_text(text, name, items, is_required=is_required)
        return None if item is None else [item]

    def _number(self, text: str, name: str, *, is_whole: bool) -> int | float | None:
        if any(bound in words(name) and not bound_words & set(words(text)) for bound, bound_words in BOUNDS.items()):
            return None
        hint = _deciding_hint(NUMBER_HINTS, name) or NUMBER_HINTS[-1]
        value = self._first(text, hint.finders)
        if not isinstance(value, (int, float)) or (is_whole and not float(value).is_integer()):
            return None
        return value // 12 if {"year", "years"} & set(words(name)) else value

    def _text(self, text: str, name: str, described: str, *, is_required: bool) -> str | None:
        named = _deciding_hint(TEXT_HINTS, name)
        if named:
            return _as_text(self._first(text, named.finders))
        if FREE_TEXT & set(words(name)):
            return text.strip() or None
        role = _deciding_hint(PHRASE_HINTS, name)
        value = self._first(text, role.finders if role else _described(described))
        if value is not None or (role is None and not is_required):
            return _as_text(value)
        is_account = "account" in words(name)
        phrase = self._phrase(text, role or ANY_PHRASE, may_be_small=is_required or is_account)
        return _account(phrase, text, described) if phrase and is_account else phrase

    def _phrase(self, text: str, role: Hint, *, may_be_small: bool) -> str | None:
        """Returns the capitalised name that follows one of the prepositions in `role.before`, such as `to`, or None if there is none.

        With `may_be_small`, words in lower case are found, too.
        """
        for before in role.before:
            for finder in (texts.names, texts.phrases) if may_be_small else (texts.names,):
                value = self._first(text, (finder,), before)
                if value is not None:
                    return str(value)
        return None

    def _first(self, text: str, finders: Sequence[Finder], before: str | None = None) -> texts.Plain | None:
        """Returns the first value that `finders` (functions such as one for dates) find in `text` and no other parameter uses, or None.

        If `before` is set, the value must follow that preposition.
        """
        for finder in finders:
            for placed in finder(text):
                if before in (None, placed.before) and (finder, placed.value) not in self._taken:
                    self._taken.add((finder, placed.value))
                    return placed.value
        return None


def _plain(schema: Any) -> Mapping[str, Any]:
    """Returns a schema with a single type. If it has several types, or `anyOf`, the first one that is not null is chosen."""
    data = mapping(schema)
    options = [*data.get("anyOf", ())] if isinstance(data.get("anyOf"), list) else []
    option = next((each for each in map(mapping, options) if each.get("type") not in (None, "null")), None)
    if option:
        data = {**data, **option}
    kinds = data.get("type")
    if isinstance(kinds, list):
        data = {**data, "type": next((kind for kind in kinds if kind != "null"), None)}
    return data


def _deciding_hint(hints: Sequence[Hint], name: str) -> Hint | None:
    return next((hint for hint in hints if hint.words & set(words(name))), None)


def _described(text: str) -> list[Finder]:
    """Returns the finders (functions that find values in texts, such as dates) that the words of a parameter's description suggest.

    The last one finds quoted texts.
    """
    return [*(finder for hint in PLAIN_HINTS if hint.words & set(words(text)) for finder in hint.finders), texts.quotes]


def _as_text(value: texts.Plain | None) -> str | None:
    return None if value is None else str(value)


def _account(phrase: str, text: str, described: str) -> str:
    """Returns the name of a bank account, for example `money_market 1234`.

    `phrase` is its name in the customer's text. The result has the spelling of the parameter's description (`described`), if that
    quotes the name, and the last digits of the account's number, if the text has them.
    """
    spellings = [spelling for spelling in re.findall(r'"([^"]+)"', described) if stems(spelling)]
    name = next((spelling for spelling in spellings if set(stems(spelling)) <= set(stems(phrase))), phrase)
    end = text.find(phrase) + len(phrase)
    digits = next((number for number in texts.last_four(text) if number.start >= end), None)
    is_its_own = digits is not None and not ANOTHER_ACCOUNT & set(words(text[end : digits.start]))
    return f"{name} {digits.value}" if digits and is_its_own else name
