"""The files of a model: their revision or hash, and their download from the Hugging Face hub."""

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

SAMPLE = 1 << 20  # bytes at the beginning and at the end of each file that are hashed


def model_identity(model: str, env: Mapping[str, str], command: Sequence[str] = ()) -> Json:
    """Returns what identifies the weights of a model, as {revision, files}.

    `revision` is the commit of a model in the hub's cache, and null for other models. `files` is the hash of a folder, and null for other
    models. `env` has the variables that the engine gets in addition to the environment of this process. `command` may contain `--revision`.
    """
    if (folder := Path(model).expanduser()).is_absolute() and folder.is_dir():
        try:
            return {"revision": None, "files": folder_digest(folder)}
        except OSError:  # The engine may have more permissions than this process.
            return {"revision": None, "files": None}
    return {"revision": cached_revision(model, hub_cache({**os.environ, **env}), _requested_revision(command)), "files": None}


def hub_cache(env: Mapping[str, str]) -> Path:
    """Returns the folder in which engines with these variables look for models of the Hugging Face hub."""
    if cache := env.get("HF_HUB_CACHE"):
        return Path(cache)
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def cached_revision(model: str, cache: Path, revision: str = "main") -> str | None:
    """Returns the commit of a revision in the cache, or None if the cache does not contain it."""
    folder = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    return commit if commit and (folder / "snapshots" / commit).is_dir() else None


def folder_digest(folder: Path) -> str:
    """Returns a hash of the names, sizes, first and last MiB of all files in a folder. Reading all weights would take minutes."""
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
    """Returns the value of `--revision` in an engine's command, or `main` if the command does not have the option."""
    for option, value in pairwise([word for words in command for word in words.split("=", 1)]):
        if option == "--revision":
            return value
    return "main"


GB = 1e9  # bytes
SPARE = 1.0  # GB of the disk that have to stay free

#: Files with the same weights in other formats. They are not downloaded if the model has safetensors, which all engines here prefer.
OTHER_FORMS = ("original/*", "*.pth", "*.bin", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.ot")


def get(model: str, to: Path | None, revision: str = "main", say: Callable[[str], None] = print) -> Path:
    """Downloads the missing files of a model. Returns its folder: `to`, or the folder in the hub's cache, where engines find it.

    The token comes from HF_TOKEN or from a login with the hub's own command. Before anything is downloaded, an unknown or gated model
    raises ConfigError, and a full disk AgentbenchError.
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
    """Returns the hub's information about a model. Raises ConfigError if this token has no access to its files."""
    api = hub.HfApi()
    try:
        info = api.model_info(model, revision=revision)
        if info.gated:
            api.auth_check(model)
    except hub.errors.GatedRepoError as error:
        page = f"{hub.constants.ENDPOINT}/{model}"
        raise ConfigError(f"{model} is gated: accept its licence at {page}; {_token(hub)}") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise ConfigError(f"{hub.constants.ENDPOINT} has no model {model}, or it is private; {_token(hub)}") from error
    return info


def _token(hub: Any) -> str:
    if hub.get_token():
        return "the account of the token in use has no access to it"
    return "set HF_TOKEN to a token of an account with access"


def _ignored(files: Sequence[str]) -> list[str]:
    return list(OTHER_FORMS) if any(name.endswith(".safetensors") for name in files) else []


def _check_disk_space(folder: Path, missing: float) -> None:
    """Raises AgentbenchError if the disk of a folder has too little space for `missing` GB."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(existing).free / GB
    if missing and free < missing + SPARE:
        raise AgentbenchError(
            f"{folder} has {free:.1f} GB free, and the download needs {missing:.1f} GB: free some, or choose a disk with --to or HF_HOME"
        )
