"""The settings of a retriever: a line of JSON that its process reads, or a YAML file that says in addition what it runs in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, StringConstraints, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, load_yaml, validate

WHERE = "retriever config"
GPU_CANDIDATES = 2048  # documents that FAISS finds on a GPU for a query at most
NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})")  # an environment variable in the text of a setting
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]


class EmbeddingsSpec(Spec):
    """Who makes vectors of texts: an OpenAI-compatible server, or a model of sentence-transformers in this process."""

    url: HttpUrl | None = None  # base URL, which ends in /v1
    model: str  # that the server has, or name or folder of a model of sentence-transformers
    query_prefix: str = ""  # before each query, and before no document: what the model was trained to see there
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

    index_dir: str = "$INDEX_DIR"  # folder with eval.index and eval.jsonl
    embeddings: EmbeddingsSpec
    gpu: bool = False  # the index lies on all GPUs that are visible, a part of it on each, in half precision
    allowed: str | None = None  # JSON file {question id: [document ids]}: a question gets documents of its own list only
    tavily: TavilySpec | None = None
    port: int = Field(default=0, ge=0, le=65535)  # on 127.0.0.1; 0 takes a free one
    candidates: int = Field(default=1000, ge=1)  # nearest documents that are looked at, before lists and limits leave some out
    least_score: FiniteFloat = 0.1  # inner product, above which a document is near enough
    least_characters: int = Field(default=100, ge=0)  # that a document has to be longer than

    @model_validator(mode="after")
    def _a_key_is_a_servers(self) -> RetrieverConfig:
        if self.embeddings.api_key and not self.embeddings.url:
            raise ValueError("embeddings.api_key only goes with embeddings.url")
        return self

    @model_validator(mode="after")
    def _a_gpu_finds_so_many(self) -> RetrieverConfig:
        if self.gpu and self.candidates > GPU_CANDIDATES:
            raise ValueError(f"candidates should be at most {GPU_CANDIDATES} with `gpu`, not {self.candidates}")
        return self


class RetrieverFile(RetrieverConfig):
    """The keys of a YAML file for `agentbench retriever serve`."""

    python: str = "agentbench"  # the interpreter, as a stack's `python`: an environment by name, a folder, or a program

    @property
    def config(self) -> RetrieverConfig:
        """Returns the settings without `python`, for the process."""
        return RetrieverConfig(**self.model_dump(exclude={"python"}))


def parse_config(data: Any) -> RetrieverConfig:
    """The settings in `data`; raises ConfigError with a sentence."""
    return validate(RetrieverConfig, data, WHERE)


def is_retriever(file: Path) -> bool:
    """Whether a YAML file has settings of a retriever: `embeddings`, which no backend has."""
    return file.suffix in (".yaml", ".yml") and file.is_file() and "embeddings" in load_yaml(file)


def read_settings(file: Path) -> RetrieverFile:
    """The settings in a YAML file, whose paths are relative to its folder; raises ConfigError with a sentence."""
    settings, folder = validate(RetrieverFile, load_yaml(file), str(file)), file.absolute().parent
    paths = {key: _below(folder, text) for key in ("index_dir", "allowed") if (text := getattr(settings, key))}
    embeddings = settings.embeddings
    if embeddings.url is None and embeddings.model.startswith(("./", "../", "~")):
        embeddings = embeddings.model_copy(update={"model": _below(folder, embeddings.model)})
    return settings.model_copy(update={**paths, "embeddings": embeddings})


def _below(folder: Path, text: str) -> str:
    """Returns an absolute path; a text that begins with an environment variable stays."""
    return text if text.startswith("$") else str(folder / Path(text).expanduser())


def expand_variables(text: str, key: str) -> str:
    """The text of a setting with the values of the environment variables that it names; raises ConfigError for one that is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ConfigError(f"{WHERE}: {key} is {text}, and {name} is not set: export {name}=...")
        return os.environ[name]

    return NAMED.sub(value, text)
