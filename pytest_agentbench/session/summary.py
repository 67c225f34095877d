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
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, ServingSummary, summary, tally
from pytest_agentbench.backends.telemetry.sampler import Sampler
from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.gate.ab import Comparison
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.repeats import earlier_tries
from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.arm_results import ArmsCompared, Cache
from pytest_agentbench.runs.builder import AskedSuite, Tallies, build_run
from pytest_agentbench.runs.codec import plain
from pytest_agentbench.runs.codec import read as read_record
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
from pytest_agentbench.runs.directory import PRIVATE
from pytest_agentbench.runs.identity import run_identity, suite_setup
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.sessions import append_session
from pytest_agentbench.runs.tally import unknown_environment
from pytest_agentbench.session.discovery import Found
from pytest_agentbench.suites.models import Models, names

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller
    from pytest_agentbench.session.processes import Services


class Gathered(NamedTuple):
    """What takes a while to be found out of a session that is over."""

    journal: Seen
    stopwatch: Stopwatch
    serving: ServingSummary | None  # of this session
    environment: Environment


@dataclass
class Seen:
    """What one pass over the journal leaves."""

    tallies: Tallies
    client: Client = field(default_factory=Client)  # of this session, as its backend's counters are
    sessions: Counter[int] = field(default_factory=Counter)
    models: Models = field(default_factory=Models)
    damaged: list[str] = field(default_factory=list)  # sentences on lines of the journal that are no records
    trials: list[Trial] = field(default_factory=list)  # for the gate; none without one


def gather(controller: Controller) -> Gathered:
    """Ends the services and reads the journal; may run in a thread, for it calls no hooks."""
    assert controller.directory is not None and controller.services is not None and controller.ledger is not None
    assert controller.environment is not None
    losses = controller.losses
    with losses.step("services did not end in order"):
        controller.services.finish()
    if not controller.directory.is_dir():
        put_back(controller, controller.directory)
    with losses.step(f"{JOURNAL} may not be whole on the disk"):
        controller.ledger.journal.close()
    earlier = {each.number: each.concurrency for each in controller.sessions}
    performance = Performance(controller.concurrency, controller.settings.slo, earlier)
    seen = read(controller.directory, controller.found, performance, controller.session, gated=controller.gate is not None)
    stopwatch = performance.stopwatch(controller.services.cpu.samples, controller.session)
    spans = performance.sessions[controller.session].calls
    seen.client.add_unrecorded(controller.services.unrecorded)
    look = functools.partial(serving, controller.services.sampler, controller.services.directory, spans, seen.client)
    return Gathered(
        seen,
        stopwatch,
        losses.value("what the stack told of itself is left out", look, None),
        losses.value("what the session ran on is left out", controller.environment.result, unknown_environment(platform.python_version())),
    )


def put_back(controller: Controller, directory: Path) -> None:
    """Makes a run directory again that somebody has removed while the session ran, with what is known of it."""
    assert controller.ledger is not None
    removed = FileNotFoundError(f"somebody removed the run directory {directory.name} while the session ran")
    controller.losses.add(f"logs and samples are lost, {JOURNAL} is not", removed)
    directory.mkdir(PRIVATE, parents=True)
    controller.ledger.journal.put_back()
    for session in controller.sessions:
        append_session(directory, session, controller.redacted)


def conclude(controller: Controller, gathered: Gathered, *, interrupted: bool) -> Run:
    """The run of a session that is over, without its exit status and the verdict that follows from it."""
    services, journal = controller.services, gathered.journal
    assert controller.backend is not None and services is not None
    asked = [*_groups_of(controller, journal.tallies)]
    facts = _facts(controller, gathered, resume=resume_command(controller, journal.tallies, asked, interrupted=interrupted))
    rounds = controller.settings.rounds
    setups = {each.name: suite_setup(each.suite, each.variant, f"auto:{rounds}" if rounds else each.trials) for each in asked}
    identity = run_identity(facts, setups, controller.backend.identity, controller.backend.facts)
    run = build_run(replace(facts, identity=identity), asked, journal.tallies)
    if controller.gate and not services.missing:
        with controller.losses.step("the gate has not judged"):
            run = replace(run, gate=controller.gate.judge(run, journal.trials, controller.tests_below))
    with controller.losses.step("earlier runs of this setup are not counted"):
        return replace(run, earlier=earlier_tries(run, controller.settings.reports))
    return run


def _groups_of(controller: Controller, tallies: Tallies) -> Iterator[AskedSuite]:
    """The suites of a session, under the variants of which there is something."""
    ledger, gate = controller.ledger, controller.gate
    assert ledger is not None
    for found, variant, name in groups(controller.found):
        if found.suite and (name in ledger.selected or tallies.suites[name].statuses):
            yield AskedSuite(
                name=name,
                suite=found.suite,
                variant=variant,
                thresholds=found.thresholds,
                trials=found.trials,
                quarantined=controller.outcomes.quarantined(name),
                population=gate.population(name) if gate else (),
            )


def _facts(controller: Controller, gathered: Gathered, resume: str | None) -> SessionFacts:
    """What the session knows of its run beside the rollouts."""
    ledger, services, journal = controller.ledger, controller.services, gathered.journal
    assert controller.directory is not None and ledger is not None and services is not None
    return SessionFacts(
        id=controller.directory.name,
        started_at=controller.sessions[0].started_at,
        finished_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=controller.command,
        sessions=tuple(
            SessionShare(each.number, each.started_at, each.concurrency, journal.sessions[each.number]) for each in controller.sessions
        ),
        repeated=ledger.journal.index.repeated + len(ledger.ran_again),
        resume=resume,
        damaged=tuple(journal.damaged),
        settings=_options(controller),
        environment=_environment(controller, gathered.environment),
        backend=_backend(controller, journal.models),
        rounds=services.rounds.summary if services.rounds else None,
        interruptions=read_record(Interruptions, services.interruptions),
        labels=read_record(LabelCounts, services.labels) if services.labels else None,
        plan=Plan(ledger.planned_keys, ledger.done, max(0, ledger.planned_keys - ledger.done)),
        stopwatch=gathered.stopwatch,
        serving=gathered.serving,
        processes={name: read_record(ProcessCost, cost) for name, cost in services.costs.items()},
        tests=controller.outcomes.summary(),
        cache=cache_state(services, controller.settings.cache),
        ab=compare_arms(controller, gathered.stopwatch) if controller.settings.ab else None,
    )


def _options(controller: Controller) -> RunOptions:
    settings = controller.settings
    own: dict[str, Any] = {"changes": dict(settings.changes), "reports": settings.reports.name, "concurrency": controller.concurrency}
    return RunOptions(**{each.name: getattr(settings, each.name) for each in fields(RunOptions)} | own)


def _environment(controller: Controller, known: Environment) -> Environment:
    """With what plugins know of it; without that where one of them fails."""
    environment = plain(known)
    with controller.losses.step("pytest_agentbench_update_environment failed"):
        controller.config.hook.pytest_agentbench_update_environment(environment=environment)
        return read_record(Environment, environment, "environment")
    return known


def _backend(controller: Controller, models: Models) -> BackendUse:
    backend, services = controller.backend, controller.services
    assert backend is not None and services is not None
    used = models.summary()
    own = {
        "served_model": names(used) or (services.endpoint.model if services.endpoint else None),
        "models": plain(used),
        "warnings": controller.model_warnings,
        "failure": services.failure,
    }
    unknown = dict.fromkeys(("reused", "passed_over", "reaped", "boot", "restarts"))  # of what is no stack
    return read_record(BackendUse, {"name": backend.name, "note": backend.note, **unknown, **backend.description, **own}, "backend")


def cache_state(services: Services, policy: str) -> Cache:
    """How the prefix cache was made ready, block by block where it was."""
    turns = services.turns
    return Cache(policy, tuple(turns.blocks), turns.why_salted) if turns else Cache(policy)


def compare_arms(controller: Controller, stopwatch: Stopwatch) -> ArmsCompared:
    """The paired comparison of an A/B session."""
    services, directory = controller.services, controller.directory
    assert services is not None and directory is not None and services.turns is not None
    comparison = Comparison(controller.settings.ab, controller.found)
    for rollout in read_journal(directory, lambda _: None):  # damage is told of elsewhere
        comparison.add(rollout)
    facts = services.turns.facts(services.failure)
    return comparison.summary(facts, services.turns.blocks, stopwatch)


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


def read(directory: Path, found: Sequence[Found], performance: Performance, session: int, *, gated: bool = False) -> Seen:
    """One pass over the journal, one rollout in memory at a time."""
    main_scores = {group: each.suite.score_names[0] for each, _, group in groups(found) if each.suite}
    seen = Seen(Tallies(performance))
    for rollout in read_journal(directory, seen.damaged.append):
        if rollout.session == session:
            seen.client.add(rollout)
        if rollout.kind == "scenario":
            seen.sessions[rollout.session] += 1
            seen.models.add(rollout.all_calls)
            seen.tallies.add(rollout, main_scores[rollout.key.group])
            if gated:
                seen.trials.append(trial_of(rollout))
    return seen


def groups(found: Sequence[Found]) -> Iterator[tuple[Found, str, str]]:
    """(suite, variant, the name of both) of everything that may have run; an earlier session may have run other variants."""
    for each in found:
        others = each.suite.variants if each.suite else ()
        for variant in dict.fromkeys((*each.variants, "default", *others)):
            yield each, variant, RolloutKey(each.name, "", variant).group


def resume_command(controller: Controller, tallies: Tallies, asked: Sequence[AskedSuite], *, interrupted: bool) -> str | None:
    """The command that goes on with a run that has something left to do; None where nothing is left."""
    ledger, services, directory = controller.ledger, controller.services, controller.directory
    assert ledger is not None and services is not None and directory is not None
    failed = any(tallies.suites[each.name].statuses[status] for each in asked for status in controller.settings.resume_rerun)
    if services.missing or not (interrupted or failed or ledger.planned_keys > ledger.done):
        return None
    words = [word for word in controller.command if word.partition("=")[0] != "--agentbench-resume"]
    return shlex.join([words[0], f"--agentbench-resume={directory.name}", *words[1:]])
