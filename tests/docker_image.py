"""Builds the image of this project without a registry and without the network: its base and its wheels come from this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker

from tests import python_image
from tests.dockerd import NoEngine, any_engine
from tests.web import QuietHandler, serving

ROOT = Path(__file__).parents[1]
BASE = "pytest-agentbench/python"

#: Values of build arguments, which the image has as labels.
VERSION, REVISION = "1.2.3", "0123456789abcdef"


class Docker:
    """The command `docker`, for an engine that has BASE."""

    def __init__(self, url: str, tag: str, index: str) -> None:
        self._url, self.tag, self._index = url, tag, index
        self.image = f"pytest-agentbench/image:{tag}"

    def command(self, *words: str) -> list[str]:
        return ["docker", "--host", self._url, *words]

    def __call__(self, *words: str) -> str:
        """Runs a command that succeeds. Returns its output."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=300)
        assert 0 == done.returncode, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def run(self, *words: str) -> str:
        """Runs a command in the image. Options of `docker run` may stand before it. Returns its output."""
        return self("run", "--rm", "--network", "none", *words)

    def build(
        self, image: str, program: str = "docker", *, buildkit: bool = False, context: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        """Builds the image of a checkout. With the network of this machine, because only this one has the package index."""
        arguments = {"BASE": f"{BASE}:{self.tag}", "PIP_INDEX_URL": self._index, "VERSION": VERSION, "REVISION": REVISION}
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        environment = {**os.environ, "DOCKER_BUILDKIT": str(int(buildkit)), "DOCKER_HOST": self._url}
        command = [program, "build", "--network", "host", *words, "--tag", image, str(context)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)


class Index(QuietHandler, SimpleHTTPRequestHandler):
    """A package index: a folder for each package."""


@contextmanager
def docker_command(folder: Path) -> Iterator[Docker]:
    """Yields the command for an engine that can build our image. Raises NoEngine if there is none."""
    if not shutil.which("docker"):
        raise NoEngine("the command `docker` is not installed (Debian: docker.io)")
    tag = f"test-{os.getpid()}"  # Workers of pytest-xdist may share an engine.
    with any_engine() as url, _index(folder) as index:
        client = docker.DockerClient(base_url=url)
        client.api.import_image_from_data(python_image.root(), repository=BASE, tag=tag, changes=[*python_image.SETTINGS])
        yield Docker(url, tag, index)
        _remove(client, tag)
        client.close()


def _remove(client: Any, tag: str) -> None:
    """Removes the images of the tests with this tag, and the stages without a name that were built for them."""
    base = client.images.get(f"{BASE}:{tag}").id
    unnamed = client.images.list(filters={"dangling": True})
    stages = [image.id for image in unnamed if base in {each["Id"] for each in image.history()}]
    named = [name for image in client.images.list() for name in image.tags if name.endswith(f":{tag}")]
    for each in (*stages, *named):
        client.images.remove(each, force=True)


@contextmanager
def _index(folder: Path) -> Iterator[str]:
    """Serves the wheels that our package and the build of the image need. Yields the URL for pip."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tools = re.findall(r"pip install --no-cache-dir (\S+==\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"], *tools]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder), *needed]  # It has a cache.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert 0 == done.returncode, done.stderr[-3000:]
    for wheel in [*folder.glob("*.whl")]:
        package = folder / re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
        package.mkdir(exist_ok=True)
        wheel.rename(package / wheel.name)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(folder)))) as server:
        yield f"http://127.0.0.1:{server.server_port}/"
