"""`agentbench compare`: selecting runs, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.metrics import registry
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with three runs in reports/, one of which has a name."""
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path / "reports/20260304-050607", *ALL)
    run_directory(tmp_path / "reports/20260304-050608-kv", BOUGHT)
    run_directory(tmp_path / "reports/20260304-050609", *ALL)
    return tmp_path


def test_a_directory_of_runs(place: Path, capsys: Capture) -> None:
    """All runs of a directory are in the table, the oldest first. A run that is named twice is there once."""
    assert 0 == main(["compare", "reports", "kv"])

    lines = capsys.readouterr().out.splitlines()
    assert ["20260304-050607", "kv", "20260304-050609"] in [line.split() for line in lines]


def test_the_reference(place: Path, capsys: Capture) -> None:
    """The run of `--reference` is the first column, and the others are compared with it."""
    assert 0 == main(["compare", "reports", "--reference", "kv", "--format", "markdown"])

    out = capsys.readouterr().out
    assert "|  | kv | 20260304-050607 | 20260304-050609 |" in out
    assert "`vs kv`" in out.replace("\\", "")


def test_all_metrics_have_rows(place: Path, capsys: Capture) -> None:
    """Each latency and rate of the registry that a run has gets a row."""
    main(["compare", "reports", "--format", "markdown"])

    out = capsys.readouterr().out
    titles = [f"{each.title} p50" for each in registry.gated().values()] + ["output tok/s", "hit ratio", "tokens/rollout"]
    assert [] == [title for title in titles if f"| {title} |" not in out]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["kv"], "is only one run; name two or more runs to compare"),
        (["kv", "20260304-050608-kv"], "is only one run; name two or more runs to compare"),
        (["kv", "three"], "no run 'three'; known: "),
        (["reports", "--reference", "three"], "no run 'three'; known: "),
    ],
)
def test_mistakes(place: Path, capsys: Capture, arguments: list[str], sentence: str) -> None:
    """An unknown run, and fewer than two runs, are errors of one sentence."""
    assert 4 == main(["compare", *arguments])
    assert sentence in capsys.readouterr().err
