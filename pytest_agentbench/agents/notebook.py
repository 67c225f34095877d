"""What an orchestrator has gathered on a problem, and how much of it fits: whole pieces are left out, the oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_agentbench.llm.model_facts import estimated_tokens


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
