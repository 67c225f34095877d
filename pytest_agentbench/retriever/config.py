"""The settings of a retriever: a line of JSON for its process, or a YAML file, which also names the interpreter."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import PositiveSeconds, Spec, load_yaml, matching, validate

WHERE = "retriever config"
GPU_CANDIDATES = 2048  # most documents that FAISS can find for a query on a GPU
NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})")  # an environment variable in the text of a setting
Variable = Annotated[str, matching(r"^[A-Za-z_]\w*$", "the name of an environment variable")]
HttpUrl = Annotated[str, matching(r"^https?://\S+$", "a URL that starts with http:// or https://")]


class EmbeddingsSpec(Spec):
    """The source of the vectors of texts: an OpenAI-compatible server, or a model of sentence-transformers in this process."""

    url: HttpUrl | None = None  # base URL of a server, which ends in /v1
    model: str  # model of the server, or name or folder of a model of sentence-transformers
    query_prefix: str = ""  # text before each query, but not before documents, if the model was trained with one
    api_key: Variable | None = None  # name of an environment variable
    timeout: PositiveSeconds = 60.0  # time limit of a request to the server, seconds


class TavilySpec(Spec):
    """A web search that is used if too few documents are near enough, and if its key is set."""

    url: HttpUrl = "https://api.tavily.com"
    api_key: Variable = "TAVILY_API_KEY"  # name of an environment variable
    results: int = Field(default=20, ge=1, le=20)
    below: int = Field(default=3, ge=1)  # the search is used if fewer documents than this are near enough
    timeout: PositiveSeconds = 60.0  # time limit of a request, seconds


class RetrieverConfig(Spec):
    """The settings of a retriever."""

    index_dir: str = "$INDEX_DIR"  # folder with eval.index and eval.jsonl
    embeddings: EmbeddingsSpec
    gpu: bool = False  # whether to distribute the index over all visible GPUs, in half precision
    allowed: str | None = None  # JSON file {question id: [document ids]}; a question only gets documents of its list
    tavily: TavilySpec | None = None
    port: int = Field(default=0, ge=0, le=65535)  # port on 127.0.0.1; 0 selects a free one
    candidates: int = Field(default=1000, ge=1)  # number of nearest documents before `allowed` and the limits exclude some
    least_score: FiniteFloat = 0.1  # a document is near enough if its inner product is higher than this
    least_characters: int = Field(default=100, ge=0)  # documents must be longer than this

    @model_validator(mode="after")
    def _a_key_is_a_servers(self) -> RetrieverConfig:
        if self.embeddings.api_key and not self.embeddings.url:
            raise ValueError("embeddings.api_key is only allowed together with embeddings.url")
        return self

    @model_validator(mode="after")
    def _a_gpu_finds_so_many(self) -> RetrieverConfig:
        if self.gpu and self.candidates > GPU_CANDIDATES:
            raise ValueError(f"candidates must be at most {GPU_CANDIDATES} with `gpu`, not {self.candidates}")
        return self


class RetrieverFile(RetrieverConfig):
    """The keys of a YAML file for `agentbench retriever serve`."""

    python: str = "agentbench"  # interpreter: name of an environment, folder or program, as for `python` of a stack

    @property
    def config(self) -> RetrieverConfig:
        """The settings for the process of the retriever: all except `python`, its interpreter."""
        return RetrieverConfig(**self.model_dump(exclude={"python"}))


def parse_config(data: Any) -> RetrieverConfig:
    """Validates settings. Raises ConfigError."""
    return validate(RetrieverConfig, data, WHERE)


def is_retriever(file: Path) -> bool:
    """Returns whether a YAML file contains settings of a retriever: only they have the key `embeddings`."""
    return file.suffix in (".yaml", ".yml") and file.is_file() and "embeddings" in load_yaml(file)


def read_settings(file: Path) -> RetrieverFile:
    """Reads the settings in a YAML file, whose paths are relative to its folder. Raises ConfigError."""
    settings, folder = validate(RetrieverFile, load_yaml(file), str(file)), file.absolute().parent
    paths = {key: _below(folder, text) for key in ("index_dir", "allowed") if (text := getattr(settings, key))}
    embeddings = settings.embeddings
    if embeddings.url is None and embeddings.model.startswith(("./", "../", "~")):
        embeddings = embeddings.model_copy(update={"model": _below(folder, embeddings.model)})
    return settings.model_copy(update={**paths, "embeddings": embeddings})


def _below(folder: Path, text: str) -> str:
    """Returns the absolute path for one relative to `folder`. A text that begins with an environment variable (`$`) stays unchanged."""
    return text if text.startswith("$") else str(folder / Path(text).expanduser())


def expand_variables(text: str, key: str) -> str:
    """Replaces environment variables in the text of a setting. Raises ConfigError if one is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ConfigError(f"{WHERE}: {key} is {text}, but the environment variable {name} is not set: export {name}=...")
        return os.environ[name]

    return NAMED.sub(value, text)
