"""Files that others append to: each whole line once, whatever they do to the file."""

from __future__ import annotations

from pathlib import Path

from pytest_agentbench.lib.file_system import AppendedFile


def test_whole_lines_once(tmp_path: Path) -> None:
    """What was there before is passed over, a torn line comes when it is whole, and a file that was begun anew is read from its start."""
    path = tmp_path / "lines"
    path.write_bytes(b"before\n")
    file, steps = AppendedFile(path), []
    for content in (b"before\na\nto", b"before\na\ntorn\n", b"before\na\ntorn\n", b"new\n"):
        path.write_bytes(content)
        steps.append([*file.new_lines()])

    assert [[b"a\n"], [b"torn\n"], [], [b"new\n"]] == steps


def test_one_that_is_not_there_yet(tmp_path: Path) -> None:
    """No lines, until it begins."""
    file = AppendedFile(tmp_path / "lines")

    assert [] == [*file.new_lines()]
    file.path.write_bytes(b"first\n")
    assert [b"first\n"] == [*file.new_lines()]
