"""`agentbench dry-run` prints what a session would submit, and submits nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.cli import main


def test_node_workers_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of a launcher are printed with their number of slots."""
    assert 0 == main(["dry-run", "embedded", "--nodes", "local:2", "--concurrency", "6", "--join", "gpu-1:7100"])

    lines = capsys.readouterr().out.splitlines()
    assert "# node workers: 2 on this machine, each with 3 slots" == lines[0]
    assert lines[1].startswith(
        "agentbench worker --join gpu-1:7100 --token-file - --slots 3 --with-stdin --node local-1 --logs reports/RUN/"
    )


def test_nothing_to_submit(capsys: pytest.CaptureFixture[str]) -> None:
    """A backend whose services run on this machine submits nothing, and the command says so."""
    assert 0 == main(["dry-run", "embedded"])
    assert (
        "a session with the backend 'embedded' would submit nothing; --nodes names a launcher of node workers\n" == capsys.readouterr().out
    )


def test_a_wrong_number_is_refused() -> None:
    """The concurrency is a whole number from 1 on."""
    with pytest.raises(SystemExit, match="4"):
        main(["dry-run", "embedded", "--concurrency", "0"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("embedded", "--nodes", "locl:2"), "--nodes locl:2: must be the name of a launcher (local"),
        (("embedded", "--nodes", "local:x"), "must be local:N"),
        (("no-such-backend",), "no-such-backend"),
    ],
)
def test_wrong_arguments(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name ends the command with the status 4 and a sentence."""
    monkeypatch.chdir(tmp_path)
    assert 4 == main(["dry-run", *arguments])
    assert sentence in capsys.readouterr().err
