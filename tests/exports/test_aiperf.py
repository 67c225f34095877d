"""`agentbench export --as aiperf`: rows with the very requests of a run, in its order and with its gaps."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import read_journal
from tests.exports.kept_run import asked, kept_run
from tests.made_runs import run_directory
from tests.project import Project
from tests.tables.shop import ALL

Capture = pytest.CaptureFixture[str]

HI: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def exported(directory: Path, out: Path) -> tuple[dict[str, list[Json]], list[str]]:
    """Returns the rows of each file of an export, and the notes on what they lack."""
    chosen = ChosenRuns([directory])
    out.mkdir()
    load_writer("aiperf")(chosen, out)
    return {file.name: [json.loads(line) for line in file.read_bytes().splitlines()] for file in sorted(out.iterdir())}, chosen.notes


def test_payloads_are_the_bytes_that_were_sent(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A real run: a row for each call, with the agent's own bytes, the time of the session's first call, and the gaps after it."""
    project.suite()
    project.run_once("scenarios/shop")
    monkeypatch.chdir(project.root)
    capsys.readouterr()

    assert 0 == main(["export", "latest", "--as", "aiperf", "--output", "out"])

    assert f"wrote out/{project.directory.name}-chat.jsonl\n" == capsys.readouterr().out
    [file] = Path("out").iterdir()
    lines = file.read_bytes().splitlines()
    calls = [call for rollout in project.rollouts for call in rollout.calls]
    assert 6 == len(calls)
    assert [call.request_crc for call in calls] == [zlib.crc32(line.partition(b'"payload": ')[2][:-1]) for line in lines]
    rows = [json.loads(line) for line in lines]
    assert [f"{rollout.key}-1" for rollout in project.rollouts for _ in rollout.calls] == [row["session_id"] for row in rows]
    assert ["timestamp", "delay"] * 3 == [key for row in rows for key in row if key in ("timestamp", "delay")]
    assert 0 <= min(row["timestamp"] for row in rows[::2]) < 1
    gaps = [(later.sent_ns - call.ended_ns) / 1e6 for call, later in zip(calls[::2], calls[1::2], strict=True) if later.sent_ns]
    assert gaps == pytest.approx([row["delay"] for row in rows[1::2]])


@pytest.mark.parametrize(
    ("level", "sentence"),
    [
        ("none", "has no messages.jsonl; imported runs and runs without calls or with --agentbench-keep=none may have none"),
        ("calls", "no call can be exported, 2 not kept completely; repeat the run with --agentbench-keep=all"),
    ],
)
def test_runs_that_kept_too_little(project: Project, level: str, sentence: str) -> None:
    """A run without requests, or with requests without their tools, is refused by a sentence that names the option."""
    project.suite(scenarios=1)
    project.run_once("scenarios/shop", f"--agentbench-keep={level}")

    with pytest.raises(ConfigError, match=sentence):
        exported(project.directory, project.root / "out")


def test_calls_that_are_left_out(tmp_path: Path) -> None:
    """Calls that failed or were not kept are left out, and counted in a note. The gap is that of the calls that remain."""
    first, body, reply = asked(0, HI)
    failed = (replace(first, error_kind="cut"), body, reply)
    directory = kept_run(tmp_path / "run", [failed, *(asked(at, HI) for at in (100, 200, 400))])
    [made] = read_journal(directory)
    calls = tuple(replace(call, kept=None) if number == 2 else call for number, call in enumerate(made.calls))
    other = run_directory(tmp_path / "other", replace(made, calls=calls))
    shutil.copy(directory / "messages.jsonl", other)

    files, notes = exported(other, tmp_path / "out")

    assert [{"timestamp": 100.0}, {"delay": 250.0}] == [
        {key: value for key, value in row.items() if key in ("timestamp", "delay")} for row in files["other-chat.jsonl"]
    ]
    assert ["other: 2 of 4 calls are left out: 1 failed, 1 not kept completely"] == notes


def test_concurrent_calls(tmp_path: Path) -> None:
    """A call that began before an earlier one of its session ended follows that at once, and a note counts such calls."""
    files, notes = exported(kept_run(tmp_path / "run", [asked(0, HI, end=300), asked(100, HI, end=200), asked(400, HI)]), tmp_path / "out")

    assert [0.0, 100.0] == [row["delay"] for row in files["run-chat.jsonl"][1:]]
    assert ["run: 1 of 3 calls overlapped an earlier one of their session; AIPerf sends them after it"] == notes


def test_a_file_for_each_api(tmp_path: Path) -> None:
    """AIPerf sends a file to one endpoint, so calls of each API are in a file of its own. Sessions begin in each with a time."""
    other: Json = {"model": "m", "input": "Hi"}
    files, notes = exported(kept_run(tmp_path / "run", [asked(0, HI), asked(100, other, dialect="responses")]), tmp_path / "out")

    assert {"run-chat.jsonl": [HI], "run-responses.jsonl": [other]} == {
        name: [row["payload"] for row in rows] for name, rows in files.items()
    }
    assert 100.0 == files["run-responses.jsonl"][0]["timestamp"]
    assert [] == notes


def test_payloads_that_differ(tmp_path: Path) -> None:
    """A note counts the payloads that are not what was sent, for example because a secret was redacted."""
    made, body, reply = asked(0, HI)
    _, notes = exported(kept_run(tmp_path / "run", [(replace(made, request_crc=1), body, reply)]), tmp_path / "out")

    assert ["run: 1 of 1 calls have a payload that is not exactly what the agent sent, see docs/agents/conversations.md"] == notes


def test_a_run_of_another_tool(tmp_path: Path) -> None:
    """A run without messages.jsonl is refused."""
    with pytest.raises(ConfigError, match=r"has no messages\.jsonl"):
        exported(run_directory(tmp_path / "run", *ALL), tmp_path / "out")
