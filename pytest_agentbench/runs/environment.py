"""The machine, the packages and the state of the repository that a run is measured with."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from pytest_agentbench.runs.contents import Environment
from pytest_agentbench.runs.provenance import Git

#: What a run may owe its numbers to, beside the backend.
PACKAGES = (
    "pytest-agentbench",
    "pytest",
    "pytest-xdist",
    "aiohttp",
    "openai",
    "uvloop",
    "orjson",
    "pydantic",
    "numpy",
    "scipy",
    "bfcl-eval",
)


def environment(root: Path) -> Environment:
    """What this run ran on, as far as it can be known without asking the network."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        git=_git(root),
    )


def unknown_environment(python: str = "unknown") -> Environment:
    """The same, where nothing can be found out."""
    return Environment(python, "unknown", None, {}, None)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path) -> Git | None:
    def ask(*words: str) -> bytes | None:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    dirty = bool(ask("status", "--porcelain", "--untracked-files=no"))
    changes = ask("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color") if dirty else None
    return Git(commit.decode(), dirty, None if changes is None else hashlib.sha256(changes).hexdigest()[:16])
