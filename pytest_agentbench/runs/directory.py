"""Run directories: one for each run below reports/, and `latest`, a link to the newest."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

from pytest_agentbench.errors import ConfigError, unknown_name

PRIVATE = 0o700  # Only the owner may read prompts, answers and logs
LATEST = "latest"  # also the default value of --agentbench-resume


#: Valid names of runs. Names appear in paths, in labels of plots, and in lists separated by commas.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,79}")

#: Directory of a named run: time, number if the time was taken already, name. A name cannot begin with a digit, so both are distinct.
NAMED = re.compile(rf"\d{{8}}-\d{{6}}(?:-\d+)?-(?P<name>{NAME.pattern})")


def new_directory(reports: Path, now: datetime, name: str = "") -> Path:
    """Creates a directory named after the time, and after the run if it has a name. If it exists already, the name gets a number."""
    return named_directory(reports, now.strftime("%Y%m%d-%H%M%S"), f"-{name}" if name else "")


def name_of(directory: Path) -> str:
    """Returns the name that the user gave the run of a directory, or an empty string."""
    return match["name"] if (match := NAMED.fullmatch(directory.name)) else ""


def runs_called(name: str, reports: Path) -> list[Path]:
    """Returns the directories of runs with this name, the oldest first."""
    return sorted(each for each in reports.glob(f"*-{name}") if name_of(each) == name) if NAME.fullmatch(name) else []


def directory_with(file: str, name: str, reports: Path, reason: str) -> Path:
    """Returns the directory of a run that contains a file, for example run.json.

    Args:
        file: Name of the file.
        name: Path of the run, path of the file in it, or name of the run in the reports directory. If several runs have the name, the
            newest is returned.
        reports: The reports directory.
        reason: Why a directory may lack the file, for the message.

    Raises:
        ConfigError: There is no such run, or it lacks the file.
    """
    path = Path(name)
    for directory in (path, reports / name, *([path.parent] if path.name == file else []), *reversed(runs_called(name, reports))):
        if (directory / file).is_file():
            return directory
    if path.is_dir():
        raise ConfigError(f"{name} has no {file}: {reason}; name another run")
    known = sorted(path.parent.name for path in reports.glob(f"*/{file}"))
    raise ConfigError(f"{unknown_name('run', name, known)} (in {reports})")


def named_directory(reports: Path, name: str, ending: str = "") -> Path:
    """Creates a directory with this name and ending. If it exists already, a number is inserted between them."""
    keep_out_of_git(reports)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        directory = reports / f"{name}{suffix}{ending}"
        try:
            directory.mkdir(PRIVATE)
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{reports}/{name}{ending} and 998 numbered directories of that name already exist; remove some")


def keep_out_of_git(reports: Path) -> None:
    """Creates the reports directory with a .gitignore that excludes everything but the baselines."""
    reports.mkdir(parents=True, exist_ok=True)
    ignore = reports / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n!baselines/\n!baselines/**\n")


def point_latest(directory: Path) -> None:
    """Makes reports/latest a link to this run."""
    link = directory.parent / LATEST
    draft = directory.parent / f".{LATEST}-{directory.name}"
    draft.symlink_to(directory.name)
    draft.replace(link)


def discard(directory: Path) -> None:
    """Removes the directory of a session that ran no rollout."""
    shutil.rmtree(directory)
