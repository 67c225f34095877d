"""The values that users set in options, YAML files and the environment: their kinds, times, URLs with a login, and our variables.

Pydantic's TypeAdapter could check most kinds of values, but its import and a first adapter take 63 ms of CPU: a quarter of the start of
a pool, which makes agents, and more than the rest of this plugin costs a pytest without suites (52 ms), which reads its options too.
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
    """What a value may be, as a test and in words."""

    allows: Callable[[Any], bool]
    words: str

    def read(self, value: T) -> T:
        """Returns the value if it is allowed; raises ValueError with what would work."""
        if not self.allows(value):
            raise ValueError(self.words)
        return value

    def check(self, name: str, value: object) -> None:
        """Raises ValueError with the name of the option, what would work, and the value, unless the value is allowed."""
        if not self.allows(value):
            raise ValueError(f"{name} must be {self.words}, not {value!r}")


MOST = 2**63 - 1  # what 64 bits hold


def whole(least: int, most: int = MOST) -> ValueKind:
    """A whole number in a range; true and false are none."""
    words = f"a whole number from {least} " + ("up" if most == MOST else f"to {most}")
    return ValueKind(lambda value: type(value) is int and least <= value <= most, words)


def number(least: float, most: float = inf) -> ValueKind:
    """A finite number in a range; true and false are none."""
    words = f"a number from {least:g} " + ("up" if most == inf else f"to {most:g}")
    return ValueKind(lambda value: type(value) in {int, float} and least <= value <= most and value != inf, words)


def one_of(names: Iterable[str]) -> ValueKind:
    """One of some names, of which there are two at least."""
    *others, last = known = tuple(names)
    return ValueKind(lambda value: value in known, f"{', '.join(others)} or {last}")


def _are_texts(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)


def _is_mapping_of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


#: Annotation -> what it means; `Annotated[int, whole(1)]` brings its own.
KINDS: Mapping[Any, ValueKind] = {
    str: ValueKind(lambda value: isinstance(value, str), "a text"),
    bool: ValueKind(lambda value: isinstance(value, bool), "true or false"),
    Sequence[str]: ValueKind(_are_texts, "a list of texts"),
    Mapping[str, str]: ValueKind(_is_mapping_of_texts, "names and texts"),
    Json: ValueKind(lambda value: isinstance(value, dict), "a mapping"),
}


def check_options(options: object, where: str = "") -> None:
    """Holds the fields of a dataclass to their annotations; raises ValueError for the first that is something else."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        value = getattr(options, name)
        if kind := _kind(hint, value):
            kind.check(f"{where}{name}", value)


def _kind(hint: Any, value: object) -> ValueKind | None:
    """Of `X | None` what it is besides nothing; None where a hint says nothing that can be checked."""
    if NoneType in get_args(hint):
        return None if value is None else _kind(next(each for each in get_args(hint) if each is not NoneType), value)
    if get_origin(hint) is Annotated:
        return next(each for each in hint.__metadata__ if isinstance(each, ValueKind))
    return KINDS.get(hint)


def seconds(text: str) -> float:
    """Seconds of a time such as `200ms`, `90s`, `150m` or `2h`; a number alone is seconds. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not match:
        raise ValueError("a time such as 90s, 10m or 2h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)@")

_ANY_USERINFO = re.compile(r"://[^/?#\s,|@]*@")


class LoginUrl(str):
    """A URL whose text contains no user and no password. A text without them is kept as it is.

    The password, or the user of a URL without a password, is redacted from then on.
    """

    __slots__ = ("authorization",)

    authorization: str  # value of the HTTP header, "Basic ..."; empty if the URL has no user

    def __new__(cls, text: str) -> Self:
        if isinstance(text, cls):
            return text
        found = _USERINFO.match(text)
        url = super().__new__(cls, text if found is None else found[1] + text[found.end() :])
        url.authorization = _basic(found[2]) if found is not None else ""
        return url


def without_logins(text: object) -> str:
    """Returns a text without the users and passwords of the URLs in it."""
    return _ANY_USERINFO.sub("://", str(text))


def _basic(userinfo: str) -> str:
    """Returns the value of the header, and has all that contains the password redacted."""
    from pytest_agentbench.lib.redact import is_telling, keep_secret  # here: a session without such a URL needs none of its patterns

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

#: Those that users set; .env.example says what each is for.
READ = frozenset(["AGENTBENCH_ENVS", "AGENTBENCH_GPUS", "AGENTBENCH_LOCKS", "AGENTBENCH_STACKS"])

#: Those that agentbench gives to processes it starts, in which somebody may start a session again.
GIVEN = frozenset(
    [
        *("AGENTBENCH_ANSWER", "AGENTBENCH_MODEL", "AGENTBENCH_SCENARIO"),
        *("AGENTBENCH_COMMAND", "AGENTBENCH_HARBOR_COMMAND", "AGENTBENCH_STACK"),
        *("AGENTBENCH_LOG", "AGENTBENCH_ROLLOUT", "AGENTBENCH_SESSION"),
    ]
)


def unread(variables: Iterable[str], named: Collection[str]) -> list[str]:
    """Those of the variables that begin as ours do and that nothing reads, sorted; `named`: those that settings name as places of keys."""
    return sorted(name for name in variables if name.startswith(PREFIX) and name not in READ | GIVEN and name not in named)
