"""Installing this package in the environments of engines: its dependencies, and a link to the package instead of a copy."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path

NAME = "pytest-agentbench"


def requirements() -> list[str]:
    """Returns the dependencies of this package in pip's syntax, without those of its extras."""
    return [each for each in distribution(NAME).requires or () if "extra ==" not in each]


def package_folder() -> Path:
    """Returns the folder of this package, which is in a checkout or in site-packages."""
    return Path(str(files("pytest_agentbench"))).resolve()


def link_into(site: Path) -> None:
    """Makes this package importable in the environment with the site-packages folder `site`, with its version and entry points.

    It writes a link, so that changes of the package need no new installation.
    """
    for folder in (package_folder(), _metadata_folder(distribution(NAME))):
        (site / folder.name).symlink_to(folder, target_is_directory=True)


def _metadata_folder(installed: Distribution) -> Path:
    metadata = next(each for each in installed.files or () if each.name == "METADATA" and each.parent.suffix == ".dist-info")
    return Path(str(installed.locate_file(metadata))).resolve().parent
