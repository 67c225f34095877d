"""What this machine has, whatever the backend."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import closing

from pytest_agentbench.backends.doctor.check import Check, absent, ok
from pytest_agentbench.backends.doctor.machine import disk_check
from pytest_agentbench.backends.machine import nvml
from pytest_agentbench.backends.stack.docker_engine import connect, speaking
from pytest_agentbench.errors import BackendError


def host_checks() -> Iterator[Check]:
    """What is `absent` here is no fault: a backend that needs it says so."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    yield ok("cores", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    yield disk_check()
    yield _gpus()
    yield _docker()


def _gpus() -> Check:
    library, why = nvml.library()
    if devices := nvml.devices():
        return ok("GPUs", ", ".join(f"{device.number}: {device.name}" for device in devices))
    return absent("GPUs", why if library is None else "the driver has none", "only backends that run a model here need them")


def _docker() -> Check:
    try:
        with closing(connect()) as engine, speaking("Docker does not say what it can do"):
            return ok("docker", f"Engine {engine.info()['ServerVersion']}")
    except BackendError as error:
        return absent("docker", str(error), "only services in containers need it")
