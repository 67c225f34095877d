"""Keys of endpoints that play roles: environment variables, which suite.yaml and backends' YAMLs name."""

from __future__ import annotations

import os

from pytest_agentbench.records import Json


def missing_key(player: Json) -> str:
    """Which key the endpoint of a role wants that is not in the environment, as a sentence; empty where none is missing."""
    name = player.get("api_key")
    if not name or os.environ.get(name):
        return ""
    return f"{player['url']} wants a key: the environment variable {name} is not set"
