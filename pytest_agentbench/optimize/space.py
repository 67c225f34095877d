"""The search space of `agentbench optimize`: reads space.yaml, and has Optuna suggest settings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, FiniteFloat, field_validator, model_validator

from pytest_agentbench.errors import ConfigError, unknown_key, unknown_name
from pytest_agentbench.lib.config import Spec, load_yaml, validate
from pytest_agentbench.metrics import registry
from pytest_agentbench.optimize.spending import SPENDING
from pytest_agentbench.records import Json
from pytest_agentbench.suites.arms import CONCURRENCY, OF_AGENT, OF_BACKEND, VARIANT

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

QUALITY = "quality"  # the objective that is the main score of the suite
PERCENTILES = ("p50", "p90")
Suggested = str | bool | int | float | None  # a value that Optuna can choose
RangeEnd = int | FiniteFloat  # of a range; YAML's 1 is whole, and 1.0 is not


class ParameterSpec(Spec):
    """The values of one setting: a list of values, or a range of numbers."""

    values: list[Suggested] | None = Field(default=None, min_length=1, description="The values to choose from, in no order.")
    low: RangeEnd | None = Field(default=None, description="The smallest number of a range.")
    high: RangeEnd | None = Field(
        default=None,
        description="The largest number of a range. If `low`, `high` and `step` are whole numbers (1, not 1.0), all its numbers are.",
    )
    step: RangeEnd | None = Field(default=None, gt=0, description="The distance between two numbers of a range.")
    log: bool = Field(default=False, description="Whether to search a range on a logarithmic scale. It then has no `step`.")
    when: dict[str, Suggested | list[Suggested]] = Field(
        default={}, description="Setting -> value, or list of values, with which this setting exists. That setting stands above this one."
    )

    @model_validator(mode="after")
    def _has_values(self) -> ParameterSpec:
        in_range = self.low is not None and self.high is not None
        if (self.values is not None) == in_range or (self.low is None) != (self.high is None):
            raise ValueError("must have either `values`, or `low` and `high`")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("`low` must not be greater than `high`")
        if self.log and (self.step is not None or (self.low or 0) <= 0):
            raise ValueError("with `log`, `low` must be above 0, and there is no `step`")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the numbers of the range are whole."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    @property
    def size(self) -> int | None:
        """The number of values, or None if it has no limit."""
        if self.values is not None:
            return len(self.values)
        assert self.low is not None and self.high is not None  # `_has_values` has checked it
        step = self.step or (1 if self.is_whole else None)
        return None if step is None else int((self.high - self.low) / step + 1e-9) + 1

    def exists(self, settings: Mapping[str, Any]) -> bool:
        """Returns whether the setting exists beside the settings above it."""
        return all(
            path in settings and settings[path] in (wanted if isinstance(wanted, list) else [wanted]) for path, wanted in self.when.items()
        )

    def suggest(self, trial: BaseTrial, path: str) -> Suggested:
        """Returns the value that Optuna suggests for this setting."""
        if self.values is not None:
            chosen: Suggested = trial.suggest_categorical(path, self.values)
            return chosen
        assert self.low is not None and self.high is not None  # `_has_values` has checked it
        if self.is_whole:
            return trial.suggest_int(path, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(path, self.low, self.high, step=self.step, log=self.log)

    @property
    def example(self) -> Suggested:
        """A value of the setting."""
        return self.values[0] if self.values is not None else int(self.low or 0) if self.is_whole else self.low


class SpaceSpec(Spec):
    """The contents of a space.yaml: the settings to search, and the objectives."""

    parameters: dict[str, ParameterSpec] = Field(
        min_length=1,
        description=(
            "Path of a setting -> its values: `agent.…` and `backend.…` as in `--agentbench-set`, `concurrency`, or `variant`. A list is "
            "short for `values`."
        ),
    )
    objectives: list[str] = Field(
        default=["rollout.p50"],
        min_length=1,
        description=(
            "What to make small, as a ratio to the default settings: `rollout`, `ttft`, `tpot` or `e2e` with `.p50` or `.p90`, or `tokens` "
            "or `cost` of a rollout. `cost` needs a backend with `prices`. `quality` may be a further one. With several, the study finds "
            "the settings that no other is better than in all of them."
        ),
    )
    quality_weight: FiniteFloat = Field(
        default=1.0,
        ge=0,
        description=(
            "How much a loss of quality counts: with 1, a loss of 0.1 of the main score's range is as bad as being 10 % slower. Only the "
            "ranking uses it."
        ),
    )

    @field_validator("parameters", mode="before")
    @classmethod
    def _lists_are_values(cls, parameters: Any) -> Any:
        if not isinstance(parameters, dict):
            return parameters
        return {path: {"values": each} if isinstance(each, list) else each for path, each in parameters.items()}

    @property
    def size(self) -> int | None:
        """The largest possible number of different settings, or None if it has no limit."""
        sizes = [each.size for each in self.parameters.values()]
        return None if None in sizes else reduce(mul, (size for size in sizes if size is not None), 1)

    def suggest(self, trial: BaseTrial) -> Json:
        """Returns the settings that Optuna suggests for a trial: path -> value."""
        settings: Json = {}
        for path, parameter in self.parameters.items():
            if parameter.exists(settings):
                settings[path] = parameter.suggest(trial, path)
        return settings


def read_space(file: Path) -> SpaceSpec:
    """Reads a space.yaml. Raises ConfigError with the known names if a key, a setting or an objective is unknown."""
    space = validate(SpaceSpec, load_yaml(file), str(file))
    for path, parameter in space.parameters.items():
        if path not in (CONCURRENCY, VARIANT) and not path.startswith((OF_AGENT, OF_BACKEND)):
            known = (CONCURRENCY, VARIANT, f"{OF_AGENT}...", f"{OF_BACKEND}...")
            raise ConfigError(f"{file}: parameters: {unknown_key(path, known)}")
        above = [*space.parameters][: [*space.parameters].index(path)]
        for needed in parameter.when:
            if needed not in above:
                raise ConfigError(f"{file}: parameters.{path}.when: {unknown_name('setting above it', needed, above)}")
    known_objectives = [*(f"{name}.{each}" for name in registry.gated() for each in PERCENTILES), *SPENDING, QUALITY]
    for objective in space.objectives:
        if objective not in known_objectives:
            raise ConfigError(f"{file}: objectives: {unknown_name('objective', objective, known_objectives)}")
    if space.objectives[0] == QUALITY:
        raise ConfigError(f"{file}: objectives: the first one must be about speed or cost, such as rollout.p50, not {QUALITY}")
    return space


def examples(space: SpaceSpec) -> Sequence[Json]:
    """Returns settings in which each setting of the space occurs, together with those that it needs."""
    return [
        {**{name: wanted[0] if isinstance(wanted, list) else wanted for name, wanted in parameter.when.items()}, path: parameter.example}
        for path, parameter in space.parameters.items()
    ]
