"""The agent that solves a problem by sending other models to work: to search, to compute, and in the end to answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pytest_agentbench.agents.experts import ANSWER, ANSWER_PROMPT, REASON, SEARCH, ContextBudget, ExpertContext, Notebook
from pytest_agentbench.agents.factory import A_PROMPT, too_long
from pytest_agentbench.errors import ConfigError, InfraError, LimitReached
from pytest_agentbench.lib.options import check_options, number, one_of, whole
from pytest_agentbench.llm.client import LLM, Reply, RequestedCall, estimated_tokens
from pytest_agentbench.records import Answer, Json, ToolCall
from pytest_agentbench.sandbox.sandbox import DOCKER, KINDS, CodePlace
from pytest_agentbench.suites.suite import Scenario, Tool, content_text
from pytest_agentbench.tools.toolbox import Toolbox

SYSTEM_PROMPT = "You are good at using tools."
CHOOSE = "Choose an appropriate tool."

#: How the model sees what is known: told anew in each round, or as one conversation that only grows.
CONTEXTS = ("rebuild", "transcript")

#: Tool -> names of experts that its argument `model` may have.
EXPERTS: Mapping[str, tuple[str, ...]] = {
    SEARCH: ("search-1", "search-2", "search-3"),
    REASON: ("reasoner-1", "reasoner-2", "reasoner-3"),
    ANSWER: ("answer-1", "answer-2", "answer-3", "answer-4", "answer-math-1", "answer-math-2"),
}

#: Tool -> the role that its experts play where the settings say nothing else.
ROLES = {SEARCH: "search", REASON: "reasoner", ANSWER: "answer"}

DESCRIPTIONS = {
    SEARCH: "Searches for information that is missing.",
    REASON: "Gets closer to the answer by a program, which is written and run.",
    ANSWER: "Gives the final answer. Not allowed to be called if documents is empty.",
}

TASK = "task"

SandboxName = Annotated[str, one_of((TASK, *KINDS))]
Context = Annotated[str, one_of(CONTEXTS)]


@dataclass(frozen=True)
class Orchestrator:
    """Options: see docs/orchestrator.md."""

    max_rounds: Annotated[int, whole(1)] = 50  # The maximum number of answers; after them the status is `limit`.
    context: Context = "rebuild"  # [How the model sees what is known](orchestrator.md#what-the-model-is-sent): `rebuild` or `transcript`.
    # Tokens of the problem and what is known of it; a token is estimated as four characters.
    context_tokens: Annotated[int, whole(1)] = 27_000
    code_tokens: Annotated[int, whole(0)] = 12_000  # The part of them for code with its output, in tokens.
    document_characters: Annotated[int, whole(1)] = 1200  # The number of characters kept of each document.
    # Name of an expert -> the role that plays it: `{answer-math-1: mathematician}`. Other experts have the role of their tool.
    roles: Mapping[str, str] = field(default_factory=dict)
    retriever: str = ""  # The base URL of a retriever. Without it there is no tool `search`.
    topk: Annotated[int, whole(1)] = 50  # The number of documents that a search asks for.
    run_code: bool = True  # With `true`, programs run in a sandbox. With `false`, they are written and not run.
    # Where programs run: in the sandbox of the `task`, or, of a question, which is no task, in one of `docker` or `bubblewrap`: [which is
    # what](sandboxes.md#without-docker). With `task`, a question is refused before anything boots.
    code_sandbox: SandboxName = TASK
    image: str = ""  # The image of `code_sandbox: docker`, which has `python3`.
    # The memory in MB of a sandbox that is not the task's, which [limits](sandboxes.md#without-docker) a container, or each process in a
    # bubblewrap.
    memory_mb: Annotated[int, whole(64)] = 2048
    # The storage in MB of a sandbox that is not the task's, which [limits](sandboxes.md#without-docker) a file in a container, or all
    # files in a bubblewrap.
    storage_mb: Annotated[int, whole(1)] = 256
    code_timeout: Annotated[float, number(0.1)] = 60.0  # Seconds for one program.
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)  # The system message of the model. The default is the original's.
    answer_prompt: str = field(default=ANSWER_PROMPT, metadata=A_PROMPT)  # What the expert who answers is told.

    def __post_init__(self) -> None:
        check_options(self)
        names = [name for experts in EXPERTS.values() for name in experts]
        if strange := [name for name in self.roles if name not in names]:
            raise ValueError(f"roles: there is no expert {strange[0]!r}; known: {', '.join(names)}")
        if self.retriever and not self.retriever.startswith(("http://", "https://")):
            raise ValueError(f"retriever should start with http:// or https://, not {self.retriever!r}")
        if (self.code_sandbox == DOCKER) != bool(self.image):
            raise ValueError("`image` names the image, which has python3, of `code_sandbox: docker`, and of no other sandbox")

    @property
    def needs_task(self) -> bool:
        """Whether it works in the sandbox of a task."""
        return self.run_code and self.code_sandbox == TASK

    @property
    def needs_roles(self) -> frozenset[str]:
        """Who plays its experts, any of whom the model may choose."""
        tools = [tool for tool in EXPERTS if tool != SEARCH or self.retriever]
        return frozenset(self.roles.get(name, ROLES[tool]) for tool in tools for name in EXPERTS[tool])

    @property
    def needs_context(self) -> int:
        """The budget of tokens for prompts."""
        return self.context_tokens

    @property
    def code_place(self) -> CodePlace | None:
        """Where programs run for scenarios that are no tasks."""
        if not self.run_code or self.code_sandbox == TASK:
            return None
        return CodePlace(self.code_sandbox, self.image, self.memory_mb, self.storage_mb)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        problem = "\n\n".join(content_text(message) for message in scenario.messages if message.get("role") == "user")
        notebook = Notebook(problem, self.document_characters)
        if why := too_long(self.needs_context, llm.facts.context_length):
            raise InfraError(f"agent: {why}")
        if self.run_code and tools.code is None:
            raise ConfigError(f"there is no sandbox in which programs for scenario {scenario.id!r} can run")
        context = ExpertContext(notebook, scenario.id, self.retriever, self.topk, tools.code if self.run_code else None, self.code_timeout)
        own = Toolbox([_tool(name) for name in EXPERTS if name != SEARCH or self.retriever])
        talk = RoundMessages(self, notebook)
        for turn in range(1, self.max_rounds + 1):
            reply = await llm.chat(talk.messages(), own.schemas)
            chosen = _first([(call, own.parse_call(call.name, call.arguments, turn)) for call in reply.tool_calls])
            if chosen is None:
                talk.nothing(reply)
                continue
            request, call = chosen
            started = time.monotonic_ns()
            try:
                result = f"Error: {call.detail}" if call.problem else await self._done(call, context, llm)
            finally:
                ended = time.monotonic_ns()
                tools.add(dataclasses.replace(call, started_ns=started, ended_ns=ended, user_turn=tools.user_turn))
            talk.done(reply, request, result)
            if call.name == ANSWER and not call.problem:
                llm.transcript = talk.messages()
                return Answer(result)
        llm.transcript = talk.messages()
        raise LimitReached(f"rounds: {self.max_rounds} were not enough")

    async def _done(self, call: ToolCall, context: ExpertContext, llm: LLM) -> str:
        """Has the expert do what a call asks for; what came of it."""
        name = str(call.arguments["model"])
        expert = await llm.role(self.roles.get(name, ROLES[call.name]))
        if call.name == SEARCH:
            return await context.search(expert)
        return await (context.reason(expert) if call.name == REASON else context.answer(expert, self.answer_prompt))


@dataclass
class RoundMessages:
    """What the orchestrating model is sent in each round."""

    agent: Orchestrator
    notebook: Notebook
    rounds: list[list[Json]] = field(default_factory=list)  # of a conversation that grows
    dropped: int = 0  # of them, rounds that are told no more

    def messages(self) -> list[Json]:
        system = {"role": "system", "content": self.agent.system_prompt}
        if self.agent.context == "rebuild":
            context = self.notebook.context(ContextBudget(self.agent.context_tokens, self.agent.code_tokens))
            parts = filter(None, [f"Problem: {self.notebook.problem}", context, CHOOSE])
            return [system, {"role": "user", "content": "\n\n".join(parts)}]
        first = {"role": "user", "content": f"Problem: {self.notebook.problem}\n\n{CHOOSE}"}
        self._make_room()
        return [system, first, *(message for each in self.rounds[self.dropped :] for message in each)]

    def done(self, reply: Reply, request: RequestedCall, result: str) -> None:
        """A call that was carried out, or refused."""
        said = next(each for each in reply.message["tool_calls"] if each["id"] == request.id)
        self.rounds.append(
            [{**reply.message, "tool_calls": [said]}, {"role": "tool", "tool_call_id": request.id, "content": result}],
        )

    def nothing(self, reply: Reply) -> None:
        """An answer without a call."""
        if not reply.is_empty:
            self.rounds.append([reply.message, {"role": "user", "content": CHOOSE}])

    def _make_room(self) -> None:
        """Leaves out the oldest rounds once it is too much, down to half of the room: what comes before the cut is then cached anew, so
        cuts have to be rare.
        """
        room = self.agent.context_tokens - estimated_tokens(self.notebook.problem)
        if self._size() > room:
            while self.dropped < len(self.rounds) and self._size() > room // 2:
                self.dropped += 1

    def _size(self) -> int:
        return sum(estimated_tokens(str(message)) for each in self.rounds[self.dropped :] for message in each)


def _tool(name: str) -> Tool:
    names = ", ".join(EXPERTS[name])
    model = {"type": "string", "enum": [*EXPERTS[name]], "description": f"who does it; one of: {names}"}
    return Tool(name, DESCRIPTIONS[name], {"type": "object", "properties": {"model": model}, "required": ["model"]})


def _first(calls: list[tuple[RequestedCall, ToolCall]]) -> tuple[RequestedCall, ToolCall] | None:
    """The first call that can be carried out; where none can, the first one."""
    return next((each for each in calls if not each[1].problem), calls[0] if calls else None)
