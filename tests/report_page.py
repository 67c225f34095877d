"""Reads the data of a report.html from its text."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence

from pytest_agentbench.records import Json
from pytest_agentbench.reports.page.data import RunData


def data_of(text: str) -> tuple[list[RunData], Sequence[Json]]:
    """Returns the runs of a page, and the intervals of their differences."""
    index = json.loads(_between(text, 'id="index">'))
    runs = [
        RunData(
            {name: value for name, value in run.items() if name != "blocks"},
            tuple(_between(text, f'id="block-{place}-{number}">') for number in range(run["blocks"])),
        )
        for place, run in enumerate(index["runs"])
    ]
    return runs, index["compared"]


def unpacked(block: str) -> Json:
    """Returns the rollouts and values of a block."""
    content: Json = json.loads(gzip.decompress(base64.b64decode(block)))
    return content


def _between(text: str, opening: str) -> str:
    return text.partition(opening)[2].partition("</script>")[0]
