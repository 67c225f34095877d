"""Whether the leaderboard's data is installed."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import MissingData
from pytest_agentbench.suites.datasets.bfcl import data_folder


def missing() -> str:
    """Returns why the data is missing, or an empty text."""
    try:
        data_folder()
    except MissingData as error:
        return f"NOT TESTED with the real data set: {error}"
    return ""


needs_data = pytest.mark.skipif(bool(missing()), reason=missing())
