"""Ends the services of a session, and reads its journal and its other files once, for run.json, the gate and report.html."""

from __future__ import annotations

import functools
import importlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_calls import CALL_NAMES
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, Looks, SampleTally, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.engine_use import EngineUse, TapCallsByArm, engine_uses
from pytest_agentbench.backends.telemetry.kv_cache import CachedCalls, KvCacheUse, kv_cache_uses
from pytest_agentbench.backends.telemetry.kv_events import FILE as EVENTS
from pytest_agentbench.backends.telemetry.kv_events import read_kv_events
from pytest_agentbench.backends.telemetry.samples import Sampler, read_samples
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.call_hints import HintAccuracy
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import CpuShares, Machine, Stopwatch, cpu_shares, greatest_shares, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.metrics.timeline import Span
from pytest_agentbench.records import Rollout, RolloutKey, Scale
from pytest_agentbench.reports.page.data import PackedRollouts
from pytest_agentbench.reports.terminal import rollout_lines
from pytest_agentbench.rollouts.compile import CompiledSuite
from pytest_agentbench.runs.builder import RunReader
from pytest_agentbench.runs.directory import PRIVATE
from pytest_agentbench.runs.identity import unknown_environment
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.judgement import Judge
from pytest_agentbench.runs.nodes import LaunchRecord, NodeRecord, read_cpu, read_launches, read_nodes
from pytest_agentbench.runs.run_file import Environment, OutcomeCounts, redacted_record
from pytest_agentbench.runs.sessions import append_session
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.pytest_reports import Outcomes

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Slice


class MainScore(NamedTuple):
    """The main score of a suite, which is its first one."""

    name: str
    scale: Scale


@dataclass
class JournalContents:
    """The data that one pass over a journal collects."""

    read: RunReader = field(default_factory=RunReader)
    # Calls of this session only, because the backend's counters cover only this session
    client: Client = field(default_factory=Client)
    taps: TapCallsByArm = field(default_factory=TapCallsByArm)  # the same calls for each arm with a backend of its own
    hints: HintAccuracy = field(default_factory=HintAccuracy)
    cached: CachedCalls = field(default_factory=CachedCalls)  # the same calls, if the run has KV cache events
    damaged: list[str] = field(default_factory=list)  # a sentence for each damaged line
    trials: list[Trial] = field(default_factory=list)  # for a gate or a comparison of arms; empty without them


def read_rollouts(
    directory: Path,
    mains: Mapping[str, MainScore],
    session: int,
    *,
    arms: Iterable[str] = (),
    with_trials: bool = False,
    with_cached: bool = False,
    also: Callable[[Rollout], None] = lambda _: None,
) -> JournalContents:
    """Reads the journal once and returns the collected data. Only one rollout is in memory at a time.

    Args:
        directory: The run's directory.
        mains: The main score of each suite under each variant.
        session: Number of the session that ends. Its calls are compared with the counters of the backend.
        arms: Arms with a backend of their own, whose calls are counted separately.
        with_cached: Whether to collect the calls whose prompts may have been in a KV cache, for KV cache events.
        with_trials: Whether to collect the scores of each trial, which a gate or a comparison of arms needs.
        also: Called with each rollout of a scenario.
    """
    contents = JournalContents(taps=TapCallsByArm(arms), hints=HintAccuracy(arms))
    for rollout in read_journal(directory, contents.damaged.append):
        if rollout.session == session:
            contents.client.add(rollout)
            contents.taps.add(rollout)
            if with_cached:
                contents.cached.add(rollout)
        if rollout.kind == "scenario":
            contents.read.add(rollout, *mains[rollout.key.group])
            contents.hints.add(rollout)
            also(rollout)
            if with_trials:
                contents.trials.append(trial_of(rollout))
    return contents


def samples_of(directory: Path, calls: Sequence[Span]) -> SampleTally:
    """Returns the sums over the samples of the stack's metrics. Loads count only from the first to the last of these calls."""
    return tally(read_samples(directory, NAMES | CALL_NAMES), timeline.outer(calls))


def serving(looks: Looks | None, sums: SampleTally | None, client: Client) -> ServingSummary | None:
    """Returns the metrics of the stack and how they differ from the tap's counts. None if they were not sampled, or cannot be read.

    `looks` says how often and how the metrics were sampled. `client` has the counts of the tap (the recording proxy).
    """
    if looks is None or sums is None:
        return None
    stats = summary(sums)
    return ServingSummary(**vars(stats), **vars(looks), disagreements=tuple(disagreements(stats.server, client)))


FRAME = "pytest_agentbench.metrics.frame_reader"


class SessionFindings(NamedTuple):
    """The results of a finished session that take a while to compute."""

    journal: JournalContents
    shown: ShownRollouts
    nodes: tuple[NodeRecord, ...]  # node workers of all sessions
    launches: tuple[LaunchRecord, ...]  # how they were started
    stopwatch: Stopwatch
    serving: ServingSummary | None  # metrics of the stack during this session
    engines: tuple[EngineUse, ...]  # calls of each engine of the stack during this session, for each arm
    kv_cache: tuple[KvCacheUse, ...]  # KV cache events of this session, for each engine
    environment: Environment


class ShownRollouts:
    """Collects what report.html and the terminal show of each rollout while the journal is read, so that it is read only once."""

    def __init__(self, judge: Judge, verbosity: int, *, with_cached: bool = False) -> None:
        """`judge` judges the rollouts. The terminal gets lines only if `verbosity` > 0. `with_cached` is for runs with KV cache events."""
        # None if a rollout could not be added. The page then reads the journal itself.
        self.page: PackedRollouts | None = PackedRollouts(judge, with_cached=with_cached)
        self.lines: list[str] = []
        self._verbosity = verbosity

    def add(self, rollout: Rollout) -> None:
        """Adds a rollout of a scenario."""
        if self._verbosity > 0:
            self.lines += rollout_lines(rollout, with_tools=self._verbosity > 1)
        self._pack(lambda page: page.add(rollout))

    def add_frame(self, frame: Frame) -> None:
        """Adds a frame (tables of all rollouts, calls and attempts) to the distributions that report.html shows."""
        self._pack(lambda page: page.distributions.add(frame))

    def _pack(self, step: Callable[[PackedRollouts], None]) -> None:
        if self.page is not None:
            try:
                step(self.page)
            except Exception:  # The page reads the journal itself, and reports why it cannot be written.
                self.page = None


def test_outcomes(opened: OpenSession, tests: Outcomes) -> OutcomeCounts | None:
    """Returns the outcomes of the tests, redacted also by hooks. None if a hook failed."""
    redact = functools.partial(redacted_record, tests.summary(), opened.hooks.redacted)
    return opened.losses.value("report.html does not judge rollouts by their tests", redact, None)


def gather(opened: OpenSession, tests: OutcomeCounts | None) -> SessionFindings:
    """Ends the services, reads the journal and returns the findings. May run in a thread, because it calls no hooks.

    `tests` has the outcomes of the tests, by which report.html judges rollouts.
    """
    setup, services, losses = opened.setup, opened.services, opened.losses
    # Import numpy while the services end. If no thread can be started, it is imported later.
    with suppress(RuntimeError):
        daemon(importlib.import_module, FRAME, name="frame")
    with losses.step("services did not stop cleanly"):
        services.finish()
    if not opened.directory.is_dir():
        put_back(opened)
    with losses.step(f"{JOURNAL} or {MESSAGES} may be incomplete on the disk"):
        opened.recorder.close()
    judge, has_events = Judge(terms_of(setup.discovered.compiled), tests), (services.directory / EVENTS).is_file()
    shown = ShownRollouts(judge, setup.config.get_verbosity(), with_cached=has_events)
    collected = {"with_trials": setup.gate is not None or bool(setup.settings.ab), "with_cached": has_events}
    mains = main_scores(setup.discovered.compiled)
    arms = setup.backend.description.get("arms", ())  # only if each arm has a backend of its own
    contents = read_rollouts(opened.directory, mains, opened.number, arms=arms, also=shown.add, **collected)
    shown.add_frame(contents.read.frame)
    part = contents.read.frame.scenarios(Terms(objectives_of(setup.settings.slo))).timed
    none: tuple[NodeRecord, ...] = ()
    nodes = losses.value("the facts about nodes are left out", lambda: nodes_of(opened.directory, part), none)
    stopwatch = _stopwatch(part, cpu_shares(part, services.cpu.samples, opened.number), nodes, opened.number)
    spans = part.call_spans.get(opened.number, ())
    contents.client.add_unrecorded(services.unrecorded)
    contents.taps.end(services.unrecorded)
    lost, looks = "the metrics of the stack are left out", looks_of(services.sampler)
    sums = losses.value(lost, lambda: samples_of(services.directory, spans), None)
    return SessionFindings(
        contents,
        shown,
        nodes,
        losses.value("how node workers were started is left out", lambda: read_launches(opened.directory), ()),
        stopwatch,
        losses.value(lost, lambda: serving(looks, sums, contents.client), None),
        losses.value("the calls of each engine are left out", lambda: engine_uses(sums, contents.taps), ()),
        losses.value("the KV cache events are left out", lambda: kv_cache(services.directory, sums, contents.cached), ()),
        losses.value(
            "the facts about code and machine are left out", opened.environment.result, unknown_environment(platform.python_version())
        ),
    )


def kv_cache(directory: Path, sums: SampleTally | None, calls: CachedCalls) -> tuple[KvCacheUse, ...]:
    """Returns the KV cache events of a session, for each engine. `directory` has the files of that session."""
    return kv_cache_uses(read_kv_events(directory), calls, sums.increases if sums else ())


def nodes_of(directory: Path, part: Slice) -> tuple[NodeRecord, ...]:
    """Returns the node workers of a run, with the CPU use of their processes in the busiest second with calls in flight."""
    cpu, nodes = read_cpu(directory), read_nodes(directory)
    shares = {each.key: cpu_shares(part, cpu.get(each.key, {}), each.session) for each in nodes}
    return tuple(replace(each, tap_cpu=shares[each.key].tap, runner_cpu=shares[each.key].pool) for each in nodes)


def _stopwatch(part: Slice, own: CpuShares, nodes: Sequence[NodeRecord], session: int) -> Stopwatch:
    """Returns the timing quality of a session. `own` is the CPU use of tap and pool of the session's machine."""
    of_nodes = [CpuShares(each.tap_cpu, each.runner_cpu) for each in nodes if each.session == session]
    machines = {each.key: Machine(each.machine, each.cores, each.niceness) for each in nodes}
    return stopwatch_of(part, greatest_shares([own, *of_nodes]), os.cpu_count(), machines)


def put_back(opened: OpenSession) -> None:
    """Creates the run directory again after it was removed during the session, and writes the journal and session lines into it."""
    directory = opened.directory
    removed = FileNotFoundError(f"run directory {directory.name} was removed during the session")
    opened.losses.add(f"logs and samples are lost, {JOURNAL} and {MESSAGES} are not", removed)
    directory.mkdir(PRIVATE, parents=True)
    opened.recorder.restore_files()
    for session in opened.sessions:
        append_session(directory, session, opened.hooks.redacted)


def looks_of(sampler: Sampler | None) -> Looks | None:
    """Returns how the metrics of the services were sampled, or None if they were not."""
    if sampler is None:
        return None
    return Looks(notes=tuple(sampler.notes), looks=sampler.rounds, every_s=sampler.every_s, cpu_s=sampler.cpu_s)


class JudgedBy(NamedTuple):
    """The thresholds of a suite, and the scales of its scores."""

    thresholds: Mapping[str, float]
    scales: Mapping[str, Scale]


def terms_of(compiled: Sequence[CompiledSuite]) -> dict[str, JudgedBy]:
    """Returns what the rollouts of each suite and variant have to reach."""
    return {group: JudgedBy(each.thresholds, each.suite.every_scale) for each, _, group in groups(compiled)}


def main_scores(compiled: Sequence[CompiledSuite]) -> dict[str, MainScore]:
    """Returns the main score of each suite and variant."""
    suites = ((group, each.suite) for each, _, group in groups(compiled))
    return {group: MainScore(name := suite.score_names[0], suite.scale(name)) for group, suite in suites}


def groups(compiled: Sequence[CompiledSuite]) -> Iterator[tuple[CompiledSuite, str, str]]:
    """Yields (suite, variant, `suite` or `suite-variant`) for each variant that this session or an earlier one of the run may have run."""
    for each in compiled:
        for variant in dict.fromkeys((*each.variants, "default", *each.suite.variants)):
            yield each, variant, RolloutKey(each.name, "", variant).group
