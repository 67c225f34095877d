"""Converts the search over settings in a configuration of the NeMo Agent Toolkit to a space.yaml for `agentbench optimize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_agentbench.exports.nat_config.data import SCORERS
from pytest_agentbench.exports.nat_config.models import PAUSES, TOKENS
from pytest_agentbench.exports.nat_config.optimizer import PARAMETERS, SPACE, NatStudy, TunedKey
from pytest_agentbench.exports.nat_config.reading import NatPart, value_at
from pytest_agentbench.records import Json

#: Key of the agent's LLM -> setting in space.yaml, and the words for its values.
SETTINGS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    **{name: (f"agent.{name}", {}) for name in ("temperature", "top_p", "max_tokens", "seed")},
    "nvext_prefix_total_requests": ("backend.labels.total_requests", {}),
    "nvext_prefix_osl": ("backend.labels.osl", TOKENS),
    "nvext_prefix_iat": ("backend.labels.iat", PAUSES),
}
FRACTIONS = ("temperature", "top_p")  # keys whose values need not be whole

#: `_type` of an evaluator -> objective that makes the same small.
OBJECTIVES: Mapping[str, str] = {"avg_llm_latency": "e2e.p50", "avg_workflow_runtime": "rollout.p50", "avg_tokens_per_llm_end": "tokens"}
QUALITY = "quality"


def space_of(study: NatStudy, llm: NatPart, backend: Json, scorers: Sequence[str]) -> Json | None:
    """Returns the space.yaml for a search over settings, or None if none of its settings exists here. Notes which keys were used.

    Args:
        study: The search.
        llm: The LLM of the agent. Other components are not searched.
        backend: The backend.yaml, which has `labels` if there are hints.
        scorers: The scorers of the suite. The first one is its main score.
    """
    if not study.numeric:
        return None
    parameters = dict(_parameters(study, llm, backend))
    if not parameters:
        return None
    optimizer = llm.reading.part(("optimizer",), "optimizer")
    optimizer.take(bool, "numeric.enabled")
    optimizer.take(int, "numeric.n_trials")
    if study.sampler == "grid":
        optimizer.take(str, "numeric.sampler")
    objectives = [*dict.fromkeys(_objectives(study, optimizer, scorers))]
    if not objectives:
        return {"parameters": parameters}
    fast = [each for each in objectives if each != QUALITY] or ["rollout.p50"]
    return {"parameters": parameters, "objectives": [*fast, *(each for each in objectives if each == QUALITY)]}


def _parameters(study: NatStudy, llm: NatPart, backend: Json) -> Iterator[tuple[str, Json]]:
    """Yields the settings of the agent's LLM that can be searched, with their values."""
    component = ".".join(llm.path)
    for key in study.keys:
        prefix, _, name = key.path.rpartition(".")
        if prefix != component or name not in SETTINGS:
            continue
        setting, words = SETTINGS[name]
        found = _values(key, words, whole=name not in FRACTIONS)
        if found is None or (setting.startswith("backend.") and "labels" not in backend):
            continue
        for each in ("values",) if key.values else ("low", "high", "step"):
            llm.reading.use((*llm.path, SPACE, name, each))
        yield setting, found
    if all(each in llm.keys.get(SPACE, {}) and each in SETTINGS for each in llm.get(list, PARAMETERS) or ()):
        llm.reading.use((*llm.path, PARAMETERS))


def _values(key: TunedKey, words: Mapping[str, int], *, whole: bool) -> Json | None:
    """Returns the values of a setting as in space.yaml, or None if it has none, or words without a number."""
    if key.values:
        values = [words.get(each.upper()) if isinstance(each, str) else each for each in key.values]
        return {"values": values} if all(isinstance(each, int | float) for each in values) else None
    if key.low is None or key.high is None:
        return None
    ends = {"low": key.low, "high": key.high, "step": key.step}
    if whole and not all(each is None or each.is_integer() for each in ends.values()):
        return None
    return {name: int(each) if whole else each for name, each in ends.items() if each is not None}


def _objectives(study: NatStudy, optimizer: NatPart, scorers: Sequence[str]) -> Iterator[str]:
    """Yields the objectives for the metrics that have a counterpart."""
    for metric in study.metrics:
        kind: Any = value_at(optimizer.reading.keys, ("eval", "evaluators", metric.evaluator, "_type"))
        objective = OBJECTIVES.get(str(kind)) if metric.direction == "minimize" else None
        if metric.direction == "maximize" and SCORERS.get(str(kind)) == next(iter(scorers), None):
            objective = QUALITY
        if objective:
            part = optimizer.at("eval_metrics", metric.name)
            for name in ("evaluator_name", "direction"):
                part.take(str, name)
            yield objective
