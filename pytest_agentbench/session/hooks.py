"""The hooks that other plugins implement, called with what a session that runs has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.lib.error_texts import Losses
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import rollout_of

if TYPE_CHECKING:
    from pytest_agentbench.runs.contents import Run


class Hooks:
    """Those of `hookspecs` that a session calls while it runs and at its end."""

    def __init__(self, config: pytest.Config, redactor: Redactor) -> None:
        self._config, self._redactor = config, redactor

    def redacted(self, text: str) -> str:
        """A text without secrets, and without what a plugin does not want to have written."""
        redacted = self._redactor(text)
        hooked: str | None = self._config.hook.pytest_agentbench_redact(text=redacted)
        return redacted if hooked is None else hooked

    def rollout_finished(self, line: bytes) -> None:
        """`line` is the record as it was journaled."""
        if self._config.hook.pytest_agentbench_rollout_finished.get_hookimpls():
            self._config.hook.pytest_agentbench_rollout_finished(rollout=rollout_of(line))

    def update_environment(self, environment: Json) -> None:
        self._config.hook.pytest_agentbench_update_environment(environment=environment)

    def report(self, run: Run, directory: Path, losses: Losses) -> None:
        """Every plugin's own report, one after the other."""
        for name, plugin in self._reporters():
            others = [other for _, other in self._reporters() if other is not plugin]
            hook = self._config.pluginmanager.subset_hook_caller("pytest_agentbench_report", others)
            with losses.step(f"the report of {name} is not written"):
                hook(run=run, directory=directory)

    def _reporters(self) -> Iterator[tuple[str, Any]]:
        for each in reversed(self._config.hook.pytest_agentbench_report.get_hookimpls()):
            yield (Path(each.plugin_name).name if each.plugin_name else "a plugin"), each.plugin
