"""Which of a parameter's allowed values a text means, by the words it shares with the value and its description."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pytest_agentbench.engine.lexical.words import stem, stems, vocabulary, words

NEGATIONS = vocabulary("no not don without exclude excluding except never skip")
NEAR = 4  # words before a word in which a negation is about it


class _Match(NamedTuple):
    """How well a value fits; the greatest is the best."""

    names_it: bool  # all words of the value itself are in the text
    share: float  # of the value's words that are
    glossed: int  # words of its explanation that are
    earliness: int


def choose(text: str, choices: Sequence[Any], description: str, *, partly: bool) -> Any:
    """The choice that `text` is closest to, or None.

    A description may explain values as `auto (car or vehicle)`. With `partly`, some words of a value are enough.
    """
    text_stems = stems(text)
    telling = [{word for word in gloss if word in text_stems} for gloss in _glosses(tuple(map(str, choices)), description)]
    matches = [_match(text_stems, str(choice), len(gloss)) for choice, gloss in zip(choices, telling, strict=True)]
    best = max(range(len(choices)), key=matches.__getitem__)
    fits = matches[best].names_it or matches[best].glossed or (partly and matches[best].share > 0)
    return choices[best] if fits else None


def flag(text: str, name: str) -> bool | None:
    """Whether what `name` ends with (`include_pending`: pending) is asked for; None if the text does not speak of it."""
    name_stems, text_words = stems(name), words(text)
    place = next((index for index, word in enumerate(text_words) if name_stems and stem(word) == name_stems[-1]), None)
    return None if place is None else not NEGATIONS & set(text_words[max(0, place - NEAR) : place])


def _match(text_stems: Sequence[str], choice: str, glossed: int) -> _Match:
    own = stems(choice)
    shared = [word for word in own if word in text_stems]
    earliness = -min((text_stems.index(word) for word in shared), default=len(text_stems))
    return _Match(bool(own) and len(shared) == len(own), len(shared) / len(own) if own else 0.0, glossed, earliness)


@lru_cache(maxsize=4096)
def _glosses(choices: tuple[str, ...], description: str) -> list[frozenset[str]]:
    """The words of each choice's explanation that tell it apart: not in another's, nor in what the description says of them all."""
    matches = [re.search(rf"(?<!\w){re.escape(choice)}\s*\(([^)]{{0,1000}})\)", description) for choice in choices]
    glosses = [frozenset(stems(match[1])) if match else frozenset[str]() for match in matches]
    uses = Counter(word for gloss in glosses for word in gloss)
    uses.update(stems(re.sub(r"\([^)]{0,1000}\)", "", description)))
    return [frozenset(word for word in gloss if uses[word] == 1) for gloss in glosses]
