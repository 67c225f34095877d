"""Exports runs as directories of the NeMo Agent Toolkit: `nat eval` jobs, and benchmarks that compare jobs of several runs.

A job contains one group of a run: the rollouts of one suite and variant.
"""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_agentbench.exports.csv_files import CsvFile
from pytest_agentbench.exports.files import ChosenRuns, JsonArray, array_parts, json_text
from pytest_agentbench.exports.nat_analyses import NatReport, Optimization
from pytest_agentbench.exports.nat_benchmark import Heading, add_events, write_benchmark, write_calls
from pytest_agentbench.exports.nat_dynamo import dynamo_metrics
from pytest_agentbench.exports.nat_events import KeptMessages, events_of, question, row_of, step_of
from pytest_agentbench.exports.nat_profiler import (
    ANSWERS,
    CONFIG,
    CONFIG_GIVEN,
    EVALUATOR_ENDING,
    EVENT_COLUMNS,
    EVENTS,
    MAIN,
    METADATA,
    OPTIMIZATION,
    REPORT,
    TRACES,
)
from pytest_agentbench.metrics.columns import Origin, RolloutPlace
from pytest_agentbench.metrics.other_tools.nat import Throughput
from pytest_agentbench.records import Json, Rollout, RolloutKey
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.scorers.nat_compat import nat_calls, nat_score
from pytest_agentbench.suites.arms import OF_AGENT
from pytest_agentbench.tables import places

CONCURRENCY = "eval.general.max_concurrency"


def write_configuration(folder: Path, run: Run, group: str, evaluators: Iterable[str], trials: int) -> None:
    """Writes the configuration files of a job: before overrides (CONFIG_GIVEN), with overrides (CONFIG), and METADATA about both."""
    effective, overrides = _configuration(run, group, evaluators), _overrides(run, group)
    given = copy.deepcopy(effective)
    for path in overrides:
        _leave_out(given, path)
    given["eval"]["general"]["max_concurrency"] = run.settings.concurrency
    for name, configuration in ((CONFIG_GIVEN, given), (CONFIG, effective)):
        text = yaml.safe_dump(json.loads(json.dumps(configuration, default=str)), sort_keys=False, allow_unicode=True)
        (folder / name).write_text(text, encoding="utf-8")
    metadata = json.dumps(_metadata(run, group, overrides, trials), indent=1, ensure_ascii=False, default=str)
    (folder / METADATA).write_text(metadata, encoding="utf-8")


def _configuration(run: Run, group: str, evaluators: Iterable[str]) -> Json:
    suite = run.suites.get(group)
    backend = run.backend.described(suite.variant if suite else "")
    agent = {name: value for name, value in (suite.agent if suite else {}).items() if name != "kind"}
    dataset = {"_type": "json", "file_path": suite.dataset.file if suite else ""}
    return {
        "llms": {"llm": {"_type": backend.get("kind"), "model_name": run.model_of(group)}},
        "workflow": {"_type": suite.agent.get("kind", "unknown") if suite else "unknown", "llm_name": "llm", **agent},
        "eval": {
            "general": {"max_concurrency": run.concurrency_of(group), "dataset": dataset},
            "evaluators": {name: {"_type": name} for name in evaluators},
        },
    }


def _overrides(run: Run, group: str) -> dict[str, Any]:
    """Returns path -> value of the settings that --agentbench-set or an arm changed, under their paths in the toolkit's configuration.

    Settings that the toolkit does not have are left out.
    """
    changes, arm = dict(run.settings.changes), run.arm_of(group)
    if arm:
        changes |= arm.settings
    settings = {f"workflow.{path.removeprefix(OF_AGENT)}": value for path, value in changes.items() if path.startswith(OF_AGENT)}
    return settings | ({CONCURRENCY: arm.concurrency} if arm and arm.concurrency is not None else {})


def _leave_out(configuration: Json, path: str) -> None:
    """Removes the value at a dotted path, if there is one: an override replaced it, and runs do not record the value before that."""
    *above, last = path.split(".")
    inside: Any = configuration
    for name in above:
        inside = inside.get(name) if isinstance(inside, dict) else None
    if isinstance(inside, dict):
        inside.pop(last, None)


def _metadata(run: Run, group: str, overrides: Mapping[str, Any], trials: int) -> Json:
    suite = run.suites.get(group)
    return {
        "config_file": CONFIG_GIVEN,
        "config_file_type": "str",
        "overrides": [{"path": path, "value": value} for path, value in overrides.items()],
        "dataset": suite.dataset.file if suite else None,
        "result_json_path": "$",
        "skip_workflow": False,
        "skip_completed_entries": False,
        "reps": trials,
        "endpoint": None,
        "endpoint_timeout": 300,
        "adjust_dataset_size": False,
        "num_passes": 0,
        "export_timeout": 60.0,
        "user_id": None,
        "timestamp": run.started_at,
    }


#: Kinds of events in ANSWERS, by the toolkit's default.
TRAJECTORY = frozenset({"LLM_END", "TOOL_END"})

#: Score of tool calls -> name of the toolkit's evaluator. Other scores keep their names.
EVALUATORS = {"tsq": MAIN}


@dataclass
class NatJob:
    """A job while its data are collected from the rollouts of one group of a run."""

    group: str
    folder: Path
    positions: Mapping[RolloutKey, int]
    messages: KeptMessages
    throughput: Throughput = field(default_factory=Throughput)
    items: defaultdict[str, dict[int, Json]] = field(default_factory=lambda: defaultdict(dict))  # evaluator -> position -> item
    optimization: Optimization = field(default_factory=Optimization)
    report: NatReport = field(default_factory=NatReport)


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a job for each group (suite and variant) of each run, and a benchmark for each group, which compares its jobs."""
    rows: defaultdict[str, list[tuple[int | None, Throughput]]] = defaultdict(list)
    headings: dict[str, Heading] = {}
    for origin in chosen.origins:
        run, messages = chosen.run_of(origin), KeptMessages(origin.directory)
        groups = chosen.split_by_arm(origin, run, "group")
        for group, positions in _positions(chosen, origin).items():
            own_origin, part = groups.get(group, (origin, None))
            job = NatJob(group, directory / "dynamo_evals" / _experiment(run, group) / "jobs" / f"job_{origin.run}", positions, messages)
            job.folder.mkdir(parents=True)
            _write_job(job, own_origin, run, exact=chosen.exact)
            job.throughput.wall_s = part.seconds if part else None
            name = _benchmark(run, group)
            headings.setdefault(name, Heading.of(name, run, group))
            rows[name].append((run.concurrency_of(group), job.throughput))
    for name, measured in rows.items():
        write_benchmark(headings[name], measured, directory / "benchmarks" / name)


def _benchmark(run: Run, group: str) -> str:
    """Returns the name of the benchmark that a group of a run belongs to.

    Usually this is the name of the group. If arms differ in concurrency, all of them are rows of one benchmark.
    """
    arm = run.arm_of(group)
    return group.removesuffix(f"-{arm.name}") if arm and arm.concurrency is not None else group


def _experiment(run: Run, group: str) -> str:
    """Returns the name of the experiment folder: the name of the run, of the group, or both if a named run has several groups."""
    return "-".join(filter(None, (run.name, group if len(run.suites) > 1 or not run.name else "")))


def _positions(chosen: ChosenRuns, origin: Origin) -> dict[str, dict[RolloutKey, int]]:
    """Returns group -> rollout -> its position in the files of the job, by which the toolkit's plots join them.

    Rollouts are sorted by the id of the scenario (numbers by value), then by trial.
    """
    rollouts = chosen.tables.rollouts
    own = rollouts.where((rollouts["run"] == origin.run) & (rollouts["kind"] == "scenario"))
    names = zip(*(own[name] for name in RolloutKey._fields), strict=True)
    keys = [RolloutKey(suite, scenario, variant, int(trial)) for suite, scenario, variant, trial in names]
    groups: defaultdict[str, list[RolloutKey]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (_natural(key.scenario), key.trial)):
        groups[key.group].append(key)
    return {group: {key: place for place, key in enumerate(of_group)} for group, of_group in groups.items()}


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts `shop-10` after `shop-9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _write_job(job: NatJob, origin: Origin, run: Run, *, exact: bool) -> None:
    with (
        CsvFile(job.folder / EVENTS, EVENT_COLUMNS, exact=exact) as table,
        JsonArray(job.folder / TRACES) as traces,
        JsonArray(job.folder / ANSWERS) as answers,
    ):
        for place in places(origin):
            if place.rollout.kind == "scenario" and place.rollout.key in job.positions:
                _add(job, place, table, traces, answers)
    write_calls(job.throughput, job.folder, exact=exact)
    arm = run.arm_of(job.group)
    _write_json(job.folder / OPTIMIZATION, job.optimization.data(dynamo_metrics(run, origin.directory, arm.name if arm else "")))
    (job.folder / REPORT).write_text(job.report.text(), encoding="utf-8")
    for name, items in job.items.items():
        scores = [item["score"] for item in items.values() if item["score"] is not None]
        whole = {
            "average_score": sum(scores) / len(scores) if scores else None,
            "eval_output_items": [item for _, item in sorted(items.items())],
        }
        _write_json(job.folder / f"{name}{EVALUATOR_ENDING}", whole)
    write_configuration(job.folder, run, job.group, job.items, max((key.trial for key in job.positions), default=1))


def _add(job: NatJob, place: RolloutPlace, table: CsvFile, traces: JsonArray, answers: JsonArray) -> None:
    """Adds a rollout to a job, and writes its events: all of them to EVENTS and TRACES, the ends of calls to ANSWERS.

    EVENTS is in the order in which rollouts ended. The other files are sorted by position, as in the toolkit.
    """
    rollout = place.rollout
    number = job.positions[rollout.key]
    id = rollout.scenario if rollout.trial == 1 else f"{rollout.scenario}_rep{rollout.trial - 1}"
    events = events_of(place, job.messages.of(rollout))
    for event in events:
        table.write(row_of(event, number))
    traces.add(number, array_parts(f'{{"request_number": {number}, "intermediate_steps": ', map(step_of, events), "}"))
    steps = [step_of(event) for event in events if event.kind in TRAJECTORY]
    answers.add(number, [json_text(_entry(id, rollout, steps))])
    add_events(job.throughput, number, events)
    job.optimization.add_prompts(rollout)
    job.optimization.add_events(events)
    job.report.add(number, events)
    for name, item in _items(id, place):
        job.items[name][number] = item


def _entry(id: str, rollout: Rollout, steps: Sequence[Json]) -> Json:
    """Returns the entry of a rollout in ANSWERS (workflow_output.json): the fields of the data set, the answer, and the trajectory."""
    return {
        "id": id,
        "question": question(rollout) or "",
        "answer": "",
        "generated_answer": rollout.answer,
        "intermediate_steps": steps,
        "expected_intermediate_steps": [],
        "expected_tool_calls": [*rollout.expected],
    }


def _items(id: str, place: RolloutPlace) -> Iterator[tuple[str, Json]]:
    """Yields (evaluator, item) for each score of a rollout. The item of a missing score has an error and the score 0.0, as in the toolkit.

    If lower scores are better, 0.0 would be a good score, so the item gets the worst possible score instead, or None if there is none.
    """
    rollout = place.rollout
    for name, score in rollout.scores.items():
        called: Json = {"actual_tool_calls": len(rollout.tool_calls), "expected_tool_calls": len(rollout.expected)}
        details = {"actual_tools": rollout.tools, "expected_tools": rollout.expected_tools}
        reasoning = {**score.parts, **(_accuracies(rollout) if _evaluator(name) == MAIN else {}), **called, "details": details}
        yield _evaluator(name), {"id": id, "score": float(score), "reasoning": reasoning, "error": None}
    for name, error in rollout.score_errors.items():
        scale = place.origin.scale(rollout.key.group, name)
        yield _evaluator(name), {"id": id, "score": scale.worst if scale.falling else 0.0, "reasoning": {"error": error}, "error": error}


def _accuracies(rollout: Rollout) -> Json:
    """Returns tool and parameter accuracy by the definitions of the toolkit's evaluator MAIN. `tsq` corresponds to tool accuracy alone."""
    parts = nat_score(nat_calls(rollout), rollout.expected).parts
    return {"tool_selection_accuracy": parts["tool_accuracy"], "parameter_usage_accuracy": parts["parameter_accuracy"]}


def _evaluator(score: str) -> str:
    return EVALUATORS.get(score, score.removeprefix("nat_"))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
