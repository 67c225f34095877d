"""A Docker Engine of the tests with quotas and a network: on btrfs in a file, with its own bridge."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import docker

from tests.dockerd import NoEngine, OwnEngine
from tests.sandbox import image

IMAGE = "pytest-agentbench/bash:quotas"
BRIDGE = f"agb{os.getpid()}"
ADDRESS, SUBNET = "10.213.77.1", 24


@contextmanager
def bridged_engine(folder: Path, images: Mapping[str, Sequence[str]], addresses: Sequence[str] = ()) -> Iterator[str]:
    """Yields the value of DOCKER_HOST. The engine has IMAGE, and one image with these programs for each of `images`. Raises NoEngine.

    `addresses` are additional addresses of the host on the bridge. Containers use ADDRESS as their name server.
    """
    missing = [program for program in ("dockerd", "mkfs.btrfs", "ip") if not shutil.which(program)]
    if os.geteuid() or missing:
        raise NoEngine(f"they take root and {', '.join(missing) or 'nothing else'}")
    disk = folder / "disk"
    with ExitStack() as stack:
        own = OwnEngine("--storage-driver=btrfs", f"--dns={ADDRESS}", bridge=BRIDGE)
        stack.callback(own.remove)
        data = own.folder / "data-root"
        data.mkdir()
        _run("truncate", "--size=512M", str(disk))
        _run("mkfs.btrfs", "--quiet", str(disk))
        _run("mount", "-o", "loop", str(disk), str(data))
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "delete", BRIDGE)
        for each in (f"{ADDRESS}/{SUBNET}", *addresses):
            _run("ip", "address", "add", each, "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        own.start()
        stack.callback(own.end)
        with closing(docker.DockerClient(base_url=own.url)) as client:
            for name, programs in {IMAGE: image.PROGRAMS, **images}.items():
                repository, _, tag = name.partition(":")
                client.api.import_image_from_data(image.root(programs), repository=repository, tag=tag, changes=["WORKDIR /app"])
        yield own.url


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoEngine(f"{' '.join(command)}: {done.stderr.strip()}")
