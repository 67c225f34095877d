"""Facts about the software and the weights of a backend."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.backends.machine.model_files import SAMPLE, folder_digest, model_identity
from pytest_agentbench.backends.machine.versions import named_files, packages_of, server_facts
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.surroundings import variables
from pytest_agentbench.records import Endpoint
from tests.engines import engine


def environment(home: Path, **packages: str) -> Path:
    """Creates a virtual environment with these packages. Returns its interpreter, which is a link to one outside of it."""
    site = home / "lib" / "python3.12" / "site-packages"
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (home / "pyvenv.cfg").touch()
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to("/usr/bin/env")
    return home / "bin" / "python"


def test_packages_of_an_environment(tmp_path: Path) -> None:
    """Returns the versions of engines and their libraries, independent of the packages of this process. Other packages are left out."""
    below = {"nvidia_nccl_cu12": "2.27.3", "flashinfer_python": "0.3", "torch": "2.9.0+cpu", "ThunderAgent": "0.1"}
    python = environment(tmp_path, vllm="0.26.0", ai_dynamo="1.4.2", pytest="0.1", **below)

    assert {
        "vllm": "0.26.0",
        "ai-dynamo": "1.4.2",
        "nvidia-nccl-cu12": "2.27.3",
        "flashinfer-python": "0.3",
        "torch": "2.9.0+cpu",
        "thunderagent": "0.1",
    } == packages_of(python)


def test_variables_of_engines() -> None:
    """Variables that engines inherit are recorded, except those for leased GPUs. Values that look like secrets are masked."""
    inherited = {
        "VLLM_USE_V1": "0",
        "NCCL_DEBUG": "INFO",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HOME": "/models",
        "HF_TOKEN": "short",
        "VLLM_API_KEY": "0123456789abcdef",
        "DYN_STORE": "redis://me:hunter22@host",
        "CUDA_VISIBLE_DEVICES": "1",
        "EDITOR": "vi",
    }

    assert {
        "DYN_STORE": "redis://me:[redacted]@host",
        "HF_HOME": "/models",
        "HF_TOKEN": "[redacted]",
        "NCCL_DEBUG": "INFO",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_API_KEY": "[redacted]",
        "VLLM_USE_V1": "0",
    } == variables(inherited)


def test_a_program_outside_of_environments(tmp_path: Path) -> None:
    """A program outside of a virtual environment has unknown packages (None), not an empty set."""
    assert packages_of(tmp_path / "bin" / "vllm") is None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yields the URL of a server that reports its owner but no version."""
    with engine(tmp_path, [{"text": "Yes."}], model="m") as url:
        yield f"{url}/v1"


def test_facts_of_a_server(server: str) -> None:
    """Returns the server's version and the owner of the requested model, and null for facts that the server does not report."""
    version = importlib.metadata.version("pytest-agentbench")

    assert {"version": version, "owned_by": "pytest-agentbench"} == server_facts(Endpoint(server, "m"))
    assert {"version": version, "owned_by": None} == server_facts(Endpoint(server, "other"))


def test_a_server_that_does_not_answer() -> None:
    """A server that does not answer has only unknown facts, and nothing is raised."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"

    assert {"version": None, "owned_by": None} == server_facts(Endpoint(url, "m"))


def test_files_beside_the_yaml(tmp_path: Path) -> None:
    """The hash of a chat template that the YAML names changes with the file. A missing file has None."""
    (tmp_path / "stack.yaml").write_text(
        json.dumps({"services": {"engine": {"run": ["vllm", "--chat-template={here}/a.jinja", "{here}/gone.py", "{here}"]}}})
    )
    found = []
    for text in ("one", "two"):
        (tmp_path / "a.jinja").write_text(text)
        spec = load_backend(str(tmp_path / "stack.yaml"), tmp_path)
        assert isinstance(spec, StackSpec)
        found.append(named_files(spec))

    assert ["a.jinja", "gone.py"] == [*found[0]]
    assert "missing" == found[0]["gone.py"]
    assert found[0]["a.jinja"] != found[1]["a.jinja"]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A cache of the hub with one model."""
    model = tmp_path / "hub" / "models--org--model"
    (model / "snapshots" / "abc123").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc123")
    (model / "refs" / "v2").write_text("not-here")
    return tmp_path


def test_the_revision_in_the_cache(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns the commit of the requested revision, or null if its files are not in the cache."""
    env = {"HF_HOME": str(hub)}
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)

    assert {"revision": "abc123", "files": None} == model_identity("org/model", env)
    assert "abc123" == model_identity("org/model", env, ["vllm", "--revision", "abc123"])["revision"]
    assert model_identity("org/model", env, ["vllm", "--revision=v2"])["revision"] is None
    assert model_identity("org/other", env)["revision"] is None
    assert "abc123" == model_identity("org/model", {"HF_HUB_CACHE": str(hub / "hub")})["revision"]


def test_a_folder_of_weights(tmp_path: Path) -> None:
    """A model in a folder has a hash of the names, sizes, beginnings and ends of its files."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(bytes(3 * SAMPLE))
    before = model_identity(str(folder), {})
    with (folder / "weights.safetensors").open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")

    assert before["revision"] is None
    assert before["files"] != model_identity(str(folder), {})["files"]


@given(
    st.dictionaries(st.from_regex(r"\A[a-z]{1,3}\Z"), st.binary(max_size=20)),
    st.dictionaries(st.from_regex(r"\A[a-z]{1,3}\Z"), st.binary(max_size=20)),
)
def test_different_folders_have_different_hashes(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    """Two folders have the same hash if and only if their files are the same."""
    hashes = []
    for files in (one, other):
        folder = tmp_path_factory.mktemp("weights")
        for name, content in files.items():
            (folder / name).write_bytes(content)
        hashes.append(folder_digest(folder))

    assert (one == other) == (hashes[0] == hashes[1])
