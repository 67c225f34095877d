"""Errors if a container cannot be started."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack.docker_engine import connect
from pytest_agentbench.backends.stack.ownership import LABEL, leftovers
from pytest_agentbench.backends.stack.spec import ContainerSpec
from pytest_agentbench.errors import BackendError
from tests.containers import images
from tests.containers.conftest import Run
from tests.dockerd import OwnEngine

pytestmark = pytest.mark.slow


def refusal(run: Run, *arguments: Any, **values: Any) -> str:
    with pytest.raises(BackendError) as raised:
        run(*arguments, **values).start()
    return str(raised.value)


def _dead(stack: str) -> bool:
    return False


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    """If no engine answers, the error has the address and what to do. There are no leftovers."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    said = refusal(run, "true")

    assert said.startswith(f"no Docker Engine answers at unix://{tmp_path}/none.sock: ")
    assert said.endswith("(install Docker and start it (`sudo systemctl start docker`), or set DOCKER_HOST)")
    assert [] == leftovers(_dead)


def test_an_engine_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine on another machine is refused, because the ports of its containers would be on that machine."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu-box:2375")

    with pytest.raises(BackendError, match=r"DOCKER_HOST is tcp://gpu-box:2375: .* Docker has to run on this machine"):
        connect()


def test_an_image_is_pulled_when_it_is_missing(engine: Any, run: Run) -> None:
    """A missing image is pulled from its registry, with progress. The next start does not pull it again."""
    lines: list[str] = []
    with images.registry("tools/busybox") as host:
        image = f"{host}/tools/busybox:1"
        first = run("echo up", image=image, on_progress=lines.append)
        first.start()
    second = run("echo up", image=image, name="second", on_progress=lines.append)
    second.start()

    assert 0 == first.wait() == second.wait()
    ends = [re.sub(r"in \d+ s", "in 0 s", line) for line in lines if " MB in " not in line]  # a slow machine prints intermediate lines
    assert [f"pulling {image}", f"pulled {image} in 0 s"] == ends
    first.stop(0)
    second.stop(0)
    engine.images.remove(image)


def test_an_image_that_is_nowhere(engine: Any, run: Run) -> None:
    """A wrong tag, a private image, a registry that does not answer, and `pull: never` have different advice in their errors."""
    with images.registry("tools/busybox") as host:
        wrong = refusal(run, "true", image=f"{host}/tools/busybox:2")
        private = refusal(run, "true", image=f"{host}/tools/private:1")
    gone = refusal(run, "true", image=f"{host}/tools/busybox:1")
    never = refusal(run, "true", image="tools/none:1", spec=ContainerSpec(pull="never"))

    assert wrong.startswith(f"image {host}/tools/busybox:2: ")
    assert wrong.endswith("(check the name and the tag under `image:`)")
    assert "`docker login`" in private
    assert gone.endswith("(its registry cannot be reached from here; `docker load` imports an image from a file)")
    assert (
        "image tools/none:1 is not on this machine, and `pull: never` forbids pulling it; get it with `docker pull` or `docker load`"
        == never
    )


def test_a_mount_of_nothing(engine: Any, run: Run, tmp_path: Path) -> None:
    """A mount of a missing folder is refused, because Docker would create an empty one."""
    said = refusal(run, "true", spec=ContainerSpec(mounts={f"{tmp_path}/none": "/data"}))

    assert f"service: {tmp_path}/none is mounted into the container and does not exist; create it, or change `container.mounts`" == said
    assert not (tmp_path / "none").exists()


def test_gpus_without_the_toolkit(engine: Any, run: Run) -> None:
    """If the NVIDIA Container Toolkit is missing, the error names it, and no container is left."""
    if any("nvidia" in runtime for runtime in engine.info()["Runtimes"]):
        pytest.skip("this engine has the NVIDIA Container Toolkit")
    said = refusal(run, "true", gpu_ids=["0", "1"])

    assert said.startswith("service: pytest-agentbench/busybox:test cannot be started: could not select device driver")
    assert "`sudo nvidia-ctk runtime configure --runtime=docker`" in said
    assert [] == engine.containers.list(all=True, filters={"label": f"{LABEL}=t"})


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of the client without a server
def test_an_engine_that_is_started_again(own_engine: OwnEngine, run: Run) -> None:
    """A container survives when its engine is killed, and ends with the next engine.

    In between, stopping it raises an error with the reason.
    """
    container = run("while true; do sleep 0.05; done")
    container.start()
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(container.wait()))
    waiting.start()
    own_engine.kill()

    assert container.exit_code() is None
    assert container.health() is None
    with pytest.raises(BackendError, match=r"service: container .* cannot be stopped: "):
        container.stop(1)
    own_engine.start()
    waiting.join(30)
    assert codes in ([143], [137])  # the new engine sends SIGTERM, and does not wait forever
    container.stop(1)
    assert [] == leftovers(_dead)
    gc.collect()
