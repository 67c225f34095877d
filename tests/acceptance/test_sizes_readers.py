"""Commands that read a run in which an earlier version stored reasons of 4 MB."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import Score
from pytest_agentbench.runs.journal import FILE, read_journal, record_line
from tests.project import Project

SPACE = 450 << 20  # bytes of address space

#: Imports the modules that every command needs, limits the address space, and runs the command.
LIMITED = f"""
import resource, sys
from pytest_agentbench.cli import main

resource.setrlimit(resource.RLIMIT_AS, ({SPACE}, {SPACE}))
sys.exit(main(sys.argv[1:]))
"""

COMMANDS = (
    ("show", "first"),
    ("report", "first"),
    ("trend", "reports", "--output", "trends"),
    ("compare", "first", "second"),
    ("gate", "--gate", "agent_error.rate <= 1", "first"),
    ("export", "--as", "csv", "first"),
    ("rescore", "first"),
)


@pytest.mark.slow
def test_readers_of_large_reasons(project: Project) -> None:
    """Every command ends without a traceback in 450 MB of address space, although all reasons together have 80 MB."""
    project.suite(scenarios=20)
    project.run("scenarios/shop").assert_outcomes(passed=20)
    first = project.directory.rename(project.root / "reports" / "first")
    shutil.copytree(first, first.with_name("second"))
    rollouts = [*read_journal(first)]
    with (first / FILE).open("wb") as journal:
        for number, rollout in enumerate(rollouts):
            large = f"ValueError: {'x' * 4_000_000} (agent.py:{number})"
            if number % 2:
                large_one = replace(rollout, status="agent_error", reason=large, scores={})
            else:
                large_one = replace(rollout, scores={"tsq": Score(0.5, {}, large)})
            journal.write(sealed(record_line(large_one)) + b"\n")

    ended = {" ".join(words): _run(project, *words) for words in COMMANDS}

    assert {} == {words: (end.returncode, end.stderr[-2000:]) for words, end in ended.items() if end.returncode not in (0, 1)}
    assert {} == {words: end.stderr[-2000:] for words, end in ended.items() if "Traceback" in end.stderr or "MemoryError" in end.stderr}


def _run(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LIMITED, *words], cwd=project.root, capture_output=True, text=True, check=False)
