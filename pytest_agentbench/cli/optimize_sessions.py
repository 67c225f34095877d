"""The pytest sessions of `agentbench optimize`: each runs some settings beside the default ones, as two arms."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_agentbench.cli.sessions import QUIET, run_session
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import RunFacts, Trial
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL, FAILED, OK
from pytest_agentbench.lib.json_text import read_text
from pytest_agentbench.metrics.stopwatch import unusable_reason
from pytest_agentbench.optimize.confirmation import BASE, NEW, Confirmation, ConfirmationTerms, confirm
from pytest_agentbench.optimize.ranking import ComparedSettings
from pytest_agentbench.optimize.search import NotMeasured
from pytest_agentbench.optimize.spending import SPENDING, spending_trial
from pytest_agentbench.records import Json
from pytest_agentbench.runs.builder import prices_of
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.runs.run_file import Run, find_run, read_run
from pytest_agentbench.suites.arms import COLD, CONCURRENCY, OF_BACKEND, SETTINGS

ENDED = (OK, FAILED, CANNOT_MEASURE, CANNOT_TELL)  # exit statuses of sessions that came to their end
CONFIRMATION = "confirmation"  # name of the session with the confirmation
KEPT = "15m"  # how long a stack stays up if the command is killed between two sessions
SHOWN_LINES = 5  # last lines of a session's output in the message about its failure


@dataclass
class StudySessions:
    """Runs the sessions of a study, and reads them. A session that an earlier process finished is only read."""

    suite: str  # folder of the suite
    concurrency: int  # rollouts in flight
    options: Sequence[str]  # further options of pytest
    directory: Path  # directory of the runs
    seconds: float = 0.0  # duration of the sessions of this process
    rollouts: int = 0  # rollouts in these sessions
    base: Json = field(default_factory=dict)  # settings of the default arm

    def __call__(self, settings: Json, scenarios: Sequence[str], name: str) -> ComparedSettings:
        """Runs one trial of these scenarios with the settings and with the default ones. Raises NotMeasured."""
        directory = self._session(settings, scenarios, name, trials=1)
        return _compared(read_run(directory), directory)

    def confirmation(self, settings: Json, scenarios: Sequence[str], trials: int, terms: ConfirmationTerms) -> Confirmation:
        """Runs the confirmation, and judges it. Raises NotMeasured."""
        directory = self._session(settings, scenarios, CONFIRMATION, trials)
        run = read_run(directory)
        facts = ArmFacts(failures={arm.name: arm.failure for arm in run.ab.arms if arm.failure} if run.ab else {})
        unusable = "" if terms.objective in SPENDING else unusable_reason(run.stopwatch, terms.objective)
        return confirm(_compared(run, directory), terms, RunFacts.of(run), facts, unusable)

    def _session(self, settings: Json, scenarios: Sequence[str], name: str, trials: int) -> Path:
        """Returns the directory of the session with this name. Runs it if no earlier process finished it."""
        if (earlier := self._finished(name)) is not None:
            return earlier
        started, log = time.monotonic(), self.directory / f"{name}.log"
        base = {**self.base, **({CONCURRENCY: self.concurrency} if CONCURRENCY in settings else {})}
        arms = ",".join(f"{arm}={SETTINGS}:{json.dumps(each)}" for arm, each in ((BASE, base), (NEW, settings)))
        words = [self.suite, f"--agentbench-ab={arms}", f"--agentbench-scenarios={','.join(scenarios)}", f"--agentbench-trials={trials}"]
        words += [f"--agentbench-cache={COLD}", f"--agentbench-name={name}", "--agentbench-ci=off", *QUIET]
        words += [f"--agentbench-concurrency={self.concurrency}", *self.options]
        ended = run_session(words, self.directory, log)
        self.seconds += time.monotonic() - started
        self.rollouts += 2 * trials * len(scenarios)
        if ended.status not in ENDED or ended.directory is None:
            raise NotMeasured(f"the session ended with status {ended.status}: {_last_lines(log)}")
        return ended.directory

    def _finished(self, name: str) -> Path | None:
        try:
            directory = find_run(name, self.directory)
        except ConfigError:
            return None
        return directory if read_run(directory).plan.not_run == 0 else None


@contextmanager
def booted_once(backend: str, options: Sequence[str], *, is_changed: bool) -> Iterator[tuple[str, ...]]:
    """Keeps a stack up between the sessions in the `with` block. Yields the options of pytest for that, and ends the stack afterwards.

    Other backends boot in each session, and so does a stack whose own settings are searched (`is_changed`) or set in `options`. A stack
    that was up before stays up.
    """
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.backends.stack import registry
    from pytest_agentbench.backends.stack.spec import StackSpec

    spec = load_backend(backend, Path.cwd())
    if not isinstance(spec, StackSpec) or is_changed or any(OF_BACKEND in word for word in options):
        yield ()
        return
    before = registry.find_kept(spec)
    if isinstance(before, registry.HeldStack):
        before.let_go()
    try:
        yield (f"--agentbench-keep-backend={KEPT}",)
    finally:
        if isinstance(before, str) and isinstance(held := registry.find_kept(spec), registry.HeldStack):
            held.stop()


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in read_text(log).splitlines() if line.strip()]
    return " / ".join(lines[-SHOWN_LINES:])


def _compared(run: Run, directory: Path) -> ComparedSettings:
    """Returns the rollouts of both arms. Raises NotMeasured if one has none."""
    check_journal(directory)
    measured = [rollout for rollout in read_journal(directory) if rollout.kind == "scenario"]
    prices = {variant: prices_of(run.backend, variant) for variant in {rollout.variant for rollout in measured}}
    every = [spending_trial(rollout, prices[rollout.variant]) for rollout in measured]
    base, new = (_of_arm(every, arm) for arm in (BASE, NEW))
    failures = [f"{arm.name}: {arm.failure}" for arm in run.ab.arms if arm.failure] if run.ab else []
    if failures or not base or not new:
        raise NotMeasured("; ".join(failures) or "the session ran no rollouts of one of the two arms")
    return ComparedSettings(base, new)


def _of_arm(trials: Iterable[Trial], arm: str) -> list[Trial]:
    return [trial for trial in trials if trial.group == f"{trial.suite}-{arm}"]
