"""What a boot knows of what it starts: engines' versions, images, weights, GPUs. None of it is asked of a network."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_agentbench.backends.machine import nvml
from pytest_agentbench.backends.machine.model_files import model_identity
from pytest_agentbench.backends.machine.versions import packages_of
from pytest_agentbench.backends.stack.docker_engine import digest_of
from pytest_agentbench.backends.stack.inherited import variables
from pytest_agentbench.backends.stack.instances import Factory, Instance
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.records import Json


def boot_facts(spec: StackSpec, factory: Factory, instances: Sequence[Instance]) -> Json:
    """`services`, `environment`, `model` and `hardware`, once images are here and GPUs are leased."""
    first = [each for each in instances if each.replica == 0]
    return {
        "services": {each.service: _service(factory, each) for each in first},
        "environment": variables(foreign_environment()) if any(each.spec.image is None for each in first) else {},
        "model": _model(spec, first),
        "hardware": _hardware([gpu for each in instances for gpu in each.gpus]),
    }


def _service(factory: Factory, instance: Instance) -> Json:
    """Versions of the engines in its environment, or the digest of its image; null where nobody knows."""
    if instance.spec.image is not None:
        image = factory.image(instance)
        return {"packages": None, "image": image, "digest": digest_of(image)}
    program = factory.program(instance)
    return {"packages": packages_of(program) if program else None, "image": None, "digest": None}


def _model(spec: StackSpec, instances: Sequence[Instance]) -> Json | None:
    """Of the model that agents ask for. What a container sees of the disk is not looked into."""
    if not spec.model or any(each.spec.image for each in instances):
        return None
    env, words = dict(spec.env), []
    for each in instances:
        env |= each.spec.env
        words += each.spec.run
    plain = {name: value for name, value in env.items() if "{" not in value}
    return model_identity(spec.model, plain, words)


def _hardware(ids: Sequence[str]) -> Json:
    """Names of the leased GPUs, sorted, and the driver; a name that NVML does not tell is null."""
    if not ids:
        return {"gpus": [], "driver": None}
    if nvml.library()[0] is None:
        return {"gpus": [None] * len(ids), "driver": None}
    known = {name: each.name for device in nvml.devices() for each in (device, *device.parts) for name in (each.number, each.uuid) if name}
    return {"gpus": sorted((known.get(each) for each in ids), key=str), "driver": nvml.driver()[0]}
