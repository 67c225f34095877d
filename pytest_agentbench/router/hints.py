"""What a call says about its session, in headers or in `nvext` of its body, and how many further calls a session is expected to have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.router.features import HintLevel, iat_level, osl_level
from pytest_agentbench.tap import agent_hints
from pytest_agentbench.tap.routing_hints import SESSION

#: Headers with the id of a session, which is the prefix id if a call names no other. Of several, the last one is used.
SESSIONS = {SESSION: "prefix_id", "x-session-id": "prefix_id"}

#: Header -> the hint that it contains.
HEADERS = {agent_hints.PREFIX: "prefix_id", **{header: name for name, header in agent_hints.HEADERS.items()}}
NAMES = ("prefix_id", "total_requests", "osl", "iat")
LEVELS: Mapping[str, HintLevel] = {"LOW": "LOW", "MEDIUM": "MEDIUM", "HIGH": "HIGH"}
LONGEST = 200  # characters of a session's id that are used
MOST_SESSIONS = 100_000

Sent = Iterator[tuple[str, tuple[str, object]]]  # pairs of a hint's name, and (place, value)


class WrongHint(ValueError):
    """A hint has a value that cannot be used."""


@dataclass(frozen=True)
class SentHints:
    """The hints of a call."""

    prefix: str = ""  # id of the session; empty if the call belongs to none
    total: int | None = None  # calls of the session; None if the call does not say it
    osl: HintLevel = "MEDIUM"  # expected length of the answer
    iat: HintLevel = "MEDIUM"  # expected time between calls of the session


def read_hints(headers: Mapping[str, str], body: Mapping[str, Any]) -> SentHints:
    """Reads the hints of a call. Headers win over `nvext.agent_hints`, these over `nvext.annotations`, and these over the session's id.

    Raises WrongHint.
    """
    nvext = body.get("nvext")
    nvext = nvext if isinstance(nvext, dict) else {}
    in_body = {**dict(_in_annotations(nvext)), **dict(_in_agent_hints(nvext))}
    sent = {**dict(_in_headers(headers, SESSIONS)), **in_body, **dict(_in_headers(headers, HEADERS))}
    return SentHints(
        str(sent["prefix_id"][1])[:LONGEST] if "prefix_id" in sent else "",
        _count(*sent["total_requests"]) if "total_requests" in sent else None,
        _level(*sent["osl"], osl_level) if "osl" in sent else "MEDIUM",
        _level(*sent["iat"], iat_level) if "iat" in sent else "MEDIUM",
    )


def _in_headers(headers: Mapping[str, str], names: Mapping[str, str]) -> Sent:
    for header, name in names.items():
        if value := headers.get(header):
            yield name, (header, value)


def _in_agent_hints(nvext: Mapping[str, Any]) -> Sent:
    hints = nvext.get("agent_hints")
    if not isinstance(hints, dict):
        return
    for name in NAMES:
        if hints.get(name) not in (None, ""):
            yield name, (f"nvext.agent_hints.{name}", hints[name])


def _in_annotations(nvext: Mapping[str, Any]) -> Sent:
    annotations = nvext.get("annotations")
    for annotation in annotations if isinstance(annotations, list) else ():
        name, _, value = str(annotation).partition(":")
        if name in NAMES and value:
            yield name, (f"nvext.annotations {name}", value)


def _number(value: object) -> float | None:
    """Returns a number that is not negative, or None. True and False are not numbers."""
    try:
        number = None if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _count(where: str, value: object) -> int:
    if (number := _number(value)) is None or number < 1 or number != int(number):
        raise WrongHint(f"{where} must be a number of calls, 1 or more, not {value!r}")
    return int(number)


def _level(where: str, value: object, level: Callable[[float], HintLevel]) -> HintLevel:
    if (named := LEVELS.get(str(value).upper())) is not None:
        return named
    if (number := _number(value)) is None:
        raise WrongHint(f"{where} must be LOW, MEDIUM, HIGH or a number, not {value!r}")
    return level(number)


@dataclass
class _Session:
    total: int  # most calls that were named
    done: int = 0  # calls so far
    at: float = 0.0  # time of the last call, seconds, on the clock of the budgets


class SessionBudgets:
    """Counts the calls of sessions, and says how many further ones are expected.

    A session that does not say how many calls it has always has at least one further call, because its last call is not known.
    A session is forgotten after its last call, if it has none for `ttl` seconds, or if there are more than MOST_SESSIONS.
    """

    def __init__(self, expected: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the number of calls that are expected of a session that does not say it."""
        self._expected, self._ttl, self._clock = expected, ttl, clock
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def count(self, prefix: str, total: int | None) -> int:
        """Counts a call of a session, and returns the number of further calls that are expected."""
        now = self._clock()
        self._expire(now)
        if not prefix:
            return 0
        session = self._sessions.pop(prefix, None) or _Session(0)
        session.total, session.done, session.at = max(session.total, total or 0), session.done + 1, now
        further = session.total - session.done if session.total else max(1, self._expected - session.done)
        if further > 0:
            self._sessions[prefix] = session
        return max(0, further)

    def _expire(self, now: float) -> None:
        while self._sessions:
            prefix, session = next(iter(self._sessions.items()))
            if now - session.at < self._ttl and len(self._sessions) < MOST_SESSIONS:
                return
            del self._sessions[prefix]
