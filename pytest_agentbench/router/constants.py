"""The constants of the routing rule, and the presets `nat` and `sticky`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, FiniteFloat, PositiveInt, model_validator

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.config import PositiveSeconds, Seconds, Spec, validate

_Weight = FiniteFloat


class Constants(Spec):
    """The constants of the routing rule. The defaults are the values that the NeMo Agent Toolkit ships."""

    affinity_base: _Weight = Field(default=0.30, ge=0, description="Bonus of the worker that a session used last.")
    affinity_reuse: _Weight = Field(default=0.08, ge=0, description="Bonus for each further call that is expected of the session.")
    affinity_iat: _Weight = Field(default=0.20, ge=0, description="Bonus for short times between the session's calls.")
    switch_base: _Weight = Field(default=0.10, ge=0, description="Penalty of each other worker.")
    switch_reuse: _Weight = Field(default=0.04, ge=0, description="Penalty for each further call that is expected of the session.")
    switch_iat: _Weight = Field(default=0.03, ge=0, description="Penalty for short times between the session's calls.")
    sticky_load_floor: _Weight = Field(default=0.01, ge=0, le=1, description="Lowest load factor of the session's last worker.")
    queue_weight: _Weight = Field(default=1.5, ge=0, description="Weight of waiting calls.")
    gpu_weight: _Weight = Field(default=1.0, ge=0, description="Weight of the share of the KV cache in use.")
    work_weight: _Weight = Field(default=0.45, ge=0, description="Weight of the work that sessions of a worker are expected to bring.")
    job_gpu_weight: _Weight = Field(default=0.40, ge=0, description="Weight of the call's cost times the share of the KV cache in use.")
    job_queue_weight: _Weight = Field(default=0.20, ge=0, description="Weight of the call's cost times the number of waiting calls.")
    temperature_base: _Weight = Field(default=1.0, gt=0, description="Temperature of the choice for a call without a session.")
    temperature_min: _Weight = Field(default=0.15, gt=0, description="Lowest temperature.")
    temperature_max: _Weight = Field(default=2.0, gt=0, description="Highest temperature.")
    beta_weight: _Weight = Field(default=0.10, ge=0, description="Weight of the sample from the Beta distribution of a worker's rewards.")
    lints_lambda: _Weight = Field(default=1.0, gt=0, description="Regularisation of the linear model.")
    lints_spread: _Weight = Field(default=0.25, ge=0, description="Spread of the sampled weights of the linear model.")
    lints_forget: _Weight = Field(default=0.995, gt=0, le=1, description="Share of earlier observations that an update keeps.")
    average_alpha: _Weight = Field(default=0.2, gt=0, le=1, description="Share of a new latency in the moving averages.")
    token_scale: _Weight = Field(default=1024.0, gt=0, description="Prompt tokens that cost as much as a short answer.")
    prefill_weight: _Weight = Field(default=1.0, ge=0, description="Weight of the prompt tokens that are not in the cache.")
    timeout: PositiveSeconds = Field(default=120.0, description="Time after which a call without feedback gets `timeout_reward`.")
    timeout_reward: _Weight = Field(default=0.0, ge=0, le=1, description="Reward of such a call.")
    sweep_interval: Seconds = Field(default=5.0, description="Shortest time between two searches for such calls.")
    prefix_ttl: PositiveSeconds = Field(default=3600.0, description="Time after its last call at which a session is forgotten.")
    max_prefixes: PositiveInt = Field(
        default=100_000, description="Most sessions that are remembered. The one whose last call is the oldest is forgotten first."
    )
    max_pending: PositiveInt = Field(default=100_000, description="Most calls that wait for feedback. The oldest is forgotten.")
    baseline: Literal["own", "all"] = Field(
        default="own",
        description="What a latency is compared with: the average of the call's `own` worker, or of `all` workers. With `own`, a worker "
        "that is always slow earns as much as the others.",
    )
    last_calls: Literal["free", "kept"] = Field(
        default="free",
        description="Whether the last call of a session has neither bonus nor penalty, so that it often leaves its cache, or has them.",
    )
    negative_scores: Literal["shrunk", "grown"] = Field(
        default="shrunk",
        description="Whether load moves a negative score towards zero, which favours loaded workers, or away from it.",
    )
    missing_metrics: Literal["idle", "own-calls"] = Field(
        default="idle",
        description="Whether a worker without metrics counts as idle, or as loaded by the calls that the router sent there.",
    )
    disconnects: Literal["ignored", "judged"] = Field(
        default="ignored",
        description="Whether a call that its client ended gives no feedback, so that it counts as timed out later, or is judged at once.",
    )

    @model_validator(mode="after")
    def _temperatures_are_in_order(self) -> Constants:
        if self.temperature_min > self.temperature_max:
            raise ValueError(f"temperature_min, {self.temperature_min:g}, must not be above temperature_max, {self.temperature_max:g}")
        return self


#: `nat` are the values of the NeMo Agent Toolkit. `sticky` removes its faults and keeps more sessions at their worker.
PRESETS: Mapping[str, Constants] = {
    "nat": Constants(),
    "sticky": Constants(
        sticky_load_floor=0.7,
        temperature_base=0.1,
        temperature_min=0.02,
        baseline="all",
        last_calls="kept",
        negative_scores="grown",
        missing_metrics="own-calls",
        disconnects="judged",
    ),
}


def make_constants(preset: str, changes: Mapping[str, Any], where: str) -> Constants:
    """Returns the constants of a preset with changed values. Raises ConfigError, which names `where`."""
    if preset not in PRESETS:
        raise ConfigError(f"{where}: {unknown_name('preset', preset, PRESETS)}")
    return validate(Constants, {**PRESETS[preset].model_dump(), **changes}, where)
