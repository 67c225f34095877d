"""Parses OpenMetrics text with the official library."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families


def parsed(text: str) -> Iterable[Metric]:
    """Parses a text. Raises ValueError if it is not valid OpenMetrics."""
    families: Iterable[Metric] = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # as the library has it
    return families
