"""Makes a Run from a stored journal, samples and RunInputs, with the functions that a session uses at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pytest_agentbench.backends.telemetry.engine_stats import Looks
from pytest_agentbench.backends.telemetry.engine_use import engine_uses
from pytest_agentbench.cli.gate import Options, suites_of
from pytest_agentbench.gate.ab import SuiteInArms
from pytest_agentbench.gate.baselines import FOLDER as BASELINES
from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.stopwatch import CpuShares, Stopwatch, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import arm_of, suite_of
from pytest_agentbench.runs.identity import hashed
from pytest_agentbench.runs.results import ArmFacts, PlannedSuite, SuiteFacts
from pytest_agentbench.runs.run_file import SCHEMA, Run, SessionFacts
from pytest_agentbench.runs.sessions import folder_of
from pytest_agentbench.session.gate import make_gate
from pytest_agentbench.session.results import MainScore, read_rollouts, samples_of, serving
from pytest_agentbench.session.summary import compare_arms, compute
from pytest_agentbench.suites.arms import DEFAULT, VariantOrigin

FILE = "facts.json"  # beside the journal: a RunInputs


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """All data that a run is computed from, except the journal and the samples in its directory."""

    facts: SessionFacts  # empty where the journal, the samples or the gate fill a field
    suites: tuple[PlannedSuite, ...]
    cpu: CpuShares
    looks: Looks | None  # null if no service was looked at
    arms: ArmFacts | None  # null without arms
    tests_below: int = 0  # tests whose scenarios were below their thresholds where the gate decides


def inputs_of(run: Run, questions: Mapping[str, Mapping[str, str]]) -> RunInputs:
    """Returns the inputs of a run, without everything that is computed. `questions` has the questions of the scenarios of each suite."""
    facts = SessionFacts(**run.facts())
    suites = tuple(_planned(run, name, questions.get(suite_of(name, each.variant), {})) for name, each in run.suites.items())
    return RunInputs(
        facts=replace(
            facts,
            sessions=tuple(replace(each, rollouts=0) for each in facts.sessions),
            damaged=(),
            identity=facts.identity and replace(facts.identity, hashes={}),
            backend=replace(facts.backend, models=()),
            stopwatch=Stopwatch(verdict=None),
            serving=None,
            ab=None,
            gate=None,
        ),
        suites=suites,
        cpu=CpuShares(run.stopwatch.tap_cpu, run.stopwatch.pool_cpu),
        looks=run.serving and Looks(**{each.name: getattr(run.serving, each.name) for each in fields(Looks)}),
        arms=_arms(run),
        tests_below=run.gate.tests_below if run.gate else 0,
    )


def _planned(run: Run, name: str, questions: Mapping[str, str]) -> PlannedSuite:
    result = run.suites[name]
    return PlannedSuite(name, SuiteFacts(**result.facts()), questions, {}, result.population)


def _arms(run: Run) -> ArmFacts | None:
    if run.ab is None:
        return None
    failures = {arm.name: arm.failure for arm in run.ab.arms if arm.failure}
    loads = {arm.name: arm.load_s for arm in run.ab.arms if arm.load_s is not None}
    return ArmFacts("" if failures else run.backend.failure, failures, loads, run.ab.order == "in sequence")


def write_inputs(inputs: RunInputs, directory: Path) -> None:
    """Writes the inputs to the directory of the journal."""
    (directory / FILE).write_text(json.dumps(plain(inputs), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rebuild(directory: Path) -> Run:
    """Returns the run that the present code makes from a directory with a journal, samples and stored inputs."""
    inputs = read(RunInputs, json.loads((directory / FILE).read_text(encoding="utf-8")))
    facts, suites = inputs.facts, inputs.suites
    session = facts.sessions[-1].session if facts.sessions else 1
    mains = {each.name: MainScore(main := each.facts.main_score, each.facts.scales[main]) for each in suites}
    journal = read_rollouts(directory, mains, session, arms=facts.backend.more.get("arms", ()), with_trials=True)
    part = journal.read.frame.scenarios(Terms(objectives_of(facts.settings.slo))).timed
    folder, calls = folder_of(directory, session), part.call_spans.get(session, ())
    sums = samples_of(folder, calls)
    facts = replace(
        facts,
        schema=SCHEMA,
        stopwatch=stopwatch_of(part, inputs.cpu, facts.environment.cpus),
        serving=serving(inputs.looks, sums, journal.client),
        engines=engine_uses(sums, journal.taps),
    )
    run = compute(facts, suites, journal)
    run = replace(run, identity=run.identity and hashed(run.identity))
    if inputs.arms:
        run = replace(run, ab=compare_arms(run, journal, _in_arms(suites), inputs.arms))
    settings = run.settings
    reports = directory if (directory / BASELINES).is_dir() else directory.parent  # an archive has the baselines in the run's directory
    asking = Options(settings.gate, settings.baseline, reports, settings.verdict, settings.thresholds, settings.ab)
    gate = make_gate([*suites_of(run)], asking)
    return replace(run, gate=gate.judge(run, journal.trials, inputs.tests_below)) if gate else run


def _in_arms(suites: tuple[PlannedSuite, ...]) -> dict[str, SuiteInArms]:
    """Returns the data on each suite that the comparison of arms needs."""
    known: dict[str, SuiteInArms] = {}
    for each in suites:
        variant, arm = each.facts.variant, arm_of(each.facts.variant)
        origin = VariantOrigin(DEFAULT if variant == arm else variant.removesuffix(f"-{arm}"), arm)
        name = suite_of(each.name, variant)
        before = known[name].origins if name in known else {}
        known[name] = SuiteInArms(each.facts.scales, {**before, variant: origin})
    return known
