"""Limits on the size and depth of JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_text import MOST_DEPTH, bounded_json, read_json_file
from pytest_agentbench.runs.run_file import read_run


@pytest.mark.parametrize(
    ("text", "why"), [("[" * 100_000, "nested more than"), ("{", "not valid JSON"), ('[{"a":' * 150 + "1" + "}]" * 150, "nested")]
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, why: str) -> None:
    """A file that is nested too deeply, or is not JSON, raises ConfigError with its name."""
    file = tmp_path / "data.json"
    file.write_text(text)

    with pytest.raises(ConfigError, match=rf"data\.json: .*{why}"):
        read_json_file(file)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """The size of a file is checked before it is read."""
    file = tmp_path / "data.json"
    file.write_text("[1, 2, 3]")

    with pytest.raises(ConfigError, match="has 9 bytes, but at most 8 are allowed; make it smaller"):
        read_json_file(file, most=8)
    assert [1, 2, 3] == read_json_file(file, most=9)


def test_the_greatest_depth_is_allowed() -> None:
    """A value with MOST_DEPTH levels is read, and one level more is refused."""
    bounded_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)

    with pytest.raises(ValueError, match="nested"):
        bounded_json("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1))


def test_a_deep_run_json_is_a_sentence(tmp_path: Path) -> None:
    """A run.json that is nested 3,000 levels deep is refused with its name, not with a RecursionError."""
    (tmp_path / "run.json").write_text('{"a":' * 3_000 + "1" + "}" * 3_000)

    with pytest.raises(ConfigError, match=r"run\.json: not valid JSON: it is nested more than"):
        read_run(tmp_path)
