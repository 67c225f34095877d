"""Finds the scenarios and the tools of a configuration of the NeMo Agent Toolkit, and converts its evaluators to scorers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.exports.nat_config.keys import KEYS
from pytest_agentbench.exports.nat_config.reading import NatPart, NatReading
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.agent_leaderboard import entries

GROUP = "banking_tools_group"

#: `_type` of a function of the toolkit -> the tool that it is for an agent.
FUNCTIONS: Mapping[str, Json] = {
    "current_datetime": {"description": "Returns the current date and time.", "properties": {}, "required": []},
    "react_benchmark_agent": {
        "description": "Answers a question with a text.",
        "properties": {"text": {"type": "string", "description": "The question."}},
        "required": ["text"],
    },
}

#: Formats of data files that can be read.
DATA_FORMATS = ("json", "jsonl")


@dataclass(frozen=True)
class NatInputs:
    """Files and texts of the command line, which replace those of a configuration."""

    data: Path | None = None  # a data set
    tools: Path | None = None  # descriptions of tools
    questions: Sequence[str] = ()  # questions in place of a data set


def read_scenarios(reading: NatReading, general: NatPart, inputs: NatInputs) -> tuple[list[Json], str]:
    """Returns the entries of the suite's data, and the name of the data. Entries lose the tools of their own.

    The tools of an agent are those of its workflow, in the toolkit too. Raises ConfigError if there are no data.
    """
    if inputs.questions:
        return [{"id": f"input-{number}", "question": text} for number, text in enumerate(inputs.questions, 1)], "--input"
    file = inputs.data
    if file is None:
        given = general.take(str, "dataset.file_path")
        if given is None:
            raise ConfigError(f"{reading.file}: eval.general.dataset.file_path is missing; name the data with --data FILE, or --input TEXT")
        if (kind := general.take(str, "dataset._type") or "json") not in DATA_FORMATS:
            kinds = " or ".join(DATA_FORMATS)
            raise ConfigError(f"{reading.file}: eval.general.dataset._type: {kind!r} cannot be read; name data in {kinds} with --data FILE")
        file = _existing(reading, Path(given), "eval.general.dataset.file_path", "--data FILE")
    return [{name: each for name, each in entry.items() if name != "available_tools"} for _, entry in entries(file)], file.name


def _existing(reading: NatReading, file: Path, key: str, option: str) -> Path:
    if not file.is_file():
        advice = f"run this command in the directory that the path begins in, or name the file with {option}"
        raise ConfigError(f"{reading.file}: {key}: there is no file {file}; {advice}")
    return file


def read_tools(reading: NatReading, names: Sequence[str], file: Path | None) -> list[Json]:
    """Returns the tools of a workflow, as in a tools.json. `file` has their descriptions, in place of the files in the configuration.

    Raises ConfigError for a tool without a description.
    """
    described = _described(file) if file else {}
    tools = [tool for name in names for tool in _tools_of(reading, name, described, file)]
    return [*{str(tool["title"]): tool for tool in tools}.values()]


def _tools_of(reading: NatReading, name: str, described: Mapping[str, Json], file: Path | None) -> Iterator[Json]:
    """Yields the tools that a name in `tool_names` stands for: a function, or a group of functions."""
    if name in (reading.keys.get("function_groups") or {}):
        _, part = reading.component("function_groups", name, {GROUP: KEYS[GROUP]})
        yield from _group(part, described, file)
    elif name in (reading.keys.get("functions") or {}):
        part = reading.part(("functions", name), "function")
        kind = part.take(str, "_type") or ""
        if name not in described and kind not in FUNCTIONS:
            where = f"{reading.file}: functions.{name}._type: the tool of a {kind!r} is not known"
            raise ConfigError(f"{where}; describe {name} in a tools.json, and name that with --tools FILE")
        yield described.get(name) or {"title": name, "type": "object", **FUNCTIONS[kind]}
    else:
        known = [*(reading.keys.get("functions") or {}), *(reading.keys.get("function_groups") or {})]
        raise ConfigError(f"{reading.file}: tool_names: {unknown_name('function', name, known)}")


def _group(part: NatPart, described: Mapping[str, Json], file: Path | None) -> Iterator[Json]:
    part.take(str, "_type")
    part.take_if("decision_only", value=True)
    if file is None:
        path = ".".join((*part.path, "tools_json_path"))
        file = _existing(part.reading, Path(part.need(str, "tools_json_path")), path, "--tools FILE")
        described = _described(file)
    names: list[Any] = part.take(list, "include") or [*described]
    without: list[Any] = part.take(list, "exclude") or []
    for name in names:
        if name not in described:
            raise ConfigError(f"{part.reading.file}: {'.'.join(part.path)}: {file} has no tool {name!r}; add it, or name it no longer")
        if name not in without:
            yield described[name]


def _described(file: Path) -> dict[str, Json]:
    """Returns title -> tool for the tools in a tools.json."""
    tools = read_json_file(file)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and isinstance(tool.get("title"), str) for tool in tools):
        raise ConfigError(f"{file}: must be a list of tools, each with a 'title'")
    return {str(tool["title"]): tool for tool in tools}


def read_scorers(reading: NatReading, *, has_labels: bool) -> Json:
    """Returns the scorers of a suite for the evaluators of a configuration: name -> options.

    Without labels (expected tool calls), and without evaluators of labels, a scorer is chosen that needs none or that compares tools.
    """
    section = reading.part(("eval", "evaluators"), "evaluator")
    scorers: Json = {}
    for name in section.keys:
        kind = str(section.at(str(name)).keys.get("_type"))
        part = reading.part((*section.path, str(name)), kind if kind in KEYS else "evaluator")
        if kind in SCORERS and has_labels and SCORERS[kind] not in scorers:
            scorers[SCORERS[kind]] = _options(part)
    return scorers or {"tsq" if has_labels else "schema_valid": {}}


#: `_type` of an evaluator -> the scorer that computes the same.
SCORERS: Mapping[str, str] = {"tsq_evaluator": "nat_compat", "action_completion_evaluator": "nat_action_completion"}


def _options(part: NatPart) -> Json:
    kind = part.take(str, "_type")
    if kind != "tsq_evaluator":
        return {}
    options: Json = {name: part.take(float, name) for name in ("tool_weight", "parameter_weight")}
    options["strict_mode"] = part.take(bool, "strict_mode")
    return {name: value for name, value in options.items() if value is not None}


def as_text(data: object) -> str:
    """Returns the text of a JSON file."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
