"""Backends of kind `stack`: how one is made of its YAML, and what it needs of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.backends.common_spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.stack.included import with_included
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.records import Json

if TYPE_CHECKING:
    from pytest_agentbench.backends.doctor.check import Check
    from pytest_agentbench.backends.stack.backend import Stacked


class StackKind(StackSpec, BackendSpec):
    """Services on this machine, booted for a session."""

    def make(self, terms: SessionTerms) -> Stacked:
        from pytest_agentbench.backends.stack.backend import Stacked

        return Stacked(self, terms)

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        """With the services that it includes, and the folder of its YAML."""
        return {**with_included(data, file), "here": str(file.parent.absolute())}

    def refuse_mistakes(self) -> None:
        from pytest_agentbench.backends.stack.instances import refuse_mistakes

        refuse_mistakes(self)

    def checks(self, *, reach: bool) -> Iterator[Check]:
        from pytest_agentbench.backends.doctor.stack import stack_checks

        del reach
        return stack_checks(self)
