"""Checks and converts values that users set in options, YAML files and the environment: numbers, durations, URLs with a login.

Pydantic's TypeAdapter could check most of them, but its import and first use take 63 ms of CPU. That is a quarter of the time in which a
pool starts, and more than the whole plugin costs a pytest session without suites (52 ms).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from types import NoneType
from typing import Annotated, Any, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

from pytest_agentbench.records import Json

T = TypeVar("T")


class ValueKind(NamedTuple):
    """A requirement that a value must meet, such as a whole number from 1 up: as a function, and in words for error messages."""

    allows: Callable[[Any], bool]
    words: str

    def read(self, value: T) -> T:
        """Returns the value if it meets the requirement. Otherwise raises ValueError with the requirement in words, such as `a text`."""
        if not self.allows(value):
            raise ValueError(self.words)
        return value

    def check(self, name: str, value: object) -> None:
        """Raises ValueError if a value does not meet the requirement. The message names the option, the requirement and the value."""
        if not self.allows(value):
            raise ValueError(f"{name} must be {self.words}, not {value!r}")


MOST = 2**63 - 1  # the greatest 64-bit integer


def whole(least: int, most: int = MOST) -> ValueKind:
    """Returns the requirement that a value is a whole number in a range. Booleans are not numbers."""
    words = f"a whole number from {least} " + ("up" if most == MOST else f"to {most}")
    return ValueKind(lambda value: type(value) is int and least <= value <= most, words)


def number(least: float, most: float = inf) -> ValueKind:
    """Returns the requirement that a value is a finite number in a range. Booleans are not numbers."""
    words = f"a number from {least:g} " + ("up" if most == inf else f"to {most:g}")
    return ValueKind(lambda value: type(value) in {int, float} and least <= value <= most and value != inf, words)


def one_of(names: Iterable[str]) -> ValueKind:
    """Returns the requirement that a value is one of two or more names."""
    *others, last = known = tuple(names)
    return ValueKind(lambda value: value in known, f"{', '.join(others)} or {last}")


def _are_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)


def _is_mapping_of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


#: Annotation -> requirement. An annotation such as `Annotated[int, whole(1)]` contains its own.
KINDS: Mapping[Any, ValueKind] = {
    str: ValueKind(lambda value: isinstance(value, str), "a text"),
    bool: ValueKind(lambda value: isinstance(value, bool), "true or false"),
    Sequence[str]: ValueKind(_are_texts, "a list of texts"),
    Mapping[str, str]: ValueKind(_is_mapping_of_texts, "names and texts"),
    Json: ValueKind(lambda value: isinstance(value, dict), "a mapping"),
}


def check_options(options: object, where: str = "") -> None:
    """Checks the fields of a dataclass against their annotations. Raises ValueError for the first wrong one; `where` precedes its name."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        value = getattr(options, name)
        if kind := _kind(hint, value):
            kind.check(f"{where}{name}", value)


def _kind(hint: Any, value: object) -> ValueKind | None:
    """Returns the requirement in an annotation. Returns None if there is none, or if the value is None and the annotation allows that."""
    if NoneType in get_args(hint):
        return None if value is None else _kind(next(each for each in get_args(hint) if each is not NoneType), value)
    if get_origin(hint) is Annotated:
        return next(each for each in hint.__metadata__ if isinstance(each, ValueKind))
    return KINDS.get(hint)


def seconds(text: str) -> float:
    """Converts a text such as `200ms`, `90s`, `10m` or `2h` to seconds. A number without a unit is in seconds.

    Raises ValueError for other texts. Its message can follow "must be": `a time such as 90s, 10m or 2h`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not match:
        raise ValueError("a time such as 90s, 10m or 2h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)@")

_ANY_USERINFO = re.compile(r"://[^/?#\s,|@]*@")


class LoginUrl(str):
    """A text, usually a URL, from which user and password have been removed. The attribute `authorization` has them for the HTTP request.

    Creating one makes later Redactors redact the password, or the user if there is no password.
    """

    __slots__ = ("authorization",)

    authorization: str  # value of the HTTP header, "Basic ..."; empty if the URL has no user

    def __new__(cls, text: str) -> Self:
        if isinstance(text, cls):
            return text
        login = _USERINFO.match(text)
        url = super().__new__(cls, text if login is None else login[1] + text[login.end() :])
        url.authorization = _basic(login[2]) if login is not None else ""
        return url


def without_logins(text: object) -> str:
    """Returns a text without the users and passwords of the URLs in it."""
    return _ANY_USERINFO.sub("://", str(text))


def _basic(userinfo: str) -> str:
    """Returns the value of the header Authorization, or an empty text. Registers it and the password as secrets to redact."""
    from pytest_agentbench.lib.redact import (  # imported here, because a session without such a URL does not need its patterns
        is_telling,
        keep_secret,
    )

    user, _, password = userinfo.partition(":")
    if not user and not password:
        return ""
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    coded = base64.b64encode(pair).decode()
    secret = password or user
    decoded = unquote_to_bytes(secret).decode(errors="surrogateescape")
    at = "" if is_telling(userinfo) else "@"
    keep_secret(f"{userinfo}{at}", f"Basic {coded}", *filter(is_telling, (secret, decoded, coded)))
    return f"Basic {coded}"


PREFIX = "AGENTBENCH_"

#: Environment variables that users set. .env.example describes them.
READ = frozenset(["AGENTBENCH_ENVS", "AGENTBENCH_GPUS", "AGENTBENCH_LOCKS", "AGENTBENCH_STACKS"])

#: Environment variable of processes that agentbench starts -> its value. A session may be started in such a process.
GIVEN: Mapping[str, str] = {
    "AGENTBENCH_SCENARIO": "path of the file with the scenario, for the program of the agent `command`",
    "AGENTBENCH_MODEL": "model to request, for the program of the agent `command`",
    "AGENTBENCH_ANSWER": "path of a file into which the program of the agent `command` may write its answer",
    "AGENTBENCH_LEADER": "address of the first host of a service, in its commands on a cluster",
    "AGENTBENCH_SESSION": "name of the session, in all processes of agents and scorers",
    "AGENTBENCH_ROLLOUT": "name of the rollout's process, in all processes that a rollout with `isolation: process` starts",
    "AGENTBENCH_COMMAND": "name of a command in a sandbox, in all its processes",
    "AGENTBENCH_HARBOR_COMMAND": "name of a command in an environment of Harbor, in all its processes",
    "AGENTBENCH_STACK": "folder of the stack, in all its processes",
    "AGENTBENCH_LOG": "path of the file that gets the stderr of a process of the session",
    "AGENTBENCH_NODES_SILENCE": "seconds without a message after which a node worker is lost; only set by tests of this package",
}


def unread(variables: Iterable[str], named: Collection[str]) -> list[str]:
    """Returns the variables that begin with AGENTBENCH_ but are not used, sorted; probably they are misspelt.

    `named` are variables that suites or the backend name as sources of API keys, and that are therefore used.
    """
    return sorted(name for name in variables if name.startswith(PREFIX) and name not in READ and name not in GIVEN and name not in named)
