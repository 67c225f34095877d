"""The base image of our tasks, for a Docker Engine without a registry. It is made by debootstrap once on each machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from pytest_agentbench.lib.file_system import lock
from tests.dockerd import NoEngine

NAME, RELEASE = "debian:bookworm-slim", "bookworm"

#: Files that debootstrap leaves and that an image does not contain.
LEFTOVERS = ("./var/cache/apt/*.bin", "./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./debootstrap")


@contextmanager
def base_image(engine: Any) -> Iterator[str]:
    """Yields the name of the image, which the engine has during the block. Raises NoEngine if the image cannot be made."""
    try:
        engine.images.get(NAME)
    except ImageNotFound:
        repository, _, tag = NAME.partition(":")
        engine.api.import_image(str(root_file_system()), repository=repository, tag=tag, changes=["CMD bash"])
        yield NAME
        engine.images.remove(NAME, force=True)
    else:
        yield NAME


def cache_folder() -> Path:
    """Returns the folder for what tests make once on each machine."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pytest-agentbench", "tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def root_file_system() -> Path:
    """Returns a tar file, which is kept in the user's cache."""
    folder = cache_folder()
    tar = folder / f"{RELEASE}.tar"
    with (folder / f"{RELEASE}.lock").open("w") as locked:
        lock(locked, wait=True)
        if not tar.exists():
            _make(tar)
    return tar


def _make(tar: Path) -> None:
    if os.geteuid() or not shutil.which("debootstrap"):
        raise NoEngine(f"the engine has no image {NAME}, and to make one takes root and debootstrap (Debian: debootstrap)")
    with tempfile.TemporaryDirectory(prefix="debootstrap-", dir=tar.parent) as work:
        root, unfinished = Path(work, "root"), Path(work, "tar")
        left_out = [f"--exclude={pattern}" for pattern in LEFTOVERS]
        _run("debootstrap", "--variant=minbase", RELEASE, str(root))
        _run("tar", "-C", str(root), *left_out, "-cf", str(unfinished), ".")
        unfinished.replace(tar)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEngine(f"{command[0]} cannot make {NAME}: {(done.stdout + done.stderr).strip()[-300:]}")
