"""Which weights a name stands for on this machine: the revision in the hub's cache, or the hash of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pytest_agentbench.records import Json

SAMPLE = 1 << 20  # bytes at both ends of a file that are read: of the whole of it, only where it is small


def model_identity(model: str, env: Mapping[str, str], command: Sequence[str] = ()) -> Json:
    """`revision`, the hub's commit, of a model in its cache, or `files`, a hash, of one that is a folder; both null where it is neither.

    `env` is what the engine gets beside our own environment; `command` may ask for a `--revision`.
    """
    if (folder := Path(model).expanduser()).is_absolute() and folder.is_dir():
        try:
            return {"revision": None, "files": folder_digest(folder)}
        except OSError:  # the engine may be allowed to read what we are not
            return {"revision": None, "files": None}
    return {"revision": cached_revision(model, hub_cache({**os.environ, **env}), _asked_for(command)), "files": None}


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where engines look for models of the hub."""
    if cache := env.get("HF_HUB_CACHE"):
        return Path(cache)
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def cached_revision(model: str, cache: Path, revision: str = "main") -> str | None:
    """The commit of a revision that is there; None where it is not."""
    folder = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    return commit if commit and (folder / "snapshots" / commit).is_dir() else None


def folder_digest(folder: Path) -> str:
    """16 hexadecimal digits of all files: name, size, and the first and last MiB. Reading all of the weights would take minutes."""
    digest = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder)}\0{size}\0".encode())
        with file.open("rb") as content:
            digest.update(content.read(SAMPLE))
            content.seek(max(SAMPLE, size - SAMPLE))
            digest.update(content.read())
    return digest.hexdigest()[:16]


def _asked_for(command: Sequence[str]) -> str:
    """Of words, the value of `--revision`."""
    for option, value in pairwise([word for words in command for word in words.split("=", 1)]):
        if option == "--revision":
            return value
    return "main"
