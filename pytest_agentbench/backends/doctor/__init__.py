"""The checks of `agentbench doctor`: whether this machine has what a backend needs. They download nothing, and only the probe starts
something.
"""

from __future__ import annotations

from pytest_agentbench.backends.doctor.check import Check, disk_check
from pytest_agentbench.backends.spec import BackendSpec


def checks(spec: BackendSpec, *, reach: bool = True) -> list[Check]:
    """Yields a check for each thing that a backend needs, in the order in which a boot needs them.

    Without `reach`, no other machine is contacted.
    """
    return [*spec.checks(reach=reach), disk_check()]
