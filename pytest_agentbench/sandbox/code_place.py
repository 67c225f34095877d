"""Where programs run that a model writes for a scenario that is no task: what an agent's settings say of it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.suites.task import Task

DOCKER, BUBBLEWRAP = "docker", "bubblewrap"
KINDS = (DOCKER, BUBBLEWRAP)


@dataclass(frozen=True)
class CodePlace:
    """A sandbox without a network and without files of anybody, in which nothing is verified."""

    kind: str  # one of KINDS
    image: str = ""  # of a container; a bubblewrap has the programs of this machine
    memory_mb: int = 2048  # of a container, and in a bubblewrap of each process
    storage_mb: int = 256  # of a file in a container, and in a bubblewrap of all files

    @property
    def container(self) -> Task:
        """What a container of it is made from."""
        about = {"image": self.image, "memory_mb": self.memory_mb, "storage_mb": self.storage_mb}
        return Task(folder="", digest="", network="no-network", **about)  # type: ignore[arg-type]  # mypy joins the values' types
