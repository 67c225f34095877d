"""The environment variables of agentbench itself: the code has no other, and one that nothing reads is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest_agentbench
from pytest_agentbench.lib import options

PACKAGE = Path(pytest_agentbench.__file__).parent
OWN = Path(options.__file__)


def test_the_code_has_no_other() -> None:
    """Every variable that the package reads or gives is in the table, and every one in the table is in the package."""
    texts = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py") if file != OWN]

    assert options.READ | options.GIVEN == {name for text in texts for name in re.findall(r'"(AGENTBENCH_\w+)"', text)}


def test_what_users_set_is_in_the_example() -> None:
    """.env.example has those that users set, and none that agentbench gives to its own processes."""
    example = (PACKAGE.parent / ".env.example").read_text(encoding="utf-8")

    assert options.READ == {*re.findall(r"^# export (AGENTBENCH_\w+)=", example, re.MULTILINE)}


def test_unread_variables() -> None:
    """A misspelt name is unread; the known, those of others and those that settings name are not."""
    names = ["AGENTBENCH_LOKS", "AGENTBENCH_BAKEND", "AGENTBENCH_KEY", "AGENTBENCH_LOCKS", "AGENTBENCH_ANSWER", "HOME"]

    assert ["AGENTBENCH_BAKEND", "AGENTBENCH_LOKS"] == options.unread(names, {"AGENTBENCH_KEY"})
