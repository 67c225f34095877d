"""Names of files for ids of scenarios."""

from __future__ import annotations

from pytest_agentbench.exports.files import FileNames


def test_no_two_ids_have_one_name() -> None:
    """An id that a name can hold is the name; of alike ones each has its own, always the same, and none is too long for a file."""
    names = FileNames()
    ids = ["shop-1", "a/b", "a b", "a_b", "é" * 300, "é" * 301, "../x"]
    given = [names.of(id) for id in ids]

    assert ["shop-1", "a_b"] == given[:2]
    assert len(ids) == len({*given})
    assert given == [names.of(id) for id in ids]
    assert all("/" not in name and len(name.encode()) < 200 for name in given)
