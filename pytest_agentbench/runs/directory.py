"""Run directories: one per session under reports/, and `latest`, a link to the newest."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

PRIVATE = 0o700  # prompts, answers and logs are nobody else's
LATEST = "latest"  # also what --agentbench-resume stands for without a value


def new_directory(reports: Path, now: datetime) -> Path:
    """A fresh directory named after the time; a second run within the same second gets a number."""
    return named_directory(reports, now.strftime("%Y%m%d-%H%M%S"))


def named_directory(reports: Path, name: str) -> Path:
    """A fresh directory of this name, or with a number behind it where it exists already."""
    keep_out_of_git(reports)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        directory = reports / f"{name}{suffix}"
        try:
            directory.mkdir(PRIVATE)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{reports}/{name} and 998 more of it exist already")


def keep_out_of_git(reports: Path) -> None:
    """Makes the folder of reports, of which git sees nothing but the baselines."""
    reports.mkdir(parents=True, exist_ok=True)
    ignore = reports / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n!baselines/\n!baselines/**\n")


def point_latest(directory: Path) -> None:
    """Makes reports/latest lead to this run."""
    link = directory.parent / LATEST
    draft = directory.parent / f".{LATEST}-{directory.name}"
    draft.symlink_to(directory.name)
    draft.replace(link)


def discard(directory: Path) -> None:
    """Removes the directory of a session that ran no rollout."""
    shutil.rmtree(directory)
