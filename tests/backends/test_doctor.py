"""Checks of what backends need on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_agentbench.backends.doctor import checks, data_files
from pytest_agentbench.backends.doctor.check import Check
from pytest_agentbench.backends.doctor.host import fabric_check, toolkit_check
from pytest_agentbench.backends.embedded import EmbeddedSpec
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.gpus import lease
from pytest_agentbench.backends.machine.virtual_environments import environments
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.url import UrlSpec
from pytest_agentbench.cli import main

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, no Docker, and an empty cache of the hub."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0,1")
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)


def stack(*services: dict[str, Any], **keys: Any) -> StackKind:
    named = {f"s{number}": {"run": [sys.executable], **service} for number, service in enumerate(services)}
    return StackKind(**{"name": "mine", "services": named, **keys})


def found(spec: StackKind | UrlSpec | EmbeddedSpec, name: str) -> list[Check]:
    return [check for check in checks(spec) if check.name == name]


def only(spec: StackKind | UrlSpec | EmbeddedSpec, name: str) -> Check:
    (check,) = found(spec, name)
    return check


def test_services_on_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands have to be here, and a kubeconfig. Commands, ports and GPUs of other machines are not checked on this one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    on_hosts = {"run": ["vllm", "serve"], "on": {"slurm": {"hosts": 2, "gpus": 8}}, "port": 8000}
    objects = {"run": [], "kubernetes": {"manifest": "x.yaml"}}

    assert ["slurm", "kubernetes", "disk"] == [check.name for check in checks(stack(on_hosts, objects))]
    assert ("missing", "the command sbatch is not on the PATH") == only(stack(on_hosts), "slurm")[1:3]
    assert "missing" == only(stack(objects), "kubernetes").state
    for name in ("sbatch", "scontrol", "scancel"):
        (tmp_path / name).touch(0o755)
    assert ("ok", f"{tmp_path}/sbatch") == only(stack(on_hosts), "slurm")[1:3]


def test_backends_without_requirements() -> None:
    """The embedded engine needs nothing, and a small stack only its command."""
    assert ["engine", "disk"] == [check.name for check in checks(EmbeddedSpec(kind="embedded", name="e"))]
    assert [("command", "ok"), ("disk", "ok")] == [(check.name, check.state) for check in checks(stack({}))]


def test_gpus() -> None:
    """GPUs are free, leased by a named process, or too few. Nothing stays leased."""
    two, three = stack({"gpus": 1}, {"gpus": [1]}), stack({"gpus": 1, "replicas": 3})

    assert Check("GPUs", "ok", "2 needed and free: 1, 0") == only(two, "GPUs")
    with lease(1, stack="stack 'theirs'"):
        taken = only(two, "GPUs")
    assert "missing" == taken.state
    assert "GPU 0 is held by process" in taken.detail
    assert ("missing", "3 GPUs needed; visible here: 0, 1") == only(three, "GPUs")[1:3]
    assert Check("GPUs", "ok", "2 needed and free: 1, 0") == only(two, "GPUs")
    assert "unknown" == only(two, "driver").state


def test_the_fabric_manager(tmp_path: Path) -> None:
    """The fabric manager is only needed on machines with an NVSwitch."""
    devices, processes = tmp_path / "dev", tmp_path / "proc"
    (processes / "42").mkdir(parents=True)
    (processes / "42" / "comm").write_text("python\n")
    devices.mkdir()

    assert [] == [*fabric_check(devices, processes)]
    (devices / "nvidia-nvswitch0").touch()
    assert ["unknown"] == [check.state for check in fabric_check(devices, processes)]
    (processes / "42" / "comm").write_text("nv-fabricmanage\n")
    assert ["ok"] == [check.state for check in fabric_check(devices, processes)]


def test_ports() -> None:
    """A port in the YAML that is in use is reported with its process."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port, free = taken.getsockname()[1], reserved.getsockname()[1]
        reserved.close()
        spec = stack({"port": port}, {"ports": {"other": free}})
        held, other = only(spec, f"port {port}"), only(spec, f"port {free}")

    assert ("missing", "ok") == (held.state, other.state)
    assert f"pid {os.getpid()} " in held.detail


def test_programs(tmp_path: Path) -> None:
    """Interpreters and commands are searched as in a boot. Those of containers and those from templates are not checked."""
    spec = stack(
        {"run": ["no-such-command", "--port"]},
        {"run": ["python"], "python": str(Path(sys.executable).parents[1])},
        {"run": ["python"], "python": "./nowhere"},
        {"run": ["{tool}"]},
        {"image": "engine:1", "run": ["neither-this"]},
        here=str(tmp_path),
        settings={"tool": "x"},
    )

    assert ["ok", "missing"] == [check.state for check in found(spec, "python")]
    assert [("missing", "no-such-command is not on the PATH"), ("ok", f"python: {sys.executable}")] == [
        check[1:3] for check in found(spec, "command")
    ]


def test_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables with secrets and keys are reported as set or missing, without their values."""
    monkeypatch.setenv("SHOP_KEY", "s3cret")
    monkeypatch.delenv("OTHER_KEY", raising=False)
    spec = stack({"secrets": ["SHOP_KEY", "OTHER_KEY"]}, {"secrets": ["SHOP_KEY"]})

    assert [Check("secret", "ok", "SHOP_KEY is set"), Check("secret", "missing", "OTHER_KEY is not set", "export OTHER_KEY=...")] == found(
        spec, "secret"
    )
    assert "ok" == only(UrlSpec(kind="url", name="u", url="http://127.0.0.1:9", api_key_env="SHOP_KEY"), "key").state
    assert "missing" == only(UrlSpec(kind="url", name="u", url="http://127.0.0.1:9", api_key_env="OTHER_KEY"), "key").state


def test_a_server_elsewhere() -> None:
    """The address of a server is reported as reachable or not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "ok" == only(UrlSpec(kind="url", name="u", url=f"http://127.0.0.1:{port}/v1"), "server").state
    gone = only(UrlSpec(kind="url", name="u", url="http://127.0.0.1:9/v1"), "server")

    assert ("missing", "no server answers at 127.0.0.1:9: Connection refused") == gone[1:3]


def test_weights(tmp_path: Path) -> None:
    """A model is complete, incomplete or missing in the hub's cache. A folder contains a model or does not. A bare name is not checked."""
    big = stack({}, model="org/big")
    snapshot = tmp_path / "hf/hub/models--org--big/snapshots/abc"

    assert ("missing", f"org/big is not in {tmp_path}/hf/hub", "agentbench weights get org/big") == only(big, "weights")[1:]
    assert ("unknown", "unknown") == (only(big, "token").state, only(big, "room").state)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    (snapshot / "1.safetensors").touch()
    assert "org/big was fetched in part: 2.safetensors and 0 more" in only(big, "weights").detail
    (snapshot / "2.safetensors").touch()
    assert Check("weights", "ok", str(snapshot)) == only(big, "weights")
    assert [] == found(big, "token")

    elsewhere = stack({"env": {"HF_HOME": str(tmp_path / "other")}}, model="org/big")
    assert f"org/big is not in {tmp_path}/other/hub" == only(elsewhere, "weights").detail
    assert "ok" == only(stack({}, model=str(snapshot)), "weights").state
    assert "missing" == only(stack({}, model="./nowhere", here=str(tmp_path)), "weights").state
    assert [] == found(stack({}, model="tiny"), "weights")


def test_room_for_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free disk space is compared with the size of the download, which comes from the name or the index of a model."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=67.7e9))  # free space of every folder

    large, small = stack({}, model="meta-llama/Llama-3.3-70B-Instruct"), stack({}, model="Qwen/Qwen3-8B")
    assert ("missing", f"67.7 GB free in {tmp_path}, and about 140 GB to download") == only(large, "room")[1:3]
    assert ("ok", f"67.7 GB free in {tmp_path}, and about 16 GB to download") == only(small, "room")[1:3]

    snapshot = tmp_path / "hf/hub/models--org--sharded/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    files = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}, "metadata": {"total_size": 70_000_000_000}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(files))
    in_part = stack({}, model="org/sharded")
    assert "missing" == only(in_part, "room").state
    with (snapshot / "1.safetensors").open("wb") as sparse:
        sparse.truncate(40_000_000_000)
    assert ("ok", "and about 30 GB to download") == (only(in_part, "room").state, only(in_part, "room").detail.partition(", ")[2])


@pytest.mark.parametrize(
    ("model", "gb"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 60.0),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", 405.0),
        ("org/Small-0.5B-AWQ", 0.25),
        ("org/named-otherwise", None),
    ],
)
def test_sizes_by_name(model: str, gb: float | None) -> None:
    """The size is estimated as two bytes for each parameter, or fewer if the name says so. Without a number there is no estimate."""
    assert gb == data_files.named_gb(model)


@pytest.mark.parametrize(("version", "state"), [("570.86.15", "missing"), ("580.65.06", "unknown"), ("610.1", "unknown")])
def test_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    """A driver too old for the CUDA of an environment is reported with the needed version. Paths of interpreters imply no version."""
    if gpus.library()[0] is not None:
        pytest.skip("there is a driver here, and what is tested is another one")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {version}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("AGENTBENCH_GPUS")

    packaged, own = only(stack({"gpus": 1, "python": "vllm"}), "driver"), only(stack({"gpus": 1}), "driver")
    assert (state, "unknown") == (packaged.state, own.state)
    assert (state == "missing") == ("built for CUDA 13, which needs 580 or newer" in packaged.detail)


def test_environments_with_cuda_name_their_driver() -> None:
    """Every environment with CUDA states the oldest driver, and so does the page."""
    page = (Path(__file__).parents[2] / "docs" / "backends/prepare.md").read_text()

    built = {name for name, spec in environments().items() if "CUDA" in spec.about}

    assert built == {name for name, spec in environments().items() if spec.driver}
    assert [] == [name for name in built if not re.search(rf"^\| `{name}` \|.*driver {environments()[name].driver}", page, re.MULTILINE)]


def test_the_container_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container toolkit is found by its runtime in the engine or by its programs."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert "ok" == toolkit_check({"nvidia": {}, "runc": {}}).state
    assert "missing" == toolkit_check({"runc": {}}).state


def test_no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Docker daemon that does not answer is named with its socket. A remote one is refused."""
    contained = stack({"image": "x"})

    gone, elsewhere = f"no Docker Engine answers at unix://{tmp_path}/docker.sock: [Errno 2]", "DOCKER_HOST is tcp://10.0.0.1:2375: "
    assert ("missing", gone) == (only(contained, "docker").state, only(contained, "docker").detail[: len(gone)])
    assert "install Docker and start it" in only(contained, "docker").detail
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    assert ("missing", elsewhere) == (only(contained, "docker").state, only(contained, "docker").detail[: len(elsewhere)])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench doctor` prints one line for each check, with advice. A named backend that lacks something is an error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/big.yaml").write_text(json.dumps({"services": {"engine": {"run": ["no-such-command"], "gpus": 8}}}))

    assert 1 == main(["doctor", "big", "embedded"])
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert {
        "big (stack)",
        "  ✗ command           no-such-command is not on the PATH",
        "  ✓ engine            comes with agentbench",
    } <= set(lines)
    assert "                      -> install it, or set `python:` to the environment that has it" in lines
    assert "agentbench: this machine lacks something that big needs; see the lines with ✗ above\n" == printed.err

    assert 4 == main(["doctor", "embedded", "nope"])
    printed = capsys.readouterr()
    assert "" == printed.out
    assert printed.err.startswith("agentbench: no backend 'nope'; known: big,")


def test_the_command_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments, this machine and the project's own backends are checked, including invalid ones.

    Shipped backends are only listed.
    """
    monkeypatch.chdir(tmp_path)

    assert 0 == main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert "this machine" == lines[0]
    assert ["python", "cores", "disk"] == [line.split()[1] for line in lines[1:4]]
    assert "this project has no backends/" in lines
    assert "embedded" in next(line for line in lines if line.startswith("not checked, ")).partition(": ")[2].split(", ")

    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/big.yaml").write_text(json.dumps({"services": {"engine": {"run": ["no-such-command"], "gpus": 8}}}))
    (tmp_path / "backends/far.yaml").write_text(json.dumps({"kind": "url", "url": "http://127.0.0.1:9/v1"}))
    (tmp_path / "backends/bad.yaml").write_text("colour: red")

    assert 0 == main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert ["this machine", "bad", "big (stack)", "far (url)"] == [line for line in lines if line[0] != " " and ": " not in line]
    assert "nothing is missing for: far" in lines
    assert any("is only checked if the backend is named" in line for line in lines)
    assert "far" not in next(line for line in lines if line.startswith("not checked, "))


@pytest.mark.parametrize(
    ("name", "environments"),
    [
        ("vllm-default-router", {"vllm", "thunderagent"}),
        ("vllm-continuum", {"vllm-continuum", "thunderagent"}),
        ("thunderagent", {"vllm", "thunderagent"}),
        ("thunderagent-no-decay", {"vllm", "thunderagent"}),
        ("dynamo-thunderagent", {"dynamo-vllm"}),
    ],
)
def test_methods_of_the_paper(name: str, environments: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without GPUs, each shipped backend says which environments, GPUs and weights are missing, and how to get them."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(tmp_path))
    lacking = [check for check in checks(load_backend(name, tmp_path)) if check.state == "missing"]

    said = " ".join(f"{check.detail} {check.fix}" for check in lacking)
    assert environments == {*re.findall(r"agentbench env create ([\w-]+)", said)}
