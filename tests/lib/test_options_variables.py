"""The environment variables of agentbench: which ones exist, and which given ones are unknown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest_agentbench
from pytest_agentbench.lib import options

PACKAGE = Path(pytest_agentbench.__file__).parent
OWN = Path(options.__file__)


def test_the_table_is_complete() -> None:
    """The table contains exactly the variables that the package reads or sets."""
    texts = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py") if file != OWN]

    assert {*options.READ, *options.GIVEN} == {name for text in texts for name in re.findall(r'"(AGENTBENCH_\w+)"', text)}


def test_what_users_set_is_in_the_example() -> None:
    """.env.example contains exactly the variables that users set, and none that agentbench sets for its own processes."""
    example = (PACKAGE.parent / ".env.example").read_text(encoding="utf-8")

    assert options.READ == {*re.findall(r"^# export (AGENTBENCH_\w+)=", example, re.MULTILINE)}


def test_unread_variables() -> None:
    """Unknown variables with the prefix are reported. Known ones, those named in settings, and those without the prefix are not."""
    names = ["AGENTBENCH_LOKS", "AGENTBENCH_BAKEND", "AGENTBENCH_KEY", "AGENTBENCH_LOCKS", "AGENTBENCH_ANSWER", "HOME"]

    assert ["AGENTBENCH_BAKEND", "AGENTBENCH_LOKS"] == options.unread(names, {"AGENTBENCH_KEY"})
