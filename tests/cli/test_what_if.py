"""`agentbench what-if`: its table, its first line, and its errors. The simulator is a stand-in; tests/real has the real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.reports.capacity_phrases import NOT_RANKED, worker_speed
from pytest_agentbench.runs.run_file import BackendUse
from pytest_agentbench.simulation.replay import MOCKER
from tests.made_runs import run_directory
from tests.simulation import stand_in
from tests.tables.shop import ALL, LOST, call, rollout

Capture = pytest.CaptureFixture[str]

ENGINE = BackendUse("embedded", "", "embedded", "m", "", more={"kv_blocks": 500, "block_size": 16})  # Calls take 200 ms, as measured.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with runs on the built-in engine, behind a URL, with two arms, and without a successful call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    stand_in.install(tmp_path, monkeypatch)
    run_directory(tmp_path / "reports/one", *ALL, backend=ENGINE)
    run_directory(tmp_path / "reports/url", *ALL, backend=BackendUse("url", "", "url", "m", ""))
    run_directory(tmp_path / "reports/arms", *ALL, backend=BackendUse("one, other", "", "ab", "m", ""))
    run_directory(tmp_path / "reports/none", LOST, backend=ENGINE)
    return tmp_path


def printed(capsys: Capture, *words: str) -> list[str]:
    """Runs the command, asserts that it succeeds, and returns its lines."""
    assert 0 == main(["what-if", *words])

    return capsys.readouterr().out.splitlines()


def table(lines: list[str]) -> dict[str, list[str]]:
    """Returns the cells of each setting in the terminal's table."""
    cut = [re.split(r" {2,}", line) for line in lines[lines.index("Settings") + 1 : lines.index("Ranking")]]
    return {name: cells for name, *cells in cut}


def beside(lines: list[str], label: str) -> str:
    """Returns the text after a label that occurs once."""
    [text] = [line.removeprefix(label).strip() for line in lines if line.startswith(f"{label} ")]
    return text


def test_first_line_compares_simulation_and_measurement(place: Path, capsys: Capture) -> None:
    """The first line compares the run's own setting, simulated, with the measurement. Then there is a row for each setting."""
    lines = printed(capsys, "one", "--workers", "1,2", "--kv-blocks", "480,500", "--router", "kv")
    rows = [*table(lines)]

    assert lines[0].endswith(anchor := beside(lines, "anchor"))
    assert anchor.startswith("one with its own setting (1 worker, 500 blocks)")
    assert "TTFT p50 200.0 / 200.0 ms (+0 %)" in anchor
    assert "duration 1.3 / 1.3 s (+0 %)" in anchor
    assert ["setting", "measured", "1 worker, 480 blocks", "1 worker, 500 blocks (own)"] == rows[:4]
    assert ["2 workers, 480 blocks, kv", "2 workers, 500 blocks, kv"] == rows[4:]
    assert [] == [*(place / "temporary").iterdir()]


def test_distinct_settings_are_ranked(place: Path, capsys: Capture) -> None:
    """200 and 208 ms share a rank, and 100 ms is before them. A metric that hardly differs is not ranked, and a line says why."""
    lines = printed(capsys, "one", "--workers", "1,2", "--kv-blocks", "480,500", "--router", "kv")

    assert ["TTFT p50 ms", "200.0", "208.3 (3)", "200.0 (3)", "104.2 (1)", "100.0 (1)"] == [cells[0] for cells in table(lines).values()]
    ranking = lines[lines.index("Ranking") + 1 :]
    assert ["5 %"] == re.findall(r"\d+ %", beside(ranking, "TTFT p50"))
    assert ["5 %", "0 %"] == re.findall(r"\d+ %", beside(ranking, "duration"))
    assert [False, True] == [beside(ranking, label).startswith("not ranked") for label in ("TTFT p50", "duration")]


def test_input_of_the_simulator(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the trace the second rollout begins after the end of the first, and the timing is the speed that the run measured."""
    stand_in.install(place / "other", monkeypatch, f"import shutil, sys\nshutil.copy(sys.argv[3], {str(place)!r})\n{stand_in.REPLAY}")
    spans = ((0, 100), (150, 300))
    both = [rollout(f"shop-{at}", at, end, calls=(call(at, at + 10, at + 20, end=end),)) for at, end in spans]
    run_directory(place / "reports/two", *both, backend=ENGINE)
    found = json.loads("\n".join(printed(capsys, "two", "--format", "json")))
    first, second = map(json.loads, (place / "two.jsonl").read_text().splitlines())

    assert ["timestamp" in first, "timestamp" in second] == [True, False]
    assert ([first["request_id"]], 50.0) == (second["wait_for"], second["delay"])
    assert {"prefill": {"base_ms": 0.0, "per_token_ms": 0.0}, "decode": {"base_ms": 10.0, "per_token_ms": 0.0}} == found["timing"]


def test_without_its_own_setting_nothing_is_ranked(place: Path, capsys: Capture) -> None:
    """For a server behind a URL, workers and blocks are unknown, so nothing is ranked. --original adds them."""
    lines = printed(capsys, "url", "--workers", "1,2", "--kv-blocks", "500", "--router", "kv")
    told = printed(capsys, "url", "--workers", "1,2", "--router", "kv", "--original", "workers=1,kv-blocks=500")

    assert beside(lines, "anchor").endswith("--original workers=N,kv-blocks=N,router=kv")
    assert NOT_RANKED == lines[-1]
    assert worker_speed(MOCKER) == beside(lines, "speed")
    assert beside(told, "anchor").startswith("url with its own setting (1 worker, 500 blocks)")
    assert "TTFT p50 200.0 / 200.0 ms" in beside(told, "anchor")


def test_json(place: Path, capsys: Capture) -> None:
    """The JSON has the schema, the errors of the simulated own setting, and each setting with its ranks, the run's own first."""
    found = json.loads("\n".join(printed(capsys, "one", "--workers", "2", "--router", "kv", "--slo", "ttft=500ms", "--format", "json")))

    assert ("agentbench-what-if/1", "one", 3, 1, {"ttft": 500}) == tuple(
        found[name] for name in ("schema", "run", "calls", "left_out", "objectives_ms")
    )
    assert {"workers": 1, "kv_blocks": 500, "block_size": 16, "router": "round_robin"} == found["own"]["setting"]
    assert 0.369 == pytest.approx(found["off"]["hit_ratio"], abs=0.001)
    assert [200, 100] == [answer["figures"]["ttft_p50_ms"] for answer in found["answers"]]
    assert [2, 1] == [answer["ranks"]["ttft_p50_ms"] for answer in found["answers"]]


def test_markdown(place: Path, capsys: Capture) -> None:
    """The Markdown has a heading, the first line and a table."""
    lines = printed(capsys, "one", "--workers", "1,2", "--router", "kv", "--format", "markdown")

    assert "# What if: one" == lines[0]
    assert "one with its own setting (1 worker, 500 blocks)" in lines[2]
    assert 5 == sum(line.startswith("| ") for line in lines)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["one", "--kv-blocks", "2"],
            "1 worker, 2 blocks: a cache of 32 tokens cannot hold the largest call of this run, of 103; use --kv-blocks with",
        ),
        (["none"], "has no successful agent call with a known time, so there is nothing to replay"),
        (
            ["url"],
            "does not record its workers and kv-blocks and router: give values to simulate with --workers and --kv-blocks and --router",
        ),
        (["one", "--timing", "fast"], "--timing fast: no such file; use measured, mocker, or a profile"),
        (["one", "--slo", "itl=50ms"], "the simulator does not support the objective itl"),
        (["four"], "no run 'four'"),
        (["arms"], "has several arms, each with its own stack; run the suite with one of them, and simulate that run"),
    ],
)
def test_mistakes(place: Path, capsys: Capture, words: list[str], sentence: str) -> None:
    """A run that cannot be simulated is an error of one sentence."""
    assert 4 == main(["what-if", *words])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "1,x"], "argument --workers: '1,x' must be whole numbers from 1 up, separated by commas"),
        (["--workers", ""], "argument --workers: '' must be whole numbers from 1 up"),
        (["--router", "thunder"], "argument --router: 'thunder' must be one or more of kv, round_robin, separated by commas"),
        (
            ["--original", "gpus=2"],
            "argument --original: 'gpus=2' must be NAME=VALUE pairs, separated by commas, with names of workers, kv-blocks, ",
        ),
        (["--slo", "ttft"], "argument --slo: 'ttft': a latency objective must be NAME=TIME (ms or s), for example ttft=500ms"),
        (["--slo", "tfft=500ms"], "argument --slo: 'tfft=500ms': no objective 'tfft' (did you mean 'ttft'?); known: e2e, itl, tpot, ttft"),
        (["--limit", "0"], "argument --limit: '0' must be a time above 0"),
    ],
)
def test_invalid_options(capsys: Capture, words: list[str], sentence: str) -> None:
    """An invalid option is an error that says what is valid."""
    with pytest.raises(SystemExit) as ended:
        main(["what-if", *words])

    assert 4 == ended.value.code
    assert sentence in capsys.readouterr().err


def test_simulator_that_fails(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the simulator fails, the end of its log is shown without a table, and no temporary file is left."""
    stand_in.install(place / "other", monkeypatch, "import sys; sys.exit('a dead end')")

    assert 1 == main(["what-if", "one"])
    out, errors = capsys.readouterr()
    assert "" == out
    assert "the simulator ended with exit code 1 on 1 worker, 500 blocks; the end of its log:\n    a dead end" in errors
    assert [] == [*(place / "temporary").iterdir()]


def test_sigterm_ends_the_simulator(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the command is terminated during a replay, no process and no file is left."""
    pids = place / "pids"
    os.mkfifo(pids)
    stand_in.install(place / "other", monkeypatch, stand_in.STUCK.format(pids=str(pids)))
    command = [sys.executable, "-m", "pytest_agentbench.cli", "what-if", "one"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(place / "temporary")}, stderr=subprocess.DEVNULL)
    started = [int(pid) for pid in pids.read_text().split()]
    process.terminate()

    assert 128 + signal.SIGTERM == process.wait()
    assert stand_in.all_end(started)
    assert [] == [*(place / "temporary").iterdir()]


def test_missing_environment(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the simulator's environment is missing, the error has the command that creates it."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(place / "nowhere"))

    assert 1 == main(["what-if", "one"])
    assert "the environment 'dynamo-simulator' does not exist: agentbench env create dynamo-simulator" in capsys.readouterr().err
