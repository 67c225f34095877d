"""Hashes of folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import EVERY_BIT, folder_sha256


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests/deep").mkdir(parents=True)
    (tmp_path / "tests/test.sh").write_text("true\n")
    (tmp_path / "tests/deep/data").write_text("1")
    (tmp_path / "tests/link").symlink_to("deep/data")
    return tmp_path


def sha256(root: Path, bits: int = 0o100) -> str:
    return folder_sha256([root / "tests"], root, bits)


def test_every_change_changes_the_hash(root: Path) -> None:
    """The hash depends on contents, names, the executable bit and the targets of links, and on nothing else."""
    file, seen = root / "tests/test.sh", [sha256(root)]
    file.touch()
    file.chmod(0o664)  # the mode under another umask

    assert seen[0] == sha256(root)
    file.chmod(0o755)
    seen.append(sha256(root))
    file.write_text("false\n")
    seen.append(sha256(root))
    file.rename(root / "tests/run.sh")
    seen.append(sha256(root))
    (root / "tests/link").unlink()
    (root / "tests/link").symlink_to("run.sh")
    seen.append(sha256(root))
    assert 5 == len({*seen})


def test_every_bit(root: Path) -> None:
    """If requested, all mode bits that are visible in a container count."""
    before = sha256(root, EVERY_BIT)
    (root / "tests/deep/data").chmod(0o600)

    assert before != sha256(root, EVERY_BIT)


def test_what_is_left_out(root: Path) -> None:
    """Missing paths and skipped names are left out, at any depth."""
    before = sha256(root)
    (root / "tests/deep/litter").mkdir()
    (root / "tests/deep/litter/more").write_text("")

    assert before != sha256(root)
    assert before == folder_sha256([root / "tests", root / "solution"], root, skips=lambda name: name == "litter")


def test_a_link_that_leads_out(root: Path) -> None:
    """A link to a target outside of the folder is refused, because it would have another target on another machine."""
    (root / "tests/passwd").symlink_to("/etc/passwd")

    with pytest.raises(ConfigError, match="tests/passwd: is a link that leads out of "):
        sha256(root)


def test_a_pipe(root: Path) -> None:
    """A pipe is refused by name, because reading it would wait for data."""
    os.mkfifo(root / "tests/pipe")

    with pytest.raises(ConfigError, match="tests/pipe: is neither a file, a folder nor a link; remove it, because it cannot be hashed"):
        sha256(root)
