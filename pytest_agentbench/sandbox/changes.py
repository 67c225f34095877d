"""Finds what an agent has changed of the files that a verifier in the same sandbox may use, in the list that the engine keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MODIFIED, ADDED, DELETED = 0, 1, 2  # kinds of a change, as a Docker Engine numbers them

_BIN = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/root/.local/bin"})
_LIBRARIES = ("/lib/", "/lib32/", "/lib64/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/libexec/", "/usr/local/lib/")
_SETTINGS = re.compile(r"/etc/(ld\.so\..*|passwd|group|profile|environment|bash\.bashrc|profile\.d/.*)")

#: Files that Python, pytest or the loader of programs reads without being told to.
_HOOKS = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", "pytest.ini", "ld.so.preload"})

#: Programs that scripts of verifiers use whether or not their text names them.
_USUAL = frozenset(
    {"bash", "sh", "dash", "env", "python", "python3", "pytest", "uv", "uvx", "pip", "sleep", "chown", "cat", "grep", "test"}
)

_LARGEST = 1 << 20  # bytes of a file of tests that is searched for names
CACHE = "/etc/ld.so.cache"  # which every installed package writes anew


class Change(NamedTuple):
    """A path that differs from the image, and how."""

    path: str
    kind: int


def names_in(tests: Path) -> frozenset[str]:
    """Returns all words in the files of a verifier: programs and modules that it may use are among them."""
    files = (each for each in tests.rglob("*") if each.is_file() and each.stat().st_size <= _LARGEST)
    return frozenset(word for each in files for word in re.findall(r"[A-Za-z0-9_.+-]+", each.read_text(errors="replace")))


def of_the_verifier(changes: Sequence[Change], names: Collection[str], is_folder: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the changed paths that a verifier with these names in its files may use, sorted.

    A file that was modified or deleted counts in every folder of programs and libraries. One that was added counts if it takes the place
    of a program or module that is named, or if Python, pytest or the loader reads it unasked.
    """
    above = {str(parent) for each in changes for parent in PurePosixPath(each.path).parents}
    found = []
    for path, kind in changes:
        if (kind == MODIFIED and path in above) or "/__pycache__" in path:
            continue
        if _counts(PurePosixPath(path), kind, names) and not (kind == MODIFIED and is_folder(path)):
            found.append(path)
    return tuple(sorted(found))


def _counts(path: PurePosixPath, kind: int, names: Collection[str]) -> bool:
    text = str(path)
    if path.name in _HOOKS or path.suffix == ".pth" or _SETTINGS.fullmatch(text):
        return True
    if kind != ADDED:
        return str(path.parent) in _BIN or text.startswith(_LIBRARIES)
    if str(path.parent) in _BIN:
        return path.name in names or path.name in _USUAL
    return path.parent.name in ("site-packages", "dist-packages") and path.stem in names
