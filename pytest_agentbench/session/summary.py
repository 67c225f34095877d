"""Computes the Run of a finished session from its findings, and has the gate judge it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from pytest_agentbench.gate import ab
from pytest_agentbench.gate.ab import SuiteInArms
from pytest_agentbench.gate.repeats import earlier_runs
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.codec import read as read_record
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.runs.builder import RunReader, build_run, plan_suite
from pytest_agentbench.runs.directory import name_of
from pytest_agentbench.runs.identity import SuiteSetup, run_identity, suite_setup, unknown_environment
from pytest_agentbench.runs.options import RunOptions
from pytest_agentbench.runs.provenance import model_names, models_of
from pytest_agentbench.runs.results import ArmFacts, ArmsCompared, Cache, PlannedSuite
from pytest_agentbench.runs.run_file import (
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
from pytest_agentbench.session.open_session import OpenSession
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.pytest_reports import Outcomes
from pytest_agentbench.session.results import JournalContents, SessionFindings, groups
from pytest_agentbench.session.setup import Setup


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


def run_so_far(opened: OpenSession, read: RunReader) -> Run:
    """Returns the run of a session that has not ended, with the rollouts that were read. Facts that only its end shows are unknown."""
    planned = _plans_of(opened, Outcomes(opened.setup.config.rootpath), read)
    facts = SessionFacts(**_facts_so_far(opened), environment=unknown_environment(), stopwatch=Stopwatch(verdict=None))
    return build_run(facts, [*planned], read)


def _facts(opened: OpenSession, tests: Outcomes, findings: SessionFindings, resume: str | None) -> SessionFacts:
    """Returns the facts about the run that do not come from its rollouts."""
    recorder, services, settings = opened.recorder, opened.services, opened.setup.settings
    return SessionFacts(
        **_facts_so_far(opened),
        nodes=findings.nodes,
        launches=findings.launches,
        repeated=recorder.journal.index.repeated + len(recorder.ran_again),
        resume=resume,
        environment=_environment(opened, findings.environment),
        rounds=opened.rounds.summary if opened.rounds else None,
        interruptions=read_record(Interruptions, services.interruptions),
        labels=read_record(LabelCounts, plain(services.labels)) if services.labels.labelled else None,
        stopwatch=findings.stopwatch,
        serving=findings.serving,
        engines=findings.engines,
        hints=findings.journal.hints.uses(),
        processes={name: read_record(ProcessCost, cost) for name, cost in services.costs.items()},
        tests=tests.summary(),
        cache=cache_state(services, settings.cache),
    )


def _facts_so_far(opened: OpenSession) -> dict[str, Any]:
    """Returns the fields of SessionFacts that are known while a session runs."""
    recorder = opened.recorder
    return {
        "id": opened.directory.name,
        "name": name_of(opened.directory),
        "started_at": opened.sessions[0].started_at,
        "finished_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": opened.setup.command,
        "sessions": tuple(SessionShare(each.number, each.started_at, each.concurrency, rollouts=0) for each in opened.sessions),
        "settings": _options(opened.setup),
        "backend": _backend(opened),
        "plan": Plan(recorder.planned_keys, recorder.done, max(0, recorder.planned_keys - recorder.done)),
    }


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


def resume_command(opened: OpenSession, read: RunReader, planned: Sequence[PlannedSuite], *, interrupted: bool) -> str | None:
    """Returns the command that resumes an incomplete run, or None if nothing is left to run."""
    setup, recorder = opened.setup, opened.recorder
    failed = any(read.suites[each.name].statuses[status] for each in planned for status in setup.settings.resume_rerun)
    if opened.services.missing or not (interrupted or failed or recorder.planned_keys > recorder.done):
        return None
    words = [word for word in setup.command if word.partition("=")[0] != "--agentbench-resume"]
    return shlex.join([words[0], f"--agentbench-resume={opened.directory.name}", *words[1:]])
