"""Stacks with a service in a container: started, watched and stopped by a stack daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import MissingError
from tests.containers.conftest import IMAGE, put_image
from tests.dockerd import OwnEngine

pytestmark = pytest.mark.slow

SERVICE = Path(__file__).parents[1] / "backends" / "service.py"

#: A web server in a container, and a front that needs it.
SERVICES: dict[str, Any] = {
    "helper": {
        "image": "{image}",
        "container": {"pull": "never", "mounts": {"{run_dir}": "/data"}},
        "run": ["sh", "-c", "echo $GREETING; echo fine > /data/health; exec httpd -f -h /data -p 127.0.0.1:{port}"],
        "env": {"GREETING": "hello from {helper.url}"},
        "ready": {"http": "/health", "says": "fine"},
    },
    "front": {"run": [sys.executable, str(SERVICE), "--port", "{port}"], "ready": {"http": "/health"}, "after": ["helper"]},
}

Boot = Callable[[], registry.HeldStack]


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boot]:
    """Returns a function that boots such a stack, which is stopped at the end."""
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    started: list[registry.HeldStack] = []

    def start() -> registry.HeldStack:
        spec = StackSpec(name="boxed", model="tiny", here=str(tmp_path), services=SERVICES, settings={"image": IMAGE})
        started.append(registry.start(spec, tmp_path / "logs", gpu_wait=0, warm_up=0))
        started[-1].ready()
        return started[-1]

    yield start
    for held in started:
        held.stop()


def test_a_stack_with_a_container(engine: Any, boot: Boot, tmp_path: Path) -> None:
    """The container has the label of its stack, writes its log to the run's folder, and is removed when the stack ends."""
    held = boot()
    (listed,) = engine.containers.list(filters={"label": LABEL})
    held.stop()

    assert str(held.home) == listed.labels[LABEL]
    assert f"agentbench-{held.home.name}-helper" == listed.name
    assert (tmp_path / "logs" / "helper.log").read_text().startswith("hello from http://127.0.0.1:")
    assert [] == engine.containers.list(all=True, filters={"label": LABEL})


def test_an_image_that_checks_itself(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `ready`, a container is ready when its HEALTHCHECK says so. Services that need it start after that."""
    image = "pytest-agentbench/busybox:slow"
    put_image(engine, image, "HEALTHCHECK --interval=100ms CMD test -f /tmp/up")
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    helper = {"image": image, "container": {"pull": "never"}, "run": ["sh", "-c", "sleep 1; touch /tmp/up; sleep 600"], "grace": 0.1}
    services = {"helper": helper, "front": SERVICES["front"]}
    held = registry.start(
        StackSpec(name="boxed", model="tiny", here=str(tmp_path), services=services), tmp_path / "logs", gpu_wait=0, warm_up=0
    )
    held.ready()
    held.stop()
    engine.images.remove(image)
    log = (tmp_path / "logs" / "stack_daemon.log").read_text()

    assert log.index("starting helper") < log.index("helper is ready: it runs") < log.index("starting front")


def test_a_container_that_dies(engine: Any, boot: Boot) -> None:
    """If a container dies, the stack ends with an error that has the image, the exit code and the end of the log."""
    held = boot()
    (listed,) = engine.containers.list(filters={"label": LABEL})
    listed.kill()
    reason = held.death()
    held.stop()

    assert reason is not None
    assert reason.startswith(f"helper ended with exit code 137: `{IMAGE}: sh -c ")
    assert "    hello from http://127.0.0.1:" in reason


def test_an_engine_that_dies(own_engine: OwnEngine, boot: Boot, tmp_path: Path) -> None:
    """If the engine dies, the other services are stopped, the log names the container that was not, and a later cleanup removes it."""
    held = boot()
    own_engine.kill()
    held.stop()
    log = (tmp_path / "logs" / "stack_daemon.log").read_text()
    own_engine.start()
    reaped = registry.clean_up()

    assert f"agentbench-{held.home.name}-helper: container " in log
    assert "cannot be stopped" in log
    assert "front ended with" in log
    assert [(str(held.home), [f"container agentbench-{held.home.name}-helper"])] == reaped


def test_containers_without_gpus(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing requirement for GPUs is reported as missing, even if it only becomes known when the container starts."""
    if "nvidia" in engine.info()["Runtimes"]:
        pytest.skip("NOT TESTED: this engine gives GPUs to containers")
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    monkeypatch.setenv("AGENTBENCH_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    boxed: Any = {"engine": {"image": IMAGE, "container": {"pull": "never"}, "run": ["sleep", "60"], "gpus": 1}}
    held = registry.start(StackSpec(name="boxed", services=boxed), tmp_path / "logs", gpu_wait=0, warm_up=0)

    with pytest.raises(MissingError, match="containers get GPUs from the NVIDIA Container Toolkit"):
        held.ready()
    held.stop()
