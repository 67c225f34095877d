"""Reading the Berkeley Function Calling Leaderboard from its installed package."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Rollout, ToolCall
from pytest_agentbench.scorers.exact_match import exact_match
from pytest_agentbench.scorers.tsq import tsq, tsq_arguments
from pytest_agentbench.suites.datasets.bfcl import (
    CATEGORIES,
    SHA256,
    SINGLE_TURN,
    TOOL_FILES,
    VERSION,
    data_folder,
    lines,
    load,
    package_schema,
    questions_file,
)
from pytest_agentbench.suites.datasets.loaded_scenarios import check_scenarios
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Scenario
from tests.bfcl.crosscheck import CAUSES, cause, compared, page
from tests.bfcl.installed import needs_data
from tests.sent import sent

pytestmark = needs_data

ROOT = Path(__file__).parents[3]
COUNTS = {
    "simple_python": 400,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "irrelevance": 240,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "multi_turn_base": 200,
}


@cache
def scenarios() -> dict[str, Scenario]:
    return {scenario.id: scenario for scenario in load().scenarios}


def test_every_category_is_complete() -> None:
    """Each category has as many scenarios as the package has questions, and the README has the same numbers.

    Ids are those of the package and unique.
    """
    everything = load().scenarios
    readme = (ROOT / "scenarios/bfcl/README.md").read_text(encoding="utf-8")

    assert COUNTS == Counter(scenario.metadata["category"] for scenario in everything)
    assert [*COUNTS] == [*CATEGORIES]
    ids = [entry["id"] for category in CATEGORIES for entry in lines(questions_file(data_folder(), category))]
    assert ids == [scenario.id for scenario in everything]
    assert len(ids) == len(set(ids))
    assert [] == [category for category, count in COUNTS.items() if f"| `{category}` | {count:,} |" not in readme]


def test_schemas_are_converted_without_loss() -> None:
    """The package's own description of each tool can be made again from the scenario: name, text, and every key and type of the schema."""
    for category in SINGLE_TURN:
        for entry in lines(questions_file(data_folder(), category)):
            tools = scenarios()[entry["id"]].tools

            again = [{"name": t.name, "description": t.description, "parameters": package_schema(t.parameters)} for t in tools]
            assert entry["function"] == again


@pytest.mark.slow
def test_the_data_is_valid() -> None:
    """Schemas compile and labels name existing tools. These checks are too slow for each time that a suite is loaded."""
    check_scenarios(scenarios().values(), data_folder())


def test_labels_accept_their_own_values() -> None:
    """The first accepted values of every label give the score 1, except for at most seven labels of the package, which accept no value."""
    impossible = []
    for scenario in scenarios().values():
        calls = [
            ToolCall(label["tool"], {name: values[0] for name, values in _first(label).items()}, 1, user_turn=label.get("turn", 1))
            for label in scenario.expected
            if all(values for name, values in label.get("accepts", {}).items() if name not in label["optional"])
        ]
        if len(calls) < len(scenario.expected):
            impossible.append(scenario.id)
            continue
        rollout = Rollout("bfcl", scenario.id, "default", 1, "ok", tool_calls=tuple(calls))
        if not any(
            isinstance(value, dict | list) for call in calls for value in call.arguments.values()
        ):  # nested fields have alternatives
            assert 1.0 == tsq_arguments(scenario, rollout) == exact_match(scenario, rollout), scenario.id

    assert 1 <= len(impossible) <= 7


def _first(label: dict[str, dict[str, list[object]]]) -> dict[str, list[object]]:
    if "parameters" in label:
        return {name: [value] for name, value in label["parameters"].items()}
    return {name: values for name, values in label["accepts"].items() if name not in label["optional"]}


def test_irrelevant_questions_expect_no_call() -> None:
    """If no tool fits the question, any call is wrong."""
    for id in ("irrelevance_0", "live_irrelevance_0-0-0"):
        scenario = scenarios()[id]
        called = ToolCall(scenario.tools[0].name, {}, 1)

        assert () == scenario.expected
        assert 1.0 == tsq(scenario, Rollout("bfcl", id, "default", 1, "ok"))
        assert 0.0 == tsq(scenario, Rollout("bfcl", id, "default", 1, "ok", tool_calls=(called,)))


def test_a_conversation() -> None:
    """The first message of a conversation starts it, and the others follow later.

    Its tools are those of its classes without the excluded ones.
    """
    scenario = scenarios()["multi_turn_base_0"]

    assert 1 == len(scenario.messages)
    assert 3 == len(scenario.turns)
    assert {"tool": "cd", "parameters": {"folder": "document"}, "turn": 1} == scenario.expected[0]
    assert {"tool": "sort", "parameters": {"file_name": "final_report.pdf"}, "turn": 3} == scenario.expected[5]
    entries = lines(questions_file(data_folder(), "multi_turn_base"))
    classes = {
        name: {doc["name"] for doc in lines(data_folder() / f"multi_turn_func_doc/{file}.json")} for name, file in TOOL_FILES.items()
    }
    for entry in entries:
        names = {name for each in entry["involved_classes"] for name in classes[each]} - {*entry.get("excluded_function", ())}
        assert names == {tool.name for tool in scenarios()[entry["id"]].tools}
        assert len(entry["question"]) == 1 + len(scenarios()[entry["id"]].turns)


def test_version_and_checksum() -> None:
    """The suite has the version and the checksum of its data, which are recorded with every run."""
    dataset = load_suite(ROOT / "scenarios/bfcl/suite.yaml").dataset

    assert ("bfcl", "", SHA256, VERSION, 3675) == (dataset.format, dataset.file, dataset.sha256, dataset.version, dataset.size)
    assert "bfcl-eval 2026.3.23" == dataset.label_source


def test_scenarios_share_their_tools() -> None:
    """Scenarios with equal tools share one object, also in the pool, so that thousands of scenarios need little memory."""
    suite = load_suite(ROOT / "scenarios/bfcl/suite.yaml")
    there = sent(suite.for_pool())

    assert suite.scenarios == there.scenarios
    assert 2000 > len({id(scenario.tools) for scenario in suite.scenarios}) == len({id(scenario.tools) for scenario in there.scenarios})


def test_changed_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that differs from the package's own is refused, with the command that restores it."""
    monkeypatch.setattr("pytest_agentbench.suites.datasets.bfcl.SHA256", "0" * 64)

    with pytest.raises(ConfigError, match=r"is not the data of bfcl-eval 2026\.3\.23; restore it with `pip install --force-reinstall"):
        load()


@pytest.mark.slow
def test_the_crosscheck_with_the_checker_of_the_package_is_up_to_date() -> None:
    """More than 300 answers were judged by both checkers. Every disagreement has a known cause, and the page lists all of them."""
    every = compared()
    differ = [each for each in every if not each.agree]

    assert len(every) > 300
    assert {True, False} == {each.theirs for each in every}
    assert {*SINGLE_TURN} - {"irrelevance", "live_irrelevance"} == {each.answer.category for each in every}
    assert [] == [each.answer for each in differ if not cause(each)]
    assert {*CAUSES} == {cause(each) for each in differ}
    assert page(every) == (ROOT / "benchmarks/bfcl-crosscheck.md").read_text(encoding="utf-8")
