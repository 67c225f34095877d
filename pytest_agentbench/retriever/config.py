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

    url: HttpUrl | None = Field(
        default=None,
        description="The base URL of a server, which ends in `/v1`. Without it, a model of sentence-transformers is loaded.",
    )
    model: str = Field(description="The model that made the index: its name on the server, or a name or folder for sentence-transformers.")
    query_prefix: str = Field(default="", description="Text that the model was trained to expect before a query. Documents do not get it.")
    api_key: Variable | None = Field(default=None, description="The name of the environment variable with the server's key.")
    timeout: PositiveSeconds = Field(default=60.0, description="Time limit of a request to the server in seconds.")


class TavilySpec(Spec):
    """A web search that is used if too few documents are near enough, and if its key is set."""

    url: HttpUrl = Field(default="https://api.tavily.com", description="The address of the web search.")
    api_key: Variable = Field(default="TAVILY_API_KEY", description="The name of the environment variable with its key.")
    results: int = Field(default=20, ge=1, le=20, description="The number of pages that are requested.")
    below: int = Field(default=3, ge=1, description="The web is searched if fewer documents than this are similar enough.")
    timeout: PositiveSeconds = Field(default=60.0, description="Time limit of a request in seconds.")


class RetrieverConfig(Spec):
    """The settings of a retriever."""

    index_dir: str = Field(default="$INDEX_DIR", description="The folder with `eval.index` and `eval.jsonl`.")
    embeddings: EmbeddingsSpec = Field(description="What makes the vectors of queries.")
    gpu: bool = Field(default=False, description="With `true`, the index is distributed over all visible GPUs, in half precision.")
    allowed: str | None = Field(
        default=None,
        description="A JSON file `{question id: [document ids]}`. A question gets only documents of its own list, or none without a list.",
    )
    tavily: TavilySpec | None = Field(default=None, description="A web search, which is used if the environment has its key.")
    port: int = Field(default=0, ge=0, le=65535, description="The port on 127.0.0.1; 0 selects a free one.")
    candidates: int = Field(
        default=1000, ge=1, description="The number of nearest documents that are considered, before the list and the limits remove some."
    )
    least_score: FiniteFloat = Field(default=0.1, description="Inner product above which a document is similar enough.")
    least_characters: int = Field(default=100, ge=0, description="A document has to be longer than this.")

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

    python: str = Field(
        default="agentbench",
        description="The interpreter: `agentbench`, an environment by name, the folder of a virtual environment, or a program.",
    )

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
