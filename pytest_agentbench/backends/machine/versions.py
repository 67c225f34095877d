"""Facts about the software of a backend: packages of an environment, version and owner of a server, files that a YAML names."""

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

#: Prefixes of the packages that can change the answers or the speed of an engine: engines, libraries for computing, and libraries for
#: models and tokens.
ENGINES = (
    *("vllm", "sglang", "sgl-", "ai-dynamo", "thunderagent", "tensorrt", "lmcache", "mooncake", "nixl", "ray"),
    *("torch", "triton", "nvidia-", "cuda-", "cupy", "flashinfer", "flash-attn", "xformers", "numpy"),
    *("transformers", "tokenizers", "safetensors", "huggingface-hub", "compressed-tensors", "xgrammar", "outlines", "llguidance"),
)

PATIENCE = 5.0  # seconds for an answer of the server

_HERE = re.compile(r"\{here\}/([\w./-]*\w)")  # A file beside the YAML, for example a chat template or a worker


def packages_of(program: Path) -> dict[str, str] | None:
    """Returns package -> version for the packages in a program's virtual environment that can change an engine's answers or speed.

    Their names begin with one of the prefixes in ENGINES. Returns None if the program is not in a virtual environment.
    """
    home = program.parent.parent  # Not resolved: the interpreter of a virtual environment is a link to one outside.
    if not (home / "pyvenv.cfg").is_file():
        return None
    versions: dict[str, str] = {}
    for place in home.glob("lib*/python3*/site-packages"):
        for info in sorted(place.glob("*.dist-info")):  # Names of folders: reading the metadata of 300 packages is slow.
            name, _, version = info.name.removesuffix(".dist-info").partition("-")
            if (known := name.replace("_", "-").lower()).startswith(ENGINES):
                versions.setdefault(known, version)
    return versions


def program_of(command: list[str], python: Path | None) -> Path | None:
    """Returns the path of the program that a command starts (`python` if that is given), or None if there is no such program."""
    if python is not None:
        return python
    program = shutil.which(command[0]) if command else None
    return Path(program) if program else None


def server_facts(endpoint: Endpoint) -> Json:
    """Asks a server for its `version`, and for `owned_by` of its model. A value that it does not report is null."""
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
    """Returns the JSON object that a server answers at a path, or an empty one if it does not answer with an object."""
    try:
        answer = api.get(path, PATIENCE)
    except BackendError:
        return {}
    content = answer.json() if answer.status == 200 else None
    return content if isinstance(content, dict) else {}


def named_files(spec: StackSpec) -> dict[str, str | None]:
    """Returns file -> hash for all files that a stack's YAML names as `{here}/file` or as manifests.

    The hash of an unreadable file is None.
    """
    every = [*spec.env.values(), *(text for service in spec.services.values() for text in texts(service))]
    manifests = {service.kubernetes.manifest for service in spec.services.values() if service.kubernetes is not None}
    names = sorted({name for text in every for name in _HERE.findall(text)} | manifests)
    return {name: _hash(file) for name in names if not (file := Path(spec.here, name)).is_dir()}


def _hash(file: Path) -> str | None:
    try:
        return file_digest(file)
    except OSError:  # The service may have more permissions than this process.
        return None
