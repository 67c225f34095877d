"""The weights of a stack's model: a folder, or a model in the cache of the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_agentbench.backends.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.backends.stack.spec import TEMPLATE, StackSpec
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import Json

SPARE_GB = 1.0  # that stay free beside the weights

#: What a model's name says of its size: billions of parameters, and that each of them takes less than two bytes.
BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)B(?![A-Za-z0-9])")
SMALLER = {"fp8": 1.0, "int8": 1.0, "w8a8": 1.0, "fp4": 0.5, "int4": 0.5, "awq": 0.5, "gptq": 0.5, "4bit": 0.5}


def weight_checks(spec: StackSpec) -> Iterator[Check]:
    """A model without a slash is a name that something else gave to its weights."""
    model = spec.model or ""
    if "/" not in model or TEMPLATE.search(model):
        return
    if is_path(model):
        yield _folder(Path(spec.here, Path(model).expanduser()))
    else:
        yield from hub_checks(model, hub_cache(_environment(spec)))


def is_path(model: str) -> bool:
    """Whether a model's name is that of a folder, and none on the hub."""
    return model.startswith(("/", "./", "../", "~"))


def hub_checks(model: str, cache: Path) -> Iterator[Check]:
    """Checks that a model of the hub is in the cache; if it is not, checks the token and the disk for the download."""
    check = cached(model, cache)
    yield check
    if check.state != "ok":
        yield _token()
        yield _room(cache, missing_gb(model, cache))


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where the hub's own library keeps what it fetched."""
    if own := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(own).expanduser()
    above = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or f"{above}/huggingface").expanduser() / "hub"


def cached(model: str, cache: Path) -> Check:
    """Whether all files of a model are there, as far as its own index tells."""
    fetch = f"agentbench weights get {model}"
    snapshot = _snapshot(model, cache)
    if snapshot is None:
        return missing("weights", f"{model} is not in {cache}", fetch)
    if lacking := [name for name in _files(snapshot) if not (snapshot / name).exists()]:
        return missing("weights", f"{model} was fetched in part: {lacking[0]} and {len(lacking) - 1} more are not in {snapshot}", fetch)
    return ok("weights", str(snapshot))


def missing_gb(model: str, cache: Path) -> float | None:
    """What is still to be fetched: of a model that is there in part as its index says, of any other as its name does; None: no idea."""
    snapshot = _snapshot(model, cache)
    total = _index(snapshot).get("metadata", {}).get("total_size") if snapshot else None
    if snapshot is None or not total:
        return named_gb(model)
    there = sum((snapshot / name).stat().st_size for name in _files(snapshot) if (snapshot / name).exists())
    return max(0.0, float(total - there) / 1e9)


def named_gb(model: str) -> float | None:
    """The size of weights by the model's name; None where that does not say. Parts like the A3B of 30B-A3B are in the whole."""
    name = model.rpartition("/")[2]
    billions = [float(number) for number in BILLIONS.findall(name)]
    each = min((size for word, size in SMALLER.items() if word in name.lower()), default=2.0)  # bytes
    return max(billions) * each if billions else None


def _snapshot(model: str, cache: Path) -> Path | None:
    """The newest of a model that is in the cache."""
    found = (cache / f"models--{model.replace('/', '--')}").glob("snapshots/*/config.json")
    return max((config.parent for config in found), key=lambda folder: (folder / "config.json").lstat().st_mtime, default=None)


def _index(snapshot: Path) -> Json:
    """Of sharded weights: which file has what, and how large they are together; empty where there is none."""
    file = snapshot / "model.safetensors.index.json"
    index: Json = read_json_file(file) if file.is_file() else {}
    return index


def _files(snapshot: Path) -> list[str]:
    """The files that the index of sharded weights names."""
    return sorted(set(_index(snapshot).get("weight_map", {}).values()))


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


def _room(cache: Path, needed: float | None) -> Check:
    there = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free / 1e9
    room, more = f"{free:.1f} GB free in {there}", "free some, or name another disk in HF_HOME"
    if needed is None:
        return unknown(
            "room", f"{room}; how much the weights need is not known here", "`agentbench weights get` finds out before it fetches"
        )
    if free < needed + SPARE_GB:
        return missing("room", f"{room}, and about {needed:.0f} GB are to come", more)
    return ok("room", f"{room}, and about {needed:.0f} GB are to come")
