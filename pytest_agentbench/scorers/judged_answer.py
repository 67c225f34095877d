"""Decides whether an answer is right: from its text if possible, otherwise with a judge.

The judge's criteria are those of Humanity's Last Exam (github.com/centerforaisafety/hle, hle_eval/run_judge_results.py), with two
differences: the judge fills in a form, and an answer that states no confidence has none, instead of 100 %.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from pytest_agentbench.lib.model_texts import tagged
from pytest_agentbench.llm.judge import Form, ask, fill_template, identity
from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import expected_answers
from pytest_agentbench.suites.suite import user_text

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario

PROMPT = """Judge whether a response to a question is correct, by the correct answer that is given and by nothing else.

<question>
{question}
</question>

<response>
{response}
</response>

<correct_answer>
{answer}
</correct_answer>

extracted_final_answer: the exact final answer of the response, or None where it has none.
reasoning: why that is the correct answer or is not. Look only for differences that matter between the two. Do not comment on the
question, do not try to solve it, and do not argue for any answer other than the correct one.
correct: true where the extracted answer is the correct one, a small error of rounding in a number apart; false for whatever is
inconsistent, ambiguous, not equivalent or wrong.
confidence: how sure the response says it is, from 0 to 100, and null where it does not say."""

FORM = Form(
    "answer",
    {
        "type": "object",
        "properties": {
            "extracted_final_answer": {"type": "string"},
            "reasoning": {"type": "string"},
            "correct": {"type": "boolean"},
            "confidence": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
        },
        "required": ["extracted_final_answer", "reasoning", "correct", "confidence"],
        "additionalProperties": False,
    },
)

CHOICE = "multipleChoice"
#: An answer may be long and have any form, so these patterns read each character a few times at most. The indent does not extend beyond
#: its line, because a search begins on every line, even if there are many empty ones.
_MARKS, _INDENT = r"[\s*_#>`-]*", r"(?:[^\S\n]|[*_#>`-])*+"
_ANSWER = re.compile(
    rf"^{_INDENT}(?:(?:exact|final)\s++){{0,4}}+answer{_MARKS}+:{_MARKS}(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_CONFIDENCE = re.compile(
    rf"^{_INDENT}confidence{_MARKS}+:{_MARKS}+(\d{{1,3}}(?:\.\d++)?)\s*+\\?%",
    re.IGNORECASE | re.MULTILINE,
)
_LETTER = re.compile(r"\(?([A-Z])(?:\)|[.):]\s.*)?\.?", re.DOTALL)


@scorer(range=(0, 1))
async def judged_answer(scenario: Scenario, rollout: Rollout, judge: LLM, *, key: str = "answer", temperature: float = 0.0) -> Score:
    """Returns 1.0 for a right answer, otherwise 0.0. A judge decides if the text alone does not.

    - The final answer is the last text between `<answer>` tags, or else the last text after `Answer:` on a line, or else the whole text.
    - It is right if it equals the expected one. Case, width of characters, repeated spaces, a full stop, and enclosing marks such as `$`
      and `**` are ignored. In a multiple choice (`answer_type: multipleChoice` in the metadata) a letter decides.
    - An empty answer is wrong. The judge decides about any other answer: it sees question, answer and expected answer.
    - The part `judged` is 1 if the judge decided. The part `confidence` is the percentage after `Confidence:`, or else the one that the
      judge reads in the answer. An answer without a confidence has no such part.

    If the judge does not answer, or its answer cannot be parsed, there is no score.

    Options:
        key: Key of the expected answer in the scenario's `metadata`.
        temperature: Sampling temperature of the judge.
    """
    expected = str(expected_answers(scenario, None, key)[0])
    final, stated = final_answer(rollout.answer), confidence(rollout.answer)
    settled = by_text(final, expected, choice=scenario.metadata.get("answer_type") == CHOICE)
    if settled is not None:
        return _score(settled, stated, f"the answer is {final!r}, expected {expected!r}; by its text", judged=False)
    question = user_text(scenario.messages)
    fields = {"question": question, "response": rollout.answer, "answer": expected}
    parameters = {"temperature": temperature}
    verdict = await ask(judge, fill_template(PROMPT, fields), FORM, **parameters)
    who = identity(judge, PROMPT, FORM, parameters)
    by = f"judge {who['model']}, prompt {who['prompt_sha256'][:12]}, temperature {temperature:g}"
    sure = verdict["confidence"] / 100 if stated is None and verdict["confidence"] is not None else stated
    explanation = f"the answer is {verdict['extracted_final_answer']!r}, expected {expected!r}: {verdict['reasoning']}; by {by}"
    return _score(verdict["correct"], sure, explanation, judged=True)


def final_answer(text: str) -> str:
    """Returns the last text between `<answer>` tags, otherwise the last text after `Answer:`, otherwise the whole text."""
    marked = tagged(text, "answer") or [*map(_without_marks, _ANSWER.findall(text))] or [text]
    return marked[-1].strip()


def _without_marks(line: str) -> str:
    """Returns a line without spaces and Markdown at its end. The first character always stays."""
    end = len(line)
    while end > 1 and (line[end - 1].isspace() or line[end - 1] in "*_`"):
        end -= 1
    return line[:end]


def confidence(text: str) -> float | None:
    """Returns the last percentage after `Confidence:` as a share, or None if there is none."""
    stated = [float(each) / 100 for each in _CONFIDENCE.findall(text) if float(each) <= 100]
    return stated[-1] if stated else None


def by_text(final: str, expected: str, *, choice: bool) -> bool | None:
    """Returns whether an answer is right, or None if its text alone does not decide that."""
    if not final:
        return False
    if normalised(final) == normalised(expected):
        return True
    actual, correct = (_LETTER.fullmatch(unicodedata.normalize("NFKC", each).strip(" *$`")) for each in (final, expected))
    return actual[1] == correct[1] if choice and actual and correct else None


def normalised(text: str) -> str:
    r"""Returns a text without case, character width, repeated spaces, and enclosing marks such as `$` or `\boxed{}`."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    while plain != (bare := _bare(plain)):
        plain = bare
    return plain


def _bare(text: str) -> str:
    inner = text.strip().removesuffix(".")
    marked = re.fullmatch(r"([*_`\"'$])(.+)\1|\\(?:boxed|text|mathrm)\{(.*)\}", inner)
    return (marked[2] or marked[3] or "") if marked else inner


def _score(correct: bool, sure: float | None, explanation: str, *, judged: bool) -> Score:
    return Score(float(correct), {"judged": float(judged), **({} if sure is None else {"confidence": sure})}, explanation)
