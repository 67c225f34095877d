"""The suite bfcl, run by a real pytest: selecting, skipping, and conversations of several turns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.bfcl import load
from pytest_agentbench.suites.suite import Scenario
from tests.bfcl.installed import needs_data
from tests.project import TWO_WORKERS, WAYS, Project

pytestmark = pytest.mark.slow

BFCL = Path(__file__).parents[2] / "scenarios" / "bfcl"


@pytest.fixture
def bfcl(project: Project) -> Project:
    """A project with the suite bfcl and a small suite."""
    project.suite(scenarios=2)
    shutil.copytree(BFCL, project.root / "scenarios/bfcl", ignore=shutil.ignore_patterns("__pycache__"))
    return project


def without_data(project: Project) -> Project:
    """Makes a wrong version of the data package be found before the right one."""
    project.write("bfcl_eval-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: bfcl-eval\nVersion: 1.0\n")
    return project


@WAYS
def test_a_path_above_skips_the_suite(bfcl: Project, way: tuple[str, ...]) -> None:
    """`pytest` and `pytest scenarios` run the other suites, and skip this one with a hint how to run it. Its data is not searched for."""
    for paths in ((), ("scenarios",)):
        result = without_data(bfcl).run(*way, "-rs", *paths)

        result.assert_outcomes(passed=2, skipped=1)
        result.stdout.fnmatch_lines(["*this suite runs only when it is named: pytest scenarios/bfcl, or pytest -m bfcl*"])


@pytest.mark.parametrize("named", [("-m", "bfcl"), ("scenarios/bfcl",), ("scenarios/bfcl/test_bfcl.py",)], ids=["mark", "folder", "file"])
def test_missing_data_is_a_skip(bfcl: Project, named: tuple[str, ...]) -> None:
    """If the suite is selected but its data is missing, there is one SKIP with the command that installs the data."""
    result = without_data(bfcl).run(*TWO_WORKERS, *named)

    assert {"skipped": 1} == {
        name: count for name, count in result.parseoutcomes().items() if name not in ("warnings", "warning", "deselected")
    }
    result.stdout.fnmatch_lines(
        ["*bfcl-eval 1.0 is installed, but this suite needs *; install it with `pip install --no-deps bfcl-eval==*`*"]
    )
    assert 0 == result.ret


def test_missing_data_with_a_threshold_is_an_error(bfcl: Project) -> None:
    """If a threshold is given on the command line, a missing data set is an ERROR."""
    result = without_data(bfcl).run(*TWO_WORKERS, "scenarios/bfcl", "--agentbench-threshold=tsq.mean=0.1")

    assert result.ret not in (0, 5)
    result.stdout.fnmatch_lines(["*bfcl-eval 1.0 is installed, but this suite needs *"])


@needs_data
@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("live_multiple", 1053),
        ("[multiple_", 200),
        ("[parallel_ and not [parallel_multiple_", 200),
    ],
)
def test_a_category_is_selected_by_its_name(bfcl: Project, expression: str, count: int) -> None:
    """Ids begin with the category, so that -k can select it. A bracket before the name keeps `multiple` from matching `live_multiple`."""
    result = bfcl.run("-m", "bfcl", "--collect-only", "-q", "-k", expression)

    result.stdout.fnmatch_lines([f"{count}/*tests collected*"])


#: The engine's answers in `multi_turn_base_0`: two calls, an answer, a call, an answer, and then only answers.
TALK: list[Json] = [
    {"match": {"turn": 0}, "tool_calls": [{"name": "cd", "arguments": {"folder": "document"}}]},
    {"match": {"turn": 1}, "tool_calls": [{"name": "mkdir", "arguments": {"dir_name": "temp"}}]},
    {"match": {"turn": 2}, "text": "The folder is there."},
    {"match": {"turn": 3}, "tool_calls": [{"name": "sort", "arguments": {"file_name": "final_report.pdf"}}]},
    {"text": "Done."},
]


@needs_data
def test_a_conversation_of_several_turns(bfcl: Project) -> None:
    """The user's messages are sent one after the other, each after the messages and calls so far.

    Each call records the user turn that it answers.
    """
    bfcl.backend(TALK)
    questions = [message["content"] for scenario in load().scenarios if scenario.id == "multi_turn_base_0" for message in _said(scenario)]

    result = bfcl.run("scenarios/bfcl", "-k", "multi_turn_base_0]")

    result.assert_outcomes(passed=1, deselected=3674)
    (rollout,) = bfcl.rollouts
    assert [("cd", 1), ("mkdir", 1), ("sort", 2)] == [(call.name, call.user_turn) for call in rollout.tool_calls]
    roles = [message["role"] for message in rollout.messages]
    assert ["system", "user", *["assistant", "tool"] * 2, "assistant", "user", "assistant", "tool", "assistant"] == roles[:11]
    assert ["user", "assistant"] * 2 == roles[11:]
    assert questions == [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert 1 == roles.count("system")
    score = rollout.score("tsq_arguments")
    assert 2 == score.parts["matched"]
    assert "unexpected: sort;" in score.explanation  # The label expects `sort` in the third turn.


#: The engine's answers as ReAct text: a call, the answer to its observation, and then only answers.
TEXT_TALK: list[Json] = [
    {"match": {"contains": "Observation"}, "text": "Thought: It worked.\nFinal Answer: You are there."},
    {"match": {"contains": "user: Move"}, "text": "Thought: That is easy.\nFinal Answer: Done."},
    {"text": 'Thought: First the folder.\nAction: cd\nAction Input: {"folder": "document"}'},
]


@needs_data
def test_a_react_conversation_of_several_turns(bfcl: Project) -> None:
    """For the agent `react`, earlier turns are shown as questions and answers, without their thoughts, calls and observations."""
    bfcl.backend(TEXT_TALK)
    questions = [message["content"] for scenario in load().scenarios if scenario.id == "multi_turn_base_0" for message in _said(scenario)]

    result = bfcl.run("scenarios/bfcl", "--agentbench-agent=react", "-k", "multi_turn_base_0]")

    result.assert_outcomes(passed=1, deselected=3674)
    (rollout,) = bfcl.rollouts
    assert [("cd", 1)] == [(call.name, call.user_turn) for call in rollout.tool_calls]
    asked = str(next(message["content"] for message in rollout.messages if message["role"] == "user"))
    answers = ["You are there.", "Done.", "Done."]
    history = [f"user: {question}\nassistant: {answer}" for question, answer in zip(questions, answers, strict=False)]
    assert "\n".join(["Previous conversation history:", *history, "", f"Question: {questions[-1]}"]) == asked


def _said(scenario: Scenario) -> list[Json]:
    """Returns all messages of the user."""
    return [*scenario.messages, *(message for turn in scenario.turns for message in turn)]


@needs_data
def test_labels_never_reach_a_request(bfcl: Project) -> None:
    """No request contains anything that the data set expects: no label, no id and no category, only messages and tools."""
    log = bfcl.root / "requests.jsonl"
    bfcl.write("backends/quick.yaml", json.dumps({"kind": "embedded", "request_log": str(log), "ttft_ms": 0, "itl_ms": 0}))
    chosen = {scenario.id: scenario for scenario in load().scenarios if scenario.id.endswith(("7-0", "_7", "_17"))}
    expression = " or ".join(f"{id}]" for id in chosen)

    result = bfcl.run("scenarios/bfcl", "--agentbench-backend=quick", "--tb=no", "-q", "-k", expression)

    assert len(chosen) == result.parseoutcomes()["passed"] > 40
    requests = [_without_answers(json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(requests) >= len(chosen)
    public = json.dumps([[vars(tool) for tool in each.tools] + _said(each) for each in chosen.values()], ensure_ascii=False)
    secrets = {value for each in chosen.values() for label in each.expected for value in _texts(label) if value not in public}
    secrets |= {*chosen, "bfcl-eval", "label_source"}
    assert len(secrets) > 40
    assert [] == [secret for secret in secrets if any(secret in request for request in requests)]


def _without_answers(request: Json) -> str:
    """Returns a request as text, without the earlier messages of the model."""
    messages = [message for message in request["messages"] if message["role"] != "assistant"]
    return json.dumps({**request, "messages": messages}, ensure_ascii=False)


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) and len(value) > 4 else []
