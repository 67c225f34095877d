"""The older Completions: https://platform.openai.com/docs/api-reference/completions"""

from __future__ import annotations

from typing import ClassVar

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import chat_form
from pytest_agentbench.tap.dialects.chat_form import Choice, ChoicesReader
from pytest_agentbench.tap.dialects.pieces import TextPieces
from pytest_agentbench.tap.dialects.reader import expect, in_front


class TextChoice(Choice):
    """A choice of Completions: a text."""

    _OWN = frozenset({"index", "finish_reason", "text"})

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._text = TextPieces()

    @property
    def has_output(self) -> bool:
        return any(self._text)

    def _merge_content(self, data: Json) -> str:
        text = expect(str, data.get("text") or "")
        self._text.append(text)
        return "content" if text else "other"

    def _content(self) -> Json:
        return {"text": "".join(self._text)}


class CompletionsReader(ChoicesReader):
    """Reads an answer of Completions."""

    name = "completions"
    _OBJECT: ClassVar[str] = "text_completion"
    _CHOICE = TextChoice

    @staticmethod
    def salted(request: Json, salt: str) -> Json:
        """Puts the salt (a text that prevents cache hits) before a prompt that is a text. Lists of tokens or prompts stay unchanged."""
        prompt = request.get("prompt")
        return {**request, "prompt": in_front(salt, prompt)} if isinstance(prompt, str) else request

    @staticmethod
    def chat_request(request: Json) -> list[Json]:
        """Returns a prompt that is a text as a message of the user. Token lists and lists of prompts have no such form."""
        return [{"role": "user", "content": prompt}] if isinstance(prompt := request.get("prompt"), str) else []

    @staticmethod
    def chat_reply(reply: Json) -> list[Json]:
        return [{"role": "assistant", "content": choice.get("text")} for choice in chat_form.objects(reply.get("choices"))[:1]]
