"""The last messages of a pool are written to the pipe whatever a rollout contains, and the process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_agentbench.rollouts.pool.controller_link import BLOCKED
from pytest_agentbench.rollouts.protocol import FROM_PIPE, BlockedBy, FromPipe

START = """
import sys
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.controller_link import ControllerPipe
pipe, key = ControllerPipe(int(sys.argv[1])), RolloutKey("shop", "s-0")
"""


def last_words(code: str) -> tuple[int, list[FromPipe]]:
    """Returns the exit code of a process that runs `code`, and the messages in its pipe."""
    ours, theirs = os.pipe()
    ended = subprocess.run([sys.executable, "-c", START + code, str(theirs)], pass_fds=(theirs,), check=False)
    os.close(theirs)
    with os.fdopen(ours, "rb") as lines:
        return ended.returncode, [FROM_PIPE.read(json.loads(line)) for line in lines]


def test_an_agent_that_has_printed_half_a_character() -> None:
    """Texts that UTF-8 cannot encode arrive unchanged."""
    code, (end,) = last_words(r"pipe.leave(Rollout(*key, status='agent_error', log='half a \ud83d'))")

    assert isinstance(end, BlockedBy)
    assert (BLOCKED, "half a \ud83d") == (code, end.rollout.log)


@pytest.mark.parametrize(("value", "arrives"), [("2**70", 2**70), ("{1: 2}", {"1": 2})])
def test_odd_values(value: str, arrives: object) -> None:
    """Large numbers, and keys that are numbers, do not prevent the end of the process."""
    code, (end,) = last_words(f"pipe.leave(Rollout(*key, status='ok', final_state={{'x': {value}}}))")

    assert isinstance(end, BlockedBy)
    assert (BLOCKED, {"x": arrives}) == (code, end.rollout.final_state)


def test_what_cannot_be_written() -> None:
    """The process ends even if the message cannot be written."""
    deep = "deep = []\nfor _ in range(100_000):\n    deep = [deep]\n"

    assert (BLOCKED, []) == last_words(f"{deep}pipe.leave(Rollout(*key, status='ok', final_state={{'x': deep}}))")
