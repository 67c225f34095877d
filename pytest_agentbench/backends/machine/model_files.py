"""The files of a model: which revision or hash a name stands for, and how they are fetched from the Hugging Face hub."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.hub_client import one_line_errors, optional
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
    return {"revision": cached_revision(model, hub_cache({**os.environ, **env}), _requested_revision(command)), "files": None}


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


def _requested_revision(command: Sequence[str]) -> str:
    """Of words, the value of `--revision`."""
    for option, value in pairwise([word for words in command for word in words.split("=", 1)]):
        if option == "--revision":
            return value
    return "main"


GB = 1e9  # bytes
SPARE = 1.0  # GB that stay free

#: The same weights in other forms, which no engine here reads where there are safetensors.
OTHER_FORMS = ("original/*", "*.pth", "*.bin", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.ot")


def get(model: str, to: Path | None, revision: str = "main", say: Callable[[str], None] = print) -> Path:
    """Fetches what is not there yet and returns the folder: `to`, or the model's in the hub's cache, where engines look for it.

    HF_TOKEN, or a login of the hub's own command, says who asks. Raises ConfigError, before anything is fetched, for a model that is
    unknown, gated for this token, or larger than the disk.
    """
    hub = optional("huggingface_hub")
    with one_line_errors(model, revision):
        info = _allowed(hub, model, revision)
        options = {"revision": info.sha, "local_dir": to, "ignore_patterns": _ignored([sibling.rfilename for sibling in info.siblings])}
        files = hub.snapshot_download(model, **options, dry_run=True)
    missing = sum(file.file_size or 0 for file in files if file.will_download) / GB
    folder = to or Path(hub.constants.HF_HUB_CACHE)
    say(f"{model} at {info.sha}: {len(files)} files, {sum(file.file_size or 0 for file in files) / GB:.1f} GB, {missing:.1f} GB to fetch")
    _check_disk_space(folder, missing)
    with one_line_errors(model, revision):
        return Path(hub.snapshot_download(model, **options))


def _allowed(hub: Any, model: str, revision: str) -> Any:
    """What the hub tells about the model, if this token may have its files."""
    api = hub.HfApi()
    try:
        info = api.model_info(model, revision=revision)
        if info.gated:
            api.auth_check(model)
    except hub.errors.GatedRepoError as error:
        page = f"{hub.constants.ENDPOINT}/{model}"
        raise ConfigError(f"{model} is gated: accept its licence at {page}; {_token(hub)}") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise ConfigError(f"{hub.constants.ENDPOINT} has no model {model}, or it is a private one; {_token(hub)}") from error
    return info


def _token(hub: Any) -> str:
    if hub.get_token():
        return "the token in use is of an account that may not have it"
    return "set HF_TOKEN to a token of an account that may have it"


def _ignored(files: Sequence[str]) -> list[str]:
    return list(OTHER_FORMS) if any(name.endswith(".safetensors") for name in files) else []


def _check_disk_space(folder: Path, missing: float) -> None:
    """Raises AgentbenchError where the disk has less room than that, in GB."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(existing).free / GB
    if missing and free < missing + SPARE:
        raise AgentbenchError(
            f"{folder} has {free:.1f} GB free, and {missing:.1f} GB are to come: free some, or name another disk with --to or HF_HOME"
        )
