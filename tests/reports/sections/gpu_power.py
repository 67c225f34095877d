"""A section that a plugin adds to reports: the power of the GPUs. `test_sections_plugins` installs this file unchanged."""

from __future__ import annotations

from pytest_agentbench import Column, Fact, Level, Measure, RunView, Section, Table


def section(view: RunView) -> Section | None:
    """Returns the mean power of all GPUs together, and of each, or None if no GPU reported it."""
    gpus = view.run.serving.gpus if view.run.serving else {}
    known = tuple((name, use.power_w_mean) for name, use in gpus.items() if use.power_w_mean is not None)
    if not known:
        return None
    total = Fact("GPU power", Measure(sum(watts for _, watts in known), "W", "mean", digits=0), level=Level.FIRST_PAGE)
    return Section("GPU power", (total, Table((Column("GPU"), Column("mean W", 0)), known, level=Level.FULL)))
