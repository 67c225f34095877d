"""What only an engine can keep that has quotas and a network: one of our own, on a btrfs in a file and with a bridge of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import docker
import pytest

from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.sandbox.limits import KIND
from tests.dockerd import NoEngine, OwnEngine
from tests.sandbox import image
from tests.sandbox.conftest import KEY, task

pytestmark = pytest.mark.slow

IMAGE = "pytest-agentbench/bash:quotas"
BRIDGE = f"agb{os.getpid()}"
ADDRESS = "10.213.77.1/24"

#: Writes MiB after MiB, each a file, until no more goes in.
WRITE = "for i in {1..99}; do head -c 1048576 /dev/zero > $i 2>/dev/null || break; done; echo $((i - 1))"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's engine in this test; a skip that says what is missing."""
    missing = [program for program in ("dockerd", "mkfs.btrfs", "ip") if not shutil.which(program)]
    if os.geteuid() or missing:
        pytest.skip(f"NOT TESTED: quotas and `public`; they take root and {', '.join(missing) or 'nothing else'}")
    disk = tmp_path / "disk"
    with ExitStack() as stack:
        own = OwnEngine("--storage-driver=btrfs", bridge=BRIDGE)
        stack.callback(own.remove)
        data = own.folder / "data-root"
        data.mkdir()
        try:
            _run("truncate", "--size=512M", str(disk))
            _run("mkfs.btrfs", "--quiet", str(disk))
            _run("mount", "-o", "loop", str(disk), str(data))
            _run("ip", "link", "add", BRIDGE, "type", "bridge")
            stack.callback(_run, "ip", "link", "delete", BRIDGE)
            _run("ip", "address", "add", ADDRESS, "dev", BRIDGE)
            _run("ip", "link", "set", BRIDGE, "up")
            own.start()
        except (NoEngine, subprocess.CalledProcessError) as why:
            pytest.skip(f"NOT TESTED: quotas and `public`; {why}")
        stack.callback(own.end)
        monkeypatch.setenv("DOCKER_HOST", own.url)
        with closing(docker.from_env()) as client:
            repository, _, tag = IMAGE.partition(":")
            client.api.import_image_from_data(image.root(), repository=repository, tag=tag, changes=["WORKDIR /app"])
        yield


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


async def test_quotas_and_public(engine: None, tmp_path: Path) -> None:
    """All files together have `storage_mb`, however large the image is; who removes some can write again. `public` has a way out."""
    sandbox = await open_sandbox(KEY, task(tmp_path, image=IMAGE, storage_mb=8, network="public"), 60)
    try:
        written = await sandbox.exec(WRITE, seconds=60)
        again = await sandbox.exec(f"rm *; {WRITE}", seconds=60)
        devices = await sandbox.exec("tail -n +3 /proc/net/dev | cut -d : -f 1", seconds=10)
        routes = await sandbox.exec("tail -n +2 /proc/net/route | head -n 1", seconds=10)
    finally:
        await sandbox.end()

    assert KIND == sandbox.kind
    assert 5 <= int(written.output) <= 8
    assert int(again.output) >= 1
    assert {"lo", "eth0"} == set(devices.output.split())
    assert ["eth0", "00000000", "014DD50A"] == routes.output.split()[:3]  # by the bridge's address, bytes from last to first
