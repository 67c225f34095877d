"""The agent `react`, whose model calls tools in plain text (ReAct): Thought, Action, Action Input, Observation, then Final Answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

import orjson

from pytest_agentbench.agents.factory import A_PROMPT
from pytest_agentbench.agents.run import ask
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.lib.model_texts import object_end
from pytest_agentbench.lib.options import check_options, whole
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario, Tool, content_text
from pytest_agentbench.tools.toolbox import Toolbox

MISSING_ACTION = "Invalid Format: Missing 'Action:' after 'Thought:'"
MISSING_INPUT = "Invalid Format: Missing 'Action Input:' after 'Action:'"
MISSING_ANSWER = "Invalid Format: Missing text after 'Final Answer:'"
EMPTY_ANSWER = "Invalid Format: The answer is empty. If nothing is left to do, answer with 'Final Answer:'"

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
#: The closing asterisks may come before or after the colon: `**Action**:`, `**Action:**`.
_LABEL = r"(?P<bold>[*_]{1,3})?(?:%s)[ \t]*(?(bold)(?:(?P=bold)[ \t]*:|:(?:[ \t]*(?P=bold))?)|:)"
_LABELS = _LABEL % "|".join(f"(?P<{kind}>{name})" for kind, name in _NAMES.items())
AT_LINE = re.compile(rf"{_THINKING}|^[ \t]*(?:[>#+*-]+[ \t]+)*{_LABELS}", re.IGNORECASE | re.MULTILINE | re.DOTALL)
ANYWHERE = re.compile(rf"{_THINKING}|(?<!\w){_LABELS}", re.IGNORECASE | re.DOTALL)
THOUGHTS = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.IGNORECASE | re.DOTALL)
#: For chat templates that write the opening tag `<think>` themselves.
END_OF_THINKING = re.compile(r"</think>[ \t]*$", re.IGNORECASE | re.MULTILINE)
OPENING = re.compile(r"[\s*]*(?:```\w*\s*|`)?(?=\{)")


class ReactTextError(Exception):
    """Raised if an answer of the model is not in ReAct format. The agent sends the message to the model."""


@dataclass(frozen=True)
class Action:
    """A tool call that was parsed from an answer of the model."""

    tool: str
    input: str  # text after `Action Input:`, not parsed; empty if there is none
    text: str  # the answer up to the end of the input, without an initial block of thoughts


@dataclass(frozen=True)
class FinalAnswer:
    """The final answer that was parsed from an answer of the model."""

    text: str


def read_answer(text: str) -> Action | FinalAnswer:
    """Returns the first action or final answer in an answer of the model. A text without any ReAct label is a final answer.

    Raises ReactTextError if the text has labels but no complete action or final answer, or is empty.
    """
    text = without_thoughts(text)
    if not text.strip():
        raise ReactTextError(EMPTY_ANSWER)
    labels = [*_labels(AT_LINE, text)]
    first = _first(labels) or _first(_labels(ANYWHERE, text))
    if first is None:
        if not all(each["question"] for each in labels):
            raise ReactTextError(MISSING_ACTION)
        return FinalAnswer(text.strip())  # A text without any labels is a final answer.
    return _final_answer(text, first) if first["final"] else _action(text, first)


def without_thoughts(text: str) -> str:
    """Returns the text without an initial `<think>` block."""
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
    if bold and label[0].count(bold) == 1:  # The whole line is bold: **Final Answer: yes**
        answer = answer.removesuffix(bold)
    if not answer:
        raise ReactTextError(MISSING_ANSWER)
    return FinalAnswer(answer)


def _action(text: str, label: re.Match[str]) -> Action | FinalAnswer:
    # The input may be on the line of the action. Any other label before it means that there is no input.
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
    """Returns start and end of an action input in the text: those of its JSON object. Without one, the input ends at the next label."""
    if (opening := OPENING.match(text, start)) and (end := object_end(text, opening.end())):
        return opening.end(), end
    following = next(_labels(AT_LINE, text, start), None)
    return start, following.start() if following else len(text)


SYSTEM_PROMPT = """\
You help a customer. These tools are there:

{tools}

Choose the tools for everything the customer asks for, and only for that. Arguments are what the customer says.
Answer in this format:

Thought: what is to be done next
Action: one of [{tool_names}]
Action Input: the arguments of the tool as a JSON object, or None
Observation: what the tool returned

An answer is one Thought, one Action and one Action Input. Stop behind it and wait; never write an Observation.
You then get the Observation, and go on with the next Thought. When nothing is left to do, answer:

Thought: I now know the final answer
Final Answer: what you have to tell the customer"""


def system_text(prompt: str, more: str, tools: Sequence[Tool], *, schemas: bool) -> str:
    """Returns the system prompt with the tools filled in, one per line, and with the text `more` appended."""
    lines = "\n".join(_tool_line(tool, schema=schemas) for tool in tools)
    # Not str.format, because a prompt may contain JSON.
    text = prompt.replace("{tool_names}", ", ".join(tool.name for tool in tools)).replace("{tools}", lines)
    return f"{text} {more}" if more else text


def question_text(messages: Sequence[Json], max_history: int) -> str:
    """Returns the text of the first request: the last `max_history` messages before the user's question, then the question."""
    start = len(messages)
    while start and messages[start - 1]["role"] == "user":
        start -= 1
    earlier = messages[max(0, start - max_history) : start]
    history = "\n".join(filter(None, map(_history_line, earlier)))
    question = "\n".join(map(content_text, messages[start:]))
    return f"Previous conversation history:\n{history}\n\nQuestion: {question}"


def _tool_line(tool: Tool, *, schema: bool) -> str:
    line = f"{tool.name}: {' '.join(tool.description.split())}"
    return f"{line} Arguments must fit this JSON schema: {orjson.dumps(tool.parameters).decode()}" if schema else line


def _history_line(message: Json) -> str:
    """Returns an earlier message of the conversation as a text in ReAct format."""
    text = content_text(message)
    if message["role"] == "tool":
        return f"Observation: {text}"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines = [f"{message['role']}: {text}"] if text else []
    return "\n".join([*lines, *(f"Action: {call['name']}\nAction Input: {call.get('arguments') or None}" for call in calls)])


@dataclass(frozen=True)
class React:
    """The agent `react`: calls tools in ReAct text format until a final answer. Options: docs/reference/agent-options.md."""

    # The system prompt. It must contain `{tools}` (one line per tool) and `{tool_names}` (names with commas). The default explains the
    # ReAct format.
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)
    additional_instructions: str = field(default="", metadata=A_PROMPT)  # Text that is appended to the system prompt.
    # Largest number of tool calls. If the model makes more, the status is `limit`, and the work so far is scored.
    max_tool_calls: Annotated[int, whole(1)] = 15
    # If an answer is not in ReAct format, the model may try again this many times in each step.
    parse_agent_response_max_retries: Annotated[int, whole(0)] = 1
    retry_agent_response_parsing_errors: bool = True  # With `false`, the model may never try again.
    # With `true`, an answer that is still not in ReAct format is an `agent_error`. With `false`, error and text are the final answer.
    raise_on_parsing_failure: bool = True
    normalize_tool_input_quotes: bool = True  # With `true`, an input that is [almost JSON](included-agents.md#almost-json) is repaired.
    include_tool_input_schema_in_tool_description: bool = True  # With `true`, a tool's line contains the JSON schema of its arguments.
    max_history: Annotated[int, whole(0)] = 15  # Largest number of messages from before the question.
    stop: Sequence[str] = ("\nObservation:",)  # Stop sequences of every request; an empty list sends none.

    def __post_init__(self) -> None:
        check_options(self)
        for place in ("{tools}", "{tool_names}"):
            if place not in self.system_prompt:
                raise ValueError(f"system_prompt must contain {place}, which is replaced by the tools")
        if "" in self.stop:
            raise ValueError(f"stop must be a list of texts that are not empty, not {self.stop!r}")

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        messages = self._opening(scenario)
        for step in count(1):
            answer = await self._step(llm, messages)
            if isinstance(answer, FinalAnswer):
                return Answer(answer.text)
            if step > self.max_tool_calls:
                break
            result = await tools.call(answer.tool, answer.input, step, repair=self.normalize_tool_input_quotes)
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": f"Observation: {result}"}]
        raise LimitReached(f"tool calls: {self.max_tool_calls} were not enough (max_tool_calls)")

    def _opening(self, scenario: Scenario) -> list[Json]:
        system = system_text(
            self.system_prompt,
            self.additional_instructions,
            scenario.tools,
            schemas=self.include_tool_input_schema_in_tool_description,
        )
        rules = [content_text(each) for each in scenario.messages if each["role"] == "system"]
        conversation = [each for each in scenario.messages if each["role"] != "system"]
        return [
            {"role": "system", "content": "\n\n".join([system, *rules])},
            {"role": "user", "content": question_text(conversation, self.max_history)},
        ]

    async def _step(self, llm: LLM, messages: Sequence[Json]) -> Action | FinalAnswer:
        """Requests the model's next action or final answer, and returns it.

        If an answer is invalid, the model gets it back with an error message and may try again. `messages` never contains such answers.
        Raises AgentError if the last answer is invalid, too, unless `raise_on_parsing_failure` is off.
        """
        scratchpad = [*messages]
        stop: Json = {"stop": [*self.stop]} if self.stop else {}
        retries = self.parse_agent_response_max_retries if self.retry_agent_response_parsing_errors else 0
        for left in range(retries, -1, -1):
            text = (await ask(llm, scratchpad, **stop)).text  # Empty if the answer begins with a stop sequence
            try:
                return read_answer(text)
            except ReactTextError as error:
                fault = str(error)
            if left:
                scratchpad += [{"role": "assistant", "content": text}] if text.strip() else []
                scratchpad.append({"role": "user", "content": fault})
        if self.raise_on_parsing_failure:
            raise AgentError(f"the model's answer is not in ReAct format: {fault}")
        return FinalAnswer(f"{fault}\n{text}")
