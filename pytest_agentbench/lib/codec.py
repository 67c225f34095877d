"""Converts records and messages to JSON and back, guided by the types of their fields.

There are three kinds of records: frozen dataclasses (JSON objects), named tuples (JSON arrays), and classes whose constructor
parameters are their attributes, such as `Score` (JSON objects).

For speed, the functions that convert a type are generated: when a type is first used, `encoder` or `decoder` writes Python source code
for it, as lines of text, and compiles that. A function for one type calls the functions of the types of its fields.

A field with the metadata SHARED contains a value that many records have in common, such as the tools of scenarios. Within one JSON
document, such a value is written out where it first occurs. Later occurrences are its number among the shared values.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pytest_agentbench.lib.record_fields import WORDS, RecordField, WrongNumber, WrongValue, is_array, is_record, is_union, parts_of
from pytest_agentbench.records import Json

Record = TypeVar("Record")
RecordEncoder = Callable[[Any, dict[int, int]], Any]  # parameters: a value; the shared values so far, as id -> number
RecordDecoder = Callable[[Any, "Reading"], Any]  # parameters: a JSON value; the state of the reading


#: Types that are strings in JSON -> (function that writes one, function that reads one).
TEXTS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    Path: (str, Path),
    date: (date.isoformat, date.fromisoformat),
}


class Reading(NamedTuple):
    """The state of decoding one JSON document, which is passed to all decoders that take part."""

    message: bool  # whether it is a message, in which no field may be missing
    #: Values of SHARED fields so far. While an error is located: a tuple of these values if a number was wrong, otherwise None.
    shared: list[Any] | tuple[Any, ...] | None


def plain(value: Any) -> Any:
    """Converts records to JSON values, also inside mappings and lists; tuples become lists."""
    kind = type(value)
    if kind in WORDS and kind not in (dict, list):
        return value
    if is_record(kind):
        return encoder(cast("Any", kind))(value, {})
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def read(kind: type[Record], data: object, path: str = "") -> Record:
    """Converts a JSON value from a file to a record. Missing fields get their defaults.

    Raises ValueError with the first wrong field, such as `suites.banking.retried is a text, ...`. `path` is put before names of fields.
    """
    return cast("Record", _read(kind, data, path, message=False))


def received(kind: type[Record], data: object) -> Record:
    """Converts a JSON value that another process has sent to a record. Raises ValueError as `read` does, and also if a field is missing."""
    return cast("Record", _read(kind, data, "", message=True))


def _read(kind: Any, data: object, path: str, *, message: bool) -> Any:
    shared: list[Any] = []
    try:
        return decoder(kind)(data, Reading(message, shared))
    except ValueError as error:
        known = tuple(shared) if isinstance(error, WrongNumber) else None
        raise ValueError(_fault(kind, data, path, Reading(message, known))) from None


def _fault(kind: Any, data: Any, path: str, reading: Reading) -> str:
    """Returns the error message for data that cannot be decoded. It names the innermost wrong field."""
    try:
        decoder(kind)(data, reading)
    except WrongValue as error:
        own = error
    except ValueError as error:  # The constructor of a record raised it.
        own = WrongValue(f": {error}")
    for label, inner, part in _parts(kind, data):
        try:
            decoder(inner)(part, reading)
        except ValueError:
            return _fault(inner, part, f"{path}{label}" if path else label.removeprefix("."), reading)
    place = ".".join(filter(None, (path, own.at))) or "it"
    return f"{place}{own.sentence}"


def _parts(kind: Any, data: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (label, type, value) of each field or element of a JSON value, with labels such as `.name` and `[0]`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_union(kind):
        yield from _parts(_main_member(inner), data)
    elif is_array(kind) and isinstance(data, list | tuple):
        yield from ((f"[{place}]", each.kind, value) for place, (each, value) in enumerate(zip(parts_of(kind), data, strict=False)))
    elif is_record(kind) and isinstance(data, Mapping):
        known = {each.name: each.kind for each in parts_of(kind) if not each.open}
        more = [typing.get_args(each.kind)[1] for each in parts_of(kind) if each.open]
        numbers = {each.name for each in parts_of(kind) if each.shared and type(data.get(each.name)) is int}
        values = {name: value for name, value in data.items() if (name in known or more) and name not in numbers}
        yield from ((f".{name}", known.get(name, *more), value) for name, value in values.items())
    elif origin is tuple and isinstance(data, list | tuple):
        every = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        yield from ((f"[{place}]", each, value) for place, (each, value) in enumerate(zip(every, data, strict=False)))
    elif origin not in (None, tuple) and isinstance(data, Mapping):
        yield from ((f".{name}", inner[1], value) for name, value in data.items())


def _main_member(kinds: tuple[Any, ...]) -> Any:
    """Returns the type in a union that is a record, tuple or mapping. If there is none, returns the first one that is not None."""
    others = [kind for kind in kinds if kind is not type(None)]
    return next((kind for kind in others if kind not in WORDS), others[0])


@dataclass
class _FunctionText:
    """The Python source code of one function `f` while it is generated, and the objects that it uses as global variables."""

    names: dict[str, Any]
    lines: list[str]

    def name(self, value: Any) -> str:
        """Adds an object to the global variables of the function. Returns the name of the variable."""
        name = f"g{len(self.names)}"
        self.names[name] = value
        return name

    def later(self, kind: Any, generate: Callable[[Any], Callable[..., Any]]) -> str:
        """Adds the function that converts another type as a global variable, and returns the name of the variable.

        `generate` makes that function when it is first called. Types may therefore refer to each other.
        """
        name = self.name(None)

        def first(*arguments: Any) -> Any:
            function = self.names[name] = generate(kind)
            return function(*arguments)

        self.names[name] = first
        return name

    def function(self, name: str) -> Callable[..., Any]:
        exec(compile("\n".join(self.lines), f"<{__name__} {name}>", "exec"), self.names)  # noqa: S102 - the text is made here, of names
        return cast("Callable[..., Any]", self.names["f"])


@functools.cache
def encoder(kind: Any) -> RecordEncoder:
    """Returns the function that converts values of a type to JSON values."""
    source = _FunctionText({}, [])
    if not is_record(kind):
        source.lines = [f"f = lambda v, s: {_encoded(kind, 'v', source)}"]
    elif is_array(kind):
        source.lines = [f"f = lambda v, s: [{', '.join(_encoded(each.kind, f'v[{n}]', source) for n, each in enumerate(parts_of(kind)))}]"]
    else:
        values = ((part, _encoded_field(part, source)) for part in parts_of(kind))
        entries = (f"**{value}" if part.open else f"{part.name!r}: {value}" for part, value in values)
        source.lines = [f"f = lambda v, s: {{{', '.join(entries)}}}"]
    return source.function(f"encoder of {kind}")


def _encoded_field(part: RecordField, source: _FunctionText) -> str:
    """Returns a Python expression, as source code, that converts a field of the record in the variable `v` to JSON."""
    if part.shared:
        return f"{source.name(_encode_once)}(v.{part.name}, {source.later(part.kind, encoder)}, s)"
    return _encoded(part.kind, f"v.{part.name}", source)


def _encode_once(value: Any, encode: RecordEncoder, shared: dict[int, int]) -> Any:
    """Converts the value of a SHARED field: to JSON if this is its first occurrence in the document, otherwise to its number."""
    if (number := shared.get(id(value))) is not None:
        return number
    shared[id(value)] = len(shared)
    return encode(value, shared)


def _encoded(kind: Any, value: str, source: _FunctionText) -> str:
    """Returns a Python expression, as source code, that converts a value to JSON. `value` is the source code of the value."""
    inner = typing.get_args(kind)
    if is_union(kind):
        main = _main_member(inner)
        member = _encoded(main, value, source)
        if _is_mixed(inner):
            return f"({member} if isinstance({value}, {source.name(main)}) else {value})"
        return value if member == value else f"({value} and {member})"
    if kind in TEXTS or kind is Any:
        return f"{source.name(plain if kind is Any else TEXTS[kind][0])}({value})"
    if is_record(kind):
        return f"{source.later(kind, encoder)}({value}, s)"
    if typing.get_origin(kind) is None or kind == Json:
        return value
    return _encoded_parts(inner, value, source, is_list=typing.get_origin(kind) is tuple)


def _encoded_parts(inner: tuple[Any, ...], value: str, source: _FunctionText, *, is_list: bool) -> str:
    """Returns a Python expression, as source code, that converts a tuple (`is_list`) or a mapping with elements of these types to JSON."""
    if is_list and inner[-1] is not Ellipsis:
        return f"[{', '.join(_encoded(each, f'{value}[{place}]', source) for place, each in enumerate(inner))}]"
    each = _encoded(inner[0 if is_list else 1], "e", source)
    if is_list:
        return f"[*{value}]" if each == "e" else f"[{each} for e in {value}]"
    return f"{{**{value}}}" if each == "e" else f"{{k: {each} for k, e in {value}.items()}}"


@functools.cache
def decoder(kind: Any) -> RecordDecoder:
    """Returns the function that converts a JSON value to a type, or raises ValueError if it does not fit."""
    source = _FunctionText({}, ["def f(v, r):"])
    if is_record(kind):
        _decode_record(kind, source)
    else:
        source.lines += [f"    {line}" for line in _decoding(kind, "v", source)]
        source.lines.append("    return v")
    return source.function(f"decoder of {kind}")


def _decode_record(kind: type, source: _FunctionText) -> None:
    parts = parts_of(kind)
    closed = [part for part in parts if not part.open]
    shape = list if is_array(kind) else dict
    check = source.name(_as_list if is_array(kind) else _as_dict)
    completed = source.name(functools.partial(_array_with_defaults if is_array(kind) else _with_defaults, kind))
    source.lines += [f"    if v.__class__ is not {shape.__name__}: v = {check}(v)"]
    if len(closed) == len(parts):
        source.lines += [f"    if len(v) != {len(parts)}: v = {completed}(v, r)"]
    else:
        source.lines += [f"    v, more = {completed}(v, r)"]
    if closed:
        values = ", ".join(f"v{n}" for n in range(len(closed)))
        if shape is dict:
            get = source.name(itemgetter(*(part.name for part in closed)))
            source.lines += [
                f"    try: {values} = {get}(v)",
                f"    except KeyError: {completed}(v, r)",
            ]
        else:
            source.lines += [f"    {values}{',' if len(closed) == 1 else ''} = v"]
    names = [f"v{n}" for n in range(len(closed))]
    _construct(kind, dict(zip(closed, names, strict=True)) | {part: "more" for part in parts if part.open}, source)


def _construct(kind: type, variables: Mapping[RecordField, str], source: _FunctionText) -> None:
    """Adds source code that decodes each field and constructs the record. `variables` names the variable with the JSON of each field."""
    for part, variable in variables.items():
        lines = _decoding(part.kind, variable, source)
        if part.shared:
            once = source.name(functools.partial(_decode_once, part.name))
            lines = [f"{variable} = {once}({variable}, {source.later(part.kind, decoder)}, r)"]
        source.lines += [f"    {line}" for line in lines]
    if is_array(kind):  # The constructor would be slower than tuple.__new__.
        source.lines.append(f"    return {source.name(tuple.__new__)}({source.name(kind)}, ({', '.join(variables.values())},))")
    else:
        made = ", ".join(f"{part.name}={variable}" for part, variable in variables.items())
        source.lines.append(f"    return {source.name(kind)}({made})")


def _decoding(kind: Any, v: str, source: _FunctionText) -> list[str]:
    """Returns the lines of source code that check the JSON value in the variable named `v`, and convert it if needed."""
    if kind is Any:
        return []
    if kind in TEXTS:
        return [*_decoding(str, v, source), f"{v} = {source.name(TEXTS[kind][1])}({v})"]
    if is_record(kind):
        return [f"{v} = {source.later(kind, decoder)}({v}, r)"]
    if typing.get_origin(kind) is not None:
        return (_decoding_union if is_union(kind) else _decoding_parts)(kind, v, source)
    fits = " and ".join(f"{v}.__class__ is not {each}" for each in (("float", "int") if kind is float else (kind.__name__,)))
    return [f"if {fits}: {source.name(_check)}({source.name(kind)}, {v})"]


def _decoding_parts(kind: Any, v: str, source: _FunctionText) -> list[str]:
    """Returns the lines of source code that decode a tuple or a mapping in the variable named `v`."""
    inner, is_list = typing.get_args(kind), typing.get_origin(kind) is tuple
    shape, convert = ("list", _as_list) if is_list else ("dict", _as_dict)
    lines = [f"if {v}.__class__ is not {shape}: {v} = {source.name(convert)}({v})"]
    if is_list and inner[-1] is not Ellipsis:
        every = ", ".join(f"{source.later(each, decoder)}({v}[{n}], r)" for n, each in enumerate(inner))
        return [*lines, f"if len({v}) != {len(inner)}: {source.name(_check_length)}({v}, {len(inner)})", f"{v} = ({every},)"]
    part = inner[0 if is_list else 1]
    if part is Any:
        return [*lines, f"{v} = tuple({v})"] if is_list else lines
    one = source.later(part, decoder)
    return [*lines, f"{v} = " + (f"tuple([{one}(e, r) for e in {v}])" if is_list else f"{{k: {one}(e, r) for k, e in {v}.items()}}")]


def _decoding_union(kind: Any, v: str, source: _FunctionText) -> list[str]:
    """Returns the lines of source code that decode a union in the variable named `v`.

    A union has simple types, at most one record, tuple or mapping, and possibly None.
    """
    kinds = typing.get_args(kind)
    others = tuple(kind for kind in kinds if kind is not type(None))
    if len(others) == 1:
        lines = [*_decoding(others[0], v, source)]
    elif _is_mixed(kinds):
        record = _main_member(kinds)
        simple = _classes(tuple(other for other in others if other is not record))
        lines = [f"if {v}.__class__ not in {source.name(simple)}: {v} = {source.later(record, decoder)}({v}, r)"]
    else:
        lines = [f"if {v}.__class__ not in {source.name(_classes(others))}: {source.name(_check)}({source.name(others[0])}, {v})"]
    if len(others) == len(kinds) or not lines:
        return lines
    return [f"if {v} is not None:", *(f"    {line}" for line in lines)]


def _is_mixed(kinds: tuple[Any, ...]) -> bool:
    """Returns whether a union contains a record and at least one simple type (not counting None)."""
    return is_record(_main_member(kinds)) and len([kind for kind in kinds if kind is not type(None)]) > 1


def _classes(kinds: tuple[Any, ...]) -> frozenset[Any]:
    """Returns the classes of JSON values that are valid for these simple types. An int is also valid for float."""
    return frozenset(kinds) | ({int} if float in kinds else frozenset())


def _decode_once(name: str, value: Any, decode: RecordDecoder, reading: Reading) -> Any:
    """Decodes the value of the SHARED field `name`: JSON, or the number of a shared value earlier in the document."""
    shared = reading.shared
    if value.__class__ is int:
        if shared is not None and not 0 <= value < len(shared):
            raise WrongNumber(f" is the number {value} of a shared value, but only {len(shared)} come before it", at=name)
        return shared and shared[value]
    decoded = decode(value, reading)
    if isinstance(shared, list):
        shared.append(decoded)
    return decoded


def _as_list(value: Any) -> list[Any]:
    _check(list, value)
    return [*value]


def _as_dict(value: Any) -> Json:
    _check(dict, value)
    return {**value}


def _check(kind: type, value: Any) -> None:
    """Raises WrongValue if a JSON value does not have the type `kind`. Tuples are accepted as lists, and any mapping as an object."""
    shapes: Mapping[type, Any] = {dict: Mapping, list: list | tuple, float: float | int}
    if not isinstance(value, shapes.get(kind, kind)) or (kind is not bool and isinstance(value, bool)):
        raise WrongValue(f" is {WORDS.get(type(value), type(value).__name__)}, not {WORDS[kind]}")


def _check_length(values: list[Any], length: int) -> None:
    if len(values) != length:
        raise WrongValue(f" has {len(values)} elements, not {length}")


def _with_defaults(kind: type, data: Json, reading: Reading) -> Any:
    """Returns the JSON object of a record with the defaults of missing fields.

    If the record has an open field (one that collects all unknown keys), returns the object and a mapping of those keys.
    """
    parts = parts_of(kind)
    known = {part.name: part for part in parts if not part.open}
    more = {name: value for name, value in data.items() if name not in known}
    missing = [part for name, part in known.items() if name not in data]
    if absent := [part.name for part in missing if reading.message or part.default is None]:
        raise WrongValue(" is missing", at=absent[0])
    if more and len(known) == len(parts):
        raise WrongValue(f" is unknown; known are: {', '.join(known)}", at=next(iter(more)))
    whole = {**data, **{part.name: encoder(part.kind)(part.default(), {}) for part in missing if part.default}}
    return whole if len(known) == len(parts) else (whole, more)


def _array_with_defaults(kind: type, data: list[Any], reading: Reading) -> list[Any]:
    """Returns the JSON array of a named tuple with the defaults of missing elements at its end."""
    parts = parts_of(kind)
    missing = parts[len(data) :]
    if reading.message or len(data) > len(parts) or any(part.default is None for part in missing):
        _check_length(data, len(parts))
    return [*data, *(encoder(part.kind)(part.default(), {}) for part in missing if part.default)]
