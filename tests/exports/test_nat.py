"""`agentbench import nat`: recorded values are imported exactly, and missing ones are reported as unknown."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.cli.imported import write
from pytest_agentbench.cli.parser import runs_of
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat import read
from pytest_agentbench.exports.nat_profiler import parsed_arguments, read_events
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics.other_tools.nat import nat
from pytest_agentbench.plots.points import points_of
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.tables import read_tables
from tests.exports.nat_job import CONFIG, FAILED, VECTOR, call, event, item, tool, trace, write_csv, write_job

IDS = ("banking_scenario_004", "banking_scenario_009")  # The data set is filtered, so the digits are not positions.


def imported(job: Path) -> tuple[list[Rollout], Json]:
    """Returns the rollouts and run.json of an imported job."""
    directory, run = write("nat", read(job), job, None, job.parent / "reports")
    return [*read_journal(directory)], plain(run)


def notes(run: Json) -> str:
    return "\n".join(run["imported"]["notes"])


def test_the_worked_vector(tmp_path: Path) -> None:
    """By the toolkit's definitions, the imported run has the numbers that the toolkit's script computes from the same events."""
    job = write_job(tmp_path / "job", ["Done.", "Done."], [item(id, 1.0) for id in IDS], VECTOR)

    rows = nat(each for rollout in imported(job)[0] for each in rollout.calls).rows

    expected: dict[str, list[float]] = {
        "TTFT (ms)": [200, 200, 280, 290, 298, 100, 300],
        "ITL, global (ms)": [80, 100],
        "ITL, mean per call (ms)": [83.3333, 83.3333],
        "Throughput per call (tok/s)": [6, 5, 7.4],
        "Total LLM Calls": [3],
        "Total Tokens Generated": [8],
        "Sum of LLM Durations (s)": [1.3],
        "Wall-Clock Time (s)": [1.2],
        "Aggregate Throughput (tok/s)": [6.6667],
        "Speedup": [1.1111],
    }
    for name, values in expected.items():
        assert values == pytest.approx(rows[name][: len(values)], abs=1e-4), name


def test_the_worked_vector_by_our_definitions(tmp_path: Path) -> None:
    """By our definitions, a call without tokens counts as a call and in the total time. It has an E2E latency but no TTFT."""
    job = write_job(tmp_path / "job", ["Done.", "Done."], [item(id, 1.0) for id in IDS], VECTOR)

    performance = imported(job)[1]["performance"]

    assert (4, 8, 150) == (performance["calls"], performance["output_tokens"], performance["prompt_tokens"])
    assert 1.4 == pytest.approx(performance["span_s"])
    assert (3, 200) == (performance["ttft_ms"]["n"], performance["ttft_ms"]["p50"])
    assert (5, 4) == (performance["itl_ms"]["n"], performance["e2e_ms"]["n"])
    assert [80, 425] == pytest.approx([performance["itl_ms"]["mean"], performance["e2e_ms"]["mean"]])
    assert {"usage": 3, "none": 1} == performance["token_sources"]


def test_a_whole_job(tmp_path: Path) -> None:
    """Scores, answers, labels and tools with arguments come from their files, and are assigned to the ids of a filtered data set."""
    rows = [*VECTOR, *tool(0, "t", "tools__get_rate", "100.6", "100.7"), *tool(0, "u", "tools__pay", "100.8", "100.9")]
    items = [item(IDS[0], 0.8, ["tools__get_rate", "tools__pay"], ["pay", "get_rate", "ask"]), item(IDS[1], 0.0, [], ["pay"])]
    traces = [{"request_number": 0, "intermediate_steps": [trace("t", "{'input_params': {'to': 'EUR'}}"), trace("u", "five euros")]}]
    write_job(tmp_path / "nat/jobs/job_1", ["It is 1.1.", "No."], items, rows, traces)

    (first, second), run = imported(tmp_path / "nat")

    assert ("banking", IDS[0], "ok", "It is 1.1.", 0.8) == (
        *first.key[:2],
        first.status,
        first.answer,
        first.score("nat_tool_selection_quality"),
    )
    assert [("tools__get_rate", {"to": "EUR"}, None), ("tools__pay", {}, "five euros")] == [
        (each.name, each.arguments, each.raw) for each in first.tool_calls
    ]
    assert [1, 1] == [each.turn for each in first.tool_calls]
    assert (["pay", "get_rate", "ask"], ["pay"]) == (first.expected_tools, second.expected_tools)
    assert (100_000_000_000, 101_200_000_000) == (first.started_ns, first.ended_ns)
    assert ("llama-3.3-70b", 16, "IMPORTED", "warn") == (
        run["backend"]["served_model"],
        run["settings"]["concurrency"],
        run["verdict"],
        run["stopwatch"]["verdict"],
    )
    assert 0.4 == run["suites"]["banking"]["scores"]["nat_tool_selection_quality"]["mean"]["value"]
    assert "positions" not in notes(run)
    assert "by position, which their tools confirm for 1 of 2 entries" in notes(run)
    assert "its labels included" in notes(run)


def test_errors_do_not_count_as_zero(tmp_path: Path) -> None:
    """Items that the toolkit marks as errors have no score, entries without any trace were not measured, and doubtful zeros are counted."""
    items = [
        {"id": "a", **FAILED},
        {"id": "b", "score": 0.0, "reasoning": {}, "error": "boom"},
        item("c", 0.0),
        item("d", 0.0),
        item("e", 1.0),
    ]
    rows = [*call(0, "1", "1", ["2"], "3"), *call(3, "2", "1", ["2"], "3"), *call(4, "3", "1", ["2"], "3")]
    job = write_job(tmp_path / "job", ["x", "y", None, "I will not.", "z"], items, rows)

    rollouts, run = imported(job)

    assert ["ok", "ok", "infra_error", "ok", "ok"] == [each.status for each in rollouts]
    assert [{"nat_tool_selection_quality": why} for why in ("Evaluation failed", "boom")] == [each.score_errors for each in rollouts[:2]]
    assert 0.5 == run["suites"]["banking"]["scores"]["nat_tool_selection_quality"]["mean"]["value"]
    assert "2 of 5 items are errors, which the toolkit's average counts as 0.0" in notes(run)
    assert "1 entries have no answer and no event" in notes(run)
    assert "1 scores of 0.0 are of entries without a tool call: the toolkit writes the same for a workflow that failed" in notes(run)


def test_structured_output_has_ids(tmp_path: Path) -> None:
    """If workflow_output.json has ids, answers are assigned by id, and repetitions of an entry are its trials."""
    rows: list[Json] = [
        {
            "id": f"a_rep{number}",
            "question": "Pay!",
            "generated_answer": f"Paid {number}.",
            "expected_tool_calls": [{"tool": "pay", "parameters": {}}],
        }
        for number in range(2)
    ]
    job = write_job(tmp_path / "job", rows, [item("a_rep1", 0.25), item("a_rep0", 0.75)])
    (job / "config_metadata.json").write_text(json.dumps({"reps": 2}))

    rollouts, run = imported(job)

    assert [("a", 1, "Paid 0.", 0.75), ("a", 2, "Paid 1.", 0.25)] == [
        (each.scenario, each.trial, each.answer, each.score("nat_tool_selection_quality")) for each in rollouts
    ]
    assert ["pay"] == rollouts[0].expected_tools
    assert "no standardized_data_all.csv" in notes(run)
    assert "2 of 2 rollouts have no start and end" in notes(run)
    assert 0 == run["performance"]["span_s"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (tool(0, "t", "tools__pay", "1", "2"), "entry 0 (a) was scored for tools that event example 0 does not have"),
        (call(7, "t", "1", [], "2"), "example_number 7 is beyond the 1 entries"),
    ],
)
def test_events_that_cannot_be_assigned(tmp_path: Path, rows: list[Json], why: str) -> None:
    """If positions of events do not match the ids, no calls, tools or times are assigned, and a note says why."""
    rollouts, run = imported(write_job(tmp_path / "job", ["Hello."], [item("a", 1.0, ["tools__ask"])], rows))

    assert ((), (), 0) == (rollouts[0].calls, rollouts[0].tool_calls, rollouts[0].ended_ns)
    assert f"they cannot be assigned: {why}" in notes(run)


def test_borrowed_tools(tmp_path: Path) -> None:
    """A note names entries that were scored for tools which their own events lack. The toolkit's global registry causes this."""
    job = write_job(tmp_path / "job", ["Hello."], [item("a", 1.0, ["tools__ask"])], call(0, "1", "1", [], "2"))

    assert "1 entries were scored for tools that their own events do not have, such as 'a'" in notes(imported(job)[1])


def test_answers_that_cannot_be_assigned(tmp_path: Path) -> None:
    """If answers have no ids and their number differs from that of the scores, they are not assigned."""
    rollouts, run = imported(write_job(tmp_path / "job", ["Hello."], [item("a", 1.0), item("b", 1.0)]))

    assert [("", "ok"), ("", "ok")] == [(each.answer, each.status) for each in rollouts]
    assert "1 texts for 2 scores, so the answers cannot be assigned" in notes(run)


def test_calls_are_paired_by_uuid(tmp_path: Path) -> None:
    """Overlapping calls of one example keep their own tokens and ends.

    A call without an end has failed. The order of rows does not matter.
    """
    rows = [*call(0, "a", "1", ["1.5", "4"], "5"), *call(0, "b", "2", ["2.5"], "3"), *call(0, "c", "6", ["6.5"], None)]
    write_csv(tmp_path / "events.csv", reversed(rows))

    a, b, c = read_events(tmp_path / "events.csv")[0].calls()

    assert ([1.5, 4.0], 5) == ([chunk.at_ns / 1e9 for chunk in a.chunks], a.ended_ns / 1e9)
    assert ([2.5], 3, None) == ([chunk.at_ns / 1e9 for chunk in b.chunks], b.ended_ns / 1e9, b.error_kind)
    assert ("incomplete", 6.5) == (c.error_kind, c.ended_ns / 1e9)


def test_token_events_without_text(tmp_path: Path) -> None:
    """An event with an empty text, such as the bare role, is not a content chunk. If the file has no texts, every event is one."""
    rows = [
        *call(0, "a", "1", ["2"], "5", text=""),
        event("LLM_NEW_TOKEN", "3", 0, "a", llm_new_token="Hi"),
        *call(0, "b", "6", ["7"], "8", text="None"),
    ]
    write_csv(tmp_path / "with.csv", rows)
    write_csv(tmp_path / "without.csv", rows, ["event_type", "event_timestamp", "example_number", "UUID"])

    kinds = [
        [[chunk.kind for chunk in each.chunks] for each in read_events(tmp_path / f"{name}.csv")[0].calls()] for name in ("with", "without")
    ]

    assert [[["other", "content"], ["other"]], [["content", "content"], ["content"]]] == kinds


def test_counts_as_pandas_writes_them(tmp_path: Path) -> None:
    """Whole numbers in a column with gaps have a decimal point. A count of 0 tokens means unknown."""
    counts = [{"prompt_tokens": "12.0", "completion_tokens": "3.0"}, {"prompt_tokens": "0", "completion_tokens": "0"}]
    rows = [row for number, each in enumerate(counts) for row in call(number, "a", "1.5e0", ["2"], "3", **each)]  # type: ignore[arg-type]
    write_csv(tmp_path / "events.csv", rows)

    events = read_events(tmp_path / "events.csv")

    calls = [each for number in (0, 1) for each in events[number].calls()]
    assert [(12, 3, "usage"), (None, None, "chunks")] == [(each.prompt_tokens, each.completion_tokens, each.token_source) for each in calls]


HEADER = "event_type,event_timestamp,example_number,UUID\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ": no column 'event_type'; the file must be the profiler's standardized_data_all.csv"),
        (f"{HEADER}LLM_START,soon,0,a\n", ":2: 'soon' must be a time in seconds, such as 1700000000.25"),
        (f"{HEADER}LLM_START,nan,0,a\n", ":2: 'nan' must be a time in seconds, such as 1700000000.25"),
        (f"{HEADER}LLM_START,1,,a\n", ":2: could not convert string to float: ''"),
        (f"{HEADER}LLM_START,1\n", ":2: fewer columns than the header has"),
        (f"{HEADER}LLM_START,1,0,\n", ":2: an event LLM_START must have a UUID, which says to which call it belongs"),
    ],
)
def test_a_broken_csv(tmp_path: Path, text: str, why: str) -> None:
    """An error in the CSV is one sentence with file and line."""
    file = tmp_path / "events.csv"
    file.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_events(file)

    assert f"{file}{why}" == str(raised.value)


def test_a_long_csv_takes_little_memory(tmp_path: Path) -> None:
    """Only a few bytes of each token event are kept in memory, however long its other columns are."""

    def rows() -> Iterator[Json]:
        yield event("LLM_START", "1", 0, "a")
        yield from (event("LLM_NEW_TOKEN", f"{2 + number / 1000:.3f}", 0, "a", llm_text_input="word " * 40) for number in range(20_000))

    write_csv(tmp_path / "events.csv", rows())
    tracemalloc.start()
    try:
        examples = read_events(tmp_path / "events.csv")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 20_000 == len(examples[0].llm_events["a"].tokens)
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"input_params": {"a": 1}}, {"a": 1}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ({"input_params": "a=1"}, {"input_params": "a=1"}),
        ("a=1", None),
        (None, None),
    ],
)
def test_arguments(given: object, arguments: Json | None) -> None:
    """Arguments are read from an object or its text, with or without their wrapper. Anything else is not interpreted."""
    assert arguments == parsed_arguments(given)


def test_invalid_jobs(tmp_path: Path) -> None:
    """A directory without scores, with several jobs, or with a damaged file is refused by name."""
    with pytest.raises(ConfigError, match=r"contains no <evaluator>_output\.json"):
        read(tmp_path)
    job = write_job(tmp_path / "jobs/job_1", ["x"], [item("a", 1.0), item("a", 1.0)])
    with pytest.raises(ConfigError, match="the id 'a' is there twice"):
        read(tmp_path)
    (job / "tool_selection_quality_output.json").write_text('{"average_score": 1, "eval_output_items": [{"id": "a"}]}')
    with pytest.raises(ConfigError, match=r"eval_output_items\[0\] must be an object with id and score"):
        read(job)
    write_job(tmp_path / "jobs/job_2", ["x"], [item("a", 1.0)], [*VECTOR], config=CONFIG)
    with pytest.raises(ConfigError, match=r"2 jobs are in it, but a run has one job; name one of them, such as .*job_2"):
        read(tmp_path)


def test_a_directory_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each job of a directory becomes a run, and these runs can be drawn in one plot."""
    for name, score in (("job_1", 1.0), ("job_2", 0.5)):
        write_job(tmp_path / "nat/jobs" / name, ["x"], [item("a", score)], [*VECTOR], config=CONFIG)

    reports = tmp_path / "reports"
    assert 0 == main(["import", "nat", str(tmp_path / "nat"), "--reports", str(reports)]), capsys.readouterr().err

    points = points_of(read_tables([*runs_of(str(reports), reports)]), "nat_tool_selection_quality")
    assert [0.5, 1.0] == sorted(points.values)
    assert 2 == len(points.kinds or ())
