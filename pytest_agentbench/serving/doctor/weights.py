"""The weights of a stack's model: a folder, or a model in the cache of the Hugging Face hub."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_agentbench.serving.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.serving.stackspec import TEMPLATE, StackSpec

ROOM_GB = 20.0  # a model of 8 billion parameters in 16 bits, and a little


def weight_checks(spec: StackSpec) -> Iterator[Check]:
    """A model without a slash is a name that something else gave to its weights."""
    model = spec.model or ""
    if "/" not in model or TEMPLATE.search(model):
        return
    if model.startswith(("/", "./", "../", "~")):
        yield _folder(Path(spec.here, Path(model).expanduser()))
        return
    cache = hub_cache(_environment(spec))
    check = cached(model, cache)
    yield check
    if check.state != "ok":
        yield _token()
        yield _room(cache)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where the hub's own library keeps what it fetched."""
    if own := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(own).expanduser()
    above = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or f"{above}/huggingface").expanduser() / "hub"


def cached(model: str, cache: Path) -> Check:
    """Whether all files of a model are there, as far as its own index tells."""
    fetch = f"agentbench weights get {model}"
    home = cache / f"models--{model.replace('/', '--')}"
    snapshots = sorted(home.glob("snapshots/*/config.json"), key=lambda path: path.lstat().st_mtime)
    if not snapshots:
        return missing("weights", f"{model} is not in {cache}", fetch)
    snapshot = snapshots[-1].parent
    if lacking := [name for name in _files(snapshot) if not (snapshot / name).exists()]:
        return missing("weights", f"{model} was fetched in part: {lacking[0]} and {len(lacking) - 1} more are not in {snapshot}", fetch)
    return ok("weights", str(snapshot))


def _files(snapshot: Path) -> list[str]:
    """The files that the index of sharded weights names."""
    index = snapshot / "model.safetensors.index.json"
    if not index.is_file():
        return []
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


def _folder(folder: Path) -> Check:
    if (folder / "config.json").is_file():
        return ok("weights", str(folder))
    return missing("weights", f"{folder} has no config.json", "correct `model`; it is relative to the YAML")


def _environment(spec: StackSpec) -> dict[str, str]:
    """That of the processes that read weights; those of containers are mounted from the same place."""
    own = {
        name: value for service in spec.services.values() if service.image is None for name, value in {**spec.env, **service.env}.items()
    }
    return {**os.environ, **{name: value for name, value in own.items() if name.startswith("HF_") and not TEMPLATE.search(value)}}


def _token() -> Check:
    file = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser() / "token"
    if os.environ.get("HF_TOKEN") or file.is_file():
        return ok("token", "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else f"{file}")
    return unknown("token", "HF_TOKEN is not set; a gated model cannot be fetched without it", "export HF_TOKEN=...")


def _room(cache: Path) -> Check:
    there = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free / 1e9
    if free < ROOM_GB:
        return unknown(
            "room", f"{free:.1f} GB free in {there}, which most models need more than", "free some, or name another disk in HF_HOME"
        )
    return ok("room", f"{free:.1f} GB free in {there}")
