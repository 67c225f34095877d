"""The project of the benchmark of hints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hints.project import ARMS, ROUTERS, STATIC, WORKERS, make
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec


@pytest.mark.parametrize("router", ROUTERS)
def test_backends(tmp_path: Path, router: str) -> None:
    """The backends of a router differ only in their hints: the static ones, a table, and none."""
    make(tmp_path, router)
    specs = {arm: load_backend(arm, tmp_path) for arm in ARMS}
    hints, others = {}, []
    for arm, spec in specs.items():
        assert isinstance(spec, StackSpec)
        keys = spec.labels.model_dump(exclude_defaults=True)
        hints[arm] = {name: value for name, value in keys.items() if name in (*STATIC, "table")}
        others.append(spec.model_dump(exclude={"labels", "name", "path", "file"}))

    assert {"static": STATIC, "learnt": {"table": str(tmp_path / "backends" / "hints.json")}, "none": {}} == hints
    assert others[0] == others[1] == others[2]
    assert WORKERS in {service["replicas"] for service in others[0]["services"].values()}
