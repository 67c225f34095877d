"""The experts of an orchestrator: models that write a query, a program or the answer, and the notebook of what they gathered."""

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
    """How much of a context may be filled, in tokens."""

    all: int  # with the problem
    code: int  # of it, code with its output


@dataclass
class Notebook:
    """The documents and code of one problem."""

    problem: str
    document_characters: int  # of a document that are kept
    documents: list[str] = field(default_factory=list)  # oldest first
    code: list[str] = field(default_factory=list)  # code with its output, oldest first

    def add_documents(self, documents: Sequence[str]) -> list[str]:
        """Takes those that are new, cut where they are long; gives them as they are kept."""
        cut = [text if len(text) <= self.document_characters else f"{text[: self.document_characters]} ..." for text in documents]
        fresh = [text for text in dict.fromkeys(cut) if text not in self.documents]
        self.documents += fresh
        return fresh

    def add_code(self, code: str, output: str) -> str:
        """Takes a program with what it printed; gives it as it is kept."""
        self.code.append(f"```python\n{code}\n```\n\n```output\n{output}\n```")
        return self.code[-1]

    def context(self, room: ContextBudget) -> str:
        """What fits of it: the newest code, and the newest documents beside it, each in the order in which it came."""
        code = newest(self.code, min(room.code, room.all - estimated_tokens(self.problem)))
        left = room.all - estimated_tokens(self.problem) - sum(map(estimated_tokens, code))
        first = len(self.documents) - len(kept := newest(self.documents, left))
        documents = "\n\n".join(f"Doc {number}: {text}" for number, text in enumerate(kept, first + 1))
        parts = [("Documents:\n", documents), ("Python code and execution outputs:\n", "\n\n".join(code))]
        return "\n\n".join(head + text for head, text in parts if text)


def newest(pieces: Sequence[str], room: int) -> list[str]:
    """The last pieces that fit into so many tokens together."""
    kept = len(pieces)
    while kept and (room := room - estimated_tokens(pieces[kept - 1])) >= 0:
        kept -= 1
    return [*pieces[kept:]]


SEARCH, REASON, ANSWER = "search", "enhance_reasoning", "answer"

#: Tool -> the parameters of its expert's calls.
PARAMETERS: Mapping[str, Json] = {
    SEARCH: {"temperature": 1.0, "max_tokens": 4000},
    REASON: {"temperature": 1.0, "max_tokens": 40000},
    ANSWER: {"temperature": 0.2, "max_tokens": 8000},
}

#: Tool -> how much of the context its expert is given.
ROOMS: Mapping[str, ContextBudget] = {
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

SHORTEST = 5  # characters of a query
LONGEST = 390  # characters of a query that the retriever gets
WAIT = 60.0  # seconds for the retriever
PATIENCE = 2.0  # seconds for what a retriever that failed says of itself


@dataclass(frozen=True)
class ExpertContext:
    """What the tools of one rollout work with."""

    notebook: Notebook
    scenario: str  # its id, by which the retriever knows which documents it may give
    retriever: str  # base URL
    topk: int  # documents of a search
    sandbox: CommandRunner | None  # where code runs; None: it is only written
    code_seconds: float

    async def ask(self, expert: LLM, tool: str, prompt: str) -> str:
        """What an expert says to the problem and what is known of it."""
        context = self.notebook.context(budget(tool, expert.facts.context_length))
        parts = filter(None, [context, f"Question: {self.notebook.problem}", prompt])
        reply = await expert.chat([{"role": "user", "content": "\n\n".join(parts)}], **PARAMETERS[tool])
        return reply.text

    async def search(self, expert: LLM) -> str:
        """What is new of the documents that the retriever has for the expert's query, the most fitting one last."""
        text = await self.ask(expert, SEARCH, QUERY_PROMPT)
        query = between(text, "query").strip()
        if len(query) < SHORTEST:
            return "No search was made: the query has fewer than five characters."
        fresh = self.notebook.add_documents([*reversed(await self._retrieved(query[:LONGEST]))])
        return "\n\n".join(fresh) or "Nothing new was found."

    async def reason(self, expert: LLM) -> str:
        """The expert's program with what it printed; where nothing runs it, the program."""
        text = await self.ask(expert, REASON, CODE_PROMPT)
        block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        if block is None:
            return "No code was written."
        code = block[1].strip()
        if self.sandbox is None:
            return self.notebook.add_code(code, "(not run)")
        output = await self._printed(code, self.sandbox)
        return self.notebook.add_code(code, output) if output.strip() else "The code printed nothing."

    async def answer(self, expert: LLM, prompt: str) -> str:
        return between(await self.ask(expert, ANSWER, prompt), "answer").strip()

    async def _printed(self, code: str, sandbox: CommandRunner) -> str:
        script = base64.b64encode(code.encode()).decode()
        command = f"file=$(mktemp) && echo {script} | base64 -d > $file && python3 $file"
        done = await sandbox.exec(command, seconds=self.code_seconds)
        return f"{done.output}\n(killed after {self.code_seconds:g} s)" if done.exit_code is None else done.output

    async def _retrieved(self, query: str) -> list[str]:
        """The texts of the documents, the most fitting one first; raises InfraError where there is no answer of the right form."""
        import aiohttp

        body = {"queries": [query], "topk": self.topk, "return_scores": True, "eid": self.scenario}
        url = f"{self.retriever.rstrip('/')}/retrieve"
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WAIT)) as session, session.post(url, json=body) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfraError(f"the retriever at {url} does not answer: {error!r}{await self._log()}") from error
        if response.status != 200:
            raise InfraError(f"the retriever at {url} answered HTTP {response.status}: {beginning(content, 200)}{await self._log()}")
        try:
            return [_text(each["document"]) for each in json_text.loads(content)[0]]
        except (ValueError, LookupError, TypeError) as error:
            said = f"the retriever at {url} said {beginning(content, 200)!r}, which is no list of documents"
            raise InfraError(f"{said}{await self._log()}") from error

    async def _log(self) -> str:
        """Returns the end of a sentence with the path of the retriever's log, or an empty text if the retriever does not tell it."""
        import aiohttp

        url, patience = f"{self.retriever.rstrip('/')}/health", aiohttp.ClientTimeout(PATIENCE)
        try:
            async with aiohttp.ClientSession(timeout=patience) as session, session.get(url) as response:
                return f"; its log: {json_text.loads(await response.read())['log']}"
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return ""


def budget(tool: str, context_length: int | None) -> ContextBudget:
    """Returns how much of the notebook fits into an expert's prompt. Without a context length there is no bound.

    If the model is too short for prompt and answer, both become shorter by the same factor.
    """
    room = ROOMS[tool]
    share = min(1.0, (context_length or math.inf) / (room.all + PARAMETERS[tool]["max_tokens"]))
    return ContextBudget(int(room.all * share), int(room.code * share))


def between(text: str, tag: str) -> str:
    """What stands last between two tags; the whole text where there are none."""
    pieces = tagged(text, tag)
    return pieces[-1] if pieces else text


def _text(document: Json) -> str:
    return str(document["content"] if "content" in document else document["contents"])
