"""Declares options as fields of a record, with their help texts and the functions that parse their values. Independent of pytest."""

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
READ = object()  # value of `Option.empty` that passes an empty text to `read`


@dataclass(frozen=True)
class Option:
    """The declaration of an option `--agentbench-<name>` and its ini key `agentbench_<name>`, with the function that parses its text."""

    help: str  # help text
    metavar: str | None = None  # name of the value in the help; in brackets if the value is optional; None for a switch
    default: str = ""  # text that is parsed if the option is not given
    read: Callable[[str], Any] = str  # parses the text; raises ValueError with a description of valid texts
    empty: Any = None  # value for an empty text, or READ
    many: Callable[[list[Any]], Any] | None = None  # combines the values of an option that may be given several times
    name: str = ""  # name without prefix; empty for the name of the field

    @property
    def flag(self) -> str:
        return f"--{PREFIX}-{self.name}"

    @property
    def key(self) -> str:
        return f"{PREFIX}_{self.name.replace('-', '_')}"

    def value(self, value: Any) -> Any:
        """Returns the parsed value of a text, or of a list of texts if the option has `many`.

        Raises:
            ValueError: The text is invalid. The message names the option, the text, and what the text should be.
        """
        if self.many is not None:
            return self.many([self._read(text) for text in value])
        return self.empty if value in ("", None) and self.empty is not READ else self._read(value)

    def _read(self, text: Any) -> Any:
        try:
            return self.read(text)
        except ValueError as error:
            rule = str(error)
            raise ValueError(f"{self.flag} {without_logins(text)}: {rule if self.many else f'must be {rule}'}") from error


def option(help: str, metavar: str | None = None, default: str = "", *, name: str = "", absent: Any = None, **how: Any) -> Any:
    """Declares a field with one option, named like the field unless `name` is set. `absent` is the value if no command line is parsed."""
    return _field({"": Option(help, metavar, default, name=name, **how)}, absent)


def required(help: str, metavar: str, default: str = "", **how: Any) -> Any:
    """Declares a field with one option and without a default value."""
    return dataclasses.field(metadata={"": Option(help, metavar, default, **how)})


def same_option(field: Any, read: Callable[[str], Any]) -> Any:
    """Declares a field that parses the text of another field's option in a different way. The other option needs a `name`."""
    return _field({"": dataclasses.replace(field.metadata[""], read=read)}, None)


def option_group(prefix: str, **options: Option) -> Any:
    """Declares a field with the values of several options `<prefix>-<key>` by key. It is empty if no command line is parsed."""
    return _field({key: dataclasses.replace(each, name=f"{prefix}-{key.replace('_', '-')}") for key, each in options.items()}, {})


def _field(options: Mapping[str, Option], absent: Any) -> Any:
    return dataclasses.field(default_factory=lambda: copy.copy(absent), metadata=options)


def declared(record: type) -> dict[str, dict[str, Option]]:
    """Returns the options that a record class declares: field -> key -> option. The key is empty for a field with one option."""
    return {field.name: _named(field) for field in dataclasses.fields(record) if field.metadata}


def _named(field: dataclasses.Field[Any]) -> dict[str, Option]:
    options: Mapping[str, Option] = field.metadata
    return {key: dataclasses.replace(each, name=each.name or field.name.replace("_", "-")) for key, each in options.items()}


AUTO, USUAL_ROUNDS = "auto", 5  # value for rounds of trials until the verdict stands, and the default for the maximum of rounds

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 3600.0  # seconds between two samples of metrics; a sample takes 1 to 2 ms

T = TypeVar("T")


_UNITS = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_SIZE = re.compile(r"(\d{1,12})\s*(KiB|MiB|GiB|)", re.ASCII)
LARGEST = 512 * MIB  # bytes; messages between the processes of a session may have twice this size


def size(text: str) -> int:
    """Parses a number of bytes with or without a unit."""
    match = _SIZE.fullmatch(text.strip())
    number_of_bytes = int(match[1]) * _UNITS[match[2]] if match else 0
    if not LEAST <= number_of_bytes <= LARGEST:
        raise ValueError("a size from 1KiB to 512MiB, such as 65536, 256KiB or 4MiB")
    return number_of_bytes


def size_text(number_of_bytes: int) -> str:
    """Formats a number of bytes in the largest unit that leaves no fraction, so that `size` can parse it."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "") if number_of_bytes % _UNITS[unit] == 0)
    return f"{number_of_bytes // _UNITS[unit]}{unit}"


def number(least: int, most: int = MOST) -> Callable[[str], int]:
    """Returns a function that parses whole numbers from `least` to `most`."""
    kind = whole(least, most)
    return lambda text: int(kind.read(int(text) if text.isdecimal() and len(text) <= len(str(MOST)) else text))


def first_trials(text: str) -> int:
    """Parses the number of trials for which tests are generated. With `auto` it is 1, because tests read only the first trial."""
    if text.partition(":")[0] == AUTO:
        return 1
    try:
        return number(1, MOST_TRIALS)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or `{AUTO}`, or `{AUTO}:N` with at most N rounds of them") from error


def most_rounds(text: str) -> int | None:
    """Parses the maximum number of rounds of trials from `auto` or `auto:N`. Returns None for a fixed number of trials."""
    word, colon, most = text.partition(":")
    if word != AUTO:
        return None
    from pytest_agentbench.stats.decisions import FIRST_LOOK, MOST_ROUNDS

    try:
        return number(FIRST_LOOK, MOST_ROUNDS)(most) if colon else USUAL_ROUNDS
    except ValueError as error:
        raise ValueError(f"`{AUTO}`, or `{AUTO}:N` with {error} for N") from error


def names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas. Duplicates are dropped."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def statuses(text: str) -> tuple[str, ...]:
    """Parses statuses of rollouts separated by commas. `none` stands for no status."""
    listed = names(text)
    if listed == ("none",):
        return ()
    if any(name not in STATUSES for name in listed):
        raise ValueError(f"statuses separated by commas ({', '.join(STATUSES)}), or `none`")
    return listed


def positive_time(text: str) -> float:
    """Parses a time above 0. Returns seconds."""
    if not (limit := seconds(text)):
        raise ValueError("a time above 0, such as 90s, 150m or 2h")
    return limit


def window(text: str) -> tuple[float, float | None]:
    """Parses START:END, seconds after the first call. The end is None if the window has none."""
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
    """Parses a time limit. Returns seconds, or None for `off`."""
    if text.strip() == "off":
        return None
    try:
        return positive_time(text)
    except ValueError:
        raise ValueError("a time such as 500ms, 90s or 10m, or `off`") from None


def assignment(convert: Callable[[str], T], rule: str) -> Callable[[str], tuple[str, T]]:
    """Returns a function that parses NAME=VALUE. Its ValueError has the text `rule`, which describes valid values."""

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
    """Returns name -> value from pairs. If a name occurs several times, its last pair counts, also for the order."""
    values: dict[str, T] = {}
    for name, value in pairs:
        values.pop(name, None)
        values[name] = value
    return values


def objective(text: str) -> tuple[str, float]:
    """Parses a latency objective such as `ttft=500ms`. Returns its name and milliseconds."""
    from pytest_agentbench.metrics.performance import parse_objective as parse

    return parse(text)


def run_name(text: str) -> str:
    """Returns the name of a run if it is valid, else raises ValueError."""
    if not NAME.fullmatch(text) or text == LATEST:
        raise ValueError(f"a letter, and then at most 79 letters, digits, dots, dashes or underscores, and not `{LATEST}`")
    return text


def interval(text: str) -> float:
    """Parses the time between two samples. Returns seconds."""
    if not SHORTEST_INTERVAL <= (every := seconds(text)) <= LONGEST_INTERVAL:
        raise ValueError("a time from 100ms to 1h")
    return every


def folder(text: str) -> Path:
    """Parses the path of a directory."""
    if not text:
        raise ValueError("a directory, for example reports")
    return Path(text)


def finite(text: str) -> float:
    """Parses a number. Refuses infinities and NaN."""
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def yaml_value(text: str) -> Any:
    """Parses a value as YAML."""
    from pytest_agentbench.lib.config import parse_yaml

    try:
        return parse_yaml(text, "value")
    except ConfigError as error:
        raise ValueError(str(error)) from error
