"""The CUDA probe of `agentbench doctor --probe` in containers of a real Docker Engine, which has no NVIDIA Container Toolkit."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.doctor import cuda_call
from pytest_agentbench.backends.doctor.cuda_probe import probe_checks, probe_unit
from pytest_agentbench.backends.stack.docker_engine import TOOLKIT
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.ownership import LABEL
from tests import python_image
from tests.containers.conftest import IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WITH_PYTHON = "pytest-agentbench/probe:test"
SOURCE = Path(__file__).parents[1] / "backends" / "doctor" / "fake_cuda.c"


@pytest.fixture
def image(engine: Any, tmp_path: Path) -> Iterator[str]:
    """Yields an image with Python, and with libcuda and libcudart that return wanted error codes."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("NOT TESTED: the CUDA probe in an image; it takes a C compiler (Debian: gcc)")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    content = io.BytesIO(python_image.root())
    with tarfile.open(fileobj=content, mode="a") as archive:
        for name in ("opt/cuda/libcuda.so.1", "usr/local/cuda/lib64/libcudart.so.13"):
            archive.add(library, name)
    repository, _, tag = WITH_PYTHON.partition(":")
    engine.api.import_image_from_data(content.getvalue(), repository=repository, tag=tag, changes=[*python_image.SETTINGS])
    yield WITH_PYTHON
    engine.images.remove(WITH_PYTHON, force=True)


def stack(image: str, **service: Any) -> StackKind:
    return StackKind.model_validate({"name": "mine", "services": {"engine": {"image": image, "gpus": 1, **service}}})


def test_no_toolkit(engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If Docker cannot give a GPU to a container, the check says how to install the toolkit. An absent image is not pulled."""
    if "nvidia" in engine.info().get("Runtimes", {}):
        pytest.skip("NOT TESTED: a Docker Engine without the NVIDIA Container Toolkit, because this one has it")
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    (refused,) = probe_checks(stack(IMAGE))
    (absent,) = probe_checks(stack("org/nowhere:1"))

    assert "missing" == refused.state
    assert "pytest-agentbench/busybox:test cannot be started: could not select device driver" in refused.detail
    assert TOOLKIT in refused.detail
    assert ("unknown", "docker pull org/nowhere:1") == (absent.state, absent.fix)
    assert [] == engine.containers.list(all=True, filters={"label": LABEL})


def test_the_program_in_an_image(image: str, tmp_path: Path) -> None:
    """The program runs in the image with the variables of the service, and initialises the image's CUDA runtime, too.

    An entrypoint is kept if it starts Python, otherwise python3 replaces it. The container sees no GPU, because this engine has none.
    """
    env = {"LD_LIBRARY_PATH": "/opt/cuda", "FAKE_CUDA": "cudaFree=35"}
    commands: list[tuple[list[str], list[str] | None]] = [([], None), (["model"], ["no-such-program"]), (["python3", "-m", "x"], ["env"])]
    for number, (run, entrypoint) in enumerate(commands):
        spec = stack(image, run=run, container={"entrypoint": entrypoint}, env=env)
        unit = probe_unit(spec, tmp_path / str(number), "engine", [])
        try:
            unit.start()
            code = unit.wait()
        finally:
            unit.stop(0)

        assert 0 == code
        log = unit.log.read_text()
        assert log.startswith(cuda_call.LINE)
        assert '"step": "cudaFree", "code": 35' in log
        assert '"runtime_file": "/usr/local/cuda/lib64/libcudart.so.13"' in log
