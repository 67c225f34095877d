"""What is known of the software behind a backend: packages of an interpreter, what a server tells of itself, files that a YAML names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.stack.spec import StackSpec, texts
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import file_digest

#: How the names of packages begin that decide how an engine answers, and how fast: engines, what they compute with, and what reads
#: models and makes text of tokens.
ENGINES = (
    *("vllm", "sglang", "sgl-", "ai-dynamo", "thunderagent", "tensorrt", "lmcache", "mooncake", "nixl", "ray"),
    *("torch", "triton", "nvidia-", "cuda-", "cupy", "flashinfer", "flash-attn", "xformers", "numpy"),
    *("transformers", "tokenizers", "safetensors", "huggingface-hub", "compressed-tensors", "xgrammar", "outlines", "llguidance"),
)

PATIENCE = 5.0  # seconds that a server gets to say who it is

_HERE = re.compile(r"\{here\}/([\w./-]*\w)")  # a file beside the YAML: a chat template, a worker


def packages_of(program: Path) -> dict[str, str] | None:
    """Package -> version of those that matter, in the virtual environment that a program lies in; None where it lies in none."""
    home = program.parent.parent  # not resolved: the interpreter of a virtual environment is a link that leads out of it
    if not (home / "pyvenv.cfg").is_file():
        return None
    versions: dict[str, str] = {}
    for place in home.glob("lib*/python3*/site-packages"):
        for info in sorted(place.glob("*.dist-info")):  # by the names of folders: metadata of 300 packages take long to read
            name, _, version = info.name.removesuffix(".dist-info").partition("-")
            if (known := name.replace("_", "-").lower()).startswith(ENGINES):
                versions.setdefault(known, version)
    return versions


def program_of(command: list[str], python: Path | None) -> Path | None:
    """What a command starts, as far as that is known before its templates are filled in."""
    if python is not None:
        return python
    program = shutil.which(command[0]) if command else None
    return Path(program) if program else None


def server_facts(endpoint: Endpoint) -> Json:
    """`version` and `owned_by` as the server tells them; null what it does not tell."""
    api = Api(
        Endpoint(re.sub(r"/v\d+$", "", endpoint.url), "", api_key=endpoint.api_key, ca_file=endpoint.ca_file, headers=endpoint.headers)
    )
    version = _get_json(api, "/version").get("version")
    models = _get_json(Api(endpoint), "/models").get("data")
    owners = {
        str(each["owned_by"])
        for each in (models if isinstance(models, list) else ())
        if isinstance(each, Mapping) and each.get("id") == endpoint.model and each.get("owned_by")
    }
    return {"version": version if isinstance(version, str) else None, "owned_by": next(iter(owners), None)}


def _get_json(api: Api, path: str) -> Json:
    """The answer; nothing where there is none."""
    try:
        answer = api.get(path, PATIENCE)
    except BackendError:
        return {}
    content = answer.json() if answer.status == 200 else None
    return content if isinstance(content, dict) else {}


def named_files(spec: StackSpec) -> dict[str, str | None]:
    """File -> hash, of everything that a stack's YAML names as `{here}/file`; null of one that cannot be read."""
    every = [*spec.env.values(), *(text for service in spec.services.values() for text in texts(service))]
    names = sorted({name for text in every for name in _HERE.findall(text)})
    return {name: _hash(file) for name in names if not (file := Path(spec.here, name)).is_dir()}


def _hash(file: Path) -> str | None:
    try:
        return file_digest(file)
    except OSError:  # the service may be allowed to read what we are not
        return None
