"""The agent `self_evaluating`: runs another agent, has a judge evaluate its work, and lets it try again."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Annotated

from pytest_agentbench.agents import Agent
from pytest_agentbench.agents.factory import A_PROMPT, AN_AGENT
from pytest_agentbench.agents.run import work_once
from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.lib.options import ValueKind, check_options, number, whole
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.llm.judge import Form, ask, calls_text, fill_template, identity
from pytest_agentbench.records import Answer, Draft, Json
from pytest_agentbench.suites.suite import Scenario, content_text
from pytest_agentbench.tools.source import ToolSource
from pytest_agentbench.tools.toolbox import Toolbox

EVALUATION = """You check the work of an assistant that helps a customer by calling tools.
Tools are only recorded here, so what a tool gave back is no sign of good or bad work.
Judge which tools were called, with which arguments, and what the customer was told.

<request>
{question}
</request>

<available_tools>
{tools}
</available_tools>

<tool_calls>
{tool_calls}
</tool_calls>

<answer>
{answer}
</answer>

Go through these questions first:
1. Does each thing that the customer wants have the call it needs?
2. Is each of the calls asked for, and none needless or made twice?
3. Are the arguments what the customer said?
4. Do the calls come in an order that works?
5. Was everything looked up that a later call depends on?
Then give your verdict: whether the work is sufficient, and how sure you are of that verdict, from 0 to 1."""

FEEDBACK = """PREVIOUS ATTEMPT FEEDBACK
An earlier attempt at this request was found insufficient.

EVALUATION:
{reasoning}

MISSING STEPS:
{missing_steps}

SUGGESTIONS:
{suggestions}

Try again: look up all that is needed first, keep the steps in an order that works, and check what should be checked."""

VERDICT = Form(
    "verdict",
    {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string"},
            "missing_steps": {"type": "array", "items": {"type": "string"}},
            "suggestions": {"type": "string"},
            "is_sufficient": {"type": "boolean"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["reasoning", "missing_steps", "suggestions", "is_sufficient", "confidence"],
        "additionalProperties": False,
    },
)
PARAMETERS = {"temperature": 0.0}  # Request parameters of the judge


def _is_endpoint(value: object) -> bool:
    keys = {*value} if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()) else set()
    return {"url", "model"} <= keys <= {"url", "model", "api_key"}


EndpointOption = Annotated[Json, ValueKind(_is_endpoint, "{url, model}, with api_key the name of an environment variable")]
Retries = Annotated[int, whole(0, 5)]
Share = Annotated[float, number(0, 1)]
Evaluation = Annotated[
    str,
    ValueKind(
        lambda text: isinstance(text, str) and "{tool_calls}" in text,
        "a text that contains {tool_calls}, because the judge needs them",
    ),
]


@dataclass(frozen=True)
class SelfEvaluating:
    """The agent `self_evaluating`: has another agent write drafts until a judge accepts one. Options: docs/reference/agent-options.md."""

    # The agent that works: its kind, or its settings with `kind`. Sampling parameters such as `temperature` are written next to `wraps`,
    # because they apply to all requests.
    wraps: Agent = field(default=ToolCalling(), metadata=AN_AGENT)
    # The judge, `{url, model, api_key}`. The default is the suite's `judge`, else the backend under test.
    evaluator_llm: EndpointOption | None = None
    max_retries: Retries = 2  # Largest number of drafts after the first one.
    min_confidence_threshold: Share = 0.7  # Lowest confidence with which a draft is accepted.
    pass_feedback_to_agent: bool = False  # With `true`, the agent gets the judge's feedback for its next draft.
    # The judge's prompt, with the placeholders `{question}`, `{tools}`, `{tool_calls}` and `{answer}`.
    evaluation_prompt_template: Evaluation = field(default=EVALUATION, metadata=A_PROMPT)
    # Text added to the user's message, with the placeholders `{reasoning}`, `{missing_steps}` and `{suggestions}`.
    feedback_template: str = field(default=FEEDBACK, metadata=A_PROMPT)

    def __post_init__(self) -> None:
        check_options(self)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        judge = await llm.judge(self.evaluator_llm)  # Before any work, which would be useless without a judge
        drafts, request = Drafts(llm, tools), scenario
        for _ in range(self.max_retries + 1):
            draft = await drafts.write(self.wraps, request)
            if draft.status == AgentError.status:
                continue
            prompt = fill_template(self.evaluation_prompt_template, _judge_fields(scenario, draft, tools))
            verdict = await ask(judge, prompt, VERDICT, **PARAMETERS)
            accepted = verdict["is_sufficient"] and verdict["confidence"] >= self.min_confidence_threshold
            verdict["judge"] = identity(judge, self.evaluation_prompt_template, VERDICT, PARAMETERS)
            drafts.add_verdict(verdict, accepted)
            if accepted:
                break
            if self.pass_feedback_to_agent:
                request = _with_feedback(scenario, fill_template(self.feedback_template, _feedback(verdict)))
        return drafts.answer()


@dataclass(frozen=True)
class SelfEvaluatingWithFeedback(SelfEvaluating):
    """The agent `self_evaluating_with_feedback`: has another agent write drafts until a judge accepts one, as `self_evaluating` does.

    Its defaults differ: the judge must be more confident, there may be more drafts, and the other agent gets the judge's feedback.
    """

    max_retries: Retries = 3
    min_confidence_threshold: Share = 0.85
    pass_feedback_to_agent: bool = True


class Drafts:
    """The drafts (complete attempts of the wrapped agent) for one message of the user, with the judge's verdicts.

    After each step, the rollout's tool calls, transcript and state of the tools are those of the best draft so far. A rollout that is
    stopped at any time is then recorded with its best draft.
    """

    def __init__(self, llm: LLM, tools: Toolbox) -> None:
        self._llm, self._tools = llm, tools
        self._calls, self._drafts = [*tools.calls], [*tools.drafts]  # Those for earlier messages of the user
        self._tries: list[tuple[Draft, list[Json], ToolSource]] = []  # Each draft with its conversation and its tools
        self._initial_source = tools.source

    async def write(self, agent: Agent, scenario: Scenario) -> Draft:
        """Runs the agent for one more draft, and returns that. LimitReached and AgentError become its status; other errors are raised."""
        self._tools.source = self._initial_source  # Each draft starts with the same state of the tools.
        own, started = self._tools.fresh(mirrored=not self._tries), time.monotonic_ns()
        if not self._tries:
            self._tools.source = own.source  # The first draft's calls are the rollout's, even if it is interrupted.
        status, reason, answer = "ok", "", ""
        try:
            answer = (await work_once(agent, scenario, self._llm, own)).text
        except (AgentError, LimitReached) as error:
            status, reason = error.status, str(error)
        finally:
            conversation, calls = self._llm.transcript, tuple(own.calls)
            if self._tries:  # An interrupted first draft stays the rollout's.
                self._choose_best()
        number = len(self._drafts) + len(self._tries) + 1
        ended = time.monotonic_ns()
        draft = Draft(number, status, reason, answer, calls, final_state=own.source.state(), started_ns=started, ended_ns=ended)
        self._tries.append((draft, conversation, own.source))
        self._choose_best()
        return draft

    def add_verdict(self, verdict: Json, accepted: bool) -> None:
        """Adds the judge's verdict to the last draft. `accepted` tells whether the verdict reaches the confidence threshold."""
        draft, conversation, source = self._tries[-1]
        self._tries[-1] = dataclasses.replace(draft, verdict=verdict, accepted=accepted), conversation, source
        self._choose_best()

    def answer(self) -> Answer:
        """Returns the answer of the best draft. Raises LimitReached or AgentError if that draft has this status."""
        best, *_ = self._best()
        if best.status == LimitReached.status:
            raise LimitReached(best.reason)
        if best.status == AgentError.status:
            raise AgentError(best.reason)
        return Answer(best.answer)

    def _choose_best(self) -> None:
        best, self._llm.transcript, self._tools.source = self._best()
        drafts = [dataclasses.replace(each, chosen=each is best) for each, *_ in self._tries]
        self._tools.settle_on([*self._calls, *best.tool_calls], [*self._drafts, *drafts])

    def _best(self) -> tuple[Draft, list[Json], ToolSource]:
        """Returns the first draft with the greatest merit, with its conversation and its tools."""
        return max(self._tries, key=lambda each: merit(each[0]))


def merit(draft: Draft) -> float:
    """Returns how good a draft is: from 1 (surely sufficient) to -1 (surely not), 0 if it was not judged, and -2 for an agent error."""
    if draft.status == AgentError.status:
        return -2.0
    if draft.verdict is None:
        return 0.0
    return float(draft.verdict["confidence"] if draft.verdict["is_sufficient"] else -draft.verdict["confidence"])


def _judge_fields(scenario: Scenario, draft: Draft, tools: Toolbox) -> dict[str, str]:
    requests = [content_text(message) for message in scenario.messages if message.get("role") == "user"]
    return {
        "question": requests[-1] if requests else "",
        "tools": "\n".join(f"- {tool.name}: {' '.join(tool.description.split())}" for tool in tools.tools.values()) or "none",
        "tool_calls": calls_text(draft.tool_calls),
        "answer": draft.answer or f"(none) {draft.reason}".strip(),
    }


def _feedback(verdict: Json) -> dict[str, str]:
    return {
        "reasoning": verdict["reasoning"],
        "missing_steps": "\n".join(f"- {step}" for step in verdict["missing_steps"]) or "None identified",
        "suggestions": verdict["suggestions"] or "No specific suggestions",
    }


def _with_feedback(scenario: Scenario, feedback: str) -> Scenario:
    """Returns the scenario with feedback added to the user's last message, because some models reject two user messages in a row."""
    *before, last = scenario.messages
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return dataclasses.replace(scenario, messages=(*before, {**last, "content": f"{last['content']}\n\n{feedback}"}))
    return dataclasses.replace(scenario, messages=(*scenario.messages, {"role": "user", "content": feedback}))
