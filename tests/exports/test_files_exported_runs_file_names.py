"""Names of files for ids of scenarios."""

from __future__ import annotations

from pytest_agentbench.exports.files import FileNames


def test_file_names_are_unique() -> None:
    """An id that is a valid file name is kept. Similar ids get different names, which are always the same and never too long."""
    names = FileNames()
    ids = ["shop-1", "a/b", "a b", "a_b", "é" * 300, "é" * 301, "../x"]
    given = [names.of(id) for id in ids]

    assert ["shop-1", "a_b"] == given[:2]
    assert len(ids) == len({*given})
    assert given == [names.of(id) for id in ids]
    assert all("/" not in name and len(name.encode()) < 200 for name in given)
