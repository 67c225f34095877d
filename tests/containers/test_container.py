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


def test_one_that_ends(engine: Any, run: Run) -> None:
    """Its exit code is told, both of its streams are in the log, and after `stop` nothing is left of it."""
    container = run("echo out; echo err >&2; exit 7")
    container.start()

    assert 7 == container.wait() == container.exit_code()
    container.stop(1)
    container.stop(1)
    assert 7 == container.wait() == container.exit_code()
    assert ["err", "out"] == sorted(said(container.log))
    assert [] == engine.containers.list(all=True, filters={"label": f"{LABEL}=t"})


def test_one_that_runs(engine: Any, run: Run) -> None:
    """While it runs it has no exit code; on the host it is a process under docker-init; labels and name tell whose it is."""
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
    """A service that ends on SIGTERM ends in its own way, and its last words are in the log."""
    container = run(f"trap 'echo bye; exit 3' TERM; echo up; {FOREVER}")
    container.start()
    wait_for(lambda: said(container.log), "a line in its log")
    container.stop(30)

    assert 3 == container.exit_code()
    assert ["up", "bye"] == said(container.log)


def test_sigkill_comes_last(engine: Any, run: Run) -> None:
    """A service that does not listen is killed when its grace is over."""
    container = run(f"trap 'echo no' TERM; echo up; {FOREVER}")
    container.start()
    wait_for(lambda: said(container.log), "a line in its log")
    container.stop(0.2)

    assert 137 == container.exit_code()
    assert ["up", "no"] == said(container.log)


def test_waiting_ends_with_the_container(engine: Any, run: Run) -> None:
    """Who waits for a container in a thread is told when another one stops it."""
    container = run(FOREVER)
    container.start()
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(container.wait()))
    waiting.start()
    container.stop(30)
    waiting.join(10)

    assert [143] == codes


def test_one_that_somebody_removed(engine: Any, run: Run) -> None:
    """It counts as ended, and stopping it is no error."""
    container = run(FOREVER)
    container.start()
    engine.containers.get("service").remove(force=True)

    assert -1 == container.exit_code() == container.wait()
    container.stop(1)


def test_started_again(engine: Any, run: Run) -> None:
    """The same service can be started once more; its log goes on."""
    container = run("echo up; exit 1")
    container.start()
    container.wait()
    container.start()

    assert 1 == container.wait()
    container.stop(0)
    assert ["up", "up"] == said(container.log)


def test_what_it_is_given(engine: Any, run: Run, tmp_path: Path) -> None:
    """Environment, user, folder, mounts, shared memory, limits and entrypoint of the YAML are those of the container."""
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
    """A port of the service is a port of this machine."""
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
    """The value of an environment variable is neither in the text for errors, nor in the error, nor on the host's command line."""
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
    """It ends at once with the shell's exit code, and its log says why."""
    container = run(["no-such-program"])
    container.start()

    assert 127 == container.wait()
    container.stop(0)
    assert ["exec no-such-program failed: No such file or directory"] == [line.partition("] ")[2] for line in said(container.log)]


def test_health_is_the_images_own(engine: Any, run: Run) -> None:
    """A HEALTHCHECK is asked for; an image without one has no health."""
    put_image(engine, "pytest-agentbench/busybox:checked", "HEALTHCHECK --interval=100ms CMD true")
    checked, unchecked = run(FOREVER, image="pytest-agentbench/busybox:checked", name="checked"), run(FOREVER, name="unchecked")
    checked.start()
    unchecked.start()

    wait_for(lambda: checked.health() == "healthy", "its health")
    assert unchecked.health() is None
    checked.stop(0)
    assert checked.health() is None
    engine.images.remove("pytest-agentbench/busybox:checked")
