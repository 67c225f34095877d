"""Action completion by a judge: the majority of several judgements decides, and an invalid judgement leads to no score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.rollouts.scores import no_judge, scored
from pytest_agentbench.scorers.action_completion import action_completion
from pytest_agentbench.suites.suite import Scenario
from tests.scorers.conftest import Judge

GOALS = ["Order a lamp", "Leave the chair\nalone"]
PARTS: list[Json] = [
    {"type": "text", "text": "A lamp, and no chair."},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
]
SCENARIO = Scenario("s-0", ({"role": "user", "content": PARTS},), metadata={"user_goals": GOALS})
ROLLOUT = Rollout("shop", "s-0", "default", 1, "ok", tool_calls=(ToolCall("order", {"item": "lamp"}, 1),), answer="It is on its way.")


def judgement(*completed: bool) -> str:
    return json.dumps({f"goal_{number}": {"reasoning": "x", "completed": each} for number, each in enumerate(completed, 1)})


@pytest.mark.parametrize(
    ("judgements", "value", "agreement", "left"),
    [
        ([judgement(True, True)] * 3, 1.0, 1.0, "none"),
        ([judgement(True, False)] * 3, 0.5, 1.0, "'Leave the chair\\nalone'"),
        ([judgement(True, True), judgement(False, True), judgement(True, False)], 1.0, 2 / 3, "none"),
        ([judgement(True, True), judgement(False, True)], 0.5, 0.75, "'Order a lamp'"),
        ([judgement(False, False)], 0.0, 1.0, "'Order a lamp', 'Leave the chair\\nalone'"),
    ],
    ids=["all", "one goal", "two of three", "a tie", "one judgement"],
)
async def test_most_judgements_decide(judge: Judge, judgements: list[str], value: float, agreement: float, left: str) -> None:
    """A goal is completed if more than half of the judgements say so.

    The judge sees the agent's work, unlike in the NeMo toolkit (weakness 7).
    """
    score = await action_completion(SCENARIO, ROLLOUT, judge(*judgements), judgements=len(judgements))

    assert value == score
    assert {"goals": 2, "completed": 2 * value, "judgements": len(judgements), "agreement": pytest.approx(agreement)} == score.parts
    assert score.explanation.startswith(
        f"not completed: {left}; agreement {agreement:.2f} of {len(judgements)} judgements; judge m, prompt "
    )
    assert score.explanation.endswith(", temperature 0.5")


async def test_the_prompt_of_the_judge(judge: Judge, tmp_path: Path) -> None:
    """The judge sees the request, one goal per line, the calls and the answer.

    Each judgement has its own seed, and the verdict comes last.
    """
    await action_completion(SCENARIO, ROLLOUT, judge(judgement(True, True)), temperature=0.0)
    bodies = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    prompt = bodies[0]["messages"][0]["content"]

    assert [(0, 0.0), (1, 0.0), (2, 0.0)] == [(body["seed"], body["temperature"]) for body in bodies]
    for part in ("A lamp, and no chair.", "1. Order a lamp\n2. Leave the chair alone\n", '1. order(item="lamp")', "It is on its way."):
        assert part in prompt
    assert "image_url" not in prompt
    goal = bodies[0]["response_format"]["json_schema"]["schema"]["properties"]["goal_2"]
    assert ["reasoning", "completed"] == [*goal["properties"]]


@pytest.mark.parametrize("nonsense", ["YES", judgement(True), judgement(True, True).replace("true", '"perhaps"')])
async def test_an_invalid_judgement_gives_no_score(judge: Judge, nonsense: str) -> None:
    """If the judge's answer is invalid even after one correction, the result is a judge_error with that answer instead of a score."""
    model = judge(nonsense)

    async def ask() -> LLM:
        return model

    rollout = await scored(ROLLOUT, SCENARIO, {"done": action_completion}, ask)  # type: ignore[dict-item]

    assert {} == rollout.scores
    assert rollout.score_errors["done"].startswith("judge_error: ")
    assert f"the judge said {nonsense!r}" in rollout.score_errors["done"]


async def test_the_judge_may_correct_its_answer(judge: Judge) -> None:
    """The judge is told what is invalid in its answer, and may correct it."""
    assert 1.0 == await action_completion(SCENARIO, ROLLOUT, judge("YES", judgement(True, True)), judgements=1)


async def test_without_a_judge_there_is_no_score() -> None:
    """If no model is available, there is no score but an error with the reason."""
    rollout = await scored(ROLLOUT, SCENARIO, {"done": action_completion}, no_judge)  # type: ignore[dict-item]

    assert (
        {},
        {"done": "judge_error: no model is available here to judge, because scores are computed without a backend; run the suite"},
    ) == (rollout.scores, rollout.score_errors)


@pytest.mark.parametrize("metadata", [{}, {"user_goals": []}])
async def test_without_goals_there_is_no_score(metadata: Json) -> None:
    """A scenario without goals has no score."""
    nobody = LLM("http://127.0.0.1:9/v1", "m")

    with pytest.raises(ValueError, match="the scenario has no user_goals"):
        await action_completion(Scenario("s-0", (), metadata=metadata), ROLLOUT, nobody)
    with pytest.raises(ValueError, match="judgements must be a whole number from 1 up, not 0"):
        await action_completion(SCENARIO, ROLLOUT, nobody, judgements=0)


async def test_an_unreachable_judge() -> None:
    """A failed connection to the judge is an infrastructure error."""
    with pytest.raises(InfraError, match="the model could not be called"):
        await action_completion(SCENARIO, ROLLOUT, LLM("http://127.0.0.1:9/v1", "m"))
