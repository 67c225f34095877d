"""The page of run.json and the JSON Schemas are what the records say."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Chunk, LLMCall
from pytest_agentbench.runs.contents import Run
from tests.field_docs import docs_of
from tests.generated import FILES, generated, keys_of, records_of
from tests.yaml_keys import YAML_SCHEMAS

RECORDS: dict[type, None] = {}
for kinds, _ in FILES.values():
    for kind in kinds:
        records_of(kind, RECORDS)


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_files_are_up_to_date(path: Path) -> None:
    """A file in the repository is what `python -m tests.generated` makes of the records."""
    assert generated()[path] == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_numbers_have_units(record: type) -> None:
    """A key with a broken number is said to be of something, by a comment at its field or by the end of its name."""
    units = ("_ms", "_s", "_ns", "_mib", "_w")
    broken = [key for key in keys_of(record) if float in (key.kind, *typing.get_args(key.kind)) and not key.doc]

    assert [] == [key.name for key in broken if not key.name.endswith(units) and key.name not in BARE]


#: Ends of intervals and places of distributions, which have the unit of the value beside them, and numbers that only count.
BARE = {"low", "high", "mean", "max", "min", "value", "score", "limit", "p", "hit_tokens", "queried_tokens", "preemptions"} | {
    *("prompt_tokens", "output_tokens", "sm_percent_mean", "output_tokens_per_s", "rollouts_per_hour", "seconds")
}


def test_comments_are_found() -> None:
    """Behind a field, above it, in a class that it inherits from, and of a tuple's places."""
    assert "name of the run directory" == docs_of(Run)["id"]
    assert docs_of(Run)["verdict"].startswith("the [word for the exit status]")
    assert "monotonic nanoseconds" == docs_of(Chunk)["at_ns"]
    assert docs_of(LLMCall)["sent_ns"].endswith("null if never")


@pytest.mark.parametrize("name", [*FILES, *YAML_SCHEMAS])
def test_schemas_are_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench schema` prints what is shipped."""
    assert 0 == main(["schema", name])

    (path,) = (path for path in generated() if path.name == f"{name}.json")
    assert path.read_text(encoding="utf-8") == capsys.readouterr().out
