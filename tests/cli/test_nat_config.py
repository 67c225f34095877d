"""`agentbench import nat-config`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from tests.nat_configs import CONFIGS, QUESTION

Capture = pytest.CaptureFixture[str]

CONFIG = str(CONFIGS / "config_dynamo_adk_e2e_test.yml")


def test_what_it_prints(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names each key that is not carried over with its reason, the files, and the command that runs the suite."""
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["import", "nat-config", CONFIG, "--input", QUESTION])
    said = capsys.readouterr().out.splitlines()

    folder = "scenarios/config_dynamo_adk_e2e_test"
    assert "not carried over: functions.current_datetime: the workflow does not use it" == said[0]
    assert "not carried over: workflow.name, workflow.description: agents have no names here" in said
    assert [f"wrote {folder}: suite.yaml, backend.yaml, data.json, tools.json, test_config_dynamo_adk_e2e_test.py"] == said[-2:-1]
    assert f"now run: pytest {folder} --agentbench-backend={folder}/backend.yaml" == said[-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"import nat-config {CONFIG}", "eval.general.dataset.file_path is missing; name the data with --data FILE, or --input TEXT"),
        (f"import nat-config {CONFIG} --data a.json --input b", "--data and --input are both given; remove one of them"),
        (f"import nat-config {CONFIG} --input a --suite b", "--suite is an option for results; remove it"),
        ("import nat-config missing.yml", "missing.yml is not a file; pass a configuration of the NeMo Agent Toolkit"),
        ("import nat results --output made", "--output is an option of `agentbench import nat-config`; remove it"),
    ],
)
def test_wrong_options(words: str, sentence: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that do not fit together are an error, and nothing is written."""
    monkeypatch.chdir(tmp_path)

    assert 0 != main(shlex.split(words))
    assert sentence in capsys.readouterr().err
    assert [] == [*tmp_path.iterdir()]
