"""A backend of kind `stack`, as the controller holds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.serving.sampler import Sources
from pytest_agentbench.serving.stackspec import StackSpec


class Stacked:
    """Services of this machine; a guardian process starts, watches and stops them."""

    def __init__(self, spec: StackSpec) -> None:
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description: Json = spec.model_dump(exclude={"thresholds"}, exclude_none=True)

    def start(self, directory: Path) -> Endpoint:
        raise BackendError(f"stacks cannot be started yet; {directory} stays empty")

    def metrics(self) -> Sources:
        return Sources(every_s=self.spec.sample_every)

    def watch(self) -> str | None:
        return None

    def stop(self) -> None:
        """Nothing was started."""
