"""Collects the shell and the `sleep` that the harness itself runs in a container, from the image and before any agent is there."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import shutil
import tarfile
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import InfraError

PLACE = "/.agentbench"
LOADER, LIBRARIES = f"{PLACE}/loader", f"{PLACE}/lib"
PRELOAD = "/etc/ld.so.preload"  # libraries that every dynamically linked program loads
COLLECTING = 120  # seconds

#: Copies the programs and all that they load into PLACE. Both glibc's loader and musl's list it.
_COLLECT = rf"""
set -e
mkdir -p {LIBRARIES}
for each in /lib64/ld-*.so.* /lib/ld-*.so.* /lib/*/ld-linux*.so.* /usr/lib*/ld-linux*.so.*; do
  if [ -e "$each" ] && "$each" --list "$(type -P bash)" >/dev/null 2>&1; then cp -L "$each" {LOADER}; loader=$each; break; fi
done
for name in bash sh sleep; do
  file=$(type -P "$name"); cp -L "$file" {PLACE}/$name; chmod 755 {PLACE}/$name
  [ "$loader" ] || continue
  while read -r line; do
    if [[ $line =~ (/[^ ]+)\ \(0x ]]; then cp -L "${{BASH_REMATCH[1]}}" {LIBRARIES}/; fi
  done < <("$loader" --list "$file")
done
"""


@dataclass(frozen=True)
class OwnPrograms:
    """Programs of one image as they were before an agent could change them, in a tar file on this machine."""

    file: Path
    dynamic: bool  # they are started by a loader that is collected with them

    def words(self, name: str) -> list[str]:
        """Returns the beginning of a command that runs `bash`, `sh` or `sleep` and looks at no file that an agent could change."""
        return [*([LOADER, "--library-path", LIBRARIES] if self.dynamic else []), f"{PLACE}/{name}"]

    def put(self, container: Any) -> None:
        """Puts them into a container in which nothing runs, in place of all that is at their path."""
        container.put_archive("/", self.file.read_bytes())


def empty_preload(container: Any) -> None:
    """Empties PRELOAD of a container in which nothing runs."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(PRELOAD.strip("/")))
    container.put_archive("/", tar.getvalue())


_known: dict[str, OwnPrograms] = {}
_lock = threading.Lock()


@functools.cache
def _folder() -> Path:
    """Returns the folder of all programs, which is there until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="agentbench-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def programs_of(engine: Any, image: Any) -> OwnPrograms:
    """Returns the programs of an image, collected once in a process. Raises InfraError where it has no bash or no coreutils."""
    with _lock:
        if image.id not in _known:
            _known[image.id] = _collected(engine, image)
        return _known[image.id]


def _collected(engine: Any, image: Any) -> OwnPrograms:
    container = engine.containers.create(
        image.id, entrypoint=["bash", "-c", _COLLECT], command=[], user="0", network_mode="none", working_dir="/"
    )
    try:
        container.start()
        code = container.wait(timeout=COLLECTING)["StatusCode"]
        if code != 0:
            raise InfraError(
                f"the image {image.tags or image.id} has no bash, sleep or cp that runs (exit code {code}); "
                "install bash and coreutils in it"
            )
        pieces, _ = container.get_archive(PLACE)
        collected = b"".join(pieces)
    finally:
        container.remove(force=True, v=True)
    return _packed(collected)


def _packed(collected: bytes) -> OwnPrograms:
    """The tar begins with a file where the folder goes: an engine removes a folder for it, with all that an agent has put there."""
    file = Path(_folder(), hashlib.sha256(collected).hexdigest())
    dynamic = False
    with closing(io.BytesIO(collected)) as source, tarfile.open(fileobj=source) as found, tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo(PLACE.strip("/")))
        for entry in found:
            dynamic = dynamic or f"/{entry.name}" == LOADER
            tar.addfile(entry, found.extractfile(entry) if entry.isreg() else None)
    return OwnPrograms(file, dynamic)
