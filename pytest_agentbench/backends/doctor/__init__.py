"""What a backend needs of this machine, and what of it is missing. Nothing is started, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.backends.doctor.check import Check, ok, unknown
from pytest_agentbench.backends.doctor.docker import docker_checks
from pytest_agentbench.backends.doctor.gpus import gpu_checks
from pytest_agentbench.backends.doctor.machine import disk_check, key_check, port_checks, reach_check
from pytest_agentbench.backends.doctor.programs import program_checks, secret_checks
from pytest_agentbench.backends.doctor.weights import weight_checks
from pytest_agentbench.backends.spec import AnySpec, EmbeddedSpec, UrlSpec
from pytest_agentbench.backends.stack.spec import StackSpec


def checks(spec: AnySpec, *, reach: bool = True) -> list[Check]:
    """Everything that a backend needs, in the order in which a boot would find out. Without `reach` no other machine is asked."""
    return [*_checks(spec, reach), disk_check()]


def _checks(spec: AnySpec, reach: bool) -> Iterator[Check]:
    match spec:
        case EmbeddedSpec():
            yield ok("engine", "comes with agentbench")
            yield from port_checks([spec.port])
        case UrlSpec():
            yield from key_check(spec)
            yield reach_check(spec.url) if reach else unknown("server", f"{spec.url} is not asked unless it is named")
        case StackSpec():
            yield from secret_checks(spec)
            yield from program_checks(spec)
            yield from port_checks([port for service in spec.services.values() for port in (service.port, *service.ports.values())])
            yield from gpu_checks(spec)
            yield from docker_checks(spec)
            yield from weight_checks(spec)
