"""Directories of the NeMo Agent Toolkit: a job of `nat eval` for each suite of a run, and the benchmark over jobs of several runs.

dynamo_evals/EXPERIMENT/jobs/job_RUN/   what `nat eval` leaves, and what throughput_analysis.py writes beside it; the experiment is
                                        the run's name, else the suite's
benchmarks/SUITE/                  what run_concurrency_benchmark.sh makes of several jobs: a row for each run
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.exports.chosen_runs import ChosenRuns
from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_optimization import Optimization
from pytest_agentbench.exports.nat_profile import write_profile
from pytest_agentbench.exports.nat_report import NatReport
from pytest_agentbench.exports.nat_schema import (
    ANSWERS,
    BENCHMARK_COLUMNS,
    CONFIG,
    CONFIG_GIVEN,
    EVALUATOR_ENDING,
    MAIN,
    METADATA,
    OPTIMIZATION,
    REPORT,
)
from pytest_agentbench.exports.nat_throughput import Throughput, analysis, rounded
from pytest_agentbench.records import Json, Rollout, RolloutKey
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.tables import places
from pytest_agentbench.tables.places import Origin, RolloutPlace

#: Our scores of tools -> what the toolkit calls that evaluator; others keep their names.
EVALUATORS = {"tsq": MAIN}
WHOLE_NUMBERS = ("concurrency", "total_llm_calls", "total_tokens")


@dataclass
class NatJob:
    """A suite of a run."""

    group: str
    folder: Path
    positions: Mapping[RolloutKey, int]
    entries: dict[int, Json] = field(default_factory=dict)  # by position: of ANSWERS
    items: defaultdict[str, dict[int, Json]] = field(default_factory=lambda: defaultdict(dict))  # evaluator -> by position
    optimization: Optimization = field(default_factory=Optimization)
    report: NatReport = field(default_factory=NatReport)


def write(chosen: ChosenRuns, directory: Path) -> None:
    """All jobs, and a benchmark for each suite."""
    rows: defaultdict[str, list[tuple[int | None, Throughput]]] = defaultdict(list)
    for origin in chosen.origins:
        run = chosen.run_of(origin)
        for group, positions in _positions(chosen, origin).items():
            job = NatJob(group, directory / "dynamo_evals" / _experiment(run, group) / "jobs" / f"job_{origin.run}", positions)
            job.folder.mkdir(parents=True)
            throughput = _write_job(job, origin, run, exact=chosen.exact)
            rows[group].append((run.settings.concurrency, throughput))
    for group, measured in rows.items():
        write_benchmark(measured, directory / "benchmarks" / group)


def _experiment(run: Run, group: str) -> str:
    """What a job is of: the name that the user gave the run, with that of the suite where it has several, or else the suite's alone."""
    return "-".join(filter(None, (run.name, group if len(run.suites) > 1 or not run.name else "")))


def _positions(chosen: ChosenRuns, origin: Origin) -> dict[str, dict[RolloutKey, int]]:
    """Group -> rollout -> its position: by id, in which numbers count as such, then by trial. The toolkit's plots join by it."""
    rollouts = chosen.tables.rollouts
    own = rollouts.where((rollouts["run"] == origin.run) & (rollouts["kind"] == "scenario"))
    names = zip(*(own[name] for name in RolloutKey._fields), strict=True)
    keys = [RolloutKey(suite, scenario, variant, int(trial)) for suite, scenario, variant, trial in names]
    groups: defaultdict[str, list[RolloutKey]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (_natural(key.scenario), key.trial)):
        groups[key.group].append(key)
    return {group: {key: place for place, key in enumerate(of_group)} for group, of_group in groups.items()}


def _natural(text: str) -> list[tuple[int, str]]:
    """So that `shop-10` stands behind `shop-9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _write_job(job: NatJob, origin: Origin, run: Run, *, exact: bool) -> Throughput:
    throughput = Throughput()
    for number, events in write_profile(_examples(job, origin), job.folder, exact=exact):
        throughput.add(number, events)
        job.optimization.add_events(events)
        job.report.add(number, events)
    throughput.write(job.folder, exact=exact)
    _write_json(job.folder / OPTIMIZATION, job.optimization.data())
    (job.folder / REPORT).write_text(job.report.text(), encoding="utf-8")
    _write_json(job.folder / ANSWERS, [entry for _, entry in sorted(job.entries.items())])
    for name, items in job.items.items():
        scores = [item["score"] for item in items.values() if item["score"] is not None]
        whole = {
            "average_score": sum(scores) / len(scores) if scores else None,
            "eval_output_items": [item for _, item in sorted(items.items())],
        }
        _write_json(job.folder / f"{name}{EVALUATOR_ENDING}", whole)
    _write_configuration(job, run)
    return throughput


def _examples(job: NatJob, origin: Origin) -> Iterator[tuple[int, RolloutPlace]]:
    """The rollouts of a job, each once its entry and its items are noted."""
    for place in places(origin):
        rollout = place.rollout
        if rollout.kind == "scenario" and rollout.key in job.positions:
            number = job.positions[rollout.key]
            id = rollout.scenario if rollout.trial == 1 else f"{rollout.scenario}_rep{rollout.trial - 1}"
            job.entries[number] = _entry(id, rollout)
            job.optimization.add_prompts(rollout)
            for name, item in _items(id, place):
                job.items[name][number] = item
            yield number, place


def _entry(id: str, rollout: Rollout) -> Json:
    """Of ANSWERS, with what the data set has of it."""
    questions = [message.get("content") for message in rollout.messages if message.get("role") == "user"]
    return {
        "id": id,
        "question": questions[0] if questions else "",
        "answer": "",
        "generated_answer": rollout.answer,
        "intermediate_steps": [],
        "expected_intermediate_steps": [],
        "expected_tool_calls": [*rollout.expected],
    }


def _items(id: str, place: RolloutPlace) -> Iterator[tuple[str, Json]]:
    """What evaluators say of a rollout. A score that is missing is an error with the score 0.0, as the toolkit has it.

    If lower scores are better, 0.0 would be a good one: then it has the worst score, or none if there is no worst.
    """
    rollout = place.rollout
    for name, score in rollout.scores.items():
        called: Json = {"actual_tool_calls": len(rollout.tool_calls), "expected_tool_calls": len(rollout.expected)}
        details = {"actual_tools": rollout.tools, "expected_tools": rollout.expected_tools}
        yield _evaluator(name), {"id": id, "score": float(score), "reasoning": {**score.parts, **called, "details": details}, "error": None}
    for name, error in rollout.score_errors.items():
        scale = place.origin.scale(rollout.key.group, name)
        yield _evaluator(name), {"id": id, "score": scale.worst if scale.falling else 0.0, "reasoning": {"error": error}, "error": error}


def _evaluator(score: str) -> str:
    return EVALUATORS.get(score, score.removeprefix("nat_"))


def _write_configuration(job: NatJob, run: Run) -> None:
    """The configurations, and what is known of the call."""
    suite = run.suites.get(job.group)
    settings = json.dumps(_configuration(job, run, suite), indent=2) + "\n"  # JSON is YAML
    for name in (CONFIG, CONFIG_GIVEN):
        (job.folder / name).write_text(settings, encoding="utf-8")
    trials = {key.trial for key in job.positions}
    metadata: Json = {
        "config_file": CONFIG_GIVEN,
        "config_file_type": "str",
        "overrides": [],
        "dataset": suite.dataset.file if suite else None,
        "result_json_path": "$",
        "skip_workflow": False,
        "skip_completed_entries": False,
        "reps": max(trials, default=1),
        "endpoint": None,
        "endpoint_timeout": 300,
        "adjust_dataset_size": False,
        "num_passes": 0,
        "export_timeout": 60.0,
        "user_id": None,
        "timestamp": run.started_at,
    }
    _write_json(job.folder / METADATA, metadata)


def _configuration(job: NatJob, run: Run, suite: SuiteResult | None) -> Json:
    """As much of a configuration as a run knows."""
    dataset = {"_type": "json", "file_path": suite.dataset.file if suite else ""}
    return {
        "llms": {"llm": {"_type": run.backend.kind, "model_name": run.backend.served_model}},
        "workflow": {"_type": suite.agent.get("kind", "unknown") if suite else "unknown", "llm_name": "llm"},
        "eval": {
            "general": {"max_concurrency": run.settings.concurrency, "dataset": dataset},
            "evaluators": {name: {"_type": name} for name in job.items},
        },
    }


def write_benchmark(measured: Sequence[tuple[int | None, Throughput]], folder: Path) -> None:
    """A row, and an analysis, for each run."""
    folder.mkdir(parents=True)
    rows: list[Json] = []
    used: set[str] = set()
    for concurrency, throughput in sorted(measured, key=lambda each: each[0] or 0):
        rows.append({"concurrency": concurrency, **throughput.figures()})
        name = next(name for name in _names(f"analysis_{concurrency}") if name not in used)
        used.add(name)
        (folder / f"{name}.txt").write_text(analysis(throughput), encoding="utf-8")
    (folder / "benchmark_report.md").write_text("\n".join(_report(folder.name, rows)) + "\n", encoding="utf-8")
    write_rows(
        folder / "benchmark_results.csv", BENCHMARK_COLUMNS, ([_cell(name, row[name]) for name in BENCHMARK_COLUMNS] for row in rows)
    )


def _report(name: str, rows: Sequence[Json]) -> Iterator[str]:
    """benchmark_report.md: a section for each row."""
    yield f"# Concurrency benchmark: {name}"
    for row in rows:
        yield from ("", f"## Concurrency {row['concurrency']}", "", "| | |", "|---|---|")
        yield from (f"| {column} | {_cell(column, row[column])} |" for column in BENCHMARK_COLUMNS[1:])


def _names(name: str) -> Iterator[str]:
    """A name, and those for others of it."""
    yield name
    yield from (f"{name}_{number}" for number in range(2, 10_000))


def _cell(name: str, value: Any) -> object:
    return value if name in WHOLE_NUMBERS else rounded(value)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
