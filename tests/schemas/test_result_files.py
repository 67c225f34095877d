"""The JSON Schemas of a run's files, and the descriptions of their keys, match the records."""

from __future__ import annotations

import typing

import pytest

from pytest_agentbench.records import Chunk, LLMCall
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.schemas.result_files import FILES, docs_of, keys_of, records_of

RECORDS: dict[type, None] = {}
for kinds, _ in FILES.values():
    for kind in kinds:
        records_of(kind, RECORDS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_numbers_have_units(record: type) -> None:
    """A key with a fractional number has a unit: in the comment at its field, or at the end of its name."""
    units = ("_ms", "_s", "_ns", "_mib", "_w")
    broken = [key for key in keys_of(record) if float in (key.kind, *typing.get_args(key.kind)) and not key.doc]

    assert [] == [key.name for key in broken if not key.name.endswith(units) and key.name not in BARE]


#: Numbers of intervals and distributions, which have the unit of the value beside them, and plain counts.
BARE = {"low", "high", "mean", "max", "min", "value", "score", "limit", "p", "hit_tokens", "queried_tokens", "preemptions"} | {
    *("prompt_tokens", "output_tokens", "sm_percent_mean", "output_tokens_per_s", "rollouts_per_hour", "seconds")
}


def test_descriptions_from_comments() -> None:
    """Descriptions are read from comments after a field, above it, in a base class, and of the fields of a tuple."""
    assert "name of the run directory" == docs_of(Run)["id"]
    assert docs_of(Run)["verdict"].startswith("[word for the exit status]")
    assert "arrival, monotonic nanoseconds" == docs_of(Chunk)["at_ns"]
    assert docs_of(LLMCall)["sent_ns"].endswith("null if it was not sent")
