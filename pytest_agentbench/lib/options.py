"""The kinds of values that options may have, each with its words: of agents, by annotations, and of the command line.

Pydantic's TypeAdapter could check most of them, but its import and a first adapter take 63 ms of CPU: a quarter of the start of a pool,
which makes agents, and more than the rest of this plugin costs a pytest without suites (52 ms), which reads its options too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

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
            raise ValueError(f"{name} should be {self.words}, not {value!r}")


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
