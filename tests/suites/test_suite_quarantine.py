"""The quarantine list of a suite: valid entries, their last day, and the largest number of them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Quarantined, quarantine_faults
from tests.suites.test_suite import SPEC, Folder, entry

TODAY = date(2026, 11, 21)
IDS = [f"s-{number}" for number in range(40)]


def held(*scenarios: str, expires: date = TODAY) -> list[Quarantined]:
    return [Quarantined(each, "ada", "the label is disputed", expires) for each in scenarios]


def faults(entries: list[Quarantined], today: date = TODAY) -> list[str]:
    return [*quarantine_faults(entries, IDS, today)]


def test_the_last_day() -> None:
    """An entry is valid on the day that it names. On the next day, the error names scenario, owner and date."""
    assert [] == faults(held("s-1"))
    assert ["quarantine: the entry of 's-1' expired on 2026-11-21; its owner, ada, must remove it or change the date"] == faults(
        held("s-1"), date(2026, 11, 22)
    )


def test_unknown_and_double() -> None:
    """An unknown scenario is refused, and so is one that is listed twice."""
    unknown = "quarantine: the data set has no scenario 's-99'; remove the entry, or name an existing scenario"
    assert [unknown] == faults(held("s-1", "s-99"))
    assert ["quarantine: 's-1' has 2 entries; keep one of them"] * 2 == faults(held("s-1", "s-1"))


def test_too_many() -> None:
    """At most two of 40 scenarios may be in quarantine."""
    assert [] == faults(held("s-1", "s-2"))
    assert ["quarantine: 3 of 40 scenarios are in quarantine, more than 5 %; at most 2 may be"] == faults(held(*IDS[:3]))


@given(st.integers(1, 500), st.data())
def test_the_cap(size: int, data: st.DataObject) -> None:
    """A list is accepted if, and only if, it has one entry or at most 5 % of the scenarios."""
    ids = [str(number) for number in range(size)]
    count = data.draw(st.integers(0, min(size, 40)))
    fits = count <= 1 or 100 * count <= 5 * size

    assert fits == (not [*quarantine_faults(held(*ids[:count]), ids, TODAY)])


ENTRY: Json = {"scenario": "s-0", "owner": "ada", "reason": "the label is disputed", "expires": "2999-12-31"}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder of a suite with one scenario."""
    return Folder(tmp_path)


def test_dates_of_entries(folder: Folder) -> None:
    """The date of an entry may be a YAML date or a text."""
    expected = (Quarantined("s-0", "ada", "the label is disputed", date(2999, 12, 31)),)
    folder.write("suite.yaml", {**SPEC, "quarantine": [ENTRY]})
    assert expected == folder.load().quarantine

    text = json.dumps({**SPEC, "quarantine": [ENTRY]}).replace('"2999-12-31"', "2999-12-31")
    assert expected == load_suite(folder.write("suite.yaml", text)).quarantine


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"owner": " "}, "suite.yaml: quarantine.0.owner: must have at least 1 character"),
        ({"expires": "soon"}, "suite.yaml: quarantine.0.expires: must be a valid date"),
        ({"issue": 3}, "suite.yaml: unknown key 'quarantine.0.issue'; known keys: scenario, owner, reason, expires"),
    ],
)
def test_wrong_entries(folder: Folder, change: dict[str, Any], sentence: str) -> None:
    """The error about an invalid entry has the file and the key."""
    folder.write("suite.yaml", {**SPEC, "quarantine": [{**ENTRY, **change}]})

    assert sentence in folder.refusal()


@pytest.mark.parametrize("key", ["scenario", "owner", "reason", "expires"])
def test_a_part_is_missing(folder: Folder, key: str) -> None:
    """An entry without scenario, owner, reason or expiry is refused."""
    folder.write("suite.yaml", {**SPEC, "quarantine": [{name: ENTRY[name] for name in ENTRY if name != key}]})

    assert f"suite.yaml: the key 'quarantine.0.{key}' is missing" == folder.refusal()


def test_the_date_is_checked_for_sessions_only(folder: Folder) -> None:
    """An expired entry is an error of a session, but the suite can still be read. So a finished run can be scored again."""
    folder.write("suite.yaml", {**SPEC, "quarantine": [{**ENTRY, "expires": "2020-01-31"}]})
    folder.write("data.json", [entry()])

    with pytest.raises(ConfigError, match=r"the entry of 's-0' expired on 2020-01-31; its owner, ada"):
        checked(folder.load())
    assert 1 == len(folder.load().quarantine)
