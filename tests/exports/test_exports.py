"""Formats that are both exported and imported: a rollout's lost or changed fields are those listed in docs/reference/export.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_agentbench.cli.imported import write as import_run
from pytest_agentbench.exports import EXPORTS, TOOLS, load_reader, load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Attempt, Chunk, Draft, KeptCall, Program, ToldHints, Verification
from pytest_agentbench.runs.journal import read_journal
from tests.made_runs import run_directory
from tests.pages.export import ROUND_TRIPS
from tests.tables.shop import BOUGHT, MS, START, call

#: Maps each imported tool to its export format, and the place of the files below the export.
WAYS: Mapping[str, tuple[str, str]] = {
    "nat": ("nat", "dynamo_evals/shop-react"),
    "harbor": ("atif", "run-shop-react"),
    "toolorchestra": ("toolorchestra", "hle_local_run"),
}

#: These fields are empty for successful rollouts and calls. Other tests check them.
OF_WHAT_FAILED = {"status", "reason", "score_errors", "error_kind", "error", "retry_after_s"}
SAID_NOTHING = OF_WHAT_FAILED | {"kind", "session", "conversation"}  # transcripts are compared in `messages`

CALL = replace(
    call(10, 100, 120, 160, end=200, answered_by="m-1", request_bytes=512, request_crc=7, stamp="kernel", held_ns=5, repeats=1),
    called_ns=START,
    received_ns=START + 1 * MS,
    streamed=True,
    upgraded=True,
    role="reasoner",
    endpoint="http://m/v1",
    head_ns=START + 15 * MS,
    idle_since_ns=START - 5 * MS,
    response_id="r",
    server={"worker_id": 1},
    hints=ToldHints(tokens=64, remaining=2.0),
    speculative=True,
    kept=KeptCall("f1", "n1", "r1"),
)
TOOL_CALL = replace(
    BOUGHT.tool_calls[0],
    problem="invalid_arguments",
    detail="count is missing",
    raw="{item: lamp}",
    repaired=True,
    user_turn=2,
    refusal="sold out",
    injected=True,
)
FULL = replace(
    BOUGHT,
    sandbox="bubblewrap",
    reference="a lamp",
    variant="react",
    trial=2,
    content={"scenario": "0" * 16, "agent": "1" * 16, "prompts": "2" * 16, "backend": "3" * 16, "scorers": {}},
    cluster="lamps",
    node="w3",
    attempt=2,
    earlier_attempts=(Attempt(1, "infra_error", "no connection", 1, START - 10, START - 5),),
    calls=(CALL, *BOUGHT.calls[1:]),
    drafts=(Draft(1, "ok", answer="Here it is."),),
    tool_calls=(TOOL_CALL,),
    programs=(Program(0, START, START + 9, 0.1, 9.0),),
    verification=Verification(1.0, {"reward": 1.0}),
    final_state={"lamps": 0},
    settings={"temperature": 0.5},
    log="It looked.",
)


class Fate(NamedTuple):
    """The fields of a record that did not survive."""

    lost: frozenset[str]  # Fields that had a value and are empty now.
    other: frozenset[str]  # Fields that have another value now.


def empty(field: Field[Any]) -> Any:
    """Returns the default of a field, or None if it has none."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def plain(name: str, value: Any, start: int) -> Any:
    """Returns a comparable value: timestamps count from the rollout's start, and scores have no names."""
    if name.endswith("_ns") and value is not None and name != "held_ns":
        return value - start
    if name == "scores":
        return [*map(float, value.values())]
    if isinstance(value, tuple) and value and isinstance(value[0], Chunk):
        return [(chunk.at_ns - start, chunk.kind) for chunk in value]
    return value


def fate(given: Any, back: Any, starts: tuple[int, int]) -> Fate:
    """Compares a record before and after, for rollouts that began at these times."""
    nothing = {each.name: (empty(each), None, 0) for each in fields(given)}
    pairs = {each.name: (getattr(given, each.name), getattr(back, each.name)) for each in fields(given) if each.name not in SAID_NOTHING}
    lost = {name for name, (before, after) in pairs.items() if after in nothing[name] and before not in nothing[name]}
    alike = {name for name, values in pairs.items() if len({repr(plain(name, *each)) for each in zip(values, starts, strict=True)}) == 1}
    # Calls and tool calls have rows of their own.
    return Fate(
        frozenset(lost), frozenset(pairs.keys() - lost - alike - {"calls", "tool_calls"})
    )  # Calls and tool calls have rows of their own.


def fates(tool: str, folder: Path) -> dict[str, Fate]:
    """Compares a rollout, its first call and its first tool call before and after an export and import."""
    format, place = WAYS[tool]
    (folder / "out").mkdir()
    load_writer(format)(ChosenRuns([run_directory(folder / "reports" / "run", replace(FULL, trial=1), FULL)]), folder / "out")
    job = folder / "out" / place
    directory, _ = import_run(tool, load_reader(tool)(job), job, None, folder / "imported")
    _, back = read_journal(directory)
    starts = (FULL.started_ns, back.started_ns)
    made = {"rollout": fate(FULL, back, starts), "tool call": fate(FULL.tool_calls[0], back.tool_calls[0], starts)}
    return {**made, "call": fate(FULL.calls[0], back.calls[0], starts)} if back.calls else made


def told(tool: str) -> Iterator[tuple[str, Fate]]:
    """Yields each record with its fields that are lost or changed according to the table in docs/reference/export.md."""
    cells = {row: frozenset(f"{names.get('each', '')} {names.get(tool, '')}".split()) for row, names in ROUND_TRIPS.items()}
    for record in ("rollout", "call", "tool call"):
        yield record, Fate(cells[f"{record}: lost"], cells[f"{record}: other"])


def test_every_tool_is_compared() -> None:
    """Each imported tool has an export format, and is compared in the tests below."""
    assert set(TOOLS) == set(WAYS)
    assert {format for format, _ in WAYS.values()} <= set(EXPORTS)


def test_no_field_is_left_out() -> None:
    """The compared rollout has a value in each field, so that a new field is compared, too."""
    for record in (FULL, CALL, TOOL_CALL):
        assert [] == [each.name for each in fields(record) if each.name not in SAID_NOTHING and getattr(record, each.name) == empty(each)]


@pytest.mark.parametrize("tool", WAYS)
def test_lost_and_changed_fields_are_documented(tmp_path: Path, tool: str) -> None:
    """docs/reference/export.md lists exactly the fields that are lost or changed by an export and import."""
    measured = fates(tool, tmp_path)
    page = dict(told(tool))

    assert {**measured, "call": measured.get("call", page["call"])} == page
    assert ("calls" in measured["rollout"].lost) == ("call" not in measured)
