"""A copy of the package that a test may change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest_agentbench
from pytest_agentbench.lib.process import child_environment

PACKAGE = Path(pytest_agentbench.__file__).parent


class PackageCopy:
    """A copy of the package in a folder, and programs that import it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.package = folder, folder / "pytest_agentbench"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def replace(self, file: str, old: str, new: str) -> None:
        """Replaces a text that occurs once in a file of the package."""
        text = (self.package / file).read_text()
        assert 1 == text.count(old), f"{file}: {old}"
        (self.package / file).write_text(text.replace(old, new))

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Returns the output of a command that uses the copy. Fails if the command fails."""
        environment = {**child_environment(), "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [*command], cwd=folder or self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    def python(self, *lines: str) -> list[str]:
        """Returns the output of these lines."""
        return self.run(sys.executable, "-c", "\n".join(lines)).splitlines()


def write_project(folder: Path, files: dict[str, str]) -> None:
    """Writes the files of a project: path -> text."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
