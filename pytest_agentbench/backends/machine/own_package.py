"""This package in other environments: its dependencies, and a link to it in place of a copy."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path

NAME = "pytest-agentbench"


def requirements() -> list[str]:
    """The dependencies of the package, as pip takes them, without those of extras."""
    return [each for each in distribution(NAME).requires or () if "extra ==" not in each]


def package_folder() -> Path:
    """The folder of its modules: a checkout's own, or the one that was installed."""
    return Path(str(files("pytest_agentbench"))).resolve()


def link_into(site: Path) -> None:
    """Makes the package importable from `site`, with its version and entry points. A link follows every change of the package."""
    for folder in (package_folder(), _metadata_folder(distribution(NAME))):
        (site / folder.name).symlink_to(folder, target_is_directory=True)


def _metadata_folder(installed: Distribution) -> Path:
    metadata = next(each for each in installed.files or () if each.name == "METADATA" and each.parent.suffix == ".dist-info")
    return Path(str(installed.locate_file(metadata))).resolve().parent
