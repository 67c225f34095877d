"""The agent that lets another one work, has a judge look at what it did, and lets it try again."""

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
PARAMETERS = {"temperature": 0.0}  # of every judgement


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
        "a text with {tool_calls} in it, for a judge has to see what was done",
    ),
]


@dataclass(frozen=True)
class SelfEvaluating:
    """Options: see docs/judges.md."""

    # The agent that works: its kind, or its settings with `kind` among them; `temperature` and the like stand beside `wraps`, for all
    # requests.
    wraps: Agent = field(default=ToolCalling(), metadata=AN_AGENT)
    # The judge, `{url, model, api_key}`. Without it, the suite's `judge` is asked, or the backend under test.
    evaluator_llm: EndpointOption | None = None
    max_retries: Retries = 2  # The maximum number of drafts after the first one.
    min_confidence_threshold: Share = 0.7  # A draft needs this confidence to be accepted.
    pass_feedback_to_agent: bool = False  # With `true`, the next draft is told what the judge said of the one before.
    # The judge's prompt, with `{question}`, `{tools}`, `{tool_calls}` and `{answer}` in it.
    evaluation_prompt_template: Evaluation = field(default=EVALUATION, metadata=A_PROMPT)
    # What is added to the customer's message, with `{reasoning}`, `{missing_steps}` and `{suggestions}` in it.
    feedback_template: str = field(default=FEEDBACK, metadata=A_PROMPT)

    def __post_init__(self) -> None:
        check_options(self)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        judge = await llm.judge(self.evaluator_llm)  # before any work: without a judge it would be in vain
        drafts, asked = Drafts(llm, tools), scenario
        for _ in range(self.max_retries + 1):
            draft = await drafts.write(self.wraps, asked)
            if draft.status == AgentError.status:
                continue
            prompt = fill_template(self.evaluation_prompt_template, _seen_by_the_judge(scenario, draft, tools))
            verdict = await ask(judge, prompt, VERDICT, **PARAMETERS)
            accepted = verdict["is_sufficient"] and verdict["confidence"] >= self.min_confidence_threshold
            verdict["judge"] = identity(judge, self.evaluation_prompt_template, VERDICT, PARAMETERS)
            drafts.judged(verdict, accepted)
            if accepted:
                break
            if self.pass_feedback_to_agent:
                asked = _with_feedback(scenario, fill_template(self.feedback_template, _feedback(verdict)))
        return drafts.answer()


@dataclass(frozen=True)
class SelfEvaluatingWithFeedback(SelfEvaluating):
    """The same, harder to please, and the agent is told what was wrong."""

    max_retries: Retries = 3
    min_confidence_threshold: Share = 0.85
    pass_feedback_to_agent: bool = True


class Drafts:
    """The tries at what the user said last. Whenever it ends, the best one so far is what the rollout has done."""

    def __init__(self, llm: LLM, tools: Toolbox) -> None:
        self._llm, self._tools = llm, tools
        self._calls, self._drafts = [*tools.calls], [*tools.drafts]  # of what the user said earlier
        self._tries: list[tuple[Draft, list[Json], ToolSource]] = []  # each with its conversation and its tools
        self._begun = tools.source

    async def write(self, agent: Agent, scenario: Scenario) -> Draft:
        """One more try; its limit or its own fault is the draft's, and all other errors leave."""
        self._tools.source = self._begun  # each try begins where the first one did
        own, started = self._tools.fresh(mirrored=not self._tries), time.monotonic_ns()
        if not self._tries:
            self._tools.source = own.source  # as its calls are the rollout's, wherever it is cut off
        status, reason, answer = "ok", "", ""
        try:
            answer = (await work_once(agent, scenario, self._llm, own)).text
        except (AgentError, LimitReached) as error:
            status, reason = error.status, str(error)
        finally:
            conversation, calls = self._llm.transcript, tuple(own.calls)
            if self._tries:  # else what was begun is all there is
                self._settle()
        number = len(self._drafts) + len(self._tries) + 1
        ended = time.monotonic_ns()
        draft = Draft(number, status, reason, answer, calls, final_state=own.source.state(), started_ns=started, ended_ns=ended)
        self._tries.append((draft, conversation, own.source))
        self._settle()
        return draft

    def judged(self, verdict: Json, accepted: bool) -> None:
        """What was said of the last draft."""
        draft, conversation, source = self._tries[-1]
        self._tries[-1] = dataclasses.replace(draft, verdict=verdict, accepted=accepted), conversation, source
        self._settle()

    def answer(self) -> Answer:
        """The best draft's; raises what kept it from giving one."""
        best, *_ = self._best()
        if best.status == LimitReached.status:
            raise LimitReached(best.reason)
        if best.status == AgentError.status:
            raise AgentError(best.reason)
        return Answer(best.answer)

    def _settle(self) -> None:
        best, self._llm.transcript, self._tools.source = self._best()
        drafts = [dataclasses.replace(each, chosen=each is best) for each, *_ in self._tries]
        self._tools.settle_on([*self._calls, *best.tool_calls], [*self._drafts, *drafts])

    def _best(self) -> tuple[Draft, list[Json], ToolSource]:
        """The first of those with the greatest merit."""
        return max(self._tries, key=lambda each: merit(each[0]))


def merit(draft: Draft) -> float:
    """From 1, surely sufficient, to -1, surely not; 0 for what nobody judged, and less than all for an agent's own fault."""
    if draft.status == AgentError.status:
        return -2.0
    if draft.verdict is None:
        return 0.0
    return float(draft.verdict["confidence"] if draft.verdict["is_sufficient"] else -draft.verdict["confidence"])


def _seen_by_the_judge(scenario: Scenario, draft: Draft, tools: Toolbox) -> dict[str, str]:
    asked = [content_text(message) for message in scenario.messages if message.get("role") == "user"]
    return {
        "question": asked[-1] if asked else "",
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
    """The scenario with something added to what the user said last; some models take no two messages of a user in a row."""
    *before, last = scenario.messages
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return dataclasses.replace(scenario, messages=(*before, {**last, "content": f"{last['content']}\n\n{feedback}"}))
    return dataclasses.replace(scenario, messages=(*scenario.messages, {"role": "user", "content": feedback}))
