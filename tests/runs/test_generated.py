"""The tables in docs/ are what records, models and registries say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generated import generated


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_files_are_up_to_date(path: Path) -> None:
    """A file in the repository is what `python -m tests.generated` makes of the records."""
    assert generated()[path] == path.read_text(encoding="utf-8")
