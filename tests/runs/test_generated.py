"""The generated tables in docs/ are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generated import generated


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_files_are_up_to_date(path: Path) -> None:
    """Each file equals the output of `python -m tests.generated`."""
    assert generated()[path] == path.read_text(encoding="utf-8")
