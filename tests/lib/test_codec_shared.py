"""A value that many records of a document share is written only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.codec import plain, received
from pytest_agentbench.records import SHARED


@dataclass(frozen=True)
class Lamp:
    """A record with a value that other records share."""

    name: str
    bulbs: tuple[str, ...] = field(default=(), metadata=SHARED)
    watts: int = 0


@dataclass(frozen=True)
class Shop:
    """A mapping of rooms to their lamps."""

    rooms: dict[str, tuple[Lamp, ...]]


@dataclass(frozen=True)
class Pair:
    """Two shops."""

    a: Shop
    b: Shop


LARGE, SMALL = ("100 W", "60 W"), ("5 W",)
SHOP = Shop({"hall": (Lamp("a", LARGE), Lamp("b", SMALL)), "attic": (Lamp("c", LARGE), Lamp("d"), Lamp("e", SMALL, 3))})


def test_a_shared_value_is_written_once() -> None:
    """The first record contains the shared value, and later records contain its number."""
    written = plain(SHOP)["rooms"]

    assert [["100 W", "60 W"], ["5 W"]] == [each["bulbs"] for each in written["hall"]]
    assert [0, [], 1] == [each["bulbs"] for each in written["attic"]]


@given(st.lists(st.sampled_from([LARGE, SMALL, ()])), st.lists(st.sampled_from([LARGE, SMALL])))
def test_values_are_shared_again(hall: list[tuple[str, ...]], attic: list[tuple[str, ...]]) -> None:
    """Equal values that were shared before a message was sent are one object again after it is received, in any order."""
    shop = Shop({name: tuple(Lamp("a", each) for each in bulbs) for name, bulbs in (("hall", hall), ("attic", attic))})
    there = received(Shop, plain(shop))

    assert shop == there
    assert len({*hall, *attic}) == len({id(lamp.bulbs) for lamps in there.rooms.values() for lamp in lamps})


@pytest.mark.parametrize(
    ("room", "place", "change", "sentence"),
    [
        ("hall", 0, {"bulbs": 0}, "rooms.hall[0].bulbs is the number 0 of a shared value, but only 0 come before it"),
        ("attic", 0, {"bulbs": 2}, "rooms.attic[0].bulbs is the number 2 of a shared value, but only 2 come before it"),
        ("attic", 0, {"bulbs": -1}, "rooms.attic[0].bulbs is the number -1 of a shared value, but only 2 come before it"),
        ("attic", 0, {"bulbs": None}, "rooms.attic[0].bulbs is null, not a list"),
        ("attic", 2, {"watts": "3"}, "rooms.attic[2].watts is a text, not a whole number"),
        ("hall", 1, {"bulbs": ["5 W", 1]}, "rooms.hall[1].bulbs[1] is a whole number, not a text"),
    ],
)
def test_a_wrong_number_is_named(room: str, place: int, change: dict[str, Any], sentence: str) -> None:
    """A number that stands for no value is an error. Errors after records with numbers still have the right place."""
    written = plain(SHOP)
    written["rooms"][room][place] |= change

    with pytest.raises(ValueError, match=r".") as raised:
        received(Shop, written)

    assert sentence == str(raised.value)


@dataclass(frozen=True)
class Street:
    """Two shops and a field that a message can lack."""

    first: Shop
    second: Shop
    name: str


def test_a_fault_beside_shared_values() -> None:
    """A missing field is named even if shared values were not read because of it. The error is not about those values."""
    written = plain(Street(SHOP, SHOP, "Main Street"))

    with pytest.raises(ValueError, match=r"^name is missing$"):
        received(Street, {"first": written["first"], "second": written["second"]})
    written["second"]["rooms"]["attic"][0]["bulbs"] = 3
    with pytest.raises(
        ValueError, match=r"^second\.rooms\.attic\[0\]\.bulbs is the number 3 of a shared value, but only 3 come before it$"
    ):
        received(Street, written)


def test_a_fault_around_numbers_is_named() -> None:
    """A missing field is reported before the numbers of shared values are resolved."""
    with pytest.raises(ValueError, match=r"^b is missing$"):
        received(Pair, {"a": plain(SHOP)})
