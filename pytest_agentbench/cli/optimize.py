"""`agentbench optimize`: searches better settings, and confirms the best ones on scenarios that the search did not see."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.output import print_document
from pytest_agentbench.cli.parser import option
from pytest_agentbench.cli.sessions import tidy_termination
from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.runs.option import number, positive_time

if TYPE_CHECKING:
    from optuna import Study

    from pytest_agentbench.cli.optimize_sessions import StudySessions
    from pytest_agentbench.optimize.confirmation import Confirmation, ConfirmationTerms
    from pytest_agentbench.optimize.plan import StudyPlan
    from pytest_agentbench.optimize.ranking import RankingTerms
    from pytest_agentbench.optimize.search import RankedTrial
    from pytest_agentbench.optimize.space import SpaceSpec
    from pytest_agentbench.suites.suite import Suite

FOLDER = "optimize"  # name of the folder of studies in the reports directory
FAILURES = 4  # the study ends if so many first trials cannot be measured


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    command = commands.add_parser(
        "optimize",
        help="Search better settings, and confirm them on scenarios that the search did not see",
        description="Arguments after `--` go to pytest. A study that was interrupted is continued by the same command.",
        example="agentbench optimize scenarios/banking --space space.yaml --trials 20",
    )
    command.add_argument("suite", type=Path, metavar="SUITE", help="the suite's folder, such as scenarios/banking")
    command.add_argument("--space", type=Path, required=True, metavar="FILE", help="the settings to search, and the objectives")
    command.add_argument(
        "--backend", default="embedded", metavar="NAME", help="the backend under test, as for --agentbench-backend (default: embedded)"
    )
    command.add_argument("--trials", type=option(number(2)), default=20, metavar="N", help="number of settings to try (default: 20)")
    command.add_argument(
        "--time-limit",
        type=option(positive_time),
        metavar="TIME",
        help="end the search so early that search and confirmation together take about this time (90m, 2h)",
    )
    command.add_argument("--margin", type=_margin, default=0.05, metavar="M", help="accepted loss of the main score (default: 0.05)")
    command.add_argument("--concurrency", type=option(number(1)), default=4, metavar="N", help="rollouts in flight (default: 4)")
    command.add_argument(
        "--confirmation-trials",
        type=option(number(1)),
        metavar="N",
        help="trials of each scenario in the confirmation (default: as many as unchanged quality needs to pass the margin)",
    )
    command.add_argument(
        "--run",
        dest="name",
        metavar="RUN",
        help="a run of the suite with several trials, which shows how much they vary (default: an assumption)",
    )
    command.add_argument("--seed", type=option(number(0)), default=0, metavar="N", help="seed of samplers and of the split (default: 0)")
    command.add_argument(
        "--output", type=Path, metavar="DIR", help=f"directory of the study; an existing one is continued (default: reports/{FOLDER}/SUITE)"
    )
    command.takes_rest()
    command.takes_reports()
    command.set_defaults(run=run_optimize)


def _margin(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be greater than 0 and less than 1")
    return value


@dataclass(frozen=True)
class OptimizeCommand:
    """Everything that a study needs, read and checked."""

    space: SpaceSpec
    ranking: RankingTerms
    confirmation: ConfirmationTerms
    plan: StudyPlan
    sessions: StudySessions
    study: Study
    directory: Path
    obstacles: tuple[str, ...]  # why the study cannot confirm anything
    noise: str  # where the noise of the score is known from


def run_optimize(options: argparse.Namespace) -> None:
    """Runs the search and the confirmation. Prints the ranking, the verdict and the settings."""
    from pytest_agentbench.cli.optimize_sessions import booted_once
    from pytest_agentbench.suites.arms import OF_BACKEND

    command = _prepared(options)
    for line in _first_lines(command):
        print(line, flush=True)
    is_changed = any(path.startswith(OF_BACKEND) for path in command.space.parameters)
    with tidy_termination(), booted_once(options.backend, options.rest, is_changed=is_changed) as kept:
        command.sessions.options = (*command.sessions.options, *kept)
        _search(command, options.time_limit)
        _finish(command)


def _prepared(options: argparse.Namespace) -> OptimizeCommand:
    """Reads suite and space, and opens the study. Raises ConfigError if something is wrong, before anything boots."""
    from pytest_agentbench.cli.optimize_sessions import StudySessions
    from pytest_agentbench.cli.power import declared_suite, noise_of, scale_of
    from pytest_agentbench.optimize.confirmation import ConfirmationTerms
    from pytest_agentbench.optimize.plan import confirmation_trials, obstacles
    from pytest_agentbench.optimize.ranking import RankingTerms
    from pytest_agentbench.optimize.search import open_study, require_optuna
    from pytest_agentbench.optimize.space import read_space
    from pytest_agentbench.optimize.study import RUNS, TRIALS_FILE, StudySettings, continue_study
    from pytest_agentbench.suites.folder import suite_file

    require_optuna()
    suite = declared_suite(suite_file(options.suite))
    space = read_space(options.space)
    score = suite.score_names[0]
    scale = scale_of(suite, score)
    if scale.width is None:
        raise ConfigError(f"{score} has no lowest or no highest value, so a loss of it cannot be judged; declare its range with @scorer")
    _check_settings(options, space, suite)
    within, _, noise = noise_of(options, suite, score, scale)
    plan = _plan(options, suite, space)
    needed = confirmation_trials(len(plan.held_out), within, options.margin / scale.width, deterministic=suite.deterministic)
    chosen = options.confirmation_trials
    plan = replace(plan, confirmation_trials=chosen) if chosen else plan.with_confirmation(needed)
    directory = options.output or options.reports / FOLDER / suite.name
    passed_on = (f"--agentbench-backend={options.backend}", *options.rest)
    continue_study(directory, StudySettings(str(options.suite), space.model_dump(), passed_on, options.margin, plan))
    return OptimizeCommand(
        space,
        RankingTerms(tuple(space.objectives), score, scale, space.quality_weight),
        ConfirmationTerms(suite.name, space.objectives[0], score, scale, options.margin, suite.deterministic),
        plan,
        StudySessions(str(options.suite), options.concurrency, passed_on, directory / RUNS),
        open_study(space, directory / TRIALS_FILE),
        directory,
        tuple(obstacles(plan, needed, options.margin)),
        noise,
    )


def _plan(options: argparse.Namespace, suite: Suite, space: SpaceSpec) -> StudyPlan:
    from pytest_agentbench.optimize.plan import FEWEST_SCENARIOS, StudyPlan, split

    quarantined = {each.scenario for each in suite.quarantine}
    clusters = {each.id: each.cluster for each in suite.scenarios if each.id not in quarantined}
    if len(clusters) < FEWEST_SCENARIOS:
        raise ConfigError(f"{suite.name} has {len(clusters)} scenarios, but search and confirmation together need {FEWEST_SCENARIOS}")
    if odd := next((each for each in clusters if "," in each), None):
        raise ConfigError(f"{suite.name}: the scenario id {odd!r} contains a comma, with which sessions separate ids; rename it")
    parts, held_out = split(clusters, options.seed)
    settings = min(options.trials, space.size or options.trials)
    return StudyPlan(parts, held_out, settings, 1, options.concurrency, options.seed)


def _check_settings(options: argparse.Namespace, space: SpaceSpec, suite: Suite) -> None:
    """Raises ConfigError if a setting of the space does not exist, with the known ones."""
    from pytest_agentbench.agents.factory import brings_code, make_agent
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.optimize.space import examples
    from pytest_agentbench.optimize.spending import COST, TOKENS
    from pytest_agentbench.suites.arms import DEFAULT, OF_BACKEND, SETTINGS, Arm, in_arms

    if COST in space.objectives and load_backend(options.backend, Path.cwd()).prices is None:
        raise ConfigError(f"{options.space}: objectives: {COST} needs `prices` in the backend {options.backend}; {TOKENS} needs none")
    for settings in examples(space):
        try:
            of_backend = [(path.removeprefix(OF_BACKEND), value) for path, value in settings.items() if path.startswith(OF_BACKEND)]
            load_backend(options.backend, Path.cwd(), of_backend)
            changed, _ = in_arms(suite, [DEFAULT], [Arm("new", SETTINGS, _as_json(settings))])
            agent = changed.agent_of("new")
            if not brings_code(agent, suite.folder):
                make_agent(agent, suite.folder)
        except ConfigError as error:
            raise ConfigError(f"{options.space}: parameters: {', '.join(settings)}: {error}") from error


def _as_json(settings: dict[str, Any]) -> str:
    import json

    return json.dumps(settings)


def _first_lines(command: OptimizeCommand) -> Iterator[str]:
    """Yields what the study will do, and whether it can confirm anything."""
    from pytest_agentbench.reports.phrases import count

    plan = command.plan
    searching, confirming = plan.rollouts
    yield f"search        {plan.settings} settings on {sum(map(len, plan.parts))} scenarios, up to {searching} rollouts"
    yield (
        f"confirmation  {len(plan.held_out)} other scenarios with {count(plan.confirmation_trials, 'trial')}, {confirming} rollouts in "
        f"{plan.confirmation_pairs} pairs of blocks; noise of {command.ranking.score}: {command.noise}"
    )
    for reason in command.obstacles:
        yield f"warning       this study cannot confirm any settings: {reason}"


def _search(command: OptimizeCommand, limit: float | None) -> None:
    """Runs the trials that are left, and prints a line for each."""
    from pytest_agentbench.optimize.expected_end import StudyClock
    from pytest_agentbench.optimize.search import finished, search

    plan, before = command.plan, len(finished(command.study))
    clock = StudyClock(plan, command.sessions, before, limit)

    def tell(trial: RankedTrial) -> None:
        done = finished(command.study)
        end = datetime.now().astimezone() + timedelta(seconds=clock.left_s(len(done)))
        print(f"trial {len(done)} of {plan.settings}: {trial_text(trial)}; expected end {end:%H:%M}", flush=True)
        if len(done) >= FAILURES and all(each.state == "fail" for each in done):
            raise AgentbenchError(f"none of the first {len(done)} settings could be measured: {done[-1].why}")

    if before:
        print(f"continuing    {before} of {plan.settings} settings are measured")
    if command.study.user_attrs.get("confirmed") is None:
        search(command.study, command.space, command.ranking, plan, command.sessions, tell=tell, is_over=clock.is_over)


def trial_text(trial: RankedTrial) -> str:
    """`x0.931, quality -0.010 (complete): agent.temperature=0.2`: the result of one trial, compared with the default settings."""
    from pytest_agentbench.reports.optimize_phrases import settings_text, trial_result

    return f"{trial_result(trial)}: {settings_text(trial.settings)}"


def _finish(command: OptimizeCommand) -> None:
    """Confirms the winner, prints the report and writes its files."""
    from pytest_agentbench.optimize.search import finished, importances, pareto_set, winner
    from pytest_agentbench.reports.optimize import StudyReport, document, write

    best = winner(command.study)
    confirmation: Confirmation | None = None
    if best:
        print(f"confirming    {trial_text(best)}", flush=True)
        plan = command.plan
        confirmation = command.sessions.confirmation(best.settings, plan.held_out, plan.confirmation_trials, command.confirmation)
        command.study.set_user_attr("confirmed", best.number)
    report = StudyReport(
        command.confirmation.suite,
        command.ranking,
        command.plan,
        tuple(finished(command.study)),
        tuple(pareto_set(command.study)),
        best,
        confirmation,
        importances(command.study),
        command.obstacles,
        str(command.sessions.suite),
    )
    print_document(document(report))
    print(f"wrote {', '.join(file.name for file in write(report, command.directory))} to {command.directory}")
