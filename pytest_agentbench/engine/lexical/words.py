"""Words as the policy `lexical` compares them: without the common ones, cut down to their stems."""

from __future__ import annotations

import re
from functools import lru_cache

import snowballstemmer

WORD = re.compile(r"[^\W\d_]+")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def vocabulary(text: str) -> frozenset[str]:
    """The words of a list written in one string."""
    return frozenset(text.split())


#: Words that say nothing about which tool is meant: grammar, courtesy, and the asking itself.
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
    """The words in a text, or in a name like `account_type` or `accountType`, in lower case."""
    return WORD.findall(CAMEL.sub(" ", text).lower())


def stems(text: str) -> list[str]:
    """The stems of the words that carry meaning, repeats included."""
    return [stem(word) for word in words(text) if word not in STOP]


@lru_cache(maxsize=32_768)
def stem(word: str) -> str:
    return str(_stemmer.stemWord(word[:40]))
