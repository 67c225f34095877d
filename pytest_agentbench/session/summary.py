"""The end of a session: the journal becomes a Run, and limits on means are judged."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import NAMES, summary, tally
from pytest_agentbench.backends.telemetry.sampler import Sampler
from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.gate.ab import Comparison
from pytest_agentbench.gate.evidence import Trial, trial_of
from pytest_agentbench.gate.repeats import earlier_tries
from pytest_agentbench.metrics import windows
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.windows import Span
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.runs.directory import PRIVATE
from pytest_agentbench.runs.identity import run_identity, suite_setup
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.sessions import append_session
from pytest_agentbench.runs.tally import MEASURED, NOTHING_MEASURED, SCHEMA, Limit, SuiteTally, build_suite, known_mean, unknown_environment
from pytest_agentbench.scorers import LOWER_IS_BETTER
from pytest_agentbench.session.discovery import Found
from pytest_agentbench.suites.models import Models, names

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller
    from pytest_agentbench.session.processes import Services


class Gathered(NamedTuple):
    """What takes a while to be found out of a session that is over."""

    tallies: dict[str, SuiteTally]  # of each suite under each variant
    performance: Json
    stopwatch: Json
    serving: Json | None  # of this session
    sessions: dict[int, int]  # session -> rollouts that are its own
    models: list[Json]  # that were asked for and that answered
    damaged: list[str]  # sentences on lines of the journal that are no records
    trials: list[Trial]  # for the gate; none without one
    environment: Json


@dataclass
class Seen:
    """What one pass over the journal leaves beside timings."""

    tallies: dict[str, SuiteTally]
    client: Client = field(default_factory=Client)  # of this session, as its backend's counters are
    sessions: Counter[int] = field(default_factory=Counter)
    models: Models = field(default_factory=Models)
    damaged: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)


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
        seen.tallies,
        performance.summary(),
        stopwatch,
        losses.value("what the stack told of itself is left out", look, None),
        seen.sessions,
        seen.models.summary(),
        seen.damaged,
        seen.trials,
        losses.value("what the session ran on is left out", controller.environment.result, unknown_environment()),
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


def conclude(controller: Controller, gathered: Gathered, *, interrupted: bool) -> Json:
    """run.json of a session that is over, without its exit status and the verdict that follows from it."""
    ledger, services, settings = controller.ledger, controller.services, controller.settings
    assert controller.directory is not None and controller.backend is not None and ledger is not None and services is not None
    suites: Json = {}
    setups: Json = {}
    limits: list[Limit] = []
    for found, variant, group in groups(controller.found):
        if found.suite and (group in ledger.selected or gathered.tallies[group].statuses):
            quarantined, population = controller.outcomes.quarantined(group), controller.gate.population(group) if controller.gate else ()
            suites[group] = build_suite(found.suite, variant, gathered.tallies[group], found.thresholds, quarantined, population)
            setups[group] = suite_setup(found.suite, variant, f"auto:{settings.rounds}" if settings.rounds else found.trials)
            limits += [] if services.missing else judge(found, group, suites[group], settings.thresholds)
    with controller.losses.step("pytest_agentbench_update_environment failed"):
        controller.config.hook.pytest_agentbench_update_environment(environment=gathered.environment)
    run: Json = {
        "schema": SCHEMA,
        "id": controller.directory.name,
        "started_at": controller.sessions[0].started_at,
        "finished_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": [*controller.command],
        "sessions": [
            {
                "session": each.number,
                "started_at": each.started_at,
                "concurrency": each.concurrency,
                "rollouts": gathered.sessions.get(each.number, 0),
            }
            for each in controller.sessions
        ],
        "repeated": ledger.journal.index.repeated + len(ledger.ran_again),
        "resume": resume_command(controller, suites, interrupted=interrupted),
        "damaged": gathered.damaged,
        "losses": [],
        "settings": {
            **asdict(settings),
            "changes": dict(settings.changes),
            "reports": settings.reports.name,
            "concurrency": controller.concurrency,
        },
        "environment": gathered.environment,
        "identity": None,
        "backend": {
            "name": controller.backend.name,
            "note": controller.backend.note,
            **controller.backend.description,
            "served_model": names(gathered.models) or (services.endpoint.model if services.endpoint else None),
            "models": gathered.models,
            "warnings": controller.model_warnings,
            "failure": services.failure,
        },
        "rounds": services.rounds.summary if services.rounds else None,
        "interruptions": services.interruptions,
        "labels": services.labels,
        "plan": {"rollouts": ledger.planned_keys, "finished": ledger.done, "not_run": max(0, ledger.planned_keys - ledger.done)},
        "suites": suites,
        "stopwatch": gathered.stopwatch,
        "performance": gathered.performance,
        "serving": gathered.serving,
        "processes": services.costs,
        "tests": controller.outcomes.summary(),
        "limits": [{**asdict(limit), "failed": limit.failed} for limit in limits],
        "cache": cache_state(services, settings.cache),
        "ab": compare_arms(controller, gathered.stopwatch) if settings.ab else None,
        "gate": None,
        "earlier": None,
    }
    run["identity"] = run_identity(run, setups, controller.backend.identity, controller.backend.facts)
    if controller.gate and not services.missing:
        with controller.losses.step("the gate has not judged"):
            run["gate"] = controller.gate.judge(run, gathered.trials, controller.tests_below)
    with controller.losses.step("earlier runs of this setup are not counted"):
        run["earlier"] = earlier_tries(run, settings.reports)
    return run


def cache_state(services: Services, policy: str) -> Json:
    """How the prefix cache was made ready, block by block where it was."""
    turns = services.turns
    return {"policy": policy, "blocks": turns.blocks if turns else [], "salted": turns.why_salted if turns else {}}


def compare_arms(controller: Controller, stopwatch: Json) -> Json:
    """The paired comparison of an A/B session."""
    services, directory = controller.services, controller.directory
    assert services is not None and directory is not None and services.turns is not None
    comparison = Comparison(controller.settings.ab, controller.found)
    for rollout in read_journal(directory, lambda _: None):  # damage is told of elsewhere
        comparison.add(rollout)
    facts = services.turns.facts(services.failure)
    return comparison.summary(facts, services.turns.blocks, stopwatch)


def serving(sampler: Sampler | None, directory: Path, calls: Sequence[Span], client: Client) -> Json | None:
    """What the stack told of itself, and where that differs from what the tap saw; None where it told nothing."""
    if sampler is None:
        return None
    told = summary(tally(read_samples(directory, NAMES), windows.outer(calls)))
    return {
        **told,
        "disagreements": disagreements(told["server"], client),
        "notes": sampler.notes,
        "looks": sampler.rounds,
        "every_s": sampler.every_s,
        "cpu_s": sampler.cpu_s,
    }


def read(directory: Path, found: Sequence[Found], performance: Performance, session: int, *, gated: bool = False) -> Seen:
    """One pass over the journal, one rollout in memory at a time; a tally for each suite under each variant."""
    main_scores = {group: each.suite.score_names[0] for each, _, group in groups(found) if each.suite}
    seen = Seen({group: SuiteTally() for group in main_scores})
    for rollout in read_journal(directory, seen.damaged.append):
        if rollout.session == session:
            seen.client.add(rollout)
        if rollout.kind == "scenario":
            seen.sessions[rollout.session] += 1
            seen.models.add(rollout.all_calls)
            seen.tallies[rollout.key.group].add(rollout, main_scores[rollout.key.group])
            performance.add(rollout)
            if gated:
                seen.trials.append(trial_of(rollout))
    return seen


def groups(found: Sequence[Found]) -> Iterator[tuple[Found, str, str]]:
    """(suite, variant, the name of both) of everything that may have run; an earlier session may have run other variants."""
    for each in found:
        others = each.suite.variants if each.suite else ()
        for variant in dict.fromkeys((*each.variants, "default", *others)):
            yield each, variant, RolloutKey(each.name, "", variant).group


def resume_command(controller: Controller, suites: Json, *, interrupted: bool) -> str | None:
    """The command that goes on with a run that has something left to do; None where nothing is left."""
    ledger, services, directory = controller.ledger, controller.services, controller.directory
    assert ledger is not None and services is not None and directory is not None
    failed = any(suite["rollouts"][status] for suite in suites.values() for status in controller.settings.resume_rerun)
    if services.missing or not (interrupted or failed or ledger.planned_keys > ledger.done):
        return None
    words = [word for word in controller.command if word.partition("=")[0] != "--agentbench-resume"]
    return shlex.join([words[0], f"--agentbench-resume={directory.name}", *words[1:]])


def judge(found: Found, group: str, summary: Json, from_command_line: Mapping[str, float]) -> list[Limit]:
    """Limits on the means of a suite under one variant; with nothing measured, one that fails, whatever was asked."""
    assert found.suite is not None
    measured = sum(summary["rollouts"][status] for status in MEASURED)
    if not measured and found.thresholds:
        return [Limit(group, NOTHING_MEASURED, 1, 0, True, "no rollout was measured, so no threshold is known to hold")]
    wanted = len(found.suite.scenarios) * found.trials
    limits = []
    for name, limit in found.thresholds.items():
        if name.endswith(".mean"):
            score = name.removesuffix(".mean")
            value, why = known_mean(summary, score)
            whole = measured >= wanted or name in from_command_line
            part = f"not judged: {measured} of {wanted} rollouts were measured; --agentbench-threshold {name}=... judges any part"
            limits.append(Limit(group, name, limit, value, whole, why if whole else part, score in LOWER_IS_BETTER))
    return limits
