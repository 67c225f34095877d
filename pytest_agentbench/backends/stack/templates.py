"""Templates of a backend YAML: {port}, {engine.url}, {max_model_len} become text; JSON's braces stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_agentbench.backends.stack.spec import TEMPLATE, ServiceSpec, StackSpec
from pytest_agentbench.errors import ConfigError


def expand(text: str, values: Mapping[str, str], where: str) -> str:
    """Raises ConfigError that names the template and what is known."""

    def value(found: object) -> str:
        name = found[1]  # type: ignore[index]
        if name not in values:
            raise ConfigError(f"{where}: {{{name}}} is not known; known: {', '.join(f'{{{known}}}' for known in sorted(values))}")
        return values[name]

    return TEMPLATE.sub(value, text)


def texts(service: ServiceSpec) -> Iterator[str]:
    """Everything in a service that may hold templates."""
    yield from service.run
    yield from service.env.values()
    yield from service.container.mounts
    yield from service.container.mounts.values()
    yield from service.container.entrypoint or ()
    yield from filter(None, (service.image, service.cwd, service.python))
    if service.ready is not None:
        yield from (service.ready.http, service.ready.says)


def dependencies(spec: StackSpec) -> dict[str, set[str]]:
    """Service -> services that have to be ready before it; raises ConfigError when they wait for each other."""
    needed = {}
    for name, service in spec.services.items():
        named = {reference.partition(".")[0] for text in texts(service) for reference in TEMPLATE.findall(text) if "." in reference}
        needed[name] = ((named & spec.services.keys()) | set(service.after)) - {name}
    waiting = dict(needed)
    while waiting:
        free = [name for name, others in waiting.items() if not others & waiting.keys()]
        if not free:
            raise ConfigError(f"these services wait for each other: {', '.join(waiting)}")
        for name in free:
            del waiting[name]
    return needed
