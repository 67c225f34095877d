"""Run directories, and the link to the newest one."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from pytest_agentbench.runs.directory import discard, name_of, new_directory, point_latest, runs_called

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_directories_are_named_after_the_time(tmp_path: Path) -> None:
    """Runs that start within the same second have different directories. Git ignores the reports but not the baselines."""
    reports = tmp_path / "deep" / "reports"

    names = [new_directory(reports, NOW).name for _ in range(3)]

    assert ["20260304-050607", "20260304-050607-2", "20260304-050607-3"] == names
    assert [] == [*(reports / names[0]).iterdir()]
    assert ["*", "!baselines/", "!baselines/**"] == (reports / ".gitignore").read_text().split()


def test_names_of_runs(tmp_path: Path) -> None:
    """The name of a run follows the time and its number, so it is unambiguous. The newest run with a name comes last."""
    names = "kv", "kv", "kv-2", "", ""

    directories = [new_directory(tmp_path, NOW, name) for name in names]

    assert ["20260304-050607-kv", "20260304-050607-2-kv", "20260304-050607-kv-2", "20260304-050607", "20260304-050607-2"] == [
        each.name for each in directories
    ]
    assert [*names] == [*map(name_of, directories)]
    later = new_directory(tmp_path, NOW.replace(hour=6), "kv")
    assert (later, [directories[2]], []) == (runs_called("kv", tmp_path)[-1], runs_called("kv-2", tmp_path), runs_called("*", tmp_path))


def test_run_directories_are_private(tmp_path: Path) -> None:
    """Only the owner and root can read a run directory, whatever the umask."""
    mask = os.umask(0)
    try:
        directory = new_directory(tmp_path / "reports", NOW)
    finally:
        os.umask(mask)

    assert 0o700 == stat.S_IMODE(directory.stat().st_mode)


def test_an_existing_gitignore_is_kept(tmp_path: Path) -> None:
    """An existing .gitignore is not changed."""
    (tmp_path / ".gitignore").write_text("nothing\n")

    new_directory(tmp_path, NOW)

    assert "nothing\n" == (tmp_path / ".gitignore").read_text()


def test_latest_leads_to_the_newest(tmp_path: Path) -> None:
    """Each run replaces the link without leaving other files, and the link stays valid when the reports directory is moved."""
    first, second = new_directory(tmp_path, NOW), new_directory(tmp_path, NOW)

    for directory in (first, second, first, first):
        point_latest(directory)

        assert directory.name == str((tmp_path / "latest").readlink())
    assert sorted([".gitignore", "latest", first.name, second.name]) == sorted(path.name for path in tmp_path.iterdir())


def test_a_discarded_directory_is_removed(tmp_path: Path) -> None:
    """The directory of a session without rollouts is removed."""
    directory = new_directory(tmp_path, NOW)
    (directory / "rollouts.jsonl").touch()

    discard(directory)

    assert not directory.exists()
