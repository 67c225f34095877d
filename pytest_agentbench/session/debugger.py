"""Opens pytest's debugger (--pdb) where the code of a suite raised, not where the test missed the score."""

from __future__ import annotations

import bdb
from collections.abc import Mapping

import pytest

from pytest_agentbench.errors import NoScore, ScorerFailed
from pytest_agentbench.rollouts.user_errors import AGENT, hide_packages, origin
from pytest_agentbench.session.pytest_reports import UNMEASURED

USER_ERRORS = pytest.StashKey[Mapping[str, BaseException]]()  # AGENT or the name of a score -> exception, of a test's inline rollout

#: Exceptions with which the command `q` of a debugger ends the session.
QUIT = (pytest.exit.Exception, bdb.BdbQuit)


class Debugger:
    """A pytest plugin in each process that runs tests."""

    @pytest.hookimpl(tryfirst=True)  # Before pytest's own plugin opens the debugger
    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object], report: pytest.CollectReport | pytest.TestReport
    ) -> None:
        """Replaces an exception about a missing score by the exception of the agent, tool or scorer that is its cause."""
        error = call.excinfo.value if call.excinfo is not None else None
        if not isinstance(error, NoScore) and not hasattr(report, UNMEASURED):
            return
        cause = node.stash.get(USER_ERRORS, {}).get(error.score if isinstance(error, ScorerFailed) else AGENT)
        if cause is not None and (users := origin(cause)) is not None:
            hide_packages(users)
            call.excinfo = pytest.ExceptionInfo.from_exception(users)
