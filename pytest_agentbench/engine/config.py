"""The engine's settings: the line of JSON that it reads from stdin."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pytest_agentbench.lib.config import Spec, validate

WHERE = "engine config"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EngineSettings(Spec):
    """What an engine serves and how fast: keys of its own line of JSON, and of a backend's YAML."""

    policy: str = Field(default="lexical", description="What decides the answers: `lexical`, `careless` or `script`.")
    script: str | None = Field(
        default=None, description="The file with the answers of the policy `script`, relative to the YAML. Only that policy has one."
    )
    port: int = Field(default=0, ge=0, le=65535, description="The port on 127.0.0.1. The default 0 takes a free one.")
    ttft_ms: Milliseconds = Field(default=0, description="Milliseconds from the arrival of a request to its first token.")
    itl_ms: Milliseconds = Field(default=0, description="Milliseconds between two tokens.")
    jitter: float = Field(
        default=0,
        ge=0,
        le=1,
        description="The share, from 0 to 1, by which both times may differ. The same request has the same times in every run.",
    )
    seed: int = Field(default=0, description="The seed of the jitter, and of the errors of the policy `careless`.")
    error_rate: float = Field(
        default=0,
        ge=0,
        le=1,
        description="The policy `careless` is `lexical` with mistakes in this share of its tool calls, from 0 to 1, "
        "to see what a [gate](gates.md) finds. Only that policy has one.",
    )
    max_concurrency: int | None = Field(
        default=None,
        ge=1,
        description="The maximum number of requests that are answered at a time; further ones queue, and `/metrics` shows them. "
        "The default is no limit.",
    )
    kv_blocks: int = Field(
        default=65_536,
        ge=1,
        description="Blocks of the KV cache. Requests hold theirs until they are answered; equal beginnings are held once. "
        "A request that finds no free blocks queues, and one that never fits gets a 400.",
    )
    block_size: int = Field(default=16, ge=1, description="Tokens in a block, as in vLLM.")
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="The context length in tokens, as in vLLM: it is in `/v1/models`, and a request whose prompt and `max_tokens` "
        "exceed it gets a 400. Without it, the KV cache is the limit.",
    )
    request_log: str | None = Field(
        default=None, description="A file that gets the body of every chat request, one JSON line each. Without it, none is written."
    )


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
