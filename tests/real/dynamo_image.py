"""Makes the image that the container test runs: Debian's Python and NVIDIA Dynamo with its mocker, from packages alone.

    python tests/real/dynamo_image.py       makes the image if it does not exist, and prints its name as the last line

The root of its files is kept below ${XDG_CACHE_HOME:-~/.cache}/pytest-agentbench/images under a hash of its sources. So an engine that
has lost the image gets it again in seconds. It needs root (for debootstrap), Debian's mirror, and pip with its settings on this machine.
Packages are installed from outside, so no index, certificate or proxy of this machine gets into the image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import docker

from pytest_agentbench.backends.machine.virtual_environments import environments
from pytest_agentbench.errors import BackendError, MissingError

SUITE, PYTHON = "bookworm", "3.11"
DEBIAN = ("python3-minimal", f"libpython{PYTHON}-stdlib", "ca-certificates")
DYNAMO = environments()["dynamo"]
PINS = (*DYNAMO.pins, *(["--no-deps"] if DYNAMO.no_deps else []))  # arguments for pip
START = ["ENV PYTHONUNBUFFERED=1"]

#: Versions of glibc whose wheels run on this Debian, independent of the machine that downloads them.
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
PLATFORMS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in GLIBC))

#: Files that a container does not need, or that debootstrap copies from this machine.
LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "etc/resolv.conf", "etc/hostname")

HASH = hashlib.sha256(repr((SUITE, DEBIAN, PINS, START, LEFT_OUT)).encode()).hexdigest()[:12]
IMAGE = f"pytest-agentbench/dynamo:{PINS[0].partition('==')[2]}-{HASH}"
IMAGES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-agentbench" / "images"

STEP = 900  # seconds that one step may take


def image() -> str:
    """Returns the name of the image, which is made if the engine does not have it."""
    client = docker.from_env()
    try:
        if not client.images.list(IMAGE):
            archive = IMAGES / f"dynamo-{HASH}.tar"
            if not archive.exists():
                make(archive)
            _import(client, archive)
    finally:
        client.close()
    return IMAGE


def make(archive: Path) -> None:
    """Writes the root of the image's files as a tar. The file is either complete or does not exist."""
    if os.geteuid() or not shutil.which("debootstrap"):
        raise MissingError("the image of Dynamo is made by debootstrap: install it, and be root")
    IMAGES.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=IMAGES))
    try:
        root = work / "root"
        _run(["debootstrap", "--variant=minbase", f"--include={','.join(DEBIAN)}", SUITE, str(root)])
        _install(root)
        _run(["rm", "-rf", *(str(root / path) for path in LEFT_OUT)])
        _run(["tar", "--create", "--file", str(work / "tar"), "--numeric-owner", "--one-file-system", "--directory", str(root), "."])
        (work / "tar").rename(archive)
    finally:
        shutil.rmtree(work)


def _install(root: Path) -> None:
    packages = f"usr/local/lib/python{PYTHON}/dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--python-version", PYTHON]
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{os.uname().machine}")]
    _run([*pip, *platforms, "--target", str(root / packages), *PINS])
    _run(["chroot", str(root), "python3", "-m", "compileall", "-q", f"/{packages}"])


def _run(command: list[str]) -> None:
    started = time.monotonic()
    log = IMAGES / f"dynamo-{HASH}.log"
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=STEP, check=False)
    print(f"{time.monotonic() - started:6.1f} s  {' '.join(command)[:150]}", flush=True)
    if done.returncode:
        raise BackendError(f"`{command[0]}` ended with exit code {done.returncode}: {log}")


def _import(client: docker.DockerClient, archive: Path) -> None:
    started = time.monotonic()
    repository, _, tag = IMAGE.partition(":")
    client.api.import_image_from_file(str(archive), repository=repository, tag=tag, changes=START)
    print(f"{time.monotonic() - started:6.1f} s  import of {archive} ({archive.stat().st_size / 1e6:.0f} MB)", flush=True)


if __name__ == "__main__":
    print(image())
