"""The experts of the agent `orchestrator`: other models that write a search query, a program or the final answer.

A notebook collects the documents and program outputs for later prompts.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.model_texts import tagged
from pytest_agentbench.llm.client import LLM, estimated_tokens
from pytest_agentbench.records import Json
from pytest_agentbench.sandbox.sandbox import CommandRunner


@dataclass(frozen=True)
class ContextBudget:
    """How many tokens of collected documents, programs and program outputs may be in the prompt of an expert (another model)."""

    all: int  # for everything, including the problem
    code: int  # for programs with their output; part of `all`


@dataclass
class Notebook:
    """Collects the documents, programs and program outputs of one rollout of the orchestrator, for the prompts of its experts."""

    problem: str
    document_characters: int  # characters kept of each document
    documents: list[str] = field(default_factory=list)  # oldest first
    code: list[str] = field(default_factory=list)  # code with its output, oldest first

    def add_documents(self, documents: Sequence[str]) -> list[str]:
        """Adds the documents that are new, each truncated to `document_characters`. Returns the added documents."""
        cut = [text if len(text) <= self.document_characters else f"{text[: self.document_characters]} ..." for text in documents]
        added = [text for text in dict.fromkeys(cut) if text not in self.documents]
        self.documents += added
        return added

    def add_code(self, code: str, output: str) -> str:
        """Adds a program with its output. Returns both as Markdown."""
        self.code.append(f"```python\n{code}\n```\n\n```output\n{output}\n```")
        return self.code[-1]

    def context(self, budget: ContextBudget) -> str:
        """Returns the newest programs and documents that fit into the budget as text, each oldest first. Programs take precedence."""
        code = newest(self.code, min(budget.code, budget.all - estimated_tokens(self.problem)))
        left = budget.all - estimated_tokens(self.problem) - sum(map(estimated_tokens, code))
        first = len(self.documents) - len(kept := newest(self.documents, left))
        documents = "\n\n".join(f"Doc {number}: {text}" for number, text in enumerate(kept, first + 1))
        parts = [("Documents:\n", documents), ("Python code and execution outputs:\n", "\n\n".join(code))]
        return "\n\n".join(head + text for head, text in parts if text)


def newest(pieces: Sequence[str], tokens: int) -> list[str]:
    """Returns the last texts of a list: as many as fit into `tokens` tokens together."""
    kept = len(pieces)
    while kept and (tokens := tokens - estimated_tokens(pieces[kept - 1])) >= 0:
        kept -= 1
    return [*pieces[kept:]]


SEARCH, REASON, ANSWER = "search", "enhance_reasoning", "answer"

#: Tool -> request parameters of its expert.
PARAMETERS: Mapping[str, Json] = {
    SEARCH: {"temperature": 1.0, "max_tokens": 4000},
    REASON: {"temperature": 1.0, "max_tokens": 40000},
    ANSWER: {"temperature": 0.2, "max_tokens": 8000},
}

#: Tool -> budget of the notebook in its expert's prompt.
BUDGETS: Mapping[str, ContextBudget] = {
    SEARCH: ContextBudget(24000, 12000),
    REASON: ContextBudget(120000, 40000),
    ANSWER: ContextBudget(24000, 12000),
}

QUERY_PROMPT = "Instead of answering the question, write a query to search for what is missing. Write it between <query> and </query>."
CODE_PROMPT = (
    "Instead of answering the question, write one additional piece of Python code that gets closer to the answer, and print its results. "
    "Write it in a block that begins with ```python and ends with ```. It runs alone: it sees nothing of earlier code."
)
ANSWER_PROMPT = "Answer the question. Think first, and write the final answer between <answer> and </answer>."

SHORTEST = 5  # Fewest characters of a query
LONGEST = 390  # Characters of a query that are sent to the retriever
WAIT = 60.0  # Time limit of the retriever in seconds
LOG_WAIT = 2.0  # Time limit for asking a failed retriever for the path of its log, in seconds


@dataclass(frozen=True)
class ExpertContext:
    """Carries out the orchestrator's tool calls in one rollout: asks experts, searches documents, runs programs, fills the notebook."""

    notebook: Notebook
    scenario: str  # id, with which the retriever selects the documents that it may return
    retriever: str  # base URL
    topk: int  # number of documents of a search
    sandbox: CommandRunner | None  # runs the code; None: code is written but not run
    code_seconds: float  # time limit of one program

    async def ask(self, expert: LLM, tool: str, prompt: str) -> str:
        """Sends the problem, as much of the notebook as fits, and a prompt to an expert. Returns the answer's text."""
        context = self.notebook.context(budget(tool, expert.facts.context_length))
        parts = filter(None, [context, f"Question: {self.notebook.problem}", prompt])
        reply = await expert.chat([{"role": "user", "content": "\n\n".join(parts)}], **PARAMETERS[tool])
        return reply.text

    async def search(self, expert: LLM) -> str:
        """Has the expert write a query and gets documents from the retriever. Returns the new ones as text, the most relevant one last."""
        text = await self.ask(expert, SEARCH, QUERY_PROMPT)
        query = between(text, "query").strip()
        if len(query) < SHORTEST:
            return "No search was made: the query has fewer than five characters."
        added = self.notebook.add_documents([*reversed(await self._retrieve(query[:LONGEST]))])
        return "\n\n".join(added) or "Nothing new was found."

    async def reason(self, expert: LLM) -> str:
        """Has the expert write a program, and runs it if there is a sandbox. Returns the program with its output."""
        text = await self.ask(expert, REASON, CODE_PROMPT)
        block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        if block is None:
            return "No code was written."
        code = block[1].strip()
        if self.sandbox is None:
            return self.notebook.add_code(code, "(not run)")
        output = await self._run(code, self.sandbox)
        return self.notebook.add_code(code, output) if output.strip() else "The code printed nothing."

    async def answer(self, expert: LLM, prompt: str) -> str:
        """Has the expert write the final answer, and returns that."""
        return between(await self.ask(expert, ANSWER, prompt), "answer").strip()

    async def _run(self, code: str, sandbox: CommandRunner) -> str:
        script = base64.b64encode(code.encode()).decode()
        command = f"file=$(mktemp) && echo {script} | base64 -d > $file && python3 $file"
        done = await sandbox.exec(command, seconds=self.code_seconds)
        return f"{done.output}\n(killed after {self.code_seconds:g} s)" if done.exit_code is None else done.output

    async def _retrieve(self, query: str) -> list[str]:
        """Returns the texts of the documents for a query, the most relevant one first. Raises InfraError if the retriever fails."""
        import aiohttp

        body = {"queries": [query], "topk": self.topk, "return_scores": True, "eid": self.scenario}
        url = f"{self.retriever.rstrip('/')}/retrieve"
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WAIT)) as session, session.post(url, json=body) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfraError(
                f"the retriever at {url} does not answer; start it, or correct `retriever`: {error!r}{await self._log()}"
            ) from error
        if response.status != 200:
            raise InfraError(f"the retriever at {url} answered HTTP {response.status}: {beginning(content, 200)}{await self._log()}")
        try:
            return [_text(each["document"]) for each in json_text.loads(content)[0]]
        except (ValueError, LookupError, TypeError) as error:
            message = f"the retriever at {url} answered {beginning(content, 200)!r}, which is not a list of documents; correct `retriever`"
            raise InfraError(f"{message}{await self._log()}") from error

    async def _log(self) -> str:
        """Returns the end of an error message with the path of the retriever's log, or an empty text if the retriever does not tell it."""
        import aiohttp

        url, timeout = f"{self.retriever.rstrip('/')}/health", aiohttp.ClientTimeout(LOG_WAIT)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return f"; its log: {json_text.loads(await response.read())['log']}"
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return ""


def budget(tool: str, context_length: int | None) -> ContextBudget:
    """Returns how many tokens of collected documents and programs fit into the prompt of an expert (another model) for a tool.

    If the full budget and the expert's longest answer together exceed the model's context, the budget is reduced by the factor by which
    both would have to shrink to fit.
    """
    full = BUDGETS[tool]
    share = min(1.0, (context_length or math.inf) / (full.all + PARAMETERS[tool]["max_tokens"]))
    return ContextBudget(int(full.all * share), int(full.code * share))


def between(text: str, tag: str) -> str:
    """Returns the last text between `<tag>` and `</tag>`, or the whole text if there is none."""
    pieces = tagged(text, tag)
    return pieces[-1] if pieces else text


def _text(document: Json) -> str:
    return str(document["content"] if "content" in document else document["contents"])
