"""docs/reference/cli.md has a section for each command, with the defaults of its options."""

from __future__ import annotations

import pytest

from pytest_agentbench.cli import COMMANDS
from tests.pages.cli import command_sections, unstated
from tests.pages.markdown import table_row


def test_every_command_has_a_section() -> None:
    """Each command and each subcommand has a heading, and each command has an example."""
    lines = [*command_sections()]
    examples = [line for line in lines if line.startswith("Example: `agentbench ")]

    assert [*COMMANDS] == [line.removeprefix("## agentbench ") for line in lines if line.startswith("## ")]
    assert {"### agentbench env create", "### agentbench backend logs"} <= {*lines}
    assert len(examples) >= len(COMMANDS)


def test_defaults_are_stated() -> None:
    """The help of every option states its default, unless it is off or empty."""
    assert [] == unstated()


@pytest.mark.parametrize(
    "row",
    [
        "| `--as TOOL` | | print the table of another tool",
        "| `--output DIR` | RUN/plots for one run | a new directory",
        "| `--format text\\|markdown` | text | output format |",
        "| `-o`, `--output FILE` | required | the file",
        "| `RUN [RUN ...]` | required | run directories",
    ],
)
def test_rows(row: str) -> None:
    """A row has an argument with the name of its value, its default and its help."""
    assert any(line.startswith(row) for line in command_sections())


def test_rows_are_markdown() -> None:
    """A bar does not end a cell, and a placeholder does not become an element of HTML, except in code, where it is shown as it is."""
    assert "| a\\|b | | &lt;suite> `<suite>` |" == table_row("a|b", "", "<suite> `<suite>`")
