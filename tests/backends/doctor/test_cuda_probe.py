"""The CUDA probe of `agentbench doctor --probe`, with a libcuda that returns the wanted error codes.

It is a real shared library with the symbols of libcuda, compiled here, which the environment of the probed service finds by
LD_LIBRARY_PATH. The calls and their error codes pass through the same loader and the same program as those of a real driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.doctor import cuda_call
from pytest_agentbench.backends.doctor.check import Check
from pytest_agentbench.backends.doctor.cuda_probe import kernel_module, probe_checks
from pytest_agentbench.backends.embedded import EmbeddedSpec
from pytest_agentbench.backends.machine.cuda_errors import CUDA_ERRORS
from pytest_agentbench.backends.machine.gpus import lease
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.cli import main

pytestmark = pytest.mark.timeout(120)

MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16 21:46:24 UTC 2025\nGCC version:  gcc 12.3.0\n"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the compiled libraries, of which libcuda is a link to a file with a version, as drivers have it."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("NOT TESTED: the CUDA probe; it takes a C compiler (Debian: gcc)")
    folder = tmp_path_factory.mktemp("cuda")
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.580.65.06", source], check=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    return folder


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "4,5")
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for folder in ("dev", "proc"):
        (tmp_path / folder).mkdir()


def stack(services: dict[str, dict[str, Any]]) -> StackKind:
    return StackKind.model_validate({"name": "mine", "services": services})


def probed(tmp_path: Path, env: dict[str, str], **service: Any) -> Check:
    """Probes a stack with one service that needs a GPU. Returns its check."""
    services = {"engine": {"run": ["serve"], "gpus": 1, "env": env, **service}, "front": {"run": ["x"]}}
    spec = stack(services)
    (check,) = probe_checks(spec, tmp_path / "dev", tmp_path / "proc")
    return check


def failing(libraries: Path, call: str, code: int) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(libraries), "FAKE_CUDA": f"{call}={code}"}


def test_a_gpu_that_works(tmp_path: Path, libraries: Path) -> None:
    """A context on a leased GPU is `ok`, with the name of the GPU and the CUDA version of the driver. Nothing stays leased."""
    good = {"LD_LIBRARY_PATH": str(libraries)}

    assert Check("CUDA", "ok", "engine, GPU 4 (FAKE GPU): works; the driver supports CUDA 12.8") == probed(tmp_path, good)
    assert "engine, GPU 5 (FAKE GPU): works" in probed(tmp_path, good, gpus=[5]).detail
    with lease(2, stack="another stack") as taken:
        busy = probed(tmp_path, good)
    assert ("4", "5") == taken.ids
    assert "unknown" == busy.state
    assert busy.detail.startswith("engine: not probed: the probe of mine needs 1 GPU, and too few are free: ")


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDevicePrimaryCtxRetain"])
def test_each_call_is_checked(tmp_path: Path, libraries: Path, call: str) -> None:
    """An error of any of the calls is reported with the name of the call, the code, its meaning and its remedy."""
    check = probed(tmp_path, failing(libraries, call, 214))

    assert "missing" == check.state
    assert f"engine, GPU 4: {call} failed with error 214 (ECC uncorrectable): {CUDA_ERRORS[214].meaning}" == check.detail
    assert CUDA_ERRORS[214].remedy == check.fix


def test_no_driver(tmp_path: Path) -> None:
    """Without a libcuda, the probe says that there is no driver, even if no GPU of this machine is known."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver here, and what is tested is its absence")
    check = probed(tmp_path, {})

    assert ("missing", True) == (check.state, "engine, GPU 4: there is no NVIDIA driver: libcuda.so.1: " in check.detail)
    assert check.fix.startswith("install the NVIDIA driver")


def test_no_gpu(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists no GPU is error 100. If this machine knows of no GPU, GPU 0 is tried without a lease."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "")
    check = probed(tmp_path, {"LD_LIBRARY_PATH": str(libraries), "FAKE_NO_GPU": "1"})

    assert "engine, GPU 0: cuDeviceGet failed with error 100 (no device): the driver sees no GPU" == check.detail
    assert not (tmp_path / "locks").exists()


def test_the_fabric_manager(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 802 is explained by a fabric manager that does not run, or whose version is not that of the driver, or by its own state."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program, not_ready = tmp_path / "nv-fabricmanager", failing(libraries, "cuInit", 802)

    absent = probed(tmp_path, not_ready)
    assert "cuInit failed with error 802 (system not yet initialized)" in absent.detail
    assert absent.detail.endswith("this machine shows no NVSwitch devices, and no fabric manager is visible")
    assert "systemctl start nvidia-fabricmanager" in absent.fix
    (tmp_path / "dev/nvidia-nvswitch0").touch()
    assert "this machine has NVSwitch devices, and no fabric manager is visible" in probed(tmp_path, not_ready).detail

    (tmp_path / "proc/42").mkdir()
    (tmp_path / "proc/42/comm").write_text("nv-fabricmanage\n")
    assert probed(tmp_path, not_ready).detail.endswith("; a fabric manager runs")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(MODULE)
    program.write_text("#!/bin/sh\necho 'Fabric Manager version is : 565.57.01'\n")
    program.chmod(0o755)
    other = probed(tmp_path, not_ready)
    assert other.detail.endswith("the fabric manager is 565.57.01, and the driver is 570.86.15")
    assert other.fix.startswith("install the fabric manager of version 570.86.15")
    program.write_text("#!/bin/sh\necho 'Fabric Manager version is : 570.86.15'\n")
    same = probed(tmp_path, not_ready)
    assert same.detail.endswith("a fabric manager runs (570.86.15, like the driver)")
    assert "shows the state of the fabric" in same.fix


def test_driver_and_library_of_other_versions(tmp_path: Path, libraries: Path) -> None:
    """Error 803 names the version of the kernel module, and the libcuda that was loaded with the version in its name."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(MODULE)
    check = probed(tmp_path, failing(libraries, "cuInit", 803))

    library = (libraries / "libcuda.so.580.65.06").resolve()
    assert check.detail.endswith(f"; the kernel module is 570.86.15, and the libcuda is 580.65.06 ({library})")
    assert check.fix.startswith("restart the machine (or the container)")


def test_the_version_of_the_open_kernel_module(tmp_path: Path) -> None:
    """The number of the architecture in the line of the open kernel module is not taken for its version."""
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")

    assert ("580.65.06", "") == (kernel_module(tmp_path), kernel_module(tmp_path / "nowhere"))


def test_a_runtime_that_is_newer_than_the_driver(tmp_path: Path, libraries: Path) -> None:
    """The CUDA runtime among the packages of the service's own environment is initialised, too. Error 35 names both versions."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    folder = next(home.glob("lib/python3*/site-packages")) / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(libraries / "libcuda.so.1", folder / "libcudart.so.13")

    works = probed(tmp_path, {"LD_LIBRARY_PATH": str(libraries)}, python=str(home))
    assert works.detail.endswith("the driver supports CUDA 12.8, the environment's runtime CUDA 13.0")
    check = probed(tmp_path, failing(libraries, "cudaFree", 35), python=str(home))
    assert "cudaFree failed with error 35 (insufficient driver)" in check.detail
    assert check.detail.endswith(f"the driver supports CUDA 12.8, and {folder / 'libcudart.so.13'} is CUDA 13.0")


def test_a_call_that_ends_its_process(tmp_path: Path, libraries: Path) -> None:
    """A probe whose process is killed is reported with its exit code. An environment that does not exist is no failure of CUDA."""
    crashed = probed(tmp_path, {"LD_LIBRARY_PATH": str(libraries), "FAKE_CRASH": "1"})
    assert ("missing", "engine, GPU 4: the call ended its process (exit code -6)") == crashed[1:3]
    without = probed(tmp_path, {}, python="./nowhere")
    assert ("unknown", "engine: not probed: ") == (without.state, without.detail[: len("engine: not probed: ")])


def test_backends_without_gpus_here(tmp_path: Path) -> None:
    """Other kinds, stacks without GPUs and services on other machines are not probed, and each says so."""
    on_hosts = {"run": ["vllm", "serve"], "on": {"slurm": {"hosts": 2, "gpus": 8}}, "port": 8000}
    specs = (
        EmbeddedSpec(kind="embedded", name="e"),
        stack({"s": {"run": ["x"]}}),
        stack({"s": on_hosts}),
    )

    assert [("ok", "not probed,"), ("ok", "no service "), ("unknown", "s: runs on ")] == [
        (check.state, check.detail[:11]) for spec in specs for check in probe_checks(spec)
    ]


def test_the_command(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --probe, the check is a line after the others, and an error of CUDA is exit status 1. Without it, nothing is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        f"services:\n  engine: {{run: [{sys.executable}], gpus: 1, env: {{LD_LIBRARY_PATH: {libraries}, FAKE_CUDA: 'cuInit=802'}}}}\n"
    )

    assert 0 == main(["doctor", "mine.yaml"])
    assert "CUDA" not in capsys.readouterr().out
    assert 1 == main(["doctor", "--probe", "mine.yaml"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("  ✗ CUDA              engine, GPU 4: cuInit failed with error 802")
    assert lines[-1].strip().startswith("-> GPUs behind an NVSwitch need the fabric manager")
    assert 4 == main(["doctor", "--probe"])
    assert "--probe needs the name or the YAML file of a backend" in capsys.readouterr().err


def test_the_program_needs_no_packages() -> None:
    """The program of the probe imports only modules that every Python has, because an image may have another version without packages."""
    code = f"import runpy, sys; before = {{*sys.modules}}; runpy.run_path({cuda_call.__file__!r}); print(*({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=True)

    assert {each.partition(".")[0] for each in done.stdout.split()} <= sys.stdlib_module_names
