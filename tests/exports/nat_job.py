"""A job directory of the NeMo Agent Toolkit, made by hand from the description of its formats."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.records import Json

COLUMNS = [
    *("event_type", "event_timestamp", "example_number", "prompt_tokens", "completion_tokens", "total_tokens", "llm_text_input"),
    *("llm_text_output", "llm_new_token", "llm_name", "tool_name", "function_name", "UUID", "framework"),
]

CONFIG = """
workflow: {_type: react_agent, llm_name: nim}
llms: {nim: {_type: dynamo, model_name: llama-3.3-70b}}
eval:
  general:
    max_concurrency: 16
    dataset: {_type: json, file_path: data/banking.json, structure: {disable: true}}
"""


def event(kind: str, at: str, example: int, uuid: str, **columns: Any) -> Json:
    """Returns a row of the profiler's CSV."""
    return {"event_type": kind, "event_timestamp": at, "example_number": example, "UUID": uuid, "framework": "langchain", **columns}


def call(example: int, uuid: str, start: str, tokens: Sequence[str], end: str | None, text: str = "x", **counts: int) -> list[Json]:
    """Returns the events of an LLM call. A call without an end has failed."""
    rows = [event("LLM_START", start, example, uuid, llm_name="llama-3.3-70b", llm_text_input='Say "hi",\nplease')]
    rows += [event("LLM_NEW_TOKEN", at, example, uuid, llm_new_token=text) for at in tokens]
    return rows if end is None else [*rows, event("LLM_END", end, example, uuid, llm_name="llama-3.3-70b", **counts)]


def tool(example: int, uuid: str, name: str, start: str, end: str) -> list[Json]:
    """Returns the events of a tool call."""
    return [event("TOOL_START", start, example, uuid, tool_name=name), event("TOOL_END", end, example, uuid, tool_name=name)]


#: The example of the reference: three calls with tokens, one without.
VECTOR: list[Json] = [
    *call(0, "a", "100.0", ["100.2", "100.25", "100.35", "100.4"], "100.5", prompt_tokens=40, completion_tokens=4),
    *call(0, "b", "101.0", ["101.1"], "101.2", prompt_tokens=50, completion_tokens=1),
    *call(1, "c", "100.1", ["100.4", "100.5", "100.6"], "100.7", prompt_tokens=60, completion_tokens=3),
    *call(1, "d", "101.0", [], "101.4"),
]


def item(id: str, score: float, called: Sequence[str] = (), expected: Sequence[str] = (), **keys: Any) -> Json:
    """Returns an item of the evaluator of tools."""
    details = {"actual_tools": [*called], "expected_tools": [*expected]}
    reasoning = {"tool_selection_accuracy": score, "parameter_usage_accuracy": 1.0, "actual_tool_calls": len(called), "details": details}
    return {"id": id, "score": score, "reasoning": reasoning, **keys}


FAILED = {"score": 0.0, "reasoning": {"error": "Evaluation failed"}}


def write_csv(file: Path, rows: Iterable[Json], columns: Sequence[str] = COLUMNS) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_job(
    job: Path,
    answers: Sequence[Any],
    items: Sequence[Json],
    rows: Iterable[Json] | None = None,
    traces: Sequence[Json] | None = None,
    config: str = CONFIG,
) -> Path:
    """Writes the files of `nat eval`. Returns the directory."""
    job.mkdir(parents=True)
    scores = [each["score"] for each in items]
    output = {"average_score": sum(scores) / len(scores), "eval_output_items": items}
    (job / "tool_selection_quality_output.json").write_text(json.dumps(output))
    (job / "workflow_output.json").write_text(json.dumps(answers))
    (job / "config_effective.yml").write_text(config)
    if rows is not None:
        write_csv(job / "standardized_data_all.csv", rows)
    if traces is not None:
        (job / "all_requests_profiler_traces.json").write_text(json.dumps(traces))
    return job


def trace(uuid: str, given: Any) -> Json:
    """Returns a step of the traces: a tool that was started."""
    return {"payload": {"event_type": "TOOL_START", "UUID": uuid, "name": "tools__x", "data": {"input": given}}}
