"""Limits and isolation of sandboxes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.sandbox.containers import DEADLINE, OWNER, ROLLOUT, RUN, end_run, labels, options
from tests.sandbox.conftest import IMAGE, KEY, Open, listed, task
from tests.waits import wait_for

pytestmark = pytest.mark.slow


async def test_limits(engine: Any, opened: Open) -> None:
    """Memory, swap, CPU, processes and file sizes are limited.

    A process that takes too much memory is killed alone, and a command that fills the memory with small programs fails.
    """
    read = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; ulimit -f; ulimit -c"
    async with opened(memory_mb=64, storage_mb=16, cpus=0.5) as sandbox:
        (container,) = listed(engine)
        said = await sandbox.exec(read, seconds=10)
        large = await sandbox.exec("head -c 20000000 /dev/zero > /app/large; stat -c %s /app/large", seconds=20)
        greedy = await sandbox.exec("head -c 200000000 /dev/zero | tail; echo after", seconds=30)
        full = await sandbox.exec("for i in {1..600}; do sleep 30 & done >/dev/null 2>&1; kill -9 $$", seconds=20)
        await sandbox.end_processes()
        alive = await sandbox.exec("echo alive", seconds=10)

    given = container.attrs["HostConfig"]
    assert (512, 500_000_000, 64 << 20) == (given["PidsLimit"], given["NanoCpus"], given["MemorySwap"])
    assert ("none", ["NONE"]) == (
        given["LogConfig"]["Type"],
        container.attrs["Config"]["Healthcheck"]["Test"],
    )  # no log of the engine grows, and no health check runs
    assert full.exit_code in (137, None)  # not an infra error, which an agent could cause to avoid a 0
    assert [str(64 << 20), "16384", "0"] == said.output.split()
    assert large.output.endswith(f"{16 << 20}\n")
    assert greedy.output.endswith("after\n")
    assert greedy.omitted == 0
    assert "alive\n" == alive.output


async def test_no_network(opened: Open) -> None:
    """With `no-network`, a sandbox has only loopback."""
    async with opened() as sandbox:
        said = await sandbox.exec("cat /proc/net/dev | tail -n +3 | cut -d : -f 1", seconds=10)

    assert ["lo"] == said.output.split()


async def test_isolation_from_the_host(engine: Any, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment, folders and proxies of the host are not visible, and there are no privileges for an escape."""
    monkeypatch.setenv("AGENTBENCH_CANARY", "sings")
    monkeypatch.setenv("HTTPS_PROXY", "http://canary:9")
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpsProxy": "http://canary:9"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    async with opened(env={"GIVEN": "1"}) as sandbox:
        (container,) = listed(engine)
        variables = await sandbox.exec("env | cut -d = -f 1 | sort | tr '\\n' ' '; env | grep -i -e canary", seconds=10)
        first = await sandbox.exec("tr '\\0' '\\n' < /proc/1/environ | cut -d = -f 1 | sort | tr '\\n' ' '", seconds=10)
        name = await sandbox.exec("cat /proc/sys/kernel/hostname", seconds=10)
        privileges = await sandbox.exec("grep -e NoNewPrivs -e CapBnd /proc/self/status", seconds=10)

    assert "AGENTBENCH_COMMAND GIVEN HOME HOSTNAME PATH PWD SHLVL _" == variables.output.strip()
    assert "GIVEN HOME HOSTNAME PATH" == first.output.strip().replace(" PWD", "").replace(" SHLVL", "").replace(" _", "").strip()
    assert ([], False) == (container.attrs["Mounts"], container.attrs["HostConfig"]["Privileged"])
    assert "NoNewPrivs:\t1" in privileges.output
    capabilities = int(privileges.output.split("CapBnd:")[1].split()[0], 16)
    assert [0, 1, 3, 4, 5, 6, 7, 10, 18] == [
        bit for bit in range(64) if capabilities >> bit & 1
    ]  # the capabilities in docs/terminal/sandboxes.md
    assert "sandbox\n" == name.output


def test_a_container_ends_at_its_deadline(engine: Any, tmp_path: Path) -> None:
    """At its deadline, a container ends with all its processes, without help from outside."""
    container = engine.containers.create(IMAGE, **options(task(tmp_path), labels("r", KEY, time.time() + 1), ["sleep", "1"]))
    container.start()
    container.exec_run(["bash", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"], detach=True)
    wait_for(lambda: not listed(engine), "the container's end", seconds=60)
    container.remove(force=True)


def test_leftovers(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench cleanup` removes and names the sandboxes of dead owners and past deadlines. It leaves all other containers."""
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, _, _ = labels("r", KEY, 0.0)[OWNER].rsplit(":", 2)
    own = labels("r", KEY, time.time() + 600)
    marks: dict[str, dict[str, str]] = {
        "living": own,
        "neighbour": {**own, RUN: "another"},
        "dead": {**own, OWNER: f"{host}:{dead.pid}:1.00", RUN: "killed"},
        "late": {**own, DEADLINE: "1000"},
        "elsewhere": {**own, OWNER: f"another-host:{dead.pid}:1.00"},
        "foreign": {"somebody": "else"},
    }
    for name, mark in marks.items():
        container = engine.containers.create(IMAGE, name=f"sandbox-t-{name}", **options(task(tmp_path), mark, ["sleep", "600"]))
        if name in ("dead", "late"):
            container.start()
    status = main(["cleanup"])
    *removed, count = capsys.readouterr().out.splitlines()
    left = sorted(each.name for each in engine.containers.list(all=True, filters={"name": "sandbox-t-"}))
    ended = end_run("r")
    rest = sorted(each.name for each in engine.containers.list(all=True, filters={"name": "sandbox-t-"}))
    for name in rest:
        engine.containers.get(name).remove(force=True)

    assert (0, "cleaned up 2 sandboxes") == (status, count)
    assert 2 == len(removed)
    assert all(f" of {own[ROLLOUT]}, run " in sentence for sentence in removed)
    assert any(sentence.endswith("run killed") for sentence in removed)
    assert ["sandbox-t-elsewhere", "sandbox-t-foreign", "sandbox-t-living", "sandbox-t-neighbour"] == left
    assert 2 == len(ended)
    assert ["sandbox-t-foreign", "sandbox-t-neighbour"] == rest
