"""Files of learnt hints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.call_hints import HintRow
from pytest_agentbench.tap.hint_table import SCHEMA, read_table, write_table

ROWS = (HintRow("", 1, 24, 13.75, 24.0, 31.0, 205.4), HintRow("", 2, 24, 12.75, 20.0, 30.0, None), HintRow("judge", 1, 3, 0, 5, 6, None))


def test_a_table(tmp_path: Path) -> None:
    """What was written is read again, sorted by role and turn."""
    write_table(tmp_path / "hints.json", "a run", ROWS[::-1])

    assert ROWS == read_table(tmp_path / "hints.json")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not valid JSON"),
        ([], "is no file of hints of the version agentbench-hints/1, but of None"),
        ({"schema": "agentbench-hints/9"}, "but of 'agentbench-hints/9'; write one with `agentbench hints learn RUN -o FILE`"),
        ({"schema": SCHEMA, "run": "x", "rows": [{"role": "", "turn": "one"}]}, "hints.rows"),
    ],
)
def test_faulty_tables(tmp_path: Path, content: Any, sentence: str) -> None:
    """A file that is no table, or one of another version, is refused with its name and what to do."""
    file = tmp_path / "hints.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        read_table(file)

    assert str(file) in str(caught.value)


def test_a_missing_table(tmp_path: Path) -> None:
    """A file that does not exist is an error that says how to write it."""
    with pytest.raises(ConfigError, match=r"hints\.json: no such file; write one with `agentbench hints learn RUN -o FILE`"):
        read_table(tmp_path / "hints.json")
