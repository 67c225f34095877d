"""Mistakes that are found when a session has begun: suites that cannot be used, options and variables that mean nothing in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_agentbench.gate.exit_status import FAILED, INTERRUPTED, USAGE_ERROR
from pytest_agentbench.lib import options
from pytest_agentbench.session.settings import advise

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller

STACK = "it is about a backend that is a stack, which this one is not"
GATE = "it is about a gate, and this session has no rule and no baseline"
POOL = "it is about rollouts in a pool, and --agentbench-inline runs them in the tests"

#: Option -> what has to be there for it to mean something.
MEANING = {
    "keep-backend": STACK,
    "gpu-wait": STACK,
    "inconclusive": GATE,
    "verdict": GATE,
    **dict.fromkeys(("concurrency", "retries", "time-limit", "budget-rollout", "log-level"), POOL),
    **dict.fromkeys(("budget-connect", "budget-first-token", "budget-idle", "budget-call"), POOL),
}

READ_VARIABLES = f"it reads {', '.join(sorted(options.READ))}; options are words of the command line, or keys of the ini file"


class Mistakes:
    """A pytest plugin, in the process that the user started."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._broken_off = False  # by the user, or by pytest.exit

    @pytest.hookimpl(trylast=True)  # when the controller knows backend and gate
    def pytest_sessionstart(self) -> None:
        setup = self._controller.setup
        if setup is not None:
            broken = setup.discovered.broken  # of such a suite nobody knows what it names
            for name in () if broken else options.unread(os.environ, setup.secret_names):
                advise(setup.config, f"the environment variable {name} is set, and agentbench does not read it; {READ_VARIABLES}")
            given = [name for name in MEANING if setup.config.getoption(f"agentbench_{name.replace('-', '_')}", None) is not None]
            absent = {
                STACK: not setup.backend.waits,
                GATE: setup.gate is None,
                POOL: setup.settings.inline,
            }
            for name in given:
                if absent[MEANING[name]]:
                    advise(setup.config, f"--agentbench-{name} means nothing here: {MEANING[name]}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        file = self._controller.config.rootpath / report.nodeid.partition("::")[0]
        setup = self._controller.setup
        wrong = setup.discovered.broken if setup else []
        self._controller.outcomes.wrong_files += report.failed and any(folder in file.parents for folder in wrong)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._broken_off = not issubclass(excinfo.type, pytest.Session.Interrupted)  # which is pytest's own after a collection error

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Where a run is summed up, its tests and limits have a say too: `exits` decides."""
        alone = 0 < self._controller.outcomes.wrong_files == session.testsfailed
        opened = self._controller.opened
        ran = opened is not None and opened.ledger.planned_keys > 0
        if alone and not self._broken_off and not ran and session.exitstatus in (FAILED, INTERRUPTED):
            session.exitstatus = USAGE_ERROR
