"""sandbox: time of three commands in a sandbox, including its creation and removal, relative to `docker run` of the same commands"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import time
from contextlib import closing
from pathlib import Path

import docker

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Figure, Options, Result, seconds
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.suites.suite import Task
from tests.dockerd import NoEngine, any_engine
from tests.sandbox import image

IMAGE = f"pytest-agentbench/bash:benchmark-{os.getpid()}"
COMMANDS = ("echo hello > /tmp/hello", "cat /tmp/hello", "ls /")
PAIRS = 10
LIMIT = 4.0


def measure(options: Options) -> Result:
    if not shutil.which("docker"):
        raise BenchmarkSkipped("the command `docker` is missing; install Docker")
    try:
        with any_engine() as url, closing(docker.DockerClient(base_url=url)) as client:
            os.environ["DOCKER_HOST"] = url
            repository, _, tag = IMAGE.partition(":")
            client.api.import_image_from_data(image.root(), repository=repository, tag=tag)
            _ours(), _dockers()  # what is loaded once
            pairs = [(_ours(), _dockers()) for _ in range(options.repeat or PAIRS)]
            client.images.remove(IMAGE, force=True)
    except NoEngine as error:
        raise BenchmarkSkipped(str(error)) from error
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    ratio = statistics.median(mine / other for mine, other in pairs)
    detail = f"{statistics.median(ours) * 1e3:.0f} ms over {statistics.median(theirs) * 1e3:.0f} ms"
    notes = [f"sandbox.task: median of the pairs' ratios; a sandbox {seconds(ours)}, docker run {seconds(theirs)}"]
    return Result([Figure("sandbox.task", ratio, "x", LIMIT, detail)], notes)


def _ours() -> float:
    """Returns the seconds of one task in a sandbox of ours, which executes each command separately."""
    task = Task(folder=str(Path.cwd()), digest="0" * 16, image=IMAGE, memory_mb=256, network="no-network")

    async def work() -> None:
        sandbox = await open_sandbox(RolloutKey("benchmark", "three-commands"), task, 600)
        for command in COMMANDS:
            if (await sandbox.exec(command, seconds=60)).exit_code != 0:
                raise BenchmarkError(f"the command `{command}` failed in a sandbox")
        await sandbox.end()

    began = time.perf_counter()
    asyncio.run(work())
    return time.perf_counter() - began


def _dockers() -> float:
    """Returns the seconds of `docker run` with these commands in one shell."""
    limits = ("--rm", "--network=none", "--memory=256m", "--cpus=1", "--pids-limit=512")
    began = time.perf_counter()
    subprocess.run(["docker", "run", *limits, IMAGE, "bash", "-c", " && ".join(COMMANDS)], check=True, capture_output=True)
    return time.perf_counter() - began
