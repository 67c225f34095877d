"""Checks of the data that services need on this machine.

- For a stack: the weights of its model, in a folder or in the cache of the Hugging Face hub.
- For a retriever: packages, GPUs, the index, the lists of questions, the embedding model, keys and the port.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.doctor.check import Check, key_checks, missing, ok, port_checks, reach_check, unknown
from pytest_agentbench.backends.machine.virtual_environments import OWN, resolve_python
from pytest_agentbench.backends.stack.instances import Factory, Instance, instances_of
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.templates import TEMPLATE
from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.records import Json
from pytest_agentbench.retriever.config import EmbeddingsSpec, RetrieverConfig, expand_variables, parse_config, read_settings
from pytest_agentbench.retriever.index import DOCUMENTS, INDEX

SPARE_GB = 1.0  # GB of the disk that have to stay free

#: Parts of a model's name that show its size: billions of parameters, and formats with less than two bytes for each.
BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)B(?![A-Za-z0-9])")
SMALLER = {"fp8": 1.0, "int8": 1.0, "w8a8": 1.0, "fp4": 0.5, "int4": 0.5, "awq": 0.5, "gptq": 0.5, "4bit": 0.5}


def weight_checks(spec: StackSpec) -> Iterator[Check]:
    """Checks that this machine has the weights of a stack's model.

    A name without a slash is not checked, because it is neither a folder nor the name of a model on the hub. Objects of Kubernetes have
    weights of their own.
    """
    model = spec.model or ""
    if "/" not in model or TEMPLATE.search(model) or any(service.kubernetes for service in spec.services.values()):
        return
    if is_path(model):
        yield _weights_folder(Path(spec.here, Path(model).expanduser()))
    else:
        yield from hub_checks(model, hub_cache(_environment(spec)))


def is_path(model: str) -> bool:
    """Returns whether a model's name is a folder, not a name on the hub."""
    return model.startswith(("/", "./", "../", "~"))


def hub_checks(model: str, cache: Path) -> Iterator[Check]:
    """Checks that a model of the hub is in the cache; if it is not, checks the token and the disk for the download."""
    check = cached(model, cache)
    yield check
    if check.state != "ok":
        yield _token()
        yield _disk_space(cache, missing_gb(model, cache))


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Returns the folder in which the Hugging Face library caches models, according to these environment variables."""
    if own := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(own).expanduser()
    above = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or f"{above}/huggingface").expanduser() / "hub"


def cached(model: str, cache: Path) -> Check:
    """Checks that the model is in the cache, with all files that its index of weights lists."""
    fetch = f"agentbench weights get {model}"
    snapshot = _snapshot(model, cache)
    if snapshot is None:
        return missing("weights", f"{model} is not in {cache}", fetch)
    if lacking := [name for name in _files(snapshot) if not (snapshot / name).exists()]:
        return missing("weights", f"{model} was fetched in part: {lacking[0]} and {len(lacking) - 1} more are not in {snapshot}", fetch)
    return ok("weights", str(snapshot))


def missing_gb(model: str, cache: Path) -> float | None:
    """Returns how many GB of a model have to be downloaded, or None if that is unknown.

    The number comes from the index of a partly downloaded model, else from the model's name.
    """
    snapshot = _snapshot(model, cache)
    total = _shard_index(snapshot).get("metadata", {}).get("total_size") if snapshot else None
    if snapshot is None or not total:
        return named_gb(model)
    cached_bytes = sum((snapshot / name).stat().st_size for name in _files(snapshot) if (snapshot / name).exists())
    return max(0.0, float(total - cached_bytes) / 1e9)


def named_gb(model: str) -> float | None:
    """Estimates the GB of weights from the model's name. Returns None if the name contains no size. 30B-A3B counts as 30B."""
    name = model.rpartition("/")[2]
    billions = [float(number) for number in BILLIONS.findall(name)]
    each = min((size for word, size in SMALLER.items() if word in name.lower()), default=2.0)  # bytes
    return max(billions) * each if billions else None


def _snapshot(model: str, cache: Path) -> Path | None:
    """Returns the folder of the newest snapshot of a model in the cache, or None if the cache does not have the model."""
    configs = (cache / f"models--{model.replace('/', '--')}").glob("snapshots/*/config.json")
    return max((config.parent for config in configs), key=lambda folder: (folder / "config.json").lstat().st_mtime, default=None)


def _shard_index(snapshot: Path) -> Json:
    """Returns the JSON that lists the files of sharded weights and their total size, or an empty object if there is none."""
    file = snapshot / "model.safetensors.index.json"
    index: Json = read_json_file(file) if file.is_file() else {}
    return index


def _files(snapshot: Path) -> list[str]:
    """Returns the names of the weight files that the index of a snapshot lists."""
    return sorted(set(_shard_index(snapshot).get("weight_map", {}).values()))


def _weights_folder(folder: Path) -> Check:
    if (folder / "config.json").is_file():
        return ok("weights", str(folder))
    return missing("weights", f"{folder} has no config.json", "correct `model`; it is relative to the YAML")


def _environment(spec: StackSpec) -> dict[str, str]:
    """Returns the environment variables that decide where a stack's services look for models of the hub.

    Services in containers are left out: they mount the cache that the others use.
    """
    own = {name: value for service in spec.services.values() if service.is_command for name, value in {**spec.env, **service.env}.items()}
    return {**os.environ, **{name: value for name, value in own.items() if name.startswith("HF_") and not TEMPLATE.search(value)}}


def _token() -> Check:
    file = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser() / "token"
    if os.environ.get("HF_TOKEN") or file.is_file():
        return ok("token", "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else f"{file}")
    return unknown("token", "HF_TOKEN is not set; a gated model cannot be downloaded without it", "export HF_TOKEN=...")


def _disk_space(cache: Path, needed: float | None) -> Check:
    existing = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 1e9
    room, more = f"{free:.1f} GB free in {existing}", "free some, or choose another disk with HF_HOME"
    if needed is None:
        return unknown("room", f"{room}; the size of the weights is unknown", "`agentbench weights get` checks it before the download")
    if free < needed + SPARE_GB:
        return missing("room", f"{room}, and about {needed:.0f} GB to download", more)
    return ok("room", f"{room}, and about {needed:.0f} GB to download")


MODULE = "pytest_agentbench.retriever"
NO_GPUS = "use FAISS for GPUs (`python: retriever`), check CUDA_VISIBLE_DEVICES, or remove `gpu`"
PATIENCE = 60.0  # seconds for an interpreter to list its packages

#: Prints the packages in the arguments that the interpreter does not have, and if the first argument is not empty, the number of GPUs
#: that FAISS sees.
ASK = """
import importlib.util, json, sys
absent = [name for name in sys.argv[2:] if importlib.util.find_spec(name) is None]
gpus = 0
if sys.argv[1] and "faiss" not in absent:
    import faiss
    gpus = faiss.get_num_gpus()
print(json.dumps([absent, gpus]))
"""


@dataclass(frozen=True)
class Examined:
    """A retriever that is to be checked: its settings, interpreter and folders."""

    config: RetrieverConfig
    python: str  # its interpreter, as in the YAML
    folder: Path  # folder of the YAML
    here: Path  # folder that relative paths start from
    booted: tuple[str, ...] = ()  # URLs of services that exist only while the stack runs


def file_checks(file: Path) -> Iterator[Check]:
    """Checks the retriever that a settings file of `agentbench retriever serve` describes.

    Raises ConfigError if the settings are not valid.
    """
    settings = read_settings(file)
    folder = file.absolute().parent
    yield from retriever_checks(Examined(settings.config, settings.python, folder, folder))


def service_checks(spec: StackSpec) -> Iterator[Check]:
    """Checks the retrievers among the services of a stack."""
    instances = instances_of(spec, Path(), lambda: 0)
    factory, urls = Factory(spec, Path(), instances), tuple(each.url for each in instances)
    for each in instances:
        if MODULE in each.spec.run and each.spec.is_command and each.replica == 0:
            yield from _service(spec, factory, each, urls)


def _service(spec: StackSpec, factory: Factory, instance: Instance, urls: tuple[str, ...]) -> Iterator[Check]:
    command = factory.command(instance)
    try:
        config = parse_config(json.loads(command[command.index(MODULE) + 1]))
    except (ConfigError, IndexError, json.JSONDecodeError) as error:
        yield missing("retriever", f"services.{instance.service}: {error}", "correct the JSON after the name of the module")
        return
    if config.port == instance.ports["port"]:
        config = config.model_copy(update={"port": 0})  # It is a port of the stack, and checked with the others.
    here = Path(spec.here, instance.spec.cwd or "(a folder of the boot)")
    yield from retriever_checks(Examined(config, instance.spec.python or spec.python or OWN, Path(spec.here), here, urls))


def retriever_checks(examined: Examined) -> Iterator[Check]:
    """Checks everything that a retriever needs, in the order in which it needs the things when it starts."""
    config = examined.config
    yield from _packages(examined)
    yield from _document_index(examined)
    if config.allowed:
        yield _path("lists", config.allowed, "allowed", examined.here, (), "correct `allowed`, or leave it out")
    yield from _embeddings(config.embeddings, examined)
    yield from _web(config)
    yield from port_checks([config.port])


def _packages(examined: Examined) -> Iterator[Check]:
    config, name = examined.config, examined.python
    needed = ["aiohttp", "orjson", "pydantic", "faiss", *([] if config.embeddings.url else ["sentence_transformers"])]
    own = "pip install 'pytest-agentbench[retriever{}]'".format("" if config.embeddings.url else ",sentence-transformers")
    environment = "retriever" if config.gpu else "retriever-cpu"
    try:
        absent, gpus = _missing_packages(resolve_python(name, examined.folder), needed, gpu=config.gpu)
    except (AgentbenchError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        yield missing("retriever", f"python: {name}: {error}", f"agentbench env create {environment}, and `python: {environment}`")
        return
    if absent:
        yield missing("packages", f"{', '.join(absent)} not in {name}", own if name == OWN else f"`python: {environment}`")
    else:
        yield ok("packages", f"{', '.join(needed)} in {name}")
    if config.gpu and not absent:
        yield ok("GPUs", f"FAISS finds {gpus}") if gpus else missing("GPUs", f"FAISS in {name} finds no GPU", NO_GPUS)


def _missing_packages(python: Path, packages: list[str], *, gpu: bool) -> tuple[list[str], int]:
    """Returns which of these packages an interpreter lacks, and how many GPUs its FAISS finds. If `gpu` is False, that number is 0."""
    command = [python, "-c", ASK, "gpu" if gpu else "", *packages]
    done = subprocess.run(command, capture_output=True, text=True, env=foreign_environment(), timeout=PATIENCE, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
    absent, gpus = json.loads(done.stdout)
    return absent, gpus


def _document_index(examined: Examined) -> Iterator[Check]:
    config = examined.config
    model = config.embeddings.model
    yield _path(
        "index",
        config.index_dir,
        "index_dir",
        examined.here,
        (INDEX, DOCUMENTS),
        f"agentbench retriever build CORPUS.jsonl --output {{}} --model {model}",
    )


def _path(name: str, text: str, key: str, here: Path, files: tuple[str, ...], fix: str) -> Check:
    """Checks that a path in the retriever's settings exists: a file, or a folder that contains `files`.

    `name` is the name of the check, `text` the value of the setting `key`, and `here` the folder that relative paths start from. `{}` in
    `fix` is replaced by the path.
    """
    try:
        path = Path(here, expand_variables(text, key))
    except ConfigError as error:
        what, _, how = str(error).partition(": export ")
        return missing(name, what, f"export {how}")
    needed = [path / file for file in files] or [path]
    if absent := [str(each) for each in needed if not each.is_file()]:
        return missing(name, f"{absent[0]} does not exist", fix.format(path))
    return ok(name, f"{path}, {sum(each.stat().st_size for each in needed) / 1e9:.1f} GB")


def _embeddings(spec: EmbeddingsSpec, examined: Examined) -> Iterator[Check]:
    if spec.url:
        yield from key_checks(spec.api_key)
        if not spec.url.startswith(examined.booted):
            yield reach_check(spec.url)
        return
    try:
        model = expand_variables(spec.model, "embeddings.model")
    except ConfigError as error:
        what, _, how = str(error).partition(": export ")
        yield missing("weights", what, f"export {how}")
        return
    if is_path(model):
        yield _embeddings_folder(Path(examined.here, Path(model).expanduser()))
    else:
        yield from hub_checks(model, hub_cache(os.environ))


def _embeddings_folder(folder: Path) -> Check:
    """Checks that a folder contains an embedding model of sentence-transformers or transformers."""
    names = ("modules.json", "config.json")
    if any((folder / name).is_file() for name in names):
        return ok("weights", str(folder))
    return missing("weights", f"{folder} has neither {' nor '.join(names)}", "correct `embeddings.model`")


def _web(config: RetrieverConfig) -> Iterator[Check]:
    """Checks the API key of the web search. A missing key is `unknown`, not `missing`, because the retriever works without it."""
    if config.tavily is None:
        return
    if os.environ.get(name := config.tavily.api_key):
        yield ok("web search", f"{name} is set")
    else:
        yield unknown("web search", f"{name} is not set, so the web is not searched", f"export {name}=...")


def suite_checks(agents: dict[str, dict[str, Any]]) -> Iterator[Check]:
    """Checks the retrievers that the agents of a suite use. `agents` maps variants to settings of agents."""
    addresses: dict[str, list[str]] = {}
    for variant, agent in agents.items():
        if url := agent.get("retriever"):
            addresses.setdefault(str(url), []).append(variant)
    if not addresses:
        yield ok("retriever", "no agent of this suite uses a retriever")
    for url, variants in addresses.items():
        check = reach_check(url)
        detail = f"of {', '.join(variants)}: {check.detail}"
        yield check._replace(
            name="retriever", detail=detail, fix=check.fix and "agentbench retriever serve SETTINGS.yaml, or correct `retriever`"
        )
