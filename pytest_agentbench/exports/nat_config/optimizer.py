"""Reads the section `optimizer` of a configuration of the NeMo Agent Toolkit, and the search spaces of its components."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.exports.nat_config.reading import SECTIONS, NatPart, NatReading

PARAMETERS, SPACE = "optimizable_params", "search_space"


@dataclass(frozen=True)
class TunedKey:
    """A key of a component that the toolkit's optimizer would vary. Without values and bounds, the toolkit has a range of its own."""

    path: str  # for example llms.dynamo_llm.nvext_prefix_osl
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None  # distance of two values of a grid

    @property
    def size(self) -> int | None:
        """The number of values in a grid, or None if it is unknown."""
        if self.values:
            return len(self.values)
        if self.low is None or self.high is None or not self.step or self.step < 0 or self.high < self.low:
            return None
        return int((self.high - self.low) / self.step + 1e-9) + 1


@dataclass(frozen=True)
class TunedMetric:
    """A metric that the toolkit's optimizer would improve: the average of an evaluator."""

    name: str
    evaluator: str
    direction: str  # maximize or minimize
    weight: float


@dataclass(frozen=True)
class NatStudy:
    """The search over settings that a configuration describes."""

    metrics: tuple[TunedMetric, ...]
    keys: tuple[TunedKey, ...]
    numeric: bool  # whether numbers and choices are varied
    prompts: bool  # whether prompts are varied
    sampler: str  # grid, bayesian, or empty for the toolkit's default
    trials: int | None  # largest number of combinations that are tried
    repeats: int  # evaluations of each combination

    @property
    def combinations(self) -> int | None:
        """The number of combinations in the whole grid, or None if it is unknown."""
        sizes = [each.size for each in self.keys]
        return None if None in sizes or not sizes else math.prod(size for size in sizes if size)

    @property
    def sentence(self) -> str:
        """A sentence about the search: its metrics and keys."""
        metrics = ", ".join(f"{each.name} ({each.direction}, weight {each.weight:g})" for each in self.metrics) or "no metric"
        grid = "" if self.combinations is None else f" with {self.combinations} combinations"
        keys = f"over {', '.join(each.path for each in self.keys)}{grid}" if self.keys else "over no key"
        return f"the optimizer searches {keys}, for {metrics}"


def read_study(reading: NatReading) -> NatStudy | None:
    """Returns the search over settings, or None if the configuration has none. `search_space` notes which of its keys are used.

    Raises ConfigError if a value has the wrong type.
    """
    if "optimizer" not in reading.keys:
        return None
    part = reading.part(("optimizer",), "optimizer")
    metrics = part.get(dict, "eval_metrics") or {}
    return NatStudy(
        metrics=tuple(_metric(str(name), part.at("eval_metrics", str(name))) for name in metrics),
        keys=tuple(_keys(reading)),
        numeric=part.get(bool, "numeric.enabled") is not False,  # the toolkit's default
        prompts=bool(part.get(bool, "prompt.enabled")),
        sampler=part.get(str, "numeric.sampler") or "",
        trials=part.get(int, "numeric.n_trials"),
        repeats=part.get(int, "reps_per_param_set") or 1,
    )


def _metric(name: str, part: NatPart) -> TunedMetric:
    weight = part.get(float, "weight")
    evaluator, direction = part.get(str, "evaluator_name") or name, part.get(str, "direction") or "maximize"
    return TunedMetric(name, evaluator, direction, 1.0 if weight is None else weight)


def _keys(reading: NatReading) -> Iterator[TunedKey]:
    """Yields the keys of all components that may be varied."""
    for section in SECTIONS:
        entries = reading.keys.get(section)
        for component, keys in entries.items() if isinstance(entries, Mapping) else ():
            part = NatPart(reading, (section, str(component)), keys if isinstance(keys, Mapping) else {})
            for name in part.get(list, PARAMETERS) or ():
                space = part.at(SPACE, str(name))
                values = space.get(list, "values")
                bounds = (space.get(float, bound) for bound in ("low", "high", "step"))
                yield TunedKey(f"{section}.{component}.{name}", tuple(values or ()), *bounds)
