"""Where data are that came with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(kind: str) -> Path:
    """Data that came with the package: the folder `backends` or `scenarios`, or `.env.example`; in a checkout, the project's own."""
    package = Path(str(files("pytest_agentbench"))).resolve()  # an environment may have a link to it
    installed = package / "shipped" / kind
    return installed if installed.exists() else package.parent / kind
