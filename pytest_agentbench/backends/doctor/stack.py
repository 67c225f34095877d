"""What a stack needs of this machine."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.backends.doctor.check import Check
from pytest_agentbench.backends.doctor.docker import docker_checks
from pytest_agentbench.backends.doctor.gpus import driver_check, gpu_checks, oldest_driver
from pytest_agentbench.backends.doctor.machine import port_checks
from pytest_agentbench.backends.doctor.programs import program_checks, secret_checks
from pytest_agentbench.backends.doctor.retriever import service_checks
from pytest_agentbench.backends.doctor.weights import weight_checks
from pytest_agentbench.backends.stack.spec import StackSpec


def lacking(spec: StackSpec) -> list[Check]:
    """What of it is missing that neither waiting nor the boot itself brings: secrets, programs, the driver of its GPUs."""
    checks = [*secret_checks(spec), *program_checks(spec)]
    if any(spec.gpus):
        checks.append(driver_check(oldest_driver(spec)))
    return [check for check in checks if check.state == "missing"]


def stack_checks(spec: StackSpec) -> Iterator[Check]:
    """Secrets, programs, ports, GPUs, images, weights and retrievers."""
    yield from secret_checks(spec)
    yield from program_checks(spec)
    yield from port_checks([port for service in spec.services.values() for port in (service.port, *service.ports.values())])
    yield from gpu_checks(spec)
    yield from docker_checks(spec)
    yield from weight_checks(spec)
    yield from service_checks(spec)
