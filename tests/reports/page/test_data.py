"""The content of report.html, without a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.reports import page
from pytest_agentbench.reports.page.kv_pictures import MOST
from pytest_agentbench.reports.page.layout import inert
from pytest_agentbench.reports.page.pictures import bins_of, thin
from pytest_agentbench.reports.page.rollouts import detail
from pytest_agentbench.runs.run_file import read_run
from tests.made_runs import run_directory
from tests.report_page import data_of, unpacked
from tests.reports.page.conftest import call, rollout


def test_rollouts_of_a_page(tmp_path: Path) -> None:
    """`contents` has the row of each rollout in a block, the worst first. Messages are numbers of values, each of which is there once."""
    question = {"role": "user", "content": "The same question"}
    run_directory(tmp_path / "run", *(rollout(f"s-{number}", number / 60, messages=(question,)) for number in range(60)))
    text = page.write(read_run(tmp_path / "run"), tmp_path / "run").read_text(encoding="utf-8")
    (run,), _ = data_of(text)

    row = dict(zip(run.index["fields"], run.index["rows"][55], strict=True))
    assert ("s-55", True, 22.0 - 4.0, 4) == (row["id"], row["passed"], row["ttft"], row["tokens"])
    blocks = [unpacked(block) for block in run.blocks]
    assert [[*range(50)], [*range(50, 60)]] == run.index["contents"]
    assert [50, 10] == [len(block["rollouts"]) for block in blocks]
    assert [[question], []] == [block["values"] for block in blocks]
    assert ([0, 1], [0], [0]) == (run.index["starts"], blocks[1]["rollouts"][5]["messages"], blocks[1]["rollouts"][5]["needs"])


def test_a_call_on_the_timeline() -> None:
    """A call has the times of call, send, first token and end in milliseconds, and distances between tokens in tenths of one."""
    (attempt,) = detail(rollout(calls=(call(5),)))["attempts"]

    assert [5.0, 7.0, 25.0, 65.0] == attempt["calls"][0]["at"]
    assert [100, 100, 100] == attempt["calls"][0]["stamps"]


def test_nothing_ends_the_script_element() -> None:
    """JSON in a script element contains no characters that could end the element."""
    assert "<" not in inert({"id": "</script><!-- <script>"})
    assert {"id": "</script>"} == json.loads(inert({"id": "</script>"}))


def test_the_policy_allows_no_network(tmp_path: Path) -> None:
    """The policy allows one script and one style by their hashes, and nothing else."""
    run_directory(tmp_path / "run", rollout())
    text = page.write(read_run(tmp_path / "run"), tmp_path / "run").read_text(encoding="utf-8")
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0]

    hashed = r"default-src 'none'; script-src 'sha256-\S+'; style-src 'sha256-\S+'; base-uri 'none'; form-action 'none'"
    assert re.fullmatch(hashed, policy)
    assert [] == re.findall(r'(?:src|href)="(?!#)', text.partition("<script>")[0])


@pytest.mark.parametrize(("value", "number"), [(1.0, 0), (10.0, 96), (0.0, -192), (99.9, 191)])
def test_bins(value: float, number: int) -> None:
    """There are 96 bins in each power of ten. Bin 0 starts at 1, and smaller values than 0.01 count as 0.01."""
    assert [number] == bins_of(np.array([value])).tolist()


def test_a_line_of_many_points_keeps_its_peaks() -> None:
    """The highest of neighbouring points is kept."""
    points = [(float(at), 9.0 if at == 7777 else 1.0) for at in range(10_000)]

    assert len(thin(points)) <= MOST
    assert (7777.0, 9.0) in thin(points)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench report` writes the page of one run, or of several in the directory of the last one, and prints its path."""
    for name in ("old", "new"):
        run_directory(tmp_path / name, rollout("a"), rollout("b", 0.2))

    assert 0 == main(["report", "old", "--reports", str(tmp_path)])
    assert 0 == main(["report", "old", "new", "--reports", str(tmp_path)])
    assert f"wrote {tmp_path}/old/report.html\nwrote {tmp_path}/new/compared-report.html\n" == capsys.readouterr().out
    assert 4 == main(["report", "old", "--reports", str(tmp_path), "--output", str(tmp_path / "no" / "x.html")])
    assert "name another file with --output FILE" in capsys.readouterr().err


def test_a_run_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For an older schema, or without a readable record, the error has the command that repeats the run."""
    file = run_directory(tmp_path / "old", rollout("a"), rollout("b")) / "run.json"
    whole = file.read_text()
    file.write_text(whole.replace("agentbench-run/8", "agentbench-run/3"))
    for command in ("report", "watch"):
        assert 4 == main([command, "old", "--reports", str(tmp_path)])
        said = capsys.readouterr().err
        assert "has schema agentbench-run/3, but this version reads only agentbench-run/8; run `pytest -q` again" in said
    file.write_text(whole)
    journal = tmp_path / "old" / "rollouts.jsonl"
    lines = [opened(line) for line in journal.read_bytes().splitlines()]
    journal.write_bytes(b"".join(sealed(line.replace(b'"turns"', b'"rounds"')) + b"\n" for line in lines))
    assert 4 == main(["report", "old", "--reports", str(tmp_path)])
    assert "this version cannot read any record of " in (said := capsys.readouterr().err)
    assert ": rounds is unknown; known are: " in said and said.endswith("; repeat the run with `pytest -q`\n")
    assert not (tmp_path / "old" / "report.html").exists()


def test_damage_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If only some records can be read, the page has these, and warnings name the others."""
    run_directory(tmp_path / "run", rollout("a"), rollout("b"))
    journal = tmp_path / "run" / "rollouts.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"lamp, b?", b"lump, b?"))

    assert 0 == main(["report", "run", "--reports", str(tmp_path)])
    assert "does not match its checksum and is ignored" in capsys.readouterr().err


def test_the_page_needs_no_numpy() -> None:
    """Writing the page does not import packages that take a tenth of a second."""
    code = "import sys, pytest_agentbench.reports.page; sys.exit(bool({'numpy', 'scipy', 'matplotlib'} & {*sys.modules}))"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
