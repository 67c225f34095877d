"""The settings of a retriever: the line of JSON that it reads from stdin."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, StringConstraints, field_validator, model_validator

from pytest_agentbench.lib.config import Spec, validate

WHERE = "retriever config"
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]


class EmbeddingsSpec(Spec):
    """Who makes vectors of texts: an OpenAI-compatible server, or a model of sentence-transformers in this process."""

    url: HttpUrl | None = None  # base URL, which ends in /v1
    model: str  # that the server has, or name or folder of a model of sentence-transformers
    api_key: Variable | None = None  # name of an environment variable
    timeout: float = Field(default=60.0, gt=0)  # seconds for a request to the server


class TavilySpec(Spec):
    """A web search that is asked where the documents have too little; it is not, where no key is set."""

    url: HttpUrl = "https://api.tavily.com"
    api_key: Variable = "TAVILY_API_KEY"  # name of an environment variable
    results: int = Field(default=20, ge=1, le=20)
    below: int = Field(default=3, ge=1)  # asked where fewer documents than this were near enough
    timeout: float = Field(default=60.0, gt=0)  # seconds


class RetrieverConfig(Spec):
    """What a retriever serves."""

    index_dir: str = Field(
        default="", validate_default=True
    )  # folder with eval.index and eval.jsonl; empty: the one that the environment variable INDEX_DIR names
    embeddings: EmbeddingsSpec
    allowed: str | None = None  # JSON file {question id: [document ids]}: a question gets documents of its own list only
    tavily: TavilySpec | None = None
    port: int = Field(default=0, ge=0, le=65535)  # on 127.0.0.1; 0 takes a free one
    candidates: int = Field(default=1000, ge=1)  # nearest documents that are looked at, before lists and limits leave some out
    least_score: FiniteFloat = 0.1  # inner product, above which a document is near enough
    least_characters: int = Field(default=100, ge=0)  # that a document has to be longer than

    @field_validator("index_dir")
    @classmethod
    def _somewhere(cls, folder: str) -> str:
        if not (folder := folder or os.environ.get("INDEX_DIR", "")):
            raise ValueError("should be a folder with eval.index and eval.jsonl; the environment variable INDEX_DIR may name it instead")
        return folder

    @model_validator(mode="after")
    def _a_key_is_a_servers(self) -> RetrieverConfig:
        if self.embeddings.api_key and not self.embeddings.url:
            raise ValueError("embeddings.api_key only goes with embeddings.url")
        return self


def parse_config(data: Any) -> RetrieverConfig:
    """The settings in `data`; raises ConfigError with a sentence."""
    return validate(RetrieverConfig, data, WHERE)
