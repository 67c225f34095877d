"""How an option is declared, as a field of a record with the words that the user reads, and how its text is read. Knows no pytest."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.foreign import KIB, LEAST, MIB
from pytest_agentbench.lib.options import MOST, seconds, whole, without_logins
from pytest_agentbench.records import MOST_TRIALS, STATUSES
from pytest_agentbench.runs.directory import LATEST, NAME

PREFIX = "agentbench"
READ = object()  # in place of a value for an empty text: it is read like any other


@dataclass(frozen=True)
class Option:
    """One `--agentbench-<name>`, with an ini key `agentbench_<name>`, and how its text becomes a value."""

    help: str
    metavar: str | None = None  # None: a switch; in brackets: the value may be left out
    default: str = ""
    read: Callable[[str], Any] = str  # raises ValueError with what the text should be
    empty: Any = None  # the value of an empty text, or READ
    many: Callable[[list[Any]], Any] | None = None  # it may be given several times, one per line in the ini file; makes one value of all
    name: str = ""

    @property
    def flag(self) -> str:
        return f"--{PREFIX}-{self.name}"

    @property
    def key(self) -> str:
        return f"{PREFIX}_{self.name.replace('-', '_')}"

    def value(self, value: Any) -> Any:
        """What was typed, as it is in a session: a text or nothing, or of an option of `many` values a list of texts; raises ValueError."""
        if self.many is not None:
            return self.many([self._read(text) for text in value])
        return self.empty if value in ("", None) and self.empty is not READ else self._read(value)

    def _read(self, text: Any) -> Any:
        try:
            return self.read(text)
        except ValueError as error:
            rule = str(error)
            raise ValueError(f"{self.flag} {without_logins(text)}: {rule if self.many else f'should be {rule}'}") from error


def option(help: str, metavar: str | None = None, default: str = "", *, name: str = "", absent: Any = None, **how: Any) -> Any:
    """A field that is one option, called like the field unless `name` says otherwise; `absent` is its value where nobody was asked."""
    return _field({"": Option(help, metavar, default, name=name, **how)}, absent)


def required(help: str, metavar: str, default: str = "", **how: Any) -> Any:
    """A field that is one option, and without which there is no record."""
    return dataclasses.field(metadata={"": Option(help, metavar, default, **how)})


def same_option(field: Any, read: Callable[[str], Any]) -> Any:
    """A field with something else that the text of another field's option says; that option has a `name`."""
    return _field({"": dataclasses.replace(field.metadata[""], read=read)}, None)


def option_group(prefix: str, **options: Option) -> Any:
    """A field with the values of several options, `<prefix>-<key>`, by their keys; where nobody was asked there are none."""
    return _field({key: dataclasses.replace(each, name=f"{prefix}-{key.replace('_', '-')}") for key, each in options.items()}, {})


def _field(options: Mapping[str, Option], absent: Any) -> Any:
    return dataclasses.field(default_factory=lambda: copy.copy(absent), metadata=options)


def declared(record: type) -> dict[str, dict[str, Option]]:
    """Field -> its options by their keys in its value; a field that is one option has it under an empty key."""
    return {field.name: _named(field) for field in dataclasses.fields(record) if field.metadata}


def _named(field: dataclasses.Field[Any]) -> dict[str, Option]:
    options: Mapping[str, Option] = field.metadata
    return {key: dataclasses.replace(each, name=each.name or field.name.replace("_", "-")) for key, each in options.items()}


AUTO, USUAL_ROUNDS = "auto", 5  # of trials: as many as it takes, up to so many rounds

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 3600.0  # seconds between two looks at metrics: a look costs a millisecond or two

T = TypeVar("T")


_UNITS = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_SIZE = re.compile(r"(\d{1,12})\s*(KiB|MiB|GiB|)", re.ASCII)
LARGEST = 512 * MIB  # bytes; processes of a session exchange records in frames of twice as much


def size(text: str) -> int:
    """Reads a number of bytes with or without a unit."""
    match = _SIZE.fullmatch(text.strip())
    number_of_bytes = int(match[1]) * _UNITS[match[2]] if match else 0
    if not LEAST <= number_of_bytes <= LARGEST:
        raise ValueError("a size from 1KiB to 512MiB, such as 65536, 256KiB or 4MiB")
    return number_of_bytes


def size_text(number_of_bytes: int) -> str:
    """Writes a number of bytes in the largest unit that leaves no fraction, as `size` reads it."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "") if number_of_bytes % _UNITS[unit] == 0)
    return f"{number_of_bytes // _UNITS[unit]}{unit}"


def number(least: int, most: int = MOST) -> Callable[[str], int]:
    """Returns a reader of whole numbers."""
    kind = whole(least, most)
    return lambda text: int(kind.read(int(text) if text.isdecimal() and len(text) <= len(str(MOST)) else text))


def first_trials(text: str) -> int:
    """Trials of which tests are made; with rounds tests read the first one."""
    if text.partition(":")[0] == AUTO:
        return 1
    try:
        return number(1, MOST_TRIALS)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or `{AUTO}`, or `{AUTO}:N` with at most N rounds of them") from error


def most_rounds(text: str) -> int | None:
    """Rounds of trials, one more each time, until the gate's verdict stands; None for a number of trials."""
    word, colon, most = text.partition(":")
    if word != AUTO:
        return None
    from pytest_agentbench.stats.decisions import FIRST_LOOK, MOST_ROUNDS

    try:
        return number(FIRST_LOOK, MOST_ROUNDS)(most) if colon else USUAL_ROUNDS
    except ValueError as error:
        raise ValueError(f"`{AUTO}`, or `{AUTO}:N` with {error} for N") from error


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def statuses(text: str) -> tuple[str, ...]:
    """Statuses of rollouts; `none` stands for none of them."""
    listed = names(text)
    if listed == ("none",):
        return ()
    if any(name not in STATUSES for name in listed):
        raise ValueError(f"statuses separated by commas ({', '.join(STATUSES)}), or `none`")
    return listed


def positive_time(text: str) -> float:
    """Seconds of a time in which something can happen."""
    if not (limit := seconds(text)):
        raise ValueError("a time above 0, such as 90s, 150m or 2h")
    return limit


def window(text: str) -> tuple[float, float | None]:
    """Seconds after the first call from which and to which is measured; None: to the end."""
    rule = "START:END, two times after the first call, such as 30m:120m; one of them may be missing, as in 30m: or :2h"
    start, _, end = (part.strip() for part in text.partition(":"))
    try:
        span = seconds(start) if start else 0.0, seconds(end) if end else None
    except ValueError:
        raise ValueError(rule) from None
    if ":" not in text or not (start or end) or (span[1] is not None and span[1] <= span[0]):
        raise ValueError(rule)
    return span


def budget(text: str) -> float | None:
    """Seconds of a budget; None for `off`."""
    if text.strip() == "off":
        return None
    try:
        return positive_time(text)
    except ValueError:
        raise ValueError("a time such as 500ms, 90s or 10m, or `off`") from None


def assignment(convert: Callable[[str], T], rule: str) -> Callable[[str], tuple[str, T]]:
    """A reader of NAME=VALUE; `rule` says how one looks that is right."""

    def read(text: str) -> tuple[str, T]:
        path, equals, value = text.partition("=")
        try:
            if not equals or not path.strip():
                raise ValueError
            return path.strip(), convert(value)
        except ValueError:
            raise ValueError(rule) from None

    return read


def last_of_each(pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Name -> value, in the order in which each was given last: a later change is made later."""
    values: dict[str, T] = {}
    for name, value in pairs:
        values.pop(name, None)
        values[name] = value
    return values


def objective(text: str) -> tuple[str, float]:
    """A service level objective in milliseconds."""
    from pytest_agentbench.metrics.performance import parse_objective as parse

    return parse(text)


def run_name(text: str) -> str:
    """What a run may be called."""
    if not NAME.fullmatch(text) or text == LATEST:
        raise ValueError(f"a letter, and then at most 79 letters, digits, dots, dashes or underscores, and not `{LATEST}`")
    return text


def interval(text: str) -> float:
    """Seconds between two looks."""
    if not SHORTEST_INTERVAL <= (every := seconds(text)) <= LONGEST_INTERVAL:
        raise ValueError("a time from 100ms to 1h")
    return every


def folder(text: str) -> Path:
    """A directory."""
    if not text:
        raise ValueError("a directory, for example reports")
    return Path(text)


def finite(text: str) -> float:
    """A number that is one."""
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def yaml_value(text: str) -> Any:
    """Whatever YAML makes of it."""
    from pytest_agentbench.lib.config import parse_yaml

    try:
        return parse_yaml(text, "value")
    except ConfigError as error:
        raise ValueError(str(error)) from error
