"""Reading appended lines: each complete line is returned once, whatever happens to the file."""

from __future__ import annotations

from pathlib import Path

from pytest_agentbench.lib.file_system import AppendedFile


def test_whole_lines_once(tmp_path: Path) -> None:
    """Old lines are skipped, an incomplete line comes when it is complete, and a file that became shorter is read from its start."""
    path = tmp_path / "lines"
    path.write_bytes(b"before\n")
    file, steps = AppendedFile(path), []
    for content in (b"before\na\nto", b"before\na\ntorn\n", b"before\na\ntorn\n", b"new\n"):
        path.write_bytes(content)
        steps.append([*file.new_lines()])

    assert [[b"a\n"], [b"torn\n"], [], [b"new\n"]] == steps


def test_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    """A file that does not exist yet has no lines."""
    file = AppendedFile(tmp_path / "lines")

    assert [] == [*file.new_lines()]
    file.path.write_bytes(b"first\n")
    assert [b"first\n"] == [*file.new_lines()]
