"""Protection against tampering: copies bash, sh and sleep of an image before an agent runs, and finds the agent's changes afterwards."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pytest_agentbench.errors import InfraError

PLACE = "/.agentbench"
LOADER, LIBRARIES = f"{PLACE}/loader", f"{PLACE}/lib"
PRELOAD = "/etc/ld.so.preload"  # libraries that every dynamically linked program loads
COLLECTING = 120  # seconds for collecting the programs

#: Copies the programs and the libraries that they load into PLACE. Both glibc's and musl's loader can list these libraries.
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
    """Programs of an image, copied before an agent could change them, in a tar file on this machine."""

    file: Path
    dynamic: bool  # whether the programs need the loader, which is in the tar, too

    def words(self, name: str) -> list[str]:
        """Returns the beginning of a command that runs `bash`, `sh` or `sleep` without reading any file that an agent could change."""
        return [*([LOADER, "--library-path", LIBRARIES] if self.dynamic else []), f"{PLACE}/{name}"]

    def put(self, container: Any) -> None:
        """Copies the programs into a stopped container, replacing everything at their path."""
        container.put_archive("/", self.file.read_bytes())


def empty_preload(container: Any) -> None:
    """Empties /etc/ld.so.preload (PRELOAD) in a stopped container, so that no program loads an agent's library."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(PRELOAD.strip("/")))
    container.put_archive("/", tar.getvalue())


_programs: dict[str, OwnPrograms] = {}
_lock = threading.Lock()


@functools.cache
def _folder() -> Path:
    """Returns the folder for the programs of all images. It is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="agentbench-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def programs_of(engine: Any, image: Any) -> OwnPrograms:
    """Returns the programs of an image, collected once per process. Raises InfraError if the image lacks bash or coreutils."""
    with _lock:
        if image.id not in _programs:
            _programs[image.id] = _collect(engine, image)
        return _programs[image.id]


def _collect(engine: Any, image: Any) -> OwnPrograms:
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
    return _repack(collected)


def _repack(collected: bytes) -> OwnPrograms:
    """Stores the programs as a tar that begins with a file at the path of the folder.

    The Docker Engine removes an existing folder, with everything that an agent has put there, to create that file.
    """
    file = Path(_folder(), hashlib.sha256(collected).hexdigest())
    dynamic = False
    with closing(io.BytesIO(collected)) as source, tarfile.open(fileobj=source) as archive, tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo(PLACE.strip("/")))
        for entry in archive:
            dynamic = dynamic or f"/{entry.name}" == LOADER
            tar.addfile(entry, archive.extractfile(entry) if entry.isreg() else None)
    return OwnPrograms(file, dynamic)


MODIFIED, ADDED, DELETED = 0, 1, 2  # kinds of changes, with the numbers of the Docker Engine

_BIN = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/root/.local/bin"})
_LIBRARIES = ("/lib/", "/lib32/", "/lib64/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/libexec/", "/usr/local/lib/")
_SETTINGS = re.compile(r"/etc/(ld\.so\..*|passwd|group|profile|environment|bash\.bashrc|profile\.d/.*)")

#: Files that Python, pytest or the loader of programs reads automatically.
_HOOKS = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", "pytest.ini", "ld.so.preload"})

#: Programs that the scripts of verifiers may use without naming them.
_USUAL = frozenset(
    {"bash", "sh", "dash", "env", "python", "python3", "pytest", "uv", "uvx", "pip", "sleep", "chown", "cat", "grep", "test"}
)

_LARGEST = 1 << 20  # bytes of the largest test file that is searched for names
CACHE = "/etc/ld.so.cache"  # rewritten by every installation of a package


class Change(NamedTuple):
    """A path that differs from the image, and the kind of the change."""

    path: str
    kind: int


def names_in(tests: Path) -> frozenset[str]:
    """Returns all words in the files of a verifier. They include the names of programs and modules that it may use."""
    files = (each for each in tests.rglob("*") if each.is_file() and each.stat().st_size <= _LARGEST)
    return frozenset(word for each in files for word in re.findall(r"[A-Za-z0-9_.+-]+", each.read_text(errors="replace")))


def verifier_changes(changes: Sequence[Change], names: Collection[str], is_folder: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the changed paths that a verifier may use, sorted. `names` are the words in its files.

    Any change counts if it is of a system setting such as /etc/passwd, or a file that Python, pytest or the loader reads automatically.
    Other modified and deleted files count in the folders of programs and libraries. Other added files count if they are a
    program in `names` or one that verifiers usually run, or a module in `names`. Modified folders and compiled modules (`__pycache__`) do
    not count.
    """
    above = {str(parent) for each in changes for parent in PurePosixPath(each.path).parents}
    paths = []
    for path, kind in changes:
        if (kind == MODIFIED and path in above) or "/__pycache__" in path:
            continue
        if _counts(PurePosixPath(path), kind, names) and not (kind == MODIFIED and is_folder(path)):
            paths.append(path)
    return tuple(sorted(paths))


def _counts(path: PurePosixPath, kind: int, names: Collection[str]) -> bool:
    text = str(path)
    if path.name in _HOOKS or path.suffix == ".pth" or _SETTINGS.fullmatch(text):
        return True
    if kind != ADDED:
        return str(path.parent) in _BIN or text.startswith(_LIBRARIES)
    if str(path.parent) in _BIN:
        return path.name in names or path.name in _USUAL
    return path.parent.name in ("site-packages", "dist-packages") and path.stem in names
