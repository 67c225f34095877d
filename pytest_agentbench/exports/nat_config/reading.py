"""Reads a configuration of the NeMo Agent Toolkit key by key, and knows which keys were not used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.exports.nat_config.keys import NO_VALUE, UNUSED, key_of
from pytest_agentbench.lib.config import load_yaml

T = TypeVar("T")

#: The keys on the way to a value.
KeyPath = tuple[str, ...]

#: Sections whose entries are components, each with a `_type`: the names of their entries are chosen by the user.
SECTIONS = ("llms", "functions", "function_groups")

WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping of keys",
}


class LeftOutKey(NamedTuple):
    """A key of a configuration that is not carried over."""

    path: str  # with dots, for example eval.general.output.dir
    reason: str


def value_at(keys: Mapping[str, Any], path: KeyPath) -> Any:
    """Returns the value at a path of keys, or None if there is none."""
    value: Any = keys
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


class NatReading:
    """A configuration of the toolkit that is being converted. Each key that a NatPart takes counts as used; `left_out` has the others."""

    def __init__(self, file: Path) -> None:
        """Reads the YAML. Raises ConfigError if it is not a configuration of the toolkit."""
        self.file, self.keys = file, load_yaml(file)
        self._used: set[KeyPath] = set()
        self._parts: dict[KeyPath, str] = {(): ""}
        if not isinstance(self.keys.get("workflow"), dict):
            raise ConfigError(f"{file}: has no mapping `workflow`, so it is not a configuration of the NeMo Agent Toolkit")

    def part(self, path: KeyPath, name: str) -> NatPart:
        """Returns the mapping at a path, whose keys are those of KEYS[name]. It is empty if the file has none."""
        value = value_at(self.keys, path)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{self.file}: {'.'.join(path)} must be a mapping of keys")
        self._parts[path] = name
        return NatPart(self, path, value or {})

    def component(self, section: str, name: str, known: Mapping[str, Any], part: str = "") -> tuple[str, NatPart]:
        """Returns the `_type` and the keys of an entry of a section. Raises ConfigError if there is no such entry, or for another type."""
        entries = self.keys.get(section)
        if not isinstance(entries, dict) or not isinstance(entries.get(name), dict):
            names = entries if isinstance(entries, dict) else {}
            raise ConfigError(f"{self.file}: {section}: {unknown_name('component', name, names)}")
        kind = self.kind_of((section, name), known)
        return kind, self.part((section, name), part or kind)

    def kind_of(self, path: KeyPath, known: Mapping[str, Any]) -> str:
        """Returns the `_type` of a component. Raises ConfigError if it is not one of the known ones."""
        kind = str(value_at(self.keys, (*path, "_type")))
        if kind not in known:
            raise ConfigError(f"{self.file}: {'.'.join(path)}._type: {kind!r} cannot be converted; known: {', '.join(known)}")
        return kind

    def use(self, path: KeyPath) -> None:
        """Notes that a key was used, with all keys in it."""
        self._used.add(path)

    def left_out(self) -> list[LeftOutKey]:
        """Returns the keys that were not used, in the order of the file. A component that no other one leads to is a single key."""
        return [*self._unused((), self.keys)]

    def _unused(self, path: KeyPath, value: Any) -> Iterator[LeftOutKey]:
        if path in self._used:
            return
        if len(path) == 2 and path[0] in SECTIONS and path not in self._parts:
            yield LeftOutKey(".".join(path), UNUSED)
        elif isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from self._unused((*path, str(key)), inner)
        else:
            around = max((each for each in self._parts if path[: len(each)] == each), key=len)
            yield LeftOutKey(".".join(path), key_of(self._parts[around], path[len(around) :]).reason or NO_VALUE)


class NatPart:
    """A part of a configuration: one component, or one section."""

    def __init__(self, reading: NatReading, path: KeyPath, keys: Mapping[str, Any]) -> None:
        self.reading, self.path, self.keys = reading, path, keys

    def take(self, kind: type[T], *names: str) -> T | None:
        """Returns the value of a key and notes that it was used, or returns None if there is no such key.

        Args:
            kind: The type of the value. A whole number is also a float.
            names: The key, with dots for one in a mapping, then older names of it. The first one that is in the file is used.
        """
        for name in names:
            if (value := self.get(kind, name)) is not None:
                self.reading.use((*self.path, *name.split(".")))
                return value
        return None

    def get(self, kind: type[T], name: str) -> T | None:
        """Returns the value of a key as `take` does, but does not note that it was used."""
        value = value_at(self.keys, tuple(name.split(".")))
        return None if value is None else self._checked(value, kind, name)

    def at(self, *path: str) -> NatPart:
        """Returns the mapping at a path in this part, which is empty if there is none."""
        value = value_at(self.keys, path)
        return NatPart(self.reading, (*self.path, *path), value if isinstance(value, dict) else {})

    def need(self, kind: type[T], *names: str) -> T:
        """Returns the value of a key as `take` does. Raises ConfigError if there is no such key."""
        value = self.take(kind, *names)
        if value is None:
            raise ConfigError(f"{self.reading.file}: {'.'.join(self.path)} has no {names[0]!r}; add it")
        return value

    def take_if(self, name: str, value: Any) -> None:
        """Notes that a key was used if it has a value with which this project behaves in any case."""
        if self.keys.get(name) == value:
            self.reading.use((*self.path, name))

    def _checked(self, value: Any, kind: type[T], name: str) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ConfigError(f"{self.reading.file}: {'.'.join((*self.path, name))} must be {WORDS[kind]}")
        return value
