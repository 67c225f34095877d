"""A page of Prometheus text that is read again and again: only what changed is told, and a series is parsed once."""

from __future__ import annotations

from typing import NamedTuple


class Changes(NamedTuple):
    """What a page says that it did not say before. Series are known by their number, in the order in which they came."""

    series: list[tuple[str, dict[str, str]]]  # new ones: name and labels
    values: list[tuple[int, float]]  # of series that are new, changed or back again
    gone: list[int]


class Page:
    """What was read of one page so far."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # `name{labels}`, as it is written -> number
        self._told: list[str] = []  # number -> value, as it is written; empty: gone

    def changes(self, text: str) -> Changes:
        """Raises ValueError when the text is none of Prometheus."""
        changes = Changes([], [], [])
        lines = {line[:end]: line[end:] for line in text.splitlines() if line and line[0] != "#" and (end := _end_of_labels(line))}
        for written, value in lines.items():
            if (number := self._numbers.get(written)) is None:
                changes.series.append(_parsed(written + value))
                number = self._numbers[written] = len(self._told)
                self._told.append("")
            if self._told[number] != value:
                self._told[number] = value
                changes.values.append((number, _number(value)))
        if len(lines) < len(self._numbers):
            changes.gone.extend(number for written, number in self._numbers.items() if self._told[number] and written not in lines)
            for number in changes.gone:
                self._told[number] = ""
        return changes


def _end_of_labels(line: str) -> int:
    """Where the value begins. No brace can follow the labels; exemplars are no part of this format."""
    return line.rfind("}") + 1 or line.find(" ") + 1 or len(line)


def _number(told: str) -> float:
    return float((told.split() or [""])[0])  # a time may follow


def _parsed(line: str) -> tuple[str, dict[str, str]]:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples]
    if len(samples) != 1:
        raise ValueError(f"no series in {line[:80]!r}")
    return samples[0].name, samples[0].labels
