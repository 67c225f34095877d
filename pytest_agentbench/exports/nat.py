"""Imports a job directory of `nat eval` (NeMo Agent Toolkit): scores of evaluators, answers, and the profiler's events."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import Source
from pytest_agentbench.exports.files import dig, json_items, read_object
from pytest_agentbench.exports.nat_profiler import (
    ANSWERS,
    CONFIG,
    EVALUATOR_ENDING,
    EVENTS,
    MAIN,
    METADATA,
    NOT_EVALUATORS,
    TRACES,
    Example,
    read_events,
    tool_inputs,
)
from pytest_agentbench.lib.config import load_yaml
from pytest_agentbench.records import Json, Rollout, Score, is_score

STOPWATCH = (
    "the toolkit stamped events in the agent's own process with the wall clock: a call begins when the framework announces it, "
    "so TTFT includes the client queue"
)

AVERAGES = "the toolkit counts an error as 0.0, and weights items equally; a run leaves errors out, and averages trials of a scenario first"


@dataclass
class NatEntry:
    """What the NeMo Agent Toolkit recorded for one entry of its data set: answer and scores. The import makes a rollout of it."""

    id: str
    answer: str | None = None  # None: not known
    question: str = ""
    expected: tuple[Json, ...] = ()
    called: list[str] | None = None  # called tools, according to an evaluator
    scores: dict[str, Score] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)  # score -> reason why it is missing


def read(path: Path) -> Source:
    """Reads the job in a directory: the directory itself, or the only job in it. Raises ConfigError if there are several."""
    job = _job(path)
    evaluators = {
        file.name.removesuffix(EVALUATOR_ENDING): file
        for file in sorted(job.glob(f"*{EVALUATOR_ENDING}"))
        if file.name not in NOT_EVALUATORS
    }
    names = sorted(evaluators, key=lambda name: (name != MAIN, name))
    if not names:
        raise ConfigError(f"{job}: contains no <evaluator>_output.json (none is written if all evaluators failed); name another job")
    items = {name: _items(evaluators[name]) for name in names}
    config, metadata = (_optional(job / name) for name in (CONFIG, METADATA))
    notes: list[str] = []
    entries = _entries(job, items[names[0]], notes)
    for name in names:
        _score(entries, name, items[name], notes)
    events = _joined(job, entries, notes)
    _note_doubts(config, notes)
    general = dig(config, "eval", "general")
    data = dig(general, "dataset", "file_path") or dig(metadata, "dataset") or ""
    return Source(
        suite=re.sub(r"\W", "_", Path(data).stem) or "nat",
        scores=[f"nat_{name}" for name in names],
        rollouts=_rollouts(entries, events, dict(tool_inputs(job / TRACES)) if (job / TRACES).is_file() else {}, metadata, notes),
        stopwatch=STOPWATCH,
        planned=len(entries),
        notes=notes,
        dataset=str(data),
        agents={"default": {"kind": dig(config, "workflow", "_type") or "unknown"}},
        model=", ".join(_models(config)) or None,
        concurrency=dig(general, "max_concurrency"),
        means={"default": {f"nat_{name}": mean for name in names if (mean := _average(evaluators[name])) is not None}},
        averages=AVERAGES,
    )


def jobs(path: Path) -> list[Path]:
    """Returns the job directories in a directory or in its `jobs`, sorted by name. Returns the directory itself if there are none."""
    inside = [] if (path / ANSWERS).is_file() else sorted(path.glob("job_*")) or sorted(path.glob("jobs/job_*"))
    return inside or [path]


def _job(path: Path) -> Path:
    folders = jobs(path)
    if len(folders) > 1:
        raise ConfigError(f"{path}: {len(folders)} jobs are in it, but a run has one job; name one of them, such as {folders[-1]}")
    return folders[0]


def _optional(file: Path) -> Json:
    """Returns the mapping in a YAML or JSON file of a job, or an empty one if the file does not exist."""
    return (load_yaml(file) if file.suffix == ".yml" else read_object(file)) if file.is_file() else {}


def _items(file: Path) -> dict[str, Json]:
    """Reads the output file of an evaluator and returns id of an entry -> its item (score and reasoning), in the order of the file."""
    items = read_object(file, "eval_output_items")["eval_output_items"]
    by_id: dict[str, Json] = {}
    for number, item in enumerate(items if isinstance(items, list) else [None]):
        if not isinstance(item, dict) or "id" not in item or "score" not in item:
            raise ConfigError(f"{file}: eval_output_items[{number}] must be an object with id and score")
        if str(item["id"]) in by_id:
            raise ConfigError(f"{file}: the id {item['id']!r} is there twice; remove one of the two items")
        by_id[str(item["id"])] = item
    return by_id


def _average(file: Path) -> float | None:
    """Returns the mean score in the output file of an evaluator, or None if there is none."""
    mean = read_object(file).get("average_score")
    return mean if isinstance(mean, int | float) and not isinstance(mean, bool) and math.isfinite(mean) else None


def _entries(job: Path, items: Mapping[str, Json], notes: list[str]) -> list[NatEntry]:
    """Returns the entries with ids, questions and answers, in the order of the data set. Adds notes about answers without ids."""
    rows = list(map(_row, json_items(job / ANSWERS))) if (job / ANSWERS).is_file() else []
    if rows and all(row.id for row in rows):
        return rows
    entries = [NatEntry(id) for id in items]
    if len(rows) != len(entries):
        notes.append(f"{ANSWERS} has no ids and {len(rows)} texts for {len(entries)} scores, so the answers cannot be assigned")
        return entries
    notes.append(f"{ANSWERS} has no ids (structure.disable): the n-th answer is taken for that of the n-th score")
    for entry, row in zip(entries, rows, strict=True):
        entry.answer = row.answer
    return entries


def _row(row: Any) -> NatEntry:
    """Converts an element of workflow_output.json to an entry.

    It is an object with an id or, if the data set has no structure (`structure.disable`), only the text of the answer.
    """
    if not isinstance(row, dict):
        return NatEntry("", str(row or ""))
    labels = row.get("expected_tool_calls")
    expected = [call for call in labels if isinstance(call, dict) and "tool" in call] if isinstance(labels, list) else []
    return NatEntry(str(row.get("id", "")), str(row.get("generated_answer") or ""), str(row.get("question") or ""), tuple(expected))


def _score(entries: Sequence[NatEntry], name: str, items: Mapping[str, Json], notes: list[str]) -> None:
    """Adds the scores of the evaluator `name` to the entries. Items with an error lead to no score, although the toolkit wrote 0.0."""
    failed = 0
    for entry in entries:
        item = items.get(entry.id, {"score": None, "error": "the evaluator has no item of this id"})
        reasoning, score = item.get("reasoning"), item["score"]
        error = item.get("error") or dig(reasoning, "error")
        if error or isinstance(score, bool) or not isinstance(score, int | float) or not is_score(score):
            entry.errors[f"nat_{name}"] = str(error or f"{score!r} is not a score")
            failed += 1
            continue
        parts = (
            {key: value for key, value in (reasoning or {}).items() if type(value) in (int, float)} if isinstance(reasoning, dict) else {}
        )
        entry.scores[f"nat_{name}"] = Score(score, parts, reasoning if isinstance(reasoning, str) else "")
        if isinstance(called := dig(reasoning, "details", "actual_tools"), list):
            entry.called = [str(tool) for tool in called]
            labels = dig(reasoning, "details", "expected_tools")
            entry.expected = entry.expected or tuple({"tool": tool} for tool in (labels if isinstance(labels, list) else ()))
    if failed:
        notes.append(
            f"{name}: {failed} of {len(entries)} items are errors, which the toolkit's average counts as 0.0; here they have no scores"
        )
    if strangers := [id for id in items if id not in {entry.id for entry in entries}]:
        notes.append(
            f"{name}: {len(strangers)} items have ids that {ANSWERS} does not contain, such as {strangers[0]!r}; they are left out"
        )


def _joined(job: Path, entries: Sequence[NatEntry], notes: list[str]) -> dict[int, Example]:
    """Returns position of an entry -> its profiler events.

    Events have no ids, so the positions are checked: the tools in the events must be those that an evaluator recorded for the entry. If
    they are not, all events are left out, and `notes` says why.
    """
    if not (job / EVENTS).is_file():
        notes.append(f"no {EVENTS} (the profiler was off), so there are no calls, tools or times")
        return {}
    events = read_events(job / EVENTS)
    fits = {number: list(map(_bare, example.tools)) for number, example in events.items() if number in range(len(entries))}
    names_by_number = {number: list(map(_bare, entry.called)) for number, entry in enumerate(entries) if entry.called is not None}
    both = [number for number in names_by_number if names_by_number[number] and fits.get(number)]
    wrong = [number for number in both if sorted(names_by_number[number]) != sorted(fits[number])]
    if wrong or len(fits) < len(events):
        why = (
            f"entry {wrong[0]} ({entries[wrong[0]].id}) was scored for tools that event example {wrong[0]} does not have"
            if wrong
            else f"example_number {max(events)} is beyond the {len(entries)} entries"
        )
        notes.append(f"events are left out, because they cannot be assigned: {why}")
        return {}
    notes.append(f"events are joined to ids by position, which their tools confirm for {len(both)} of {len(entries)} entries")
    if borrowed := [number for number in names_by_number if names_by_number[number] and not fits.get(number)]:
        notes.append(
            f"{len(borrowed)} entries were scored for tools that their own events do not have, such as {entries[borrowed[0]].id!r}"
        )
    if lost := sum(call.started is None for example in events.values() for call in example.llm_events.values()):
        notes.append(f"{lost} calls have no LLM_START and are left out")
    return events


def _bare(name: str) -> str:
    return name.rpartition("__")[2]


def _rollouts(
    entries: Sequence[NatEntry], events: Mapping[int, Example], inputs: dict[str, object], metadata: Json, notes: list[str]
) -> Iterator[Rollout]:
    trials: dict[str, int] = {}
    silent = zeros = 0
    repeated = (metadata.get("reps") or 1) > 1
    for number, entry in enumerate(entries):
        scenario = re.sub(r"_rep\d+$", "", entry.id) if repeated else entry.id
        trials[scenario] = trials.get(scenario, 0) + 1
        example = events.get(number)
        nothing = example is None and not entry.answer and not entry.called and bool(events or entry.answer is not None)
        rollout = _rollout(entry, scenario, trials[scenario], example, inputs, nothing)
        silent += not rollout.evaluable
        zeros += any(not float(score) for score in rollout.scores.values()) and not rollout.tool_calls
        yield rollout
    if silent:
        notes.append(f"{silent} entries have no answer and no event: they are infra_error here, and count as 0.0 in the toolkit's average")
    if zeros:
        notes.append(f"{zeros} scores of 0.0 are of entries without a tool call: the toolkit writes the same for a workflow that failed")
    if events and not inputs:
        notes.append(f"no {TRACES}, so the arguments of tools are not known")


def _rollout(entry: NatEntry, scenario: str, trial: int, example: Example | None, inputs: dict[str, object], nothing: bool) -> Rollout:
    calls = example.calls() if example else ()
    return Rollout(
        suite="",
        scenario=scenario,
        variant="default",
        trial=trial,
        status="infra_error" if nothing else "ok",
        reason="the toolkit recorded no answer and no event, and not why" if nothing else "",
        started_at=example.first / 1e9 if example else 0.0,
        started_ns=example.first if example else 0,
        ended_ns=example.last if example else 0,
        calls=calls,
        tool_calls=example.tool_calls(inputs) if example else (),
        expected=entry.expected,
        answer=entry.answer or "",
        turns=len(calls),
        messages=({"role": "user", "content": entry.question},) if entry.question else (),
        scores={} if nothing else entry.scores,
        score_errors={} if nothing else entry.errors,
    )


def _models(config: Json) -> list[str]:
    llms = dig(config, "llms") or {}
    return sorted({str(dig(llm, "model_name")) for llm in llms.values() if dig(llm, "model_name")})


def _note_doubts(config: Json, notes: list[str]) -> None:
    """Adds notes about doubts that the job's configuration casts on its numbers."""
    if not config:
        notes.append(f"no {CONFIG}, so agent, model and concurrency are unknown")
    if dig(config, "eval", "general", "dataset", "structure", "disable"):
        notes.append("structure.disable: the agent was given the whole entry of the data set, its labels included")
    if "self_evaluating" in str(dig(config, "workflow", "_type")):
        notes.append("the agent judges itself: its calls include those of the judge, and its tools are those of all its drafts")
