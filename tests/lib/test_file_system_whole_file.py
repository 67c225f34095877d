"""Atomic writes of files."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from pytest_agentbench.lib.file_system import write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A process that has opened the old file still reads it. No other file is left in the folder."""
    file = tmp_path / "run.json"
    file.write_text("old")
    with file.open() as reader:
        assert file == write_whole(file, "ü\n")
        assert "old" == reader.read()

    assert "ü\n" == file.read_text(encoding="utf-8")
    assert [file] == [*tmp_path.iterdir()]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """If the disk is full (here: a limit of file size), the error is raised, the old file stays, and no incomplete file is left."""
    file = tmp_path / "run.json"
    file.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_whole(file, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    assert "old" == file.read_text()
    assert [file] == [*tmp_path.iterdir()]
