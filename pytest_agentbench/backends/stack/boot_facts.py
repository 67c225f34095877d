"""What a boot records about a stack: the versions, images, weights and GPUs of its services, and the machines that a cluster gave them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.model_files import model_identity
from pytest_agentbench.backends.machine.versions import packages_of
from pytest_agentbench.backends.stack.docker_engine import digest_of
from pytest_agentbench.backends.stack.instances import Factory, Instance
from pytest_agentbench.backends.stack.placement import PlacedUnit
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.surroundings import variables
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.records import Json


def boot_facts(spec: StackSpec, factory: Factory, instances: Sequence[Instance]) -> Json:
    """Returns what a boot records about a stack: `services`, `environment`, `model` and `hardware`, as in `Backend.facts`.

    The images must be on this machine, and the GPUs must be leased.
    """
    first = [each for each in instances if each.replica == 0]
    return {
        "services": {each.service: _service(factory, each) for each in first},
        "environment": variables(foreign_environment()) if any(each.spec.is_command for each in first) else {},
        "model": _model(spec, first),
        "hardware": _hardware([gpu for each in instances for gpu in each.gpus]),
    }


def _service(factory: Factory, instance: Instance) -> Json:
    """Returns {packages, image, digest} of a service. A process has only `packages`, and a container only the others; the rest is null."""
    if instance.spec.image is not None:
        image = factory.image(instance)
        return {"packages": None, "image": image, "digest": digest_of(image)}
    program = factory.program(instance) if instance.spec.is_command else None
    return {"packages": packages_of(program) if program else None, "image": None, "digest": None}


def _model(spec: StackSpec, instances: Sequence[Instance]) -> Json | None:
    """Returns the identity of the weights of the stack's model, or None if it names none, or has a container or a manifest."""
    if not spec.model or not all(each.spec.is_command for each in instances):
        return None
    env, words = dict(spec.env), []
    for each in instances:
        env |= each.spec.env
        words += each.spec.run
    plain = {name: value for name, value in env.items() if "{" not in value}
    return model_identity(spec.model, plain, words)


def _hardware(ids: Sequence[str]) -> Json:
    """Returns the sorted names of the leased GPUs, and the driver version. Without NVML they are null."""
    if not ids:
        return {"gpus": [], "driver": None}
    if gpus.library()[0] is None:
        return {"gpus": [None] * len(ids), "driver": None}
    known = {name: each.name for device in gpus.devices() for each in (device, *device.parts) for name in (each.number, each.uuid) if name}
    return {"gpus": sorted((known.get(each) for each in ids), key=str), "driver": gpus.driver()[0]}


def places(instances: Sequence[Instance]) -> Json:
    """Returns instance -> `id` and `hosts` of those that a cluster runs, for example `{"id": "job 17", "hosts": ["n1", "n2"]}`."""
    return {each.name: {"id": unit.id, "hosts": [*unit.hosts]} for each in instances if isinstance(unit := each.running, PlacedUnit)}
