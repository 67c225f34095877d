"""Baselines: runs that others are compared with, as run directories or as slim files; found, read and written here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial, trial_of
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_file import bounded_json
from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import check_journal, read_journal
from pytest_agentbench.runs.run_file import find_run, read_run

SCHEMA = "agentbench-baseline/5"  # docs/gates.md describes it
FOLDER = "baselines"  # beside the run directories; the only part of reports/ that is committed


def default_baseline(suite: str, reports: Path) -> Path:
    """Where a suite's promoted baseline lies."""
    return reports / FOLDER / f"{suite}.jsonl"


def find_baseline(name: str, reports: Path) -> Path:
    """The file or run directory that a name means; raises ConfigError with the known runs when there is none."""
    return path if (path := Path(name)).is_file() and path.suffix == ".jsonl" else find_run(name, reports)


def read_evidence(path: Path) -> Evidence:
    """The evidence in a baseline file or a run directory, one record in memory at a time; raises ConfigError."""
    if path.is_dir():
        check_journal(path)
        trials = (trial_of(rollout) for rollout in read_journal(path) if rollout.kind == "scenario")
        return Evidence.of(RunFacts.of(read_run(path)), trials)
    try:
        lines = _lines(path)
        header = next(lines, {})
        refuse_another_schema(path, header)
        return Evidence.of(_facts_in(header), (codec.read(Trial, each) for each in lines))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is no baseline: {error}; `agentbench baseline promote RUN` writes one") from error


def _facts_in(header: Json) -> RunFacts:
    """Returns what the first line of a baseline file says of its run; raises ValueError or KeyError."""
    about = {name: header.pop(name) for name in ("schema", "suite", "replaces", "reason")}
    if about["schema"] != SCHEMA or not about["suite"]:
        raise ValueError(f"the first line is no header of schema {SCHEMA}")
    return codec.read(RunFacts, header)


def refuse_another_schema(path: Path, header: Json) -> None:
    """Raises ConfigError for a baseline of another version, with what makes it again."""
    schema, suite = header.get("schema"), header.get("suite")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith(SCHEMA.partition("/")[0]):
        again = f"`pytest -m {suite}`, then `agentbench baseline promote --suite {suite} --to {path}`"
        raise ConfigError(f"{path} is of schema {schema}, and this version reads {SCHEMA}; {again} make it again")


def _lines(path: Path) -> Iterator[Json]:
    with path.open("rb") as file:
        yield from map(bounded_json, file)


def write_baseline(evidence: Evidence, suite: str, path: Path, replaces: str | None = None, reason: str = "") -> Path:
    """Writes the baseline of a suite with all its variants, as a whole or not at all: a header, and a line for each rollout.

    `replaces` is the run that was the baseline before, `reason` why a lower one takes its place; both are for people.
    """
    header = {"schema": SCHEMA, "suite": suite, "replaces": replaces, "reason": reason, **codec.plain(evidence.facts)}
    trials = (trial for trials in evidence.groups.values() for trial in trials if trial.suite == suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, "".join(json.dumps(codec.plain(line), ensure_ascii=False) + "\n" for line in (header, *trials)))
