"""How an option is declared: a field of a record, with the words that the user reads and the reader of what he types. Knows no pytest."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.lib.options import without_logins

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
            works = str(error)
            raise ValueError(f"{self.flag} {without_logins(text)}: {works if self.many else f'should be {works}'}") from error


def option(help: str, metavar: str | None = None, default: str = "", *, name: str = "", absent: Any = None, **how: Any) -> Any:
    """A field that is one option, called like the field unless `name` says otherwise; `absent` is its value where nobody was asked."""
    return _field({"": Option(help, metavar, default, name=name, **how)}, absent)


def required(help: str, metavar: str, default: str = "", **how: Any) -> Any:
    """A field that is one option, and without which there is no record."""
    return dataclasses.field(metadata={"": Option(help, metavar, default, **how)})


def again(field: Any, read: Callable[[str], Any]) -> Any:
    """A field with something else that the text of another field's option says; that option has a `name`."""
    return _field({"": dataclasses.replace(field.metadata[""], read=read)}, None)


def several(prefix: str, **options: Option) -> Any:
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
