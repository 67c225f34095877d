"""The end of a session: the journal becomes a Run, and the gate judges it."""

from __future__ import annotations

import functools
import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.sampler import Sampler
from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.gate.ab import Comparison, SuiteInArms
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.repeats import earlier_tries
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.codec import read as read_record
from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.arm_results import ArmsCompared, Cache
from pytest_agentbench.runs.builder import PlannedSuite, Tallies, build_run
from pytest_agentbench.runs.contents import (
    BackendUse,
    Environment,
    Interruptions,
    LabelCounts,
    Plan,
    ProcessCost,
    Run,
    SessionFacts,
    SessionShare,
)
from pytest_agentbench.runs.directory import PRIVATE, name_of
from pytest_agentbench.runs.environment import unknown_environment
from pytest_agentbench.runs.identity import run_identity, suite_setup
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.sessions import append_session
from pytest_agentbench.session.discovery import DiscoveredSuite
from pytest_agentbench.session.opened import OpenSession
from pytest_agentbench.session.outcomes import Outcomes
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.setup import Setup
from pytest_agentbench.suites.models import Models, names


class SessionFindings(NamedTuple):
    """What takes a while to be found out of a session that is over."""

    journal: JournalContents
    stopwatch: Stopwatch
    serving: ServingSummary | None  # of this session
    environment: Environment


@dataclass
class JournalContents:
    """What one pass over the journal leaves."""

    tallies: Tallies
    client: Client = field(default_factory=Client)  # of this session, as its backend's counters are
    sessions: Counter[int] = field(default_factory=Counter)
    models: Models = field(default_factory=Models)
    damaged: list[str] = field(default_factory=list)  # sentences on lines of the journal that are no records
    trials: list[Trial] = field(default_factory=list)  # for the gate; none without one


def gather(opened: OpenSession) -> SessionFindings:
    """Ends the services and reads the journal; may run in a thread, for it calls no hooks."""
    setup, services, losses = opened.setup, opened.services, opened.losses
    with losses.step("services did not end in order"):
        services.finish()
    if not opened.directory.is_dir():
        put_back(opened)
    with losses.step(f"{JOURNAL} may not be whole on the disk"):
        opened.ledger.journal.close()
    earlier = {each.number: each.concurrency for each in opened.sessions}
    performance = Performance(setup.concurrency, setup.settings.slo, earlier, setup.settings.window)
    contents = read(opened.directory, setup.discovered, performance, opened.number, gated=setup.gate is not None)
    stopwatch = performance.stopwatch(services.cpu.samples, opened.number)
    spans = performance.sessions[opened.number].calls
    contents.client.add_unrecorded(services.unrecorded)
    look = functools.partial(serving, services.sampler, services.directory, spans, contents.client)
    return SessionFindings(
        contents,
        stopwatch,
        losses.value("what the stack told of itself is left out", look, None),
        losses.value("what the session ran on is left out", opened.environment.result, unknown_environment(platform.python_version())),
    )


def put_back(opened: OpenSession) -> None:
    """Makes a run directory again that somebody has removed while the session ran, with what is known of it."""
    directory = opened.directory
    removed = FileNotFoundError(f"somebody removed the run directory {directory.name} while the session ran")
    opened.losses.add(f"logs and samples are lost, {JOURNAL} is not", removed)
    directory.mkdir(PRIVATE, parents=True)
    opened.ledger.journal.put_back()
    for session in opened.sessions:
        append_session(directory, session, opened.hooks.redacted)


def conclude(opened: OpenSession, tests: Outcomes, gathered: SessionFindings, *, interrupted: bool) -> Run:
    """The run of a session that is over, without its exit status and the verdict that follows from it."""
    setup, journal, losses = opened.setup, gathered.journal, opened.losses
    planned = [*_groups_of(opened, tests, journal.tallies)]
    facts = _facts(opened, tests, gathered, resume=resume_command(opened, journal.tallies, planned, interrupted=interrupted))
    rounds = setup.settings.rounds
    setups = {each.name: suite_setup(each.suite, each.variant, f"auto:{rounds}" if rounds else each.trials) for each in planned}
    identity = run_identity(facts, setups, setup.backend.identity, setup.backend.facts)
    run = build_run(replace(facts, identity=identity), planned, journal.tallies)
    if setup.gate and not opened.services.missing:
        with losses.step("the gate has not judged"):
            run = replace(run, gate=setup.gate.judge(run, journal.trials, tests.below))
    with losses.step("earlier runs of this setup are not counted"):
        return replace(run, earlier=earlier_tries(run, setup.settings.reports_directory))
    return run


def _groups_of(opened: OpenSession, tests: Outcomes, tallies: Tallies) -> Iterator[PlannedSuite]:
    """The suites of a session, under the variants of which there is something."""
    gate = opened.setup.gate
    for discovered, variant, name in groups(opened.setup.discovered):
        if discovered.suite and (name in opened.ledger.selected or tallies.suites[name].statuses):
            yield PlannedSuite(
                name=name,
                suite=discovered.suite,
                variant=variant,
                thresholds=discovered.thresholds,
                trials=discovered.trials,
                quarantined=tests.quarantined(name),
                population=gate.population(name) if gate else (),
            )


def _facts(opened: OpenSession, tests: Outcomes, gathered: SessionFindings, resume: str | None) -> SessionFacts:
    """What the session knows of its run beside the rollouts."""
    ledger, services, journal, settings = opened.ledger, opened.services, gathered.journal, opened.setup.settings
    return SessionFacts(
        id=opened.directory.name,
        name=name_of(opened.directory),
        started_at=opened.sessions[0].started_at,
        finished_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=opened.setup.command,
        sessions=tuple(
            SessionShare(each.number, each.started_at, each.concurrency, journal.sessions[each.number]) for each in opened.sessions
        ),
        repeated=ledger.journal.index.repeated + len(ledger.ran_again),
        resume=resume,
        damaged=tuple(journal.damaged),
        settings=_options(opened.setup),
        environment=_environment(opened, gathered.environment),
        backend=_backend(opened, journal.models),
        rounds=opened.rounds.summary if opened.rounds else None,
        interruptions=read_record(Interruptions, services.interruptions),
        labels=read_record(LabelCounts, services.labels) if services.labels else None,
        plan=Plan(ledger.planned_keys, ledger.done, max(0, ledger.planned_keys - ledger.done)),
        stopwatch=gathered.stopwatch,
        serving=gathered.serving,
        processes={name: read_record(ProcessCost, cost) for name, cost in services.costs.items()},
        tests=tests.summary(),
        cache=cache_state(services, settings.cache),
        ab=compare_arms(opened, gathered.stopwatch) if settings.ab else None,
    )


def _options(setup: Setup) -> RunOptions:
    options = {each.name: getattr(setup.settings, each.name) for each in fields(RunOptions)}
    return RunOptions(**{**options, "concurrency": setup.concurrency})


def _environment(opened: OpenSession, known: Environment) -> Environment:
    """With what plugins know of it; without that where one of them fails."""
    environment = plain(known)
    with opened.losses.step("pytest_agentbench_update_environment failed"):
        opened.hooks.update_environment(environment)
        return read_record(Environment, environment, "environment")
    return known


def _backend(opened: OpenSession, models: Models) -> BackendUse:
    backend, services = opened.setup.backend, opened.services
    used = models.summary()
    own = {
        "served_model": names(used) or (services.endpoint.model if services.endpoint else None),
        "models": plain(used),
        "warnings": opened.setup.model_warnings,
        "failure": services.failure,
    }
    unknown = dict.fromkeys(("reused", "passed_over", "reaped", "boot", "restarts"))  # of what is no stack
    return read_record(BackendUse, {"name": backend.name, "note": backend.note, **unknown, **backend.description, **own}, "backend")


def cache_state(services: Services, policy: str) -> Cache:
    """How the prefix cache was made ready, block by block where it was."""
    turns = services.turns
    return Cache(policy, tuple(turns.blocks), turns.why_salted) if turns else Cache(policy)


def compare_arms(opened: OpenSession, stopwatch: Stopwatch) -> ArmsCompared:
    """The paired comparison of an A/B session."""
    turns, settings = opened.services.turns, opened.setup.settings
    assert turns is not None
    suites = {each.name: SuiteInArms(each.suite.every_scale, each.sides) for each in opened.setup.discovered if each.suite}
    comparison = Comparison(settings.ab, suites, settings.slo, with_each_other=settings.ab_pairs)
    for rollout in read_journal(opened.directory, lambda _: None):  # damage is told of elsewhere
        comparison.add(rollout)
    return comparison.summary(turns.facts(opened.services.failure), turns.blocks, stopwatch)


def serving(sampler: Sampler | None, directory: Path, calls: Sequence[Span], client: Client) -> ServingSummary | None:
    """What the stack told of itself, and where that differs from what the tap saw; None where it told nothing."""
    if sampler is None:
        return None
    stats = summary(tally(read_samples(directory, NAMES), windows.outer(calls)))
    return ServingSummary(
        **vars(stats),
        disagreements=tuple(disagreements(stats.server, client)),
        notes=tuple(sampler.notes),
        looks=sampler.rounds,
        every_s=sampler.every_s,
        cpu_s=sampler.cpu_s,
    )


def read(
    directory: Path, discovered: Sequence[DiscoveredSuite], performance: Performance, session: int, *, gated: bool = False
) -> JournalContents:
    """One pass over the journal, one rollout in memory at a time."""
    mains = {group: (main := each.suite.score_names[0], each.suite.scale(main)) for each, _, group in groups(discovered) if each.suite}
    contents = JournalContents(Tallies(performance))
    for rollout in read_journal(directory, contents.damaged.append):
        if rollout.session == session:
            contents.client.add(rollout)
        if rollout.kind == "scenario":
            contents.sessions[rollout.session] += 1
            contents.models.add(rollout.all_calls)
            contents.tallies.add(rollout, *mains[rollout.key.group])
            if gated:
                contents.trials.append(trial_of(rollout))
    return contents


def groups(discovered: Sequence[DiscoveredSuite]) -> Iterator[tuple[DiscoveredSuite, str, str]]:
    """(suite, variant, the name of both) of everything that may have run; an earlier session may have run other variants."""
    for each in discovered:
        others = each.suite.variants if each.suite else ()
        for variant in dict.fromkeys((*each.variants, "default", *others)):
            yield each, variant, RolloutKey(each.name, "", variant).group


def resume_command(opened: OpenSession, tallies: Tallies, planned: Sequence[PlannedSuite], *, interrupted: bool) -> str | None:
    """The command that goes on with a run that has something left to do; None where nothing is left."""
    setup, ledger = opened.setup, opened.ledger
    failed = any(tallies.suites[each.name].statuses[status] for each in planned for status in setup.settings.resume_rerun)
    if opened.services.missing or not (interrupted or failed or ledger.planned_keys > ledger.done):
        return None
    words = [word for word in setup.command if word.partition("=")[0] != "--agentbench-resume"]
    return shlex.join([words[0], f"--agentbench-resume={opened.directory.name}", *words[1:]])
