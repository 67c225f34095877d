"""Computes the Run of a finished session from its journal and the files of its run directory, and has the gate judge it."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, Looks, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.samples import Sampler, read_samples
from pytest_agentbench.gate import ab
from pytest_agentbench.gate.ab import SuiteInArms
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.repeats import earlier_runs
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.codec import read as read_record
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import CpuShares, Machine, Stopwatch, cpu_shares, greatest_shares, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.metrics.timeline import Span
from pytest_agentbench.records import Rollout, RolloutKey, Scale
from pytest_agentbench.reports.page.data import PackedRollouts
from pytest_agentbench.reports.terminal import rollout_lines
from pytest_agentbench.rollouts.compile import CompiledSuite
from pytest_agentbench.runs.builder import RunReader, build_run, plan_suite
from pytest_agentbench.runs.directory import PRIVATE, name_of
from pytest_agentbench.runs.identity import SuiteSetup, run_identity, suite_setup, unknown_environment
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.judgement import Judge
from pytest_agentbench.runs.nodes import LaunchRecord, NodeRecord, read_cpu, read_launches, read_nodes
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import model_names, models_of
from pytest_agentbench.runs.results import ArmFacts, ArmsCompared, Cache, PlannedSuite
from pytest_agentbench.runs.run_file import (
    BackendUse,
    Environment,
    Interruptions,
    LabelCounts,
    OutcomeCounts,
    Plan,
    ProcessCost,
    Run,
    SessionFacts,
    SessionShare,
    redacted_record,
)
from pytest_agentbench.runs.sessions import append_session
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.pytest_reports import Outcomes
from pytest_agentbench.session.setup import Setup

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
    client: Client = field(default_factory=Client)  # Calls of this session only, because the backend's counters cover only this session
    damaged: list[str] = field(default_factory=list)  # a sentence for each damaged line
    trials: list[Trial] = field(default_factory=list)  # for a gate or a comparison of arms; empty without them


def read_rollouts(
    directory: Path,
    mains: Mapping[str, MainScore],
    session: int,
    *,
    with_trials: bool = False,
    also: Callable[[Rollout], None] = lambda _: None,
) -> JournalContents:
    """Reads the journal once and returns the collected data. Only one rollout is in memory at a time.

    Args:
        directory: The run's directory.
        mains: The main score of each suite under each variant.
        session: Number of the session that ends. Its calls are compared with the counters of the backend.
        with_trials: Whether to collect the scores of each trial, which a gate or a comparison of arms needs.
        also: Called with each rollout of a scenario.
    """
    contents = JournalContents()
    for rollout in read_journal(directory, contents.damaged.append):
        if rollout.session == session:
            contents.client.add(rollout)
        if rollout.kind == "scenario":
            contents.read.add(rollout, *mains[rollout.key.group])
            also(rollout)
            if with_trials:
                contents.trials.append(trial_of(rollout))
    return contents


def serving(looks: Looks | None, directory: Path, calls: Sequence[Span], client: Client) -> ServingSummary | None:
    """Returns the metrics of the stack and how they differ from the tap's counts. None if they were not sampled.

    `looks` says how often and how the metrics were sampled. `client` has the counts of the tap (the recording proxy).
    """
    if looks is None:
        return None
    stats = summary(tally(read_samples(directory, NAMES), timeline.outer(calls)))
    return ServingSummary(**vars(stats), **vars(looks), disagreements=tuple(disagreements(stats.server, client)))


def compute(facts: SessionFacts, suites: Sequence[PlannedSuite], journal: JournalContents) -> Run:
    """Returns the run of a finished session, without the comparison of its arms and the verdict of its gate.

    Rollouts per session, damaged lines and models come from the journal and replace those in `facts`.
    """
    part = journal.read.frame.scenarios()
    counts = Counter(part.rollouts["session"].tolist())
    sessions = tuple(replace(each, rollouts=counts[each.session]) for each in facts.sessions)
    used = models_of(part.calls["model"], part.calls["answered_by"])
    backend = replace(facts.backend, served_model=model_names(used) or facts.backend.served_model, models=used)
    known = replace(facts, sessions=sessions, damaged=tuple(journal.damaged), backend=backend)
    return build_run(known, suites, journal.read)


def compare_arms(run: Run, journal: JournalContents, suites: Mapping[str, SuiteInArms], facts: ArmFacts) -> ArmsCompared:
    """Returns the paired comparison of an A/B session."""
    settings, blocks = run.settings, run.cache.blocks if run.cache else ()
    part = journal.read.frame.scenarios(Terms(objectives_of(settings.slo)))
    return ab.compare_arms(
        *(settings.ab, suites, journal.trials, part, facts, blocks, run.stopwatch), with_each_other=settings.ab_pairs, nodes=run.nodes
    )


FRAME = "pytest_agentbench.metrics.frame_reader"


class SessionFindings(NamedTuple):
    """The results of a finished session that take a while to compute."""

    journal: JournalContents
    shown: ShownRollouts
    nodes: tuple[NodeRecord, ...]  # node workers of all sessions
    launches: tuple[LaunchRecord, ...]  # how they were started
    stopwatch: Stopwatch
    serving: ServingSummary | None  # metrics of the stack during this session
    environment: Environment


class ShownRollouts:
    """Collects what report.html and the terminal show of each rollout while the journal is read, so that it is read only once."""

    def __init__(self, judge: Judge, verbosity: int) -> None:
        """`judge` judges the rollouts. The terminal gets lines only if `verbosity` > 0."""
        # None if a rollout could not be added. The page then reads the journal itself.
        self.page: PackedRollouts | None = PackedRollouts(judge)
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
    shown = ShownRollouts(Judge(terms_of(setup.discovered.compiled), tests), setup.config.get_verbosity())
    needs_trials = setup.gate is not None or bool(setup.settings.ab)
    mains = main_scores(setup.discovered.compiled)
    contents = read_rollouts(opened.directory, mains, opened.number, with_trials=needs_trials, also=shown.add)
    shown.add_frame(contents.read.frame)
    part = contents.read.frame.scenarios(Terms(objectives_of(setup.settings.slo))).timed
    none: tuple[NodeRecord, ...] = ()
    nodes = losses.value("the facts about nodes are left out", lambda: nodes_of(opened.directory, part), none)
    stopwatch = _stopwatch(part, cpu_shares(part, services.cpu.samples, opened.number), nodes, opened.number)
    spans = part.call_spans.get(opened.number, ())
    contents.client.add_unrecorded(services.unrecorded)
    look = functools.partial(serving, looks_of(services.sampler), services.directory, spans, contents.client)
    return SessionFindings(
        contents,
        shown,
        nodes,
        losses.value("how node workers were started is left out", lambda: read_launches(opened.directory), ()),
        stopwatch,
        losses.value("the metrics of the stack are left out", look, None),
        losses.value(
            "the facts about code and machine are left out", opened.environment.result, unknown_environment(platform.python_version())
        ),
    )


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


def conclude(opened: OpenSession, tests: Outcomes, findings: SessionFindings, *, interrupted: bool) -> Run:
    """Returns the run (the record for run.json) of a finished session. Its exit status and final verdict are decided later."""
    setup, journal, losses = opened.setup, findings.journal, opened.losses
    planned = [*_plans_of(opened, tests, journal.read)]
    facts = _facts(opened, tests, findings, resume=resume_command(opened, journal.read, planned, interrupted=interrupted))
    run = compute(facts, planned, journal)
    run = replace(run, identity=run_identity(run, _setups(setup, planned), setup.backend.identity, setup.backend.facts))
    if arm_switcher := opened.services.arm_switcher if setup.settings.ab else None:
        suites = {each.name: SuiteInArms(each.suite.every_scale, each.origins) for each in setup.discovered.compiled}
        run = replace(run, ab=compare_arms(run, journal, suites, arm_switcher.facts(opened.services.failure)))
    if setup.gate and not opened.services.missing:
        with losses.step("the gate gave no verdict"):
            run = replace(run, gate=setup.gate.judge(run, journal.trials, tests.below))
    with losses.step("earlier runs of this setup were not counted"):
        return replace(run, earlier=earlier_runs(run, setup.settings.reports_directory))
    return run


def _plans_of(opened: OpenSession, tests: Outcomes, read: RunReader) -> Iterator[PlannedSuite]:
    """Yields for each suite and variant what its results are computed from besides rollouts, such as thresholds and quarantine.

    Those without selected tests and without records are left out.
    """
    gate = opened.setup.gate
    for compiled, variant, name in groups(opened.setup.discovered.compiled):
        if name in opened.recorder.selected or read.suites[name].statuses:
            population = gate.population(name) if gate else ()
            arguments = name, compiled.suite, variant, compiled.thresholds
            yield plan_suite(*arguments, quarantined=tests.quarantined(name), population=population)


def _setups(setup: Setup, planned: Sequence[PlannedSuite]) -> dict[str, SuiteSetup]:
    """Returns `suite` or `suite-variant` -> its setup (data set, agent, trials and so on), which is part of the run's identity."""
    names, rounds = {each.name for each in planned}, setup.settings.rounds
    return {
        name: suite_setup(each.suite, variant, f"auto:{rounds}" if rounds else each.trials)
        for each, variant, name in groups(setup.discovered.compiled)
        if name in names
    }


def _facts(opened: OpenSession, tests: Outcomes, findings: SessionFindings, resume: str | None) -> SessionFacts:
    """Returns the facts about the run that do not come from its rollouts."""
    recorder, services, settings = opened.recorder, opened.services, opened.setup.settings
    return SessionFacts(
        id=opened.directory.name,
        name=name_of(opened.directory),
        started_at=opened.sessions[0].started_at,
        finished_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=opened.setup.command,
        sessions=tuple(SessionShare(each.number, each.started_at, each.concurrency, rollouts=0) for each in opened.sessions),
        nodes=findings.nodes,
        launches=findings.launches,
        repeated=recorder.journal.index.repeated + len(recorder.ran_again),
        resume=resume,
        settings=_options(opened.setup),
        environment=_environment(opened, findings.environment),
        backend=_backend(opened),
        rounds=opened.rounds.summary if opened.rounds else None,
        interruptions=read_record(Interruptions, services.interruptions),
        labels=read_record(LabelCounts, plain(services.labels)) if services.labels.labelled else None,
        plan=Plan(recorder.planned_keys, recorder.done, max(0, recorder.planned_keys - recorder.done)),
        stopwatch=findings.stopwatch,
        serving=findings.serving,
        processes={name: read_record(ProcessCost, cost) for name, cost in services.costs.items()},
        tests=tests.summary(),
        cache=cache_state(services, settings.cache),
    )


def _options(setup: Setup) -> RunOptions:
    options = {each.name: getattr(setup.settings, each.name) for each in fields(RunOptions)}
    return RunOptions(**{**options, "concurrency": setup.concurrency})


def _environment(opened: OpenSession, known: Environment) -> Environment:
    """Returns the environment with the additions of plugins, or unchanged if a plugin fails."""
    environment = plain(known)
    with opened.losses.step("pytest_agentbench_update_environment failed"):
        opened.hooks.update_environment(environment)
        return read_record(Environment, environment, "environment")
    return known


def _backend(opened: OpenSession) -> BackendUse:
    backend, services = opened.setup.backend, opened.services
    own = {
        "served_model": services.endpoint.model if services.endpoint else None,
        "models": [],  # They come from the journal.
        "warnings": opened.setup.model_warnings,
        "failure": services.failure,
        "recording": backend.played,
    }
    unknown = dict.fromkeys(("reused", "passed_over", "reaped", "boot", "restarts"))  # Fields that only stacks have
    return read_record(BackendUse, {"name": backend.name, "note": backend.note, **unknown, **backend.description, **own}, "backend")


def cache_state(services: Services, policy: str) -> Cache:
    """Returns how the prefix cache was prepared, for each block if rollouts ran in blocks."""
    arm_switcher = services.arm_switcher
    return Cache(policy, tuple(arm_switcher.blocks), arm_switcher.why_salted) if arm_switcher else Cache(policy)


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


def resume_command(opened: OpenSession, read: RunReader, planned: Sequence[PlannedSuite], *, interrupted: bool) -> str | None:
    """Returns the command that resumes an incomplete run, or None if nothing is left to run."""
    setup, recorder = opened.setup, opened.recorder
    failed = any(read.suites[each.name].statuses[status] for each in planned for status in setup.settings.resume_rerun)
    if opened.services.missing or not (interrupted or failed or recorder.planned_keys > recorder.done):
        return None
    words = [word for word in setup.command if word.partition("=")[0] != "--agentbench-resume"]
    return shlex.join([words[0], f"--agentbench-resume={opened.directory.name}", *words[1:]])
