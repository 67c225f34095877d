"""An image with bash and the coreutils of this machine, built quickly and without a network."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "cp", "cut", "dd", "env", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mkfifo", "mv", "ps"),
    *("rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "stat", "tail", "tar", "tee", "timeout", "touch", "tr", "true", "wc", "yes"),
)

USERS = "root:x:0:0:root:/root:/bin/bash\nworker:x:1000:1000::/home/worker:/bin/bash\n"


def root(names: Sequence[str] = PROGRAMS) -> bytes:
    """Returns the tar of a file system with these programs and the libraries that they load."""
    packed = io.BytesIO()
    programs = {f"bin/{name}": Path(where).resolve() for name in names if (where := shutil.which(name))}
    libraries = sorted({each for file in programs.values() for each in _libraries(file)})
    parents = {
        str(each) for file in (*programs, "etc/passwd", "home/worker", *libraries) for each in PurePosixPath(file.strip("/")).parents
    }
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in sorted(parents - {"."}):  # Folders that the engine creates itself belong to root.
            tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        for folder, mode in {"tmp": 0o1777, "root": 0o700, "home/worker": 0o777, "app": 0o777, "proc": 0o755, "sys": 0o755}.items():
            tar.addfile(_entry(folder, tarfile.DIRTYPE, mode))
        for name, text in {"etc/passwd": USERS, "etc/group": "root:x:0:\nworker:x:1000:\n"}.items():
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, file in programs.items():
            tar.add(file, name, filter=_of_root)
        for library in libraries:
            tar.add(Path(library).resolve(), library, filter=_of_root)
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
