"""Where data are that came with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(kind: str) -> Path:
    """The folder of data that came with the package: `backends` or `scenarios`; in a checkout, the project's own."""
    package = Path(str(files("pytest_agentbench")))
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind
