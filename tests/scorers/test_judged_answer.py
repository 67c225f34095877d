"""Answers that are judged by their text or by a judge, the confidence that they state, and answers without a score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import JudgeError
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.scorers.judged_answer import by_text, confidence, final_answer, judged_answer
from pytest_agentbench.suites.suite import Scenario
from tests.scorers.conftest import Judge
from tests.scorers.records import records


def answered(text: str) -> tuple[Scenario, Rollout]:
    """Returns a scenario with the right answer 42, and a rollout with this answer."""
    scenario, rollout = records(answer=text)
    return replace(scenario, metadata={"answer": "42"}), rollout


def uncallable_judge() -> LLM:
    """A judge that cannot be called, for answers that need none."""
    return LLM("http://127.0.0.1:9/v1", "m")


def judgement(*, correct: bool, confidence: float | None) -> str:
    form: Json = {"extracted_final_answer": "x", "reasoning": "because", "correct": correct, "confidence": confidence}
    return json.dumps(form)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Explanation: 6 x 7\nExact Answer: 42\nConfidence: 90%", "42"),
        ("**Final Answer:** `42`", "42"),
        ("Answer: 41\nNo.\n- answer : 42", "42"),
        ("Answer: 41 <answer>\n42\n</answer>", "42"),
        ("42", "42"),
        ("", ""),
    ],
)
def test_the_final_answer(text: str, answer: str) -> None:
    """The final answer is the last text between tags, otherwise the text after `Answer:`, otherwise the whole text."""
    assert answer == final_answer(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *(("Confidence: 85%", 0.85), ("**Confidence:** 7.5 %", 0.075), ("Confidence: 10%\nConfidence: 20%", 0.2)),
        *(("Confidence: 250%", None), ("I am confident: 100%", None), ("", None)),
    ],
)
def test_confidence(text: str, share: float | None) -> None:
    """The last percentage after `Confidence:` counts. Without a valid one the confidence is unknown, not 100 %."""
    assert share == (None if (stated := confidence(text)) is None else pytest.approx(stated))


@pytest.mark.parametrize(
    ("final", "expected", "choice", "right"),
    [
        *[(each, "x = 1/2", False, True) for each in ("x = 1/2", "$X  =  1/2$.", "\\boxed{x = 1/2}", "**x = 1/2**", "ｘ = 1/2")],
        ("0.5", "1/2", False, None),
        *[(each, "f'", False, True) for each in ("f'", "$f'$", "**f'**", '"f\'".')],
        *[(one, other, False, None) for one, other in (("f", "f'"), ("p*", "p"), ("x_", "x"), ('5"', "5"))],
        ("", "1/2", False, False),
        *[(each, "B", True, True) for each in ("B", "b", "(B)", "B.", "B. The second one", "**B**", "B) this")],
        *[(each, "B", True, False) for each in ("C", "(C)", "C. The third one")],
        *[(each, "B", True, None) for each in ("A second one", "the second one", "B and C", "B or C")],
        ("C", "B", False, None),
    ],
)
def test_answers_that_the_text_decides(final: str, expected: str, choice: bool, right: bool | None) -> None:
    """An equal text is right.

    In a multiple choice, another letter is wrong. Other texts, for example words that begin with a letter, decide nothing.
    """
    assert right is by_text(final, expected, choice=choice)


async def test_settled_without_a_judge() -> None:
    """If the text decides, no judge is called, and the confidence is the stated one."""
    right = await judged_answer(*answered("Answer: 42\nConfidence: 80%"), uncallable_judge())
    empty = await judged_answer(*answered(""), uncallable_judge())

    assert (1.0, {"judged": 0.0, "confidence": 0.8}) == (right, right.parts)
    assert "the answer is '42', expected '42'; by its text" == right.explanation
    assert (0.0, {"judged": 0.0}) == (empty, empty.parts)


@pytest.mark.parametrize(
    ("text", "correct", "of_judge", "parts"),
    [
        ("Answer: forty-two\nConfidence: 80%", True, 10.0, {"judged": 1.0, "confidence": 0.8}),
        ("forty-one, I am quite sure", False, 75.0, {"judged": 1.0, "confidence": 0.75}),
        ("forty-one", False, None, {"judged": 1.0}),
    ],
    ids=["stated", "read by the judge", "not said"],
)
async def test_by_a_judge(judge: Judge, tmp_path: Path, text: str, correct: bool, of_judge: float | None, parts: Json) -> None:
    """The judge sees question, response and right answer, and decides. Its reading of the confidence counts only if none is stated."""
    score = await judged_answer(*answered(text), judge(judgement(correct=correct, confidence=of_judge)))

    assert (float(correct), parts) == (score, score.parts)
    assert score.explanation.startswith("the answer is 'x', expected '42': because; by judge m, prompt ")
    prompt = json.loads((tmp_path / "log").read_text())["messages"][0]["content"]
    for part in ("<question>\nhello\n</question>", f"<response>\n{text}\n</response>", "<correct_answer>\n42\n</correct_answer>"):
        assert part in prompt


@pytest.mark.parametrize("nonsense", ["Yes, that is right.", judgement(correct=True, confidence=250)])
async def test_a_judge_that_errs_scores_nothing(judge: Judge, nonsense: str) -> None:
    """A verdict that does not fit the form, even one with a confidence of 250 %, is an error of the judge."""
    with pytest.raises(JudgeError):
        await judged_answer(*answered("forty-two"), judge(nonsense))


async def test_without_a_right_answer() -> None:
    """A scenario without a right answer has no score."""
    with pytest.raises(LookupError, match="has no expected answer"):
        await judged_answer(*records(answer="42"), uncallable_judge())


LONG = 20_000
SHAPES = {
    "empty-lines": "\n" * LONG,
    "no-value": "answer:" + "\n" * LONG,
    "spaces": "answer: x" + " " * LONG + "y",
    "words": "final\n" * LONG,
    "tags": "<answer>" * LONG,
    "confidence": "confidence:" + "\n" * LONG,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_long_answers_of_any_shape(text: str) -> None:
    """A long answer of any form is read in milliseconds. The time does not grow with the square of its length."""
    final = text.removeprefix("answer: ").strip()

    assert (True, None) == (final_answer(text) == final, confidence(text))
