"""`agentbench export --as nat`: the two files of the toolkit's profiler about where time is spent.

nat_golden/ has the output of the toolkit's own code, of June 2026, for the events of this export.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.exports.nat_analyses import Optimization
from pytest_agentbench.records import Json, Rollout, ToolCall
from tests.exports.test_nat_export import exported
from tests.made_runs import run_directory
from tests.tables.shop import MS, START, call, rollout

GOLDEN = Path(__file__).with_name("nat_golden")

QUESTION = "Is there a red lamp in the shop?"
MESSAGES = (
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "I look for the lamp."},
    {"role": "user", "content": "There is one lamp, and it is blue."},
    {"role": "assistant", "content": "It is blue."},
)

#: Contains two calls and a tool, a tool that calls the model, concurrent calls, and a failed call, in which the toolkit nests the next
#: ones.
LAMPS = (
    rollout(
        "shop-0",
        calls=(call(0, 100, 200, end=300), call(500, 600, 700, end=900)),
        tool_calls=(ToolCall("find_item", {}, 1, started_ns=START + 320 * MS, ended_ns=START + 480 * MS),),
        messages=MESSAGES,
    ),
    rollout(
        "shop-1",
        at=100,
        end=1_200,
        calls=(call(300, 350, end=700),),
        tool_calls=(ToolCall("ask_expert", {}, 1, started_ns=START + 200 * MS, ended_ns=START + 1_100 * MS),),
        messages=({"role": "user", "content": "Is there a red chair in the shop?"}, {"role": "assistant", "content": "Yes."}),
    ),
    rollout(
        "shop-2",
        at=50,
        end=2_000,
        calls=(call(100, 200, end=600), call(150, 300, end=420), call(200, 250, end=1_500)),
        messages=(*MESSAGES, {"role": "user", "content": "And a green one?"}, {"role": "assistant", "content": "No."}),
    ),
    rollout(
        "shop-3",
        at=60,
        end=1_000,
        calls=(call(70, end=200, error_kind="cut"), call(250, 300, end=450, prompt_tokens=140)),
        messages=MESSAGES[:2],
    ),
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported job of LAMPS."""
    folder = tmp_path_factory.mktemp("lamps")
    return exported(folder / "out", run_directory(folder / "run", *LAMPS)) / "dynamo_evals/shop/jobs/job_run"


def test_the_report(job: Path) -> None:
    """Nested calls with their trees, and concurrency spikes with their content, are equal to the toolkit's report line by line."""
    expected, actual = ((folder / "workflow_profiling_report.txt").read_text(encoding="utf-8") for folder in (GOLDEN, job))

    assert expected == actual


def test_optimization(job: Path) -> None:
    """Confidence intervals, common prefixes, new words and runtimes have the toolkit's names and numbers."""
    expected, actual = (flat(json.loads((folder / "inference_optimization.json").read_text(encoding="utf-8"))) for folder in (GOLDEN, job))

    assert [*expected] == [*actual]
    assert expected == {path: pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for path, value in actual.items()}


def flat(value: Json | list[object] | object, path: str = "") -> dict[str, object]:
    """Maps each path in a JSON value to the value there."""
    match value:
        case dict():
            items = [*value.items()]
        case list():
            items = [*enumerate(value)]
        case _:
            return {path: value}
    return {name: each for key, below in items for name, each in flat(below, f"{path}/{key}").items()}


def prefixes(*questions: str) -> Json:
    """Returns the common prefixes of calls with these questions."""
    optimization = Optimization()
    for number, question in enumerate(questions):
        asked = ({"role": "user", "content": question}, {"role": "assistant", "content": "Yes."})
        optimization.add_prompts(rollout(f"shop-{number}", calls=(call(0, 10, end=20),), messages=asked))
    data: Json = optimization.data()["common_prefixes"]["m"]
    return data


def test_prefixes_to_the_letter() -> None:
    """A common prefix ends at the letter after which fewer than half of the calls are equal, even within a block."""
    beginning = '{"role": "user", "content": "'
    long = "a" * 200
    [first] = prefixes(f"{long}b", f"{long}cd", f"{long}ce", "none of it")["prefix_info"]

    assert {"prefix": f"{beginning}{long}c", "prefix_length": 230, "calls_count": 2, "calls_percentage": 0.5} == first


def test_one_prompt_within_another() -> None:
    """A prompt that is the beginning of another one is not listed itself. Two prompts that half of the calls have each are listed."""
    one, other = prefixes("a" * 100, "a" * 100, "b" * 100, "b" * 100)["prefix_info"]

    assert [2, 2] == [each["calls_count"] for each in (one, other)]
    assert {"a", "b"} == {each["prefix"][100] for each in (one, other)}


def test_nothing_measured(tmp_path: Path) -> None:
    """A job without any LLM call has both files, with the toolkit's zeros."""
    lost: Rollout = rollout("shop-0", status="infra_error")
    job = exported(tmp_path / "out", run_directory(tmp_path / "run", lost)) / "dynamo_evals/shop/jobs/job_run"
    found = json.loads((job / "inference_optimization.json").read_text(encoding="utf-8"))

    assert (0, [0, 0]) == tuple(
        found["confidence_intervals"]["llm_latency_confidence_intervals"][name] for name in ("n", "ninetieth_interval")
    )
    assert {} == found["common_prefixes"] == found["token_uniqueness"]
    report = (job / "workflow_profiling_report.txt").read_text(encoding="utf-8")
    assert report.startswith("\n\n\nNo calls found.\n\n\n=== Concurrency Spike Analysis ===\nTotal calls in dataset: 0\n")
    assert report.endswith("No calls or no concurrency data.")
