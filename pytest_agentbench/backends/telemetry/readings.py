"""Reads the metrics of servers once, without a file: for checks at boot, and before and after a block of rollouts."""

from __future__ import annotations

from collections.abc import Container, Iterable
from http.client import HTTPException

from pytest_agentbench.backends.telemetry.samples import Page, SampledTarget, SampleSource, Series, Target

#: Replica of a service that answered -> its series with their current values.
Readings = dict[SampleSource, dict[Series, float]]


def read_now(targets: Iterable[Target], names: Container[str]) -> Readings:
    """Reads the metrics of each target, which is one replica of a service, and returns the series with these names.

    A replica that does not answer is left out. One that has none of these series is there without series.
    """
    readings: Readings = {}
    for watched in map(SampledTarget, targets):
        source = watched.target.service, watched.target.replica
        try:
            watched.ask()
            changes = Page().changes(watched.answer())
        except (OSError, HTTPException, ValueError):
            continue
        finally:
            watched.close()
        series = [Series(source, name, tuple(sorted(labels.items()))) for name, labels in changes.series]
        readings[source] = {series[number]: value for number, value in changes.values if series[number].name in names}
    return readings
