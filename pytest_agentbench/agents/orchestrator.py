"""The agent `orchestrator`: a model that solves a problem by calling other models, the experts, to search, to compute and to answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pytest_agentbench.agents.experts import ANSWER, ANSWER_PROMPT, REASON, SEARCH, ContextBudget, ExpertContext, Notebook
from pytest_agentbench.agents.factory import A_PROMPT, too_long
from pytest_agentbench.errors import ConfigError, InfraError, LimitReached, unknown_name
from pytest_agentbench.lib.options import check_options, number, one_of, whole
from pytest_agentbench.llm.client import LLM, Reply, RequestedCall, estimated_tokens
from pytest_agentbench.records import Answer, Json, ToolCall
from pytest_agentbench.sandbox.sandbox import DOCKER, KINDS, CodePlace
from pytest_agentbench.suites.suite import Scenario, Tool, content_text
from pytest_agentbench.tools.toolbox import Toolbox

SYSTEM_PROMPT = "You are good at using tools."
CHOOSE = "Choose an appropriate tool."

#: How the model sees earlier results: as a new prompt in each round, or as one growing conversation.
CONTEXTS = ("rebuild", "transcript")

#: Tool -> names of experts that are allowed as its argument `model`.
EXPERTS: Mapping[str, tuple[str, ...]] = {
    SEARCH: ("search-1", "search-2", "search-3"),
    REASON: ("reasoner-1", "reasoner-2", "reasoner-3"),
    ANSWER: ("answer-1", "answer-2", "answer-3", "answer-4", "answer-math-1", "answer-math-2"),
}

#: Tool -> default role of its experts.
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
    """The agent `orchestrator`: lets a model choose an expert in each round until one answers. Options: docs/reference/agent-options.md."""

    max_rounds: Annotated[int, whole(1)] = 50  # Largest number of the model's answers; after them the status is `limit`.
    context: Context = "rebuild"  # [How the model sees earlier results](orchestrator.md#what-the-model-is-sent): `rebuild` or `transcript`.
    # Token budget of the problem and its notebook. A token is estimated as four characters.
    context_tokens: Annotated[int, whole(1)] = 27_000
    code_tokens: Annotated[int, whole(0)] = 12_000  # The part of this budget for code with its output, in tokens.
    document_characters: Annotated[int, whole(1)] = 1200  # Characters kept of each document.
    # Expert -> its role, for example `{answer-math-1: mathematician}`. Other experts have the role of their tool.
    roles: Mapping[str, str] = field(default_factory=dict)
    retriever: str = ""  # The base URL of a retriever. Without it the model has no tool `search`.
    topk: Annotated[int, whole(1)] = 50  # The number of documents that a search requests.
    run_code: bool = True  # With `true`, programs run in a sandbox. With `false`, they are written but not run.
    # Where programs run: in the sandbox of the `task`, or for scenarios without a task in a `docker` or `bubblewrap` sandbox
    # ([differences](sandboxes.md#without-docker)). With `task`, scenarios without a task are refused before anything boots.
    code_sandbox: SandboxName = TASK
    image: str = ""  # The image for `code_sandbox: docker`. It must contain `python3`.
    # Memory in MB of a sandbox that is not the task's. It [limits](sandboxes.md#without-docker) the container, or each process in
    # bubblewrap.
    memory_mb: Annotated[int, whole(64)] = 2048
    # Storage in MB of a sandbox that is not the task's. It [limits](sandboxes.md#without-docker) each file in a container, or all files
    # in bubblewrap.
    storage_mb: Annotated[int, whole(1)] = 256
    code_timeout: Annotated[float, number(0.1)] = 60.0  # Time limit of one program in seconds.
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)  # The model's system message. The default is the original's.
    answer_prompt: str = field(default=ANSWER_PROMPT, metadata=A_PROMPT)  # The prompt of the expert that answers.

    def __post_init__(self) -> None:
        check_options(self)
        names = [name for experts in EXPERTS.values() for name in experts]
        if unknown := [name for name in self.roles if name not in names]:
            raise ValueError(f"roles: {unknown_name('expert', unknown[0], names)}")
        if self.retriever and not self.retriever.startswith(("http://", "https://")):
            raise ValueError(f"retriever must start with http:// or https://, not {self.retriever!r}")
        if (self.code_sandbox == DOCKER) != bool(self.image):
            raise ValueError("`image`, an image with python3, is required with `code_sandbox: docker` and not allowed otherwise")

    @property
    def needs_task(self) -> bool:
        """Whether programs run in the sandbox of a task, so that every scenario must be a task."""
        return self.run_code and self.code_sandbox == TASK

    @property
    def needs_roles(self) -> frozenset[str]:
        """The roles of all experts that the model may choose."""
        tools = [tool for tool in EXPERTS if tool != SEARCH or self.retriever]
        return frozenset(self.roles.get(name, ROLES[tool]) for tool in tools for name in EXPERTS[tool])

    @property
    def needs_context(self) -> int:
        """The maximum size of the prompts of the orchestrating model, in tokens."""
        return self.context_tokens

    @property
    def code_place(self) -> CodePlace | None:
        """Kind and size of the sandbox for the programs of experts. None if no programs run, or if they run in the sandbox of a task."""
        if not self.run_code or self.code_sandbox == TASK:
            return None
        return CodePlace(self.code_sandbox, self.image, self.memory_mb, self.storage_mb)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        problem = "\n\n".join(content_text(message) for message in scenario.messages if message.get("role") == "user")
        notebook = Notebook(problem, self.document_characters)
        if why := too_long(self.needs_context, llm.facts.context_length):
            raise InfraError(f"agent: {why}")
        if self.run_code and tools.code is None:
            raise ConfigError(
                f"there is no sandbox in which programs for scenario {scenario.id!r} can run; set `code_sandbox` to docker or bubblewrap, "
                "or `run_code: false`"
            )
        context = ExpertContext(notebook, scenario.id, self.retriever, self.topk, tools.code if self.run_code else None, self.code_timeout)
        own = Toolbox([_tool(name) for name in EXPERTS if name != SEARCH or self.retriever])
        conversation = RoundMessages(self, notebook)
        for turn in range(1, self.max_rounds + 1):
            reply = await llm.chat(conversation.messages(), own.schemas)
            chosen = _first([(call, own.parse_call(call.name, call.arguments, turn)) for call in reply.tool_calls])
            if chosen is None:
                conversation.add_reply(reply)
                continue
            request, call = chosen
            started = time.monotonic_ns()
            try:
                result = f"Error: {call.detail}" if call.problem else await self._call_expert(call, context, llm)
            finally:
                ended = time.monotonic_ns()
                tools.add(dataclasses.replace(call, started_ns=started, ended_ns=ended, user_turn=tools.user_turn))
            conversation.add_call(reply, request, result)
            if call.name == ANSWER and not call.problem:
                llm.transcript = conversation.messages()
                return Answer(result)
        llm.transcript = conversation.messages()
        raise LimitReached(f"rounds: {self.max_rounds} were not enough (max_rounds)")

    async def _call_expert(self, call: ToolCall, context: ExpertContext, llm: LLM) -> str:
        """Has the expert that the model has chosen carry out a tool call. Returns the result as text."""
        name = str(call.arguments["model"])
        expert = await llm.role(self.roles.get(name, ROLES[call.name]))
        if call.name == SEARCH:
            return await context.search(expert)
        return await (context.reason(expert) if call.name == REASON else context.answer(expert, self.answer_prompt))


@dataclass
class RoundMessages:
    """Builds the messages of each round for the orchestrating model. A round is one answer of the model and the reply to it."""

    agent: Orchestrator
    notebook: Notebook
    rounds: list[list[Json]] = field(default_factory=list)  # messages of each round
    dropped: int = 0  # number of oldest rounds that are no longer sent

    def messages(self) -> list[Json]:
        system = {"role": "system", "content": self.agent.system_prompt}
        if self.agent.context == "rebuild":
            context = self.notebook.context(ContextBudget(self.agent.context_tokens, self.agent.code_tokens))
            parts = filter(None, [f"Problem: {self.notebook.problem}", context, CHOOSE])
            return [system, {"role": "user", "content": "\n\n".join(parts)}]
        first = {"role": "user", "content": f"Problem: {self.notebook.problem}\n\n{CHOOSE}"}
        self._drop_old_rounds()
        return [system, first, *(message for each in self.rounds[self.dropped :] for message in each)]

    def add_call(self, reply: Reply, request: RequestedCall, result: str) -> None:
        """Adds a round whose answer called a tool. Only this call is kept."""
        call = next(each for each in reply.message["tool_calls"] if each["id"] == request.id)
        self.rounds.append(
            [{**reply.message, "tool_calls": [call]}, {"role": "tool", "tool_call_id": request.id, "content": result}],
        )

    def add_reply(self, reply: Reply) -> None:
        """Adds a round whose answer called no tool, unless the answer is empty."""
        if not reply.is_empty:
            self.rounds.append([reply.message, {"role": "user", "content": CHOOSE}])

    def _drop_old_rounds(self) -> None:
        """Drops the oldest rounds if the conversation exceeds the token budget, until half of the budget is free.

        The server has to cache the prompt again after each drop, so drops must be rare.
        """
        budget = self.agent.context_tokens - estimated_tokens(self.notebook.problem)
        if self._size() > budget:
            while self.dropped < len(self.rounds) and self._size() > budget // 2:
                self.dropped += 1

    def _size(self) -> int:
        return sum(estimated_tokens(str(message)) for each in self.rounds[self.dropped :] for message in each)


def _tool(name: str) -> Tool:
    names = ", ".join(EXPERTS[name])
    model = {"type": "string", "enum": [*EXPERTS[name]], "description": f"who does it; one of: {names}"}
    return Tool(name, DESCRIPTIONS[name], {"type": "object", "properties": {"model": model}, "required": ["model"]})


def _first(calls: list[tuple[RequestedCall, ToolCall]]) -> tuple[RequestedCall, ToolCall] | None:
    """Returns the first valid tool call of an answer, or its first one if all are invalid, or None if it has none."""
    return next((each for each in calls if not each[1].problem), calls[0] if calls else None)
