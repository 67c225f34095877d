"""Run directories: one per session under reports/, and `latest`, a link to the newest."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError, unknown_name

PRIVATE = 0o700  # prompts, answers and logs are nobody else's
LATEST = "latest"  # also what --agentbench-resume stands for without a value


#: What a user may call a run: it stands in paths, labels of pictures and lists that are separated by commas.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,79}")

#: The directory of a run that has a name: the time, a number where there was one of that time, the name. No name begins like a number.
NAMED = re.compile(rf"\d{{8}}-\d{{6}}(?:-\d+)?-(?P<name>{NAME.pattern})")


def new_directory(reports: Path, now: datetime, name: str = "") -> Path:
    """A fresh directory named after the time, and after the run where it has a name; a second one within the same second gets a number."""
    return named_directory(reports, now.strftime("%Y%m%d-%H%M%S"), f"-{name}" if name else "")


def name_of(directory: Path) -> str:
    """The name that the user gave the run of a directory; empty where it has none."""
    return match["name"] if (match := NAMED.fullmatch(directory.name)) else ""


def runs_called(name: str, reports: Path) -> list[Path]:
    """The directories of runs with this name, the oldest first."""
    return sorted(each for each in reports.glob(f"*-{name}") if name_of(each) == name) if NAME.fullmatch(name) else []


def directory_with(file: str, name: str, reports: Path, reason: str) -> Path:
    """The directory of a run that has this file: the run's path, that of the file, or its name under the reports.

    Of several that the user has given one name the newest is meant. Raises ConfigError; `reason`: why a directory may lack the file.
    """
    path = Path(name)
    for directory in (path, reports / name, *([path.parent] if path.name == file else []), *reversed(runs_called(name, reports))):
        if (directory / file).is_file():
            return directory
    if path.is_dir():
        raise ConfigError(f"{name} has no {file}: {reason}")
    known = sorted(path.parent.name for path in reports.glob(f"*/{file}"))
    raise ConfigError(f"{unknown_name('run', name, known)} (in {reports})")


def named_directory(reports: Path, name: str, ending: str = "") -> Path:
    """A fresh directory of this name, or with a number between it and the ending where it exists already."""
    keep_out_of_git(reports)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        directory = reports / f"{name}{suffix}{ending}"
        try:
            directory.mkdir(PRIVATE)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{reports}/{name}{ending} and 998 more of it exist already")


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
