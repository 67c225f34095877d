"""What CI gets to read of a run: reports like any other, but written only where there is CI."""

from __future__ import annotations

from collections.abc import Mapping

#: Variable that a CI system sets in every job -> the system.
DETECTED = {"GITHUB_ACTIONS": "github", "GITLAB_CI": "gitlab"}

REPORTS: Mapping[str, str] = {
    "comment": "pytest_agentbench.reports.comment:write",
    "openmetrics": "pytest_agentbench.reports.openmetrics:write",
    "summary": "pytest_agentbench.reports.summary:write",
}
WRITTEN: Mapping[str, tuple[str, ...]] = {"github": ("summary", "comment", "openmetrics"), "gitlab": ("comment", "openmetrics"), "": ()}


def system(choice: str, environment: Mapping[str, str]) -> str:
    """github, gitlab, or nothing; `choice` is what --agentbench-ci says."""
    if choice == "auto":
        return next((name for variable, name in DETECTED.items() if environment.get(variable) == "true"), "")
    return "" if choice == "off" else choice
