"""Fetches a model's weights from the Hugging Face hub; whether it is allowed and there is room is found out first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.hub_client import one_line_errors, optional

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
        options = {"revision": info.sha, "local_dir": to, "ignore_patterns": _left_out([sibling.rfilename for sibling in info.siblings])}
        files = hub.snapshot_download(model, **options, dry_run=True)
    missing = sum(file.file_size or 0 for file in files if file.will_download) / GB
    folder = to or Path(hub.constants.HF_HUB_CACHE)
    say(f"{model} at {info.sha}: {len(files)} files, {sum(file.file_size or 0 for file in files) / GB:.1f} GB, {missing:.1f} GB to fetch")
    _room(folder, missing)
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


def _left_out(files: Sequence[str]) -> list[str]:
    return list(OTHER_FORMS) if any(name.endswith(".safetensors") for name in files) else []


def _room(folder: Path, missing: float) -> None:
    """Raises AgentbenchError where the disk has less room than that, in GB."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free / GB
    if missing and free < missing + SPARE:
        raise AgentbenchError(
            f"{folder} has {free:.1f} GB free, and {missing:.1f} GB are to come: free some, or name another disk with --to or HF_HOME"
        )
