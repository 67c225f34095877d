"""Every reader of a JSON file from a user reports a damaged or hostile file in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.telemetry.samples import read_samples
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import toolorchestra
from pytest_agentbench.gate.baselines import read_evidence
from pytest_agentbench.retriever.index import read_allowed, read_corpus
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.suites.datasets import agent_leaderboard, hle
from pytest_agentbench.suites.folder import read_agent_config


def with_task(folder: Path) -> Path:
    """Writes a task result of ToolOrchestra, because its usage file is read together with it. Returns the folder."""
    (folder / "task.json").write_text('{"id": "a", "problem": "", "all_tool_calls": [], "correct": true, "status": "ok"}')
    return folder


#: Name of a file -> its reader.
READERS: dict[str, Callable[[Path], Any]] = {
    "data.json": lambda file: [*agent_leaderboard.load(file)],
    "data.jsonl": lambda file: [*agent_leaderboard.load(file)],
    "tools.json": lambda file: [*agent_leaderboard.load(file, file)],
    "hle.jsonl": hle.load,
    "baseline.jsonl": read_evidence,
    "corpus.jsonl": read_corpus,
    "allowed.json": read_allowed,
    "run.json": lambda file: read_run(file.parent),
    "samples.jsonl": lambda file: [*read_samples(file.parent, ())],
    "agent_config.json": read_agent_config,
    "orchestrator_usage.jsonl": lambda file: toolorchestra.read(with_task(file.parent)),
}

DEEP = '{"a":' * 3_000 + "1" + "}" * 3_000 + "\n"


@pytest.mark.parametrize(("text", "fault"), [(DEEP, "nested|depth limit"), ("{]\n", "JSON|property name")], ids=["deep", "no-json"])
@pytest.mark.parametrize("name", READERS)
def test_a_faulty_file_is_a_sentence(tmp_path: Path, name: str, text: str, fault: str) -> None:
    """If a file is nested 3,000 levels deep or is not JSON, ConfigError has its name and the fault."""
    file = tmp_path / name
    file.write_text(text)

    with pytest.raises(ConfigError, match=rf"{name}.*({fault})"):
        READERS[name](file)


def test_a_deep_record_is_a_damaged_one() -> None:
    """A line of rollouts.jsonl that is nested too deeply raises ValueError, which readers of a journal treat as damage."""
    with pytest.raises(ValueError, match="nested too deeply"):
        rollout_of(DEEP)
