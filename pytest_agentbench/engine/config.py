"""The engine's settings: the line of JSON that it reads from stdin."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pytest_agentbench.lib.config import Spec, validate

WHERE = "engine config"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EngineSettings(Spec):
    """What an engine serves and how fast: keys of its own line of JSON, and of a backend's YAML."""

    policy: str = "lexical"  # a name in POLICIES
    script: str | None = None  # file of the policy `script`; in a YAML relative to that
    port: int = Field(default=0, ge=0, le=65535)  # 0 takes a free one
    ttft_ms: Milliseconds = 0  # from a request's start to its first token
    itl_ms: Milliseconds = 0  # between tokens
    jitter: float = Field(default=0, ge=0, le=1)  # share by which each of these times may differ
    seed: int = 0  # of the jitter, and of the errors of the policy `careless`
    error_rate: float = Field(default=0, ge=0, le=1)  # share of the tool calls that the policy `careless` gets wrong
    max_concurrency: int | None = Field(default=None, ge=1)  # requests served at a time, others queue; None for all
    kv_blocks: int = Field(default=65_536, ge=1)  # blocks of the KV cache, by default a million tokens; requests that find no room queue
    block_size: int = Field(default=16, ge=1)  # tokens in a block, as in vLLM
    max_model_len: int | None = Field(
        default=None, ge=1
    )  # tokens of a prompt and its answer, as in vLLM; None: what the cache has room for
    request_log: str | None = None  # JSONL file that gets the body of every chat request


class EngineConfig(EngineSettings):
    """The settings of an engine's process; an empty `script` is none."""

    model: str = Field(default="embedded-lexical", min_length=1)  # the only name that requests may ask for
    host: str = "127.0.0.1"
    held: bool = False  # whether who starts it holds the port, with SO_REUSEPORT, so that nobody else takes it between two engines

    @field_validator("script")
    @classmethod
    def _no_script(cls, script: str | None) -> str | None:
        return script or None

    @model_validator(mode="after")
    def _script_has_a_file(self) -> EngineConfig:
        if (self.policy == "script") != (self.script is not None):
            raise ValueError("script must name a file when, and only when, policy is 'script'")
        if self.error_rate and self.policy != "careless":
            raise ValueError("only policy 'careless' has an error_rate")
        return self


def parse_config(data: Any) -> EngineConfig:
    """The settings in `data`; raises ConfigError with a sentence."""
    return validate(EngineConfig, data, WHERE)
