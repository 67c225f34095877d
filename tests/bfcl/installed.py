"""Whether the leaderboard's data is here."""

from __future__ import annotations

import pytest

from pytest_agentbench.errors import MissingData
from pytest_agentbench.suites.datasets.bfcl import data_folder


def missing() -> str:
    """Why it is not; empty where it is."""
    try:
        data_folder()
    except MissingData as error:
        return f"NOT TESTED with the real data set: {error}"
    return ""


needs_data = pytest.mark.skipif(bool(missing()), reason=missing())
