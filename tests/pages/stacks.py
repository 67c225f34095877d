"""Tables of the shipped backends and environments on pages of docs/backends, from their files. `tests.generated` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.backends.machine.virtual_environments import environments
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.kind import StackKind
from pytest_agentbench.backends.stack.spec import ServiceSpec

ROOT = Path(__file__).parents[2]
PROGRAMS = ("etcd", "nats-server", "kubectl")  # Programs that come from the system and not from an environment.


def backend_table() -> Iterator[str]:
    """Yields a row for each shipped backend: the first sentence of its file, and what it needs."""
    yield from ("| backend | is | needs |", "|---|---|---|")
    for file in sorted((ROOT / "backends").glob("*.yaml"), key=lambda file: file.stem):
        yield f"| `{file.stem}` | {about(file)} | {', '.join(needs(file)) or 'no GPU'} |"


def environment_table() -> Iterator[str]:
    """Yields a row for each shipped environment, with the driver that its CUDA needs."""
    yield from ("| environment | has | version |", "|---|---|---|")
    for name, spec in sorted(environments().items()):
        package, _, version = spec.pins[0].partition("==")
        driver = f"; driver {spec.driver} or newer" if spec.driver else ""
        yield f"| `{name}` | {spec.about}{driver} | {f'{package} {version}' if version else 'a commit'} |"


def about(file: Path) -> str:
    """Returns the first sentence of the comment at the beginning of a YAML, without its full stop."""
    lines = [line[2:] for line in file.read_text(encoding="utf-8").split("\n\n")[0].splitlines() if line.startswith("# ")]
    return re.split(r"(?<=[^.\d])\.(?: |$)", " ".join(lines))[0].replace("|", "\\|")


def needs(file: Path) -> Iterator[str]:
    """Yields the GPUs, machines, programs and environments that a backend needs."""
    spec, text = load_backend(str(file), ROOT), file.read_text(encoding="utf-8")
    if not isinstance(spec, StackKind):
        yield from re.findall(r"a key in", text) and ["a key"]
        return
    services = [*spec.services.values()]
    if count := sum(gpus(each) * each.replicas for each in services):
        memory = re.search(r"GPUs? with (\d+ GB)", text)
        yield f"{count} GPU{'s' * (count > 1)}{f' with {memory[1]}' if memory else ''}"
    yield from (f"Slurm with {each.on.slurm.hosts} hosts of {each.on.slurm.gpus} GPUs" for each in services if each.on and each.on.slurm)
    yield from ["Kubernetes with Dynamo's operator"] * any(each.kubernetes for each in services)
    yield from ["Docker"] * any(each.image for each in services)
    named = dict.fromkeys([spec.python, *(each.python for each in services)])
    yield from (f"environment `{name}`" for name in named if name in environments())
    yield from sorted({each.run[0] for each in services if each.run and each.run[0] in PROGRAMS})


def gpus(service: ServiceSpec) -> int:
    """Returns the number of GPUs of each replica."""
    return service.gpus if isinstance(service.gpus, int) else len(service.gpus)
