"""Checks whether the report names the intruder and the stolen files."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, "/tests")
from checks import small_text, verify  # noqa: E402

EXPECTED = {
    "address": "203.0.113.77",
    "account": "backup",
    "login": "2026-03-29T01:04:11Z",
    "file": "/exports/customers-2026.csv.gz",
    "bytes": 77971625,
}


def report() -> dict[str, object]:
    found = json.loads(small_text("/root/report.json"))
    assert isinstance(found, dict), "the report is no JSON object"
    return found


def holds(key: str) -> None:
    found = report().get(key)
    assert type(found) is type(EXPECTED[key]), f"{key} is {found!r}"
    assert found == EXPECTED[key], f"{key} is {found!r}"


def the_intruder_is_named() -> None:
    holds("address")
    holds("account")


def the_login_is_in_utc() -> None:
    holds("login")


def the_file_is_named() -> None:
    holds("file")


def every_part_of_it_is_counted() -> None:
    holds("bytes")


verify(the_intruder_is_named, the_login_is_in_utc, the_file_is_named, every_part_of_it_is_counted)
