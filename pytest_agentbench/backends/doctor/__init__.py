"""Checks whether this machine has what a backend needs. Nothing is started or downloaded."""

from __future__ import annotations

from pytest_agentbench.backends.doctor.check import Check, disk_check
from pytest_agentbench.backends.spec import BackendSpec


def checks(spec: BackendSpec, *, reach: bool = True) -> list[Check]:
    """Checks all that a backend needs, in the order in which a boot would need it. Without `reach`, no other machine is contacted."""
    return [*spec.checks(reach=reach), disk_check()]
