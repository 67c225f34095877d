"""The agent that works by text: Thought, Action, Action Input, Observation, and in the end Final Answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

from pytest_agentbench.agents.factory import A_PROMPT
from pytest_agentbench.agents.react_prompt import SYSTEM_PROMPT, question_text, system_text
from pytest_agentbench.agents.react_text import Action, FinalAnswer, ReactTextError, read_answer
from pytest_agentbench.agents.whole_answer import ask
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.lib.options import check_options, whole
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario, content_text
from pytest_agentbench.tools.toolbox import Toolbox


@dataclass(frozen=True)
class React:
    """Options: see docs/agents.md."""

    # The system prompt, with `{tools}` (a line for each tool) and `{tool_names}` (their names, with commas) in it. By default, it
    # explains the format of ReAct.
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)
    additional_instructions: str = field(default="", metadata=A_PROMPT)  # This text is put behind the system prompt.
    # The maximum number of tool calls; if the model wants more, the status is `limit`, and what was done is scored.
    max_tool_calls: Annotated[int, whole(1)] = 15
    # When its answer is no ReAct, the model may try again this many times in each step, the first answer not counted.
    parse_agent_response_max_retries: Annotated[int, whole(0)] = 1
    retry_agent_response_parsing_errors: bool = True  # With `false`, it may never try again.
    # With `true`, an answer that is still no ReAct is an `agent_error`. With `false`, the error and that text are the final answer.
    raise_on_parsing_failure: bool = True
    normalize_tool_input_quotes: bool = True  # With `true`, an input that is [almost JSON](agents.md#almost-json) is understood.
    include_tool_input_schema_in_tool_description: bool = True  # With `true`, a tool's line has the JSON schema of its arguments.
    max_history: Annotated[int, whole(0)] = 15  # The maximum number of messages from before the question.
    stop: Sequence[str] = ("\nObservation:",)  # The stop sequences of every request; an empty list sends none.

    def __post_init__(self) -> None:
        check_options(self)
        for place in ("{tools}", "{tool_names}"):
            if place not in self.system_prompt:
                raise ValueError(f"system_prompt should contain {place}, where the tools are put")
        if "" in self.stop:
            raise ValueError(f"stop should be a list of texts, not {self.stop!r}")

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        messages = self._opening(scenario)
        for step in count(1):
            answer = await self._step(llm, messages)
            if isinstance(answer, FinalAnswer):
                return Answer(answer.text)
            if step > self.max_tool_calls:
                break
            result = await tools.call(answer.tool, answer.input, step, repair=self.normalize_tool_input_quotes)
            messages += [{"role": "assistant", "content": answer.said}, {"role": "user", "content": f"Observation: {result}"}]
        raise LimitReached(f"tool calls: {self.max_tool_calls} were not enough")

    def _opening(self, scenario: Scenario) -> list[Json]:
        system = system_text(
            self.system_prompt,
            self.additional_instructions,
            scenario.tools,
            schemas=self.include_tool_input_schema_in_tool_description,
        )
        rules = [content_text(each) for each in scenario.messages if each["role"] == "system"]
        said = [each for each in scenario.messages if each["role"] != "system"]
        return [
            {"role": "system", "content": "\n\n".join([system, *rules])},
            {"role": "user", "content": question_text(said, self.max_history)},
        ]

    async def _step(self, llm: LLM, messages: Sequence[Json]) -> Action | FinalAnswer:
        """What the model says next; what it says wrongly is told to it, and forgotten when it says it rightly."""
        scratchpad = [*messages]
        stop: Json = {"stop": [*self.stop]} if self.stop else {}
        retries = self.parse_agent_response_max_retries if self.retry_agent_response_parsing_errors else 0
        for left in range(retries, -1, -1):
            text = (await ask(llm, scratchpad, **stop)).text  # of nothing, where it begins with a stop sequence
            try:
                return read_answer(text)
            except ReactTextError as error:
                fault = str(error)
            if left:
                scratchpad += [{"role": "assistant", "content": text}] if text.strip() else []
                scratchpad.append({"role": "user", "content": fault})
        if self.raise_on_parsing_failure:
            raise AgentError(f"the model's answer is no ReAct: {fault}")
        return FinalAnswer(f"{fault}\n{text}")
