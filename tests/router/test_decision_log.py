"""The log of decisions can be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.router.decision_log import DecisionLog, LoggedDecision, read_decisions

DECISION = LoggedDecision(
    at=1.5,
    decision=1,
    worker="127.0.0.1:1",
    previous=None,
    prefix="é",
    total=None,
    reuse=9,
    osl="LOW",
    iat="HIGH",
    prompt_tokens=100,
    overlap=0.5,
    gpu=None,
    queue=2.0,
    probability=0.25,
    scores={"127.0.0.1:1": 0.1, "127.0.0.1:2": -1e9},
    ending="answered",
    status=200,
    latency=0.125,
    output_tokens=12,
    reward=0.5,
)


def test_read_back(tmp_path: Path) -> None:
    """Decisions that were written are read back equal, also those of a router that was started before. A cut last line is left out."""
    written = [DECISION, replace(DECISION, decision=2, previous="127.0.0.1:2", reward=None, status=None)]
    for decision in written:
        log = DecisionLog(str(tmp_path / "log"), "x")
        log.write(decision)
        log.close()
    with (tmp_path / "log").open("a") as file:
        file.write('{"at": 1')

    assert written == [*read_decisions(tmp_path / "log")]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A log that cannot be written, and a line that is no decision, are errors with their place."""
    with pytest.raises(ConfigError, match=r"x: decisions .* cannot be written: No such file"):
        DecisionLog(str(tmp_path / "none" / "log"), "x")
    (tmp_path / "log").write_text('{"at": "then"}\n')
    with pytest.raises(ConfigError, match="log:1: not a decision of the router"):
        [*read_decisions(tmp_path / "log")]


def test_no_log() -> None:
    """Without a file nothing is written."""
    log = DecisionLog(None, "x")
    log.write(DECISION)
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: /dev/full is on Linux")
def test_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    """A log that can no longer be written ends with a sentence, and routing continues."""
    log = DecisionLog("/dev/full", "x")
    log.write(DECISION)
    log.write(DECISION)

    assert 1 == capsys.readouterr().err.count("the log of decisions ends here, because it cannot be written: No space left on device")
