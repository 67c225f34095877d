"""Keys that every kind of backend YAML has."""

from __future__ import annotations

from pydantic import FiniteFloat

from pytest_agentbench.lib.config import Spec


class BackendSpec(Spec):
    """Keys that every kind of backend has."""

    name: str
    model: str | None = None  # name sent in requests; None: the first model that the backend lists
    thresholds: dict[str, dict[str, FiniteFloat]] = {}  # suite -> thresholds that replace the suite's own on this backend
    note: str = ""  # a sentence for every report made with this backend
