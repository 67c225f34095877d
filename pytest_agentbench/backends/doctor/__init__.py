"""What a backend needs of this machine, and what of it is missing. Nothing is started, and nothing is fetched."""

from __future__ import annotations

from pytest_agentbench.backends.doctor.check import Check, disk_check
from pytest_agentbench.backends.spec import BackendSpec


def checks(spec: BackendSpec, *, reach: bool = True) -> list[Check]:
    """Everything that a backend needs, in the order in which a boot would find out. Without `reach` no other machine is asked."""
    return [*spec.checks(reach=reach), disk_check()]
