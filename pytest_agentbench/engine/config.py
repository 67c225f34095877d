"""The engine's settings: the line of JSON that it reads from stdin."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pytest_agentbench.lib.config import Spec, validate

WHERE = "engine config"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EngineSettings(Spec):
    """The settings of an engine's answers and speed: keys in its line of JSON, and in a backend's YAML."""

    policy: str = Field(default="lexical", description="The policy that decides the answers: `lexical`, `careless` or `script`.")
    script: str | None = Field(
        default=None, description="The file with the answers, relative to the YAML. Only for the policy `script`, which requires it."
    )
    port: int = Field(default=0, ge=0, le=65535, description="The port on 127.0.0.1. The default, 0, selects a free port.")
    ttft_ms: Milliseconds = Field(default=0, description="Milliseconds from the arrival of a request to its first token.")
    itl_ms: Milliseconds = Field(default=0, description="Milliseconds between two tokens.")
    prefill_ms_per_1k: Milliseconds = Field(
        default=0,
        description="Milliseconds before `ttft_ms` for each thousand prompt tokens that are not in the prefix cache. An engine computes "
        "one prompt at a time. With the default, hits in the cache save no time.",
    )
    prefill_ms_per_1k2: Milliseconds = Field(
        default=0, description="Milliseconds, in addition, for the square of the number of these thousands of tokens."
    )
    jitter: float = Field(
        default=0,
        ge=0,
        le=1,
        description="The share, from 0 to 1, by which `ttft_ms` and `itl_ms` vary at most. The same request has the same times in "
        "every run.",
    )
    seed: int = Field(default=0, description="The seed of the jitter, and of the errors of the policy `careless`.")
    error_rate: float = Field(
        default=0,
        ge=0,
        le=1,
        description="The share of tool calls, from 0 to 1, in which the policy `careless` selects a wrong tool. This shows what a "
        "[gate](gates.md) detects. Not allowed for other policies.",
    )
    max_concurrency: int | None = Field(
        default=None,
        ge=1,
        description="The maximum number of requests that are answered at the same time. Others wait in a queue, which `/metrics` shows. "
        "By default the number is unlimited.",
    )
    kv_blocks: int = Field(
        default=65_536,
        ge=1,
        description="Blocks of the KV cache. Requests hold their blocks until they are answered; equal beginnings share blocks. "
        "A request waits until enough blocks are free. One that can never fit gets a 400.",
    )
    block_size: int = Field(default=16, ge=1, description="Tokens in a block, as in vLLM.")
    cache_answers: bool = Field(
        default=False,
        description="Whether the blocks of an answer stay in the prefix cache, as in a real engine, so that the next turn of a "
        "conversation finds them there.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="The context length in tokens, as in vLLM. `/v1/models` shows it, and a request whose prompt and `max_tokens` "
        "exceed it gets a 400. By default the size of the KV cache is the limit.",
    )
    worker_id: str | None = Field(
        default=None,
        min_length=1,
        description="The engine's name in its answers, as `nvext.worker_id`, where Dynamo names its workers. By default only answers to "
        "requests whose `nvext.extra_fields` contains `worker_id` have a name, which is the engine's address.",
    )
    request_log: str | None = Field(
        default=None, description="A file to which the body of each chat request is appended as a line of JSON. By default none is written."
    )


class EngineConfig(EngineSettings):
    """The settings of an engine's process. An empty `script` means that there is none."""

    model: str = Field(default="embedded-lexical", min_length=1)  # the only model name that requests may have
    host: str = "127.0.0.1"
    held: bool = False  # whether the starting process reserves the port with SO_REUSEPORT, so that no other takes it between two engines

    @field_validator("script")
    @classmethod
    def _no_script(cls, script: str | None) -> str | None:
        return script or None

    @model_validator(mode="after")
    def _script_has_a_file(self) -> EngineConfig:
        if (self.policy == "script") != (self.script is not None):
            raise ValueError("script must name a file if policy is 'script', and must be absent otherwise")
        if self.error_rate and self.policy != "careless":
            raise ValueError("error_rate is only allowed if policy is 'careless'")
        return self


def parse_config(data: Any) -> EngineConfig:
    """Returns the settings in `data`. Raises ConfigError if they are invalid."""
    return validate(EngineConfig, data, WHERE)
