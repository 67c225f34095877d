"""The metrics of a run while it runs, in the OpenMetrics format, from the rollouts that are in its journal so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.reports import openmetrics
from pytest_agentbench.runs.builder import RunReader
from pytest_agentbench.runs.journal import JournalTail
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.results import MainScore, main_scores
from pytest_agentbench.session.summary import run_so_far

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SHARE = 20  # The time between two computations of the metrics is at least this many times the duration of the last one.


class RolloutsSoFar:
    """The rollouts of a run that has not ended, from its journal. Each is read once, unless one ran again. Not thread-safe."""

    def __init__(self, directory: Path, mains: Mapping[str, MainScore]) -> None:
        """`directory` is that of the run, and `mains` has the main score of each `suite` or `suite-variant`."""
        self._directory, self._mains = directory, mains
        self._forget()

    def _forget(self) -> None:
        self._reader = RunReader()
        self._sessions: dict[RolloutKey, int] = {}  # rollout that was read -> number of the session in which it ran
        self._journal = JournalTail(self._directory)

    def read(self) -> RunReader:
        """Reads the rollouts that were recorded since the last call. Returns a reader with all of them, which the next call may change."""
        if not self._read_on():
            self._forget()
            self._read_on()
        return self._reader

    def _read_on(self) -> bool:
        """Reads new rollouts. Returns False if one of them replaces a rollout that was read before, so that all have to be read again."""
        for each in self._journal.new():
            if each.kind == "scenario" and each.key.group in self._mains:
                if each.key not in self._sessions:
                    self._sessions[each.key] = each.session
                    self._reader.add(each, *self._mains[each.key.group])
                elif self._sessions[each.key] != each.session:  # otherwise it was recorded during the last call
                    return False
        return True


class RunMetrics:
    """The metrics of a run that has not ended. Safe to use from threads.

    They are computed on request, at most as often as costs 5 % of a core. Requests in between get the metrics of the last time.
    """

    def __init__(self, opened: OpenSession) -> None:
        self._opened = opened
        self._rollouts = RolloutsSoFar(opened.directory, main_scores(opened.setup.discovered.compiled))
        self._lock = threading.Lock()
        self._text, self._due = b"", 0.0  # last result, and the earliest time for the next one in seconds, time.monotonic()

    def text(self) -> bytes:
        """Returns the metrics in the OpenMetrics format."""
        with self._lock:
            if (began := time.monotonic()) >= self._due:
                self._text = openmetrics.text(run_so_far(self._opened, self._rollouts.read()), self._of_session())
                ended = time.monotonic()
                self._due = ended + SHARE * (ended - began)
            return self._text

    def _of_session(self) -> Iterator[Metric]:
        """Yields the metrics that only a session that runs has."""
        from prometheus_client.core import InfoMetricFamily

        opened = self._opened
        name = {"run": opened.directory.name, "backend": opened.setup.backend.name}
        yield InfoMetricFamily("agentbench_run", "Names of the run and of its backend.", value=name)
        yield openmetrics.gauge("planned_rollouts", "Rollouts that the session has planned.", [({}, opened.recorder.planned_keys)])
        yield openmetrics.gauge("rollouts_in_flight", "Rollouts with a running attempt.", [({}, opened.services.in_flight)])
