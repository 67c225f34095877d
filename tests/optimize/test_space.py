"""The search space: reading space.yaml, its errors, and the settings that Optuna suggests in it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import FixedTrial

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.optimize.space import SpaceSpec, examples, read_space

WHOLE = """
objectives: [ttft.p90, quality]
parameters:
  backend.router: [kv, round_robin]
  backend.weight: {low: 0.1, high: 10, log: true, when: {backend.router: kv}}
  agent.max_turns: {low: 2, high: 8, step: 2}
  agent.temperature: {low: 0, high: 0.5, step: 0.25}
  concurrency: [2, 4]
"""


def read(folder: Path, text: str) -> SpaceSpec:
    file = folder / "space.yaml"
    file.write_text(text, encoding="utf-8")
    return read_space(file)


def test_all_forms(tmp_path: Path) -> None:
    """Lists, ranges of whole and of other numbers, logarithmic ranges and conditions are read. A list is short for `values`."""
    space = read(tmp_path, WHOLE)

    assert ["kv", "round_robin"] == space.parameters["backend.router"].values
    assert [2, None, 4, 3, 2] == [each.size for each in space.parameters.values()]
    assert space.size is None
    assert [True, False] == [space.parameters[name].is_whole for name in ("agent.max_turns", "agent.temperature")]
    assert ["ttft.p90", "quality"] == space.objectives
    assert {"backend.router": "kv", "backend.weight": 0.1} == examples(space)[1]
    assert {"agent.max_turns": 2} == examples(space)[2]


def test_a_setting_exists_under_its_condition_only(tmp_path: Path) -> None:
    """A setting with `when` is suggested only beside the value that it needs."""
    space, fixed = read(tmp_path, WHOLE), {"agent.max_turns": 4, "agent.temperature": 0.25, "concurrency": 2}

    with_kv = space.suggest(FixedTrial({**fixed, "backend.router": "kv", "backend.weight": 3.0}))
    without = space.suggest(FixedTrial({**fixed, "backend.router": "round_robin"}))

    assert {"backend.router": "kv", "backend.weight": 3.0, **fixed} == with_kv
    assert {"backend.router": "round_robin", **fixed} == without


def test_a_finite_space_has_a_size(tmp_path: Path) -> None:
    """The size of a space is the number of its combinations."""
    assert 6 == read(tmp_path, "parameters: {concurrency: [1, 2, 4], agent.temperature: [0, 1]}").size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parametres: {concurrency: [1]}", "unknown key 'parametres' (did you mean 'parameters'?)"),
        ("parameters: {concurrency: {vales: [1]}}", "unknown key 'parameters.concurrency.vales' (did you mean 'values'?)"),
        ("parameters: {concurency: [1]}", "unknown key 'concurency' (did you mean 'concurrency'?)"),
        ("parameters: {concurrency: {low: 1}}", "parameters.concurrency: must have either `values`, or `low` and `high`"),
        ("parameters: {concurrency: {low: 1, high: 2, values: [1]}}", "must have either `values`, or `low` and `high`"),
        ("parameters: {concurrency: {low: 3, high: 2}}", "`low` must not be greater than `high`"),
        ("parameters: {agent.x: {low: 0, high: 2, log: true}}", "with `log`, `low` must be above 0"),
        ("parameters: {agent.x: {values: [1], when: {agent.y: 1}}}", "no setting above it 'agent.y'"),
        ("{objectives: [rolout.p50], parameters: {concurrency: [1]}}", "no objective 'rolout.p50' (did you mean 'rollout"),
        ("{objectives: [quality], parameters: {concurrency: [1]}}", "the first one must be about speed or cost"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    """A mistake is a ConfigError with the file, the key, and what was probably meant."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    assert str(tmp_path / "space.yaml") in str(caught.value)
    assert message in str(caught.value)


def test_optuna_suggests_every_kind_of_value(tmp_path: Path) -> None:
    """Suggested values are in their ranges, and whole where the range is."""
    space = read(tmp_path, WHOLE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    found = [space.suggest(study.ask()) for _ in range(30)]

    assert {2, 4, 6, 8} == {each["agent.max_turns"] for each in found}
    assert {0.0, 0.25, 0.5} == {each["agent.temperature"] for each in found}
    assert all(0.1 <= each["backend.weight"] <= 10 for each in found if "backend.weight" in each)
    assert {True, False} == {"backend.weight" in each for each in found}
