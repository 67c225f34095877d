"""Broken answers of a server, from end to end: faults are attempted again and never scored, and mistakes of the model are scored."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said
from tests.project import Project

pytestmark = pytest.mark.slow

ANSWER = "Here is what was found for you."
FIND: Json = {"tool_calls": [{"name": "find_item", "arguments": {"item": "lamp"}}]}

#: Faults of a model server, and words of the reason. A status in them is the server's.
FAULTS: list[tuple[Json, str]] = [
    ({"status": 500, "message": "boom"}, "HTTP 500: boom"),
    ({"status": 429, "message": "too many", "retry_after": 1}, "HTTP 429: too many"),
    ({"malformed_json_after": 1, "text": ANSWER}, "HTTP 200: an event is not a chunk of an answer"),
    ({"cut_after": 2, "text": ANSWER}, "the backend closed the connection in the middle of its answer"),
    ({"cut_after": 0, "text": ANSWER}, "the backend closed the connection"),
    ({"empty": True, "text": ANSWER}, ""),
    ({"error_event_after": 2, "text": ANSWER}, "HTTP 200: the script ends this answer with an error"),
]


def rule_for(number: int, turn: int | None = None, **answer: object) -> Json:
    """Returns a rule that applies only to the scenario shop-<number>."""
    match = {"contains": f"Customer shop-{number}:", **({} if turn is None else {"turn": turn})}
    return {"match": match, **answer}


def by_scenario(rollouts: list[Rollout]) -> list[Rollout]:
    return sorted(rollouts, key=lambda rollout: int(rollout.scenario.rpartition("-")[2]))


def test_a_temporary_fault_is_attempted_again(project: Project) -> None:
    """If a rollout's first attempt met a fault, it runs again, is scored as usual, and has the first attempt in its record."""
    failing = [{**rule_for(number), **fault} for number, (fault, _) in enumerate(FAULTS)]
    for rule in failing:
        rule["match"]["call"] = 1
    project.backend([*failing, {"match": {"turn": 0}, **FIND}, {"text": ANSWER}])
    project.suite(scenarios=len(FAULTS))

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=len(FAULTS))
    for rollout, (fault, words) in zip(by_scenario(project.rollouts), FAULTS, strict=True):
        assert ("ok", 2, 1.0, ANSWER) == (rollout.status, rollout.attempt, rollout.score("tsq"), rollout.answer), fault
        (earlier,) = rollout.earlier_attempts
        assert (1, "infra_error") == (earlier.attempt, earlier.status)
        assert words in earlier.reason
        assert [None, None] == [call.error_kind for call in rollout.calls]
    assert len(FAULTS) == project.run_json["suites"]["shop"]["retried"]


def test_a_permanent_fault_is_an_error(project: Project) -> None:
    """If a fault persists, the test is an ERROR and not a failure, the rollout has no score, and the mean is that of the other rollouts."""
    always = [{**rule_for(number), **fault} for number, (fault, _) in enumerate(FAULTS)]
    project.backend([*always, {"match": {"turn": 0}, **FIND}, {"text": ANSWER}])
    project.suite(scenarios=len(FAULTS) + 2, thresholds={"tsq": 0.5, "tsq.mean": 1.0})

    result = project.run("--agentbench-retries=1", "--agentbench-threshold=tsq.mean=1.0", "scenarios/shop")

    result.assert_outcomes(passed=2, errors=len(FAULTS))
    assert 6 == result.ret
    *broken, _, _ = by_scenario(project.rollouts)
    for rollout, (_, words) in zip(broken, FAULTS, strict=True):
        assert ("infra_error", 2, {}) == (rollout.status, rollout.attempt, rollout.scores)
        assert words in rollout.reason
        assert words in rollout.earlier_attempts[0].reason
        assert rollout.calls[-1].error_kind
    result.stdout.fnmatch_lines(["shop[[]shop-0[]]: infra_error: HTTP 500: boom"])
    kinds = [rollout.calls[-1].error_kind for rollout in broken]
    assert ["server_error", "rate_limited", "bad_json", "cut", "cut", "empty", "error_event"] == kinds
    suite = project.run_json["suites"]["shop"]
    assert (1.0, 2) == (suite["scores"]["tsq"]["mean"]["value"], suite["scores"]["tsq"]["mean"]["scenarios"])
    assert [("tsq.mean >= 1 of run", "INCONCLUSIVE")] == [(rule["rule"], rule["verdict"]) for rule in project.run_json["gate"]["rules"]]


def test_an_unmeasured_run_does_not_pass(project: Project) -> None:
    """If every rollout ends as infra_error, thresholds of means are inconclusive, and no rollout is scored 0."""
    project.backend([{"status": 500, "message": "boom"}])
    project.suite(scenarios=2, thresholds={"tsq": 0.0, "tsq.mean": 0.0})

    result = project.run("--agentbench-retries=0", "scenarios/shop")

    result.assert_outcomes(errors=2)
    run = project.run_json
    assert ("NOT MEASURED", None) == (run["verdict"], run["suites"]["shop"]["scores"]["tsq"]["mean"])
    told = said(report_of(project.directory, Level.FIRST_PAGE), phrases.unknown_suites)
    assert [("shop",)] == [each.unknown_suites for (each,) in told]


def test_slow_answers_change_nothing(project: Project) -> None:
    """A late first token, a stall, several tokens per chunk and split characters take time, but do not change an answer."""
    text = "Grüße – 灯 für dich 💡💡 and 3 more"
    pace: list[Json] = [
        {"ttft_ms": 300},
        {"stall": {"after": 2, "ms": 300}},
        {"tokens_per_chunk": 5},
        {"split_utf8": True},
        {"split_utf8": True, "tokens_per_chunk": 3, "ttft_ms": 50},
    ]
    rules = [*(rule_for(number, turn=1, text=text, **each) for number, each in enumerate(pace)), FIND]
    project.write("backends/embedded.script.yaml", json.dumps(rules, ensure_ascii=False))
    project.suite(scenarios=len(pace))

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=len(pace))
    rollouts = by_scenario(project.rollouts)
    for rollout in rollouts:
        assert ("ok", 1, text) == (rollout.status, rollout.attempt, rollout.answer)
        assert text == rollout.messages[-1]["content"]
    assert rollouts[0].calls[1].chunks[1].at_ns - (rollouts[0].calls[1].sent_ns or 0) >= 300e6
    assert rollouts[1].duration_s >= 0.3


def test_mistakes_of_models_are_recorded_and_scored(project: Project) -> None:
    """Unknown tools and invalid arguments are the model's mistakes: the model gets an error message, and the calls are scored."""
    mistakes: list[Json] = [
        {"name": "find_item", "arguments": '{"item": "la'},
        {"name": "find_item", "arguments": '["lamp"]'},
        {"name": "find_lamp", "arguments": {"item": "lamp"}},
        {"name": "find_item", "arguments": {"item": 5}},
        {"name": "find_item", "arguments": {"thing": "lamp"}},
    ]
    project.backend([*(rule_for(number, turn=0, tool_calls=[each]) for number, each in enumerate(mistakes)), {"text": ANSWER}])
    project.suite(scenarios=len(mistakes), scorers=["tsq", "hallucinated"], thresholds={})
    test = 'def test_it(rollout):\n    assert rollout.score("tsq") >= 0.5\n'
    project.write("scenarios/shop/test_shop.py", test)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=len(mistakes) - 1, failed=1)
    rollouts = by_scenario(project.rollouts)
    problems = ["malformed_arguments", "malformed_arguments", "unknown_tool", "invalid_arguments", "invalid_arguments"]
    assert problems == [rollout.tool_calls[0].problem for rollout in rollouts]
    assert [0.0, 0.0, 1.0, 0.0, 0.0] == [float(rollout.score("hallucinated")) for rollout in rollouts]
    assert [1.0, 1.0, 0.0, 1.0, 1.0] == [float(rollout.score("tsq")) for rollout in rollouts]
    assert ['{"item": "la', '["lamp"]', None, None, None] == [rollout.tool_calls[0].raw for rollout in rollouts]
    for rollout in rollouts:
        assert ("ok", ANSWER) == (rollout.status, rollout.answer)
        assert f"Error: {rollout.tool_calls[0].detail}" == rollout.messages[-2]["content"]
    result.stdout.fnmatch_lines(
        ["*find_lamp*unexpected", "find_lamp: unknown_tool: there is no tool 'find_lamp'; the tools are: find_item, *"]
    )


def test_an_agent_that_reaches_a_limit_is_scored(project: Project) -> None:
    """If turns, context or time are exceeded, the status is `limit`, the reason names the limit, and the calls so far are scored."""
    project.backend(
        [
            {**rule_for(0), **FIND},
            {**rule_for(1, turn=0), **FIND},
            {**rule_for(1), "status": 400, "message": "This model's maximum context length is 8192 tokens."},
            {**rule_for(2, turn=0), **FIND},
            {**rule_for(2), "text": " ".join([ANSWER] * 1000), "ttft_ms": 2500, "itl_ms": 5},
        ]
    )
    project.suite(scenarios=3, agent={"kind": "tool_calling", "max_turns": 3}, timeout=4)

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=3)
    rollouts = by_scenario(project.rollouts)
    reasons = [
        "turns: 3 were not enough (max_turns)",
        "context: This model's maximum context length",
        "time: the rollout took longer than 4 s",
    ]
    for rollout, reason in zip(rollouts, reasons, strict=True):
        assert ("limit", 1, 1.0) == (rollout.status, rollout.attempt, rollout.score("tsq"))
        assert rollout.reason.startswith(reason)
    assert [3, 2, 2] == [rollout.turns for rollout in rollouts]
    assert [None, "http_status", "client_gone"] == [rollout.calls[-1].error_kind for rollout in rollouts]
    assert 3 == project.run_json["suites"]["shop"]["rollouts"]["limit"]


def test_rollouts_never_mix(project: Project) -> None:
    """With many rollouts in flight, each has only its own calls, its own answer and its own transcript."""
    count = 16
    rules = [
        rule
        for number in range(count)
        for rule in (
            rule_for(
                number,
                turn=0,
                tool_calls=[{"name": "find_item", "arguments": {"item": f"item of shop-{number}"}}] * (number % 3 + 1),
                ttft_ms=200,
            ),
            rule_for(number, text=f"This is for shop-{number} alone.", itl_ms=number % 5),
        )
    ]
    project.backend(rules)
    project.suite(scenarios=count)

    result = project.run("--agentbench-concurrency=8", "scenarios/shop")

    result.assert_outcomes(passed=count)
    for number, rollout in enumerate(by_scenario(project.rollouts)):
        assert [{"item": f"item of shop-{number}"}] * (number % 3 + 1) == [call.arguments for call in rollout.tool_calls]
        assert f"This is for shop-{number} alone." == rollout.answer
        assert f"Customer shop-{number}: is there a lamp?" == rollout.messages[1]["content"]
        assert 2 == len(rollout.calls)
    assert 8 == project.run_json["performance"]["rollouts_in_flight"]["peak"]
