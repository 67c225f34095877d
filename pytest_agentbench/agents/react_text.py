"""Reads what a ReAct speaker says: the first action of an answer, or its final answer.

Labels count where a line begins, in any case, numbered (`Action 1:`), as a heading or a list item, and in bold. Only an answer without
such labels is searched for them within its lines. Labels in the JSON of an action and in <think> blocks are no labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_agentbench.lib.almost_json import object_end

MISSING_ACTION = "Invalid Format: Missing 'Action:' after 'Thought:'"
MISSING_INPUT = "Invalid Format: Missing 'Action Input:' after 'Action:'"
MISSING_ANSWER = "Invalid Format: Missing text after 'Final Answer:'"
NOTHING_SAID = "Invalid Format: The answer is empty. If nothing is left to do, answer with 'Final Answer:'"

_NUMBER = r"(?:[ \t]*\d+)?"
_NAMES = {
    "input": rf"(?:action{_NUMBER}[ \t]+)?input{_NUMBER}",
    "action": rf"action{_NUMBER}",
    "final": r"final[ \t]+answer",
    "thought": rf"thought{_NUMBER}",
    "observation": rf"observation{_NUMBER}",
    "question": r"question",
}
_THINKING = r"(?P<think><think>.*?(?:</think>|\Z))"
#: What closes may stand before the colon or behind it: `**Action**:`, `**Action:**`.
_LABEL = r"(?P<bold>[*_]{1,3})?(?:%s)[ \t]*(?(bold)(?:(?P=bold)[ \t]*:|:(?:[ \t]*(?P=bold))?)|:)"
_LABELS = _LABEL % "|".join(f"(?P<{kind}>{name})" for kind, name in _NAMES.items())
AT_LINE = re.compile(rf"{_THINKING}|^[ \t]*(?:[>#+*-]+[ \t]+)*{_LABELS}", re.IGNORECASE | re.MULTILINE | re.DOTALL)
ANYWHERE = re.compile(rf"{_THINKING}|(?<!\w){_LABELS}", re.IGNORECASE | re.DOTALL)
THOUGHTS = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.IGNORECASE | re.DOTALL)
#: Of a template that opens the block itself.
END_OF_THINKING = re.compile(r"</think>[ \t]*$", re.IGNORECASE | re.MULTILINE)
OPENING = re.compile(r"[\s*]*(?:```\w*\s*|`)?(?=\{)")


class ReactTextError(Exception):
    """An answer that is no ReAct; the message is for the model."""


@dataclass(frozen=True)
class Action:
    """A tool that the speaker wants to be called."""

    tool: str
    input: str  # as it was written; empty when there is none
    said: str  # the answer up to here, without what the speaker thought before it spoke


@dataclass(frozen=True)
class FinalAnswer:
    """What the speaker has to say in the end."""

    text: str


def read_answer(text: str) -> Action | FinalAnswer:
    """What stands first in an answer: an action, or the final answer. Raises ReactTextError for one without either."""
    text = spoken(text)
    if not text.strip():
        raise ReactTextError(NOTHING_SAID)
    labels = [*_labels(AT_LINE, text)]
    first = _first(labels) or _first(_labels(ANYWHERE, text))
    if first is None:
        if not all(each["question"] for each in labels):
            raise ReactTextError(MISSING_ACTION)
        return FinalAnswer(text.strip())  # somebody who uses no labels at all is done with tools
    return _final_answer(text, first) if first["final"] else _action(text, first)


def spoken(text: str) -> str:
    """The text behind a block of thoughts that it begins with."""
    if thoughts := THOUGHTS.match(text):
        return text[thoughts.end() :].lstrip()
    closed = END_OF_THINKING.search(text)
    return text[closed.end() :].lstrip() if closed and "<think>" not in text[: closed.start()] else text


def _labels(pattern: re.Pattern[str], text: str, start: int = 0) -> Iterator[re.Match[str]]:
    return (match for match in pattern.finditer(text, start) if match["think"] is None)


def _first(labels: Iterator[re.Match[str]] | list[re.Match[str]]) -> re.Match[str] | None:
    return next((each for each in labels if each["action"] or each["final"]), None)


def _final_answer(text: str, label: re.Match[str]) -> FinalAnswer:
    answer = text[label.end() :].strip()
    bold = label["bold"]
    if bold and label[0].count(bold) == 1:  # the whole line is bold: **Final Answer: yes**
        answer = answer.removesuffix(bold)
    if not answer:
        raise ReactTextError(MISSING_ANSWER)
    return FinalAnswer(answer)


def _action(text: str, label: re.Match[str]) -> Action | FinalAnswer:
    # The input may stand in the action's own line; whatever else comes first means that there is none.
    label_of_input = next(_labels(ANYWHERE, text, label.end()), None)
    if label_of_input is not None and label_of_input["final"]:  # Action: None needed
        return _final_answer(text, label_of_input)
    if label_of_input is None or not label_of_input["input"]:
        raise ReactTextError(MISSING_INPUT)
    lines = text[label.end() : label_of_input.start()].split("\n")
    tool = next(filter(None, (line.strip(" \t\r*`\"'") for line in lines)), "")
    if not tool:
        raise ReactTextError(MISSING_ACTION)
    start, end = _input(text, label_of_input.end())
    written = text[start:end].strip(" \t\r\n`")
    return Action(tool, "" if written.strip("*\"'.").lower() in {"none", "null", ""} else written, text[:end].rstrip())


def _input(text: str, start: int) -> tuple[int, int]:
    """Where an input begins and ends: with its object, or else with the next label."""
    if (opening := OPENING.match(text, start)) and (end := object_end(text, opening.end())):
        return opening.end(), end
    behind = next(_labels(AT_LINE, text, start), None)
    return start, behind.start() if behind else len(text)
