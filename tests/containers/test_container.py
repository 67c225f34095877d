"""Services in containers, on a real Docker Engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack.ownership import LABEL
from pytest_agentbench.backends.stack.spec import ContainerSpec
from pytest_agentbench.errors import BackendError
from tests.containers.conftest import Run, put_image
from tests.servers.real_server import ask, free_port
from tests.waits import wait_for

pytestmark = pytest.mark.slow

FOREVER = "while true; do sleep 0.05; done"


def said(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_container_that_ends(engine: Any, run: Run) -> None:
    """The exit code is returned, both output streams are in the log, and after `stop` the container is removed."""
    container = run("echo out; echo err >&2; exit 7")
    container.start()

    assert 7 == container.wait() == container.exit_code()
    container.stop(1)
    container.stop(1)
    assert 7 == container.wait() == container.exit_code()
    assert ["err", "out"] == sorted(said(container.log))
    assert [] == engine.containers.list(all=True, filters={"label": f"{LABEL}=t"})


def test_a_running_container(engine: Any, run: Run) -> None:
    """A running container has no exit code. On the host it is a process under docker-init, and its labels and name identify its owner."""
    container = run(FOREVER, labels={LABEL: "t", "pytest-agentbench.service": "worker"}, name="agentbench-t-worker 1")
    container.start()
    (listed,) = engine.containers.list(filters={"label": f"{LABEL}=t"})

    assert container.exit_code() is None
    assert "docker-init" in Path(f"/proc/{container.pid}/cmdline").read_text()
    assert "agentbench-t-worker-1" == listed.name
    assert {LABEL: "t", "pytest-agentbench.service": "worker"} == listed.labels
    assert f"pytest-agentbench/busybox:test: sh -c '{FOREVER}'" == container.command
    container.stop(30)
    assert 143 == container.exit_code()


def test_sigterm_comes_first(engine: Any, run: Run) -> None:
    """A service that handles SIGTERM ends in its own way, and its last output is in the log."""
    container = run(f"trap 'echo bye; exit 3' TERM; echo up; {FOREVER}")
    container.start()
    wait_for(lambda: said(container.log), "a line in its log")
    container.stop(30)

    assert 3 == container.exit_code()
    assert ["up", "bye"] == said(container.log)


def test_sigkill_comes_last(engine: Any, run: Run) -> None:
    """A service that ignores SIGTERM is killed when its grace period is over."""
    container = run(f"trap 'echo no' TERM; echo up; {FOREVER}")
    container.start()
    wait_for(lambda: said(container.log), "a line in its log")
    container.stop(0.2)

    assert 137 == container.exit_code()
    assert ["up", "no"] == said(container.log)


def test_waiting_ends_with_the_container(engine: Any, run: Run) -> None:
    """If a thread waits for a container and another one stops it, the waiting thread gets the exit code."""
    container = run(FOREVER)
    container.start()
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(container.wait()))
    waiting.start()
    container.stop(30)
    waiting.join(10)

    assert [143] == codes


def test_a_removed_container(engine: Any, run: Run) -> None:
    """A container that was removed from outside counts as ended, and stopping it is not an error."""
    container = run(FOREVER)
    container.start()
    engine.containers.get("service").remove(force=True)

    assert -1 == container.exit_code() == container.wait()
    container.stop(1)


def test_started_again(engine: Any, run: Run) -> None:
    """A service can be started again, and its log is continued."""
    container = run("echo up; exit 1")
    container.start()
    container.wait()
    container.start()

    assert 1 == container.wait()
    container.stop(0)
    assert ["up", "up"] == said(container.log)


def test_settings_of_a_container(engine: Any, run: Run, tmp_path: Path) -> None:
    """Environment, user, folder, mounts, shared memory, limits and entrypoint of the YAML apply to the container."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}\n")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o777)
    spec = ContainerSpec(
        user="1234:5678",
        shm_size="8m",
        memory="64m",
        ulimits={"nofile": 1234, "core": 0},
        mounts={str(tmp_path / "weights"): "/weights:ro", str(tmp_path / "scratch"): "/scratch"},
        entrypoint=["sh", "-c"],
    )
    script = (
        "exec 2>&1; echo $GREETING; id -u; id -g; pwd; ulimit -n; ulimit -c; df -m /dev/shm; "
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes "
        "/sys/fs/cgroup/memory.max 2>/dev/null; cat /weights/config.json; touch /scratch/made; touch /weights/made"
    )
    container = run([script], spec=spec, env={"GREETING": "hello"}, cwd="/tmp")
    container.start()

    assert 1 == container.wait()
    container.stop(0)
    lines = said(container.log)
    assert ["hello", "1234", "5678", "/tmp", "1234", "0"] == lines[:6]
    assert "8" == lines[7].split()[1]
    assert [str(64 << 20), "{}", "touch: /weights/made: Read-only file system"] == lines[8:]
    assert (tmp_path / "scratch" / "made").exists()


def test_the_network_is_the_hosts(engine: Any, run: Run) -> None:
    """Containers use the host's network, so a port of the service is a port of this machine."""
    port = free_port()
    container = run(f"echo fine > /tmp/health; exec httpd -f -v -h /tmp -p 127.0.0.1:{port}")
    container.start()
    wait_for(lambda: _answers(port), "an answer")

    assert container.exit_code() is None


def _answers(port: int) -> bool:
    try:
        ask(f"http://127.0.0.1:{port}/health", {})
    except OSError:
        return False
    return True


def test_secrets_stay_inside(engine: Any, run: Run) -> None:
    """The value of an environment variable is not in the command for messages, in an error, or on the host's command line."""
    container = run(FOREVER, env={"HF_TOKEN": "hf_of_the_test"})
    container.start()

    assert "hf_of_the_test" not in container.command
    assert "hf_of_the_test" not in Path(f"/proc/{container.pid}/cmdline").read_text()
    broken = run("true", name="broken", env={"HF_TOKEN": "hf_of_the_test"}, spec=ContainerSpec(user="nobody-here"))
    with pytest.raises(BackendError, match="unable to find user nobody-here") as raised:
        broken.start()
    assert "hf_of_the_test" not in str(raised.value)
    assert ["service"] == [each.name for each in engine.containers.list(all=True, filters={"label": f"{LABEL}=t"})]


def test_a_command_that_is_not_there(engine: Any, run: Run) -> None:
    """A command that does not exist ends at once with the shell's exit code, and the log has the reason."""
    container = run(["no-such-program"])
    container.start()

    assert 127 == container.wait()
    container.stop(0)
    assert ["exec no-such-program failed: No such file or directory"] == [line.partition("] ")[2] for line in said(container.log)]


def test_health_is_the_images_own(engine: Any, run: Run) -> None:
    """The health of a container is that of the image's HEALTHCHECK. An image without one has no health."""
    put_image(engine, "pytest-agentbench/busybox:checked", "HEALTHCHECK --interval=100ms CMD true")
    checked, unchecked = run(FOREVER, image="pytest-agentbench/busybox:checked", name="checked"), run(FOREVER, name="unchecked")
    checked.start()
    unchecked.start()

    wait_for(lambda: checked.health() == "healthy", "its health")
    assert unchecked.health() is None
    checked.stop(0)
    assert checked.health() is None
    engine.images.remove("pytest-agentbench/busybox:checked")
