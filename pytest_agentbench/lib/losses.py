"""What a session could not do at its end: each step fails alone, is named with its cause, and keeps the session from being green."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pytest_agentbench.lib.shortages import shortage

T = TypeVar("T")


class Losses:
    """Sentences on the steps that failed, in their order. Safe to use from threads."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self.sentences: list[str] = []
        self._redact = redact

    @contextmanager
    def step(self, lost: str) -> Iterator[None]:
        """A step of the end, whose errors end here; `lost` says what is amiss where it fails, e.g. `report.md is not written`."""
        try:
            yield
        except Exception as error:
            self.add(lost, error)

    def value(self, lost: str, compute: Callable[[], T], otherwise: T) -> T:
        """What is computed, or where that fails `otherwise`."""
        with self.step(lost):
            return compute()
        return otherwise

    def add(self, lost: str, error: BaseException) -> None:
        """The same thing is named once, however often it is tried."""
        sentence = self._redact(f"{lost}: {cause(error)}")
        if sentence not in self.sentences:
            self.sentences.append(sentence)


def cause(error: BaseException) -> str:
    """Returns an error in a few words: what the system lacks, its own words, or those of any other error with the line that raised it."""
    if lacking := shortage(error):
        return lacking
    if isinstance(error, OSError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    return f"{error!r} ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else repr(error)
