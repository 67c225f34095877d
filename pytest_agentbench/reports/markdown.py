"""report.md: one run for people, with everything that is needed to judge what it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_agentbench.records import Json
from pytest_agentbench.reports.wording import (
    COLUMNS,
    TIMINGS,
    calls_text,
    dataset_text,
    limit_text,
    mean_text,
    number,
    statuses_text,
    throughput_text,
    tools_text,
)


def write(run: Json, directory: Path) -> Path:
    path = directory / "report.md"
    path.write_text("\n".join(_lines(run)) + "\n", encoding="utf-8", errors="backslashreplace")
    return path


def _lines(run: Json) -> Iterator[str]:
    backend = run["backend"]
    yield f"# Run {run['id']}: {run['verdict']}"
    yield ""
    asked = run["settings"]["concurrency"]
    yield f"Backend **{backend['name']}**, model `{backend['served_model']}`, {asked} rollouts in flight asked for."
    if backend.get("note"):
        yield f"\n> {backend['note']}"
    if backend["failure"]:
        yield f"\n**The backend failed:**\n\n```text\n{backend['failure']}\n```"
    plan = run["plan"]
    counts = f"Planned {plan['rollouts']} rollouts, {plan['finished']} finished, {plan['not_run']} not run"
    yield f"\n{counts}. pytest's exit status: {run['exit_status']}."
    for name, suite in run["suites"].items():
        yield from _suite(name, suite)
    yield from _limits(run["limits"])
    yield from _performance(run["performance"])
    yield from _setup(run)


def _suite(name: str, suite: Json) -> Iterator[str]:
    yield f"\n## Suite {name}\n"
    yield f"Data set {dataset_text(suite)}.\n"
    yield f"Rollouts: {statuses_text(suite['rollouts'])}; {suite['retried']} tried more than once.\n"
    rows = [[score, mean_text(means["mean"]), mean_text(means["mean_evaluable"])] for score, means in suite["scores"].items()]
    yield from table(["score", "mean over all, 95 % interval", "over evaluable rollouts"], rows)
    yield (
        "\nOver all: an agent's error counts as 0, an infra_error is left out. "
        "Intervals are over scenarios; trials of one scenario are averaged first."
    )
    if suite["score_errors"]:
        yield f"\nScorers failed: {', '.join(f'{scorer} {count} times' for scorer, count in suite['score_errors'].items())}."
    if suite["worst"]:
        yield f"\n### Lowest {suite['scorers'][0]}\n"
        rows = [
            [each["id"], number(each["score"], 3), tools_text(each["expected_tools"]), tools_text(each["actual_tools"])]
            for each in suite["worst"]
        ]
        yield from table(["scenario", suite["scorers"][0], "expected tools", "actual tools"], rows)
    if suite["errors"]:
        yield "\n### Not measured\n"
        yield from table(
            ["scenario", "status", "reason"], [[each["id"], each["status"], each["reason"].partition("\n")[0]] for each in suite["errors"]]
        )


def _limits(limits: Sequence[Json]) -> Iterator[str]:
    if limits:
        yield "\n## Limits\n"
        yield from (f"- {limit_text(limit)}" for limit in limits)


def _performance(performance: Json) -> Iterator[str]:
    yield "\n## Serving performance\n"
    yield f"{calls_text(performance)}.\n"
    yield f"{throughput_text(performance)}.\n"
    rows = [[title, *(number(performance[name][column]) for column in COLUMNS)] for name, title in TIMINGS if performance[name]]
    yield from table(["milliseconds", *COLUMNS], rows)
    yield (
        "\nTTFT: last request byte sent to first content, reasoning or tool-call text. ITL: gaps between output events, pooled. "
        "TPOT: (last - first) / (tokens - 1) per call. Client queue: from the agent's call to the send. "
        "Stamps `user` are taken in the tap's process."
    )


def _setup(run: Json) -> Iterator[str]:
    yield "\n## Setup\n"
    facts = run["environment"]
    yield f"- command: `{' '.join(run['command'])}`"
    for name, suite in run["suites"].items():
        yield f"- {name}: agent `{suite['agent']}`, thresholds `{suite['thresholds']}`, data set sha256 `{suite['dataset']['sha256']}`"
    yield f"- changed for this run: `{run['settings']['changes'] or 'nothing'}`"
    yield f"- Python {facts['python']}, {facts['platform']}, {facts['cpus']} CPUs, git {facts['git']}"
    yield f"- packages: {', '.join(f'{name} {version}' for name, version in facts['packages'].items())}"
    yield "- every number here can be derived again from rollouts.jsonl beside this file"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; bars and line breaks inside cells are escaped."""
    for row in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
