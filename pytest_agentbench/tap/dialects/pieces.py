"""Values that come in pieces. Texts are kept as pieces until the end, so that a long answer costs no more than its length."""

from __future__ import annotations

from typing import Any


class TextPieces(list[str]):
    """The pieces of one text."""


class Fields(dict[str, Any]):
    """An object whose values come in pieces."""


def grown(before: Any, more: Any) -> Any:
    """What a value and its next piece are together: texts and lists continue, objects do so field by field; null adds nothing.

    Changes `before`. `settled` makes of the result what JSON has.
    """
    if isinstance(more, str):
        text = before if isinstance(before, TextPieces) else TextPieces()
        text.append(more)
        return text
    if isinstance(more, dict):
        fields = before if isinstance(before, Fields) else Fields()
        for name, value in more.items():
            fields[name] = grown(fields.get(name), value)
        return fields
    if isinstance(more, list) and isinstance(before, list) and not isinstance(before, TextPieces):
        before.extend(more)
        return before
    return before if more is None else more


def settled(value: Any) -> Any:
    """The whole value."""
    if isinstance(value, TextPieces):
        return "".join(value)
    if isinstance(value, Fields):
        return {name: settled(each) for name, each in value.items()}
    return value


def renewed(before: Any, more: Any) -> Any:
    """As `grown`, for fields that are said whole each time: a text replaces the one before it. Changes `before`."""
    if isinstance(before, dict) and isinstance(more, dict):
        for name, value in more.items():
            before[name] = renewed(before.get(name), value)
        return before
    if isinstance(before, list) and isinstance(more, list):
        before.extend(more)
        return before
    return before if more is None else more
