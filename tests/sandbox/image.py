"""An image with bash and the coreutils of this machine, built quickly and without a network."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "cp", "cut", "dd", "env", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mkfifo", "mv", "ps"),
    *("rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "stat", "tail", "tar", "tee", "timeout", "touch", "tr", "true", "wc", "yes"),
)

#: Matches the path of a program or of a library, which may load libraries.
BINARY = re.compile(r"/bin/|\.so(\.|$)")

USERS = "root:x:0:0:root:/root:/bin/bash\nworker:x:1000:1000::/home/worker:/bin/bash\n"


def root(names: Sequence[str] = PROGRAMS, files: Iterable[Path] = ()) -> bytes:
    """Returns the tar of a file system with these programs, these files at the same paths, and the libraries that all of them load."""
    packed = io.BytesIO()
    programs = {f"bin/{name}": Path(where).resolve() for name in names if (where := shutil.which(name))}
    paths = {str(file) for file in files}
    binaries = (*programs.values(), *(Path(path) for path in paths if BINARY.search(path)))
    paths |= {each for binary in binaries for each in _libraries(binary)}
    parents = {str(each) for path in (*programs, "etc/passwd", "home/worker", *paths) for each in PurePosixPath(path.strip("/")).parents}
    folders = {"tmp": 0o1777, "root": 0o700, "home/worker": 0o777, "app": 0o777, "proc": 0o755, "sys": 0o755}
    folders |= dict.fromkeys(parents - {"."}, 0o755)  # Folders that the engine creates itself belong to root.
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder, mode in sorted(folders.items()):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, mode))
        for name, text in {"etc/passwd": USERS, "etc/group": "root:x:0:\nworker:x:1000:\n"}.items():
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, file in programs.items():
            tar.add(file, name, filter=_of_root)
        for each in sorted(paths):
            tar.add(Path(each).resolve(), each, filter=_of_root)
    return packed.getvalue()


def _libraries(program: Path) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry
