"""The section `optimizer` and the search spaces of components are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.optimizer import NatStudy, TunedKey, TunedMetric, read_study
from pytest_agentbench.exports.nat_config.reading import NatReading
from tests.nat_configs import CONFIGS


def study_of(file: Path, keys: Any) -> NatStudy | None:
    file.write_text(yaml.safe_dump({"workflow": {}, **keys}))
    return read_study(NatReading(file))


def test_whole_study() -> None:
    """All values of the example's study are read: its keys with values or bounds, its metrics, and the size of its grid."""
    hint = "llms.dynamo_llm.nvext_prefix_"
    levels = ("LOW", "MEDIUM", "HIGH")
    study = read_study(NatReading(CONFIGS / "optimize_rethinking_full_test.yml"))

    assert study is not None
    assert (
        NatStudy(
            metrics=(
                TunedMetric("llm_latency", "avg_llm_latency", "minimize", 0.7),
                TunedMetric("workflow_runtime", "avg_workflow_runtime", "minimize", 0.2),
                TunedMetric("num_calls", "avg_num_llm_calls", "minimize", 0.1),
            ),
            keys=(
                TunedKey(f"{hint}total_requests", low=1.0, high=20.0, step=5.0),
                TunedKey(f"{hint}osl", values=levels),
                TunedKey(f"{hint}iat", values=levels),
            ),
            numeric=True,
            prompts=False,
            sampler="grid",
            trials=None,
            repeats=1,
        )
        == study
    )
    assert [4, 3, 3] == [key.size for key in study.keys]
    assert study.sentence.startswith(f"the optimizer searches over {hint}total_requests, {hint}osl, {hint}iat with 36 combinations, for ")


def test_unknown_sizes(tmp_path: Path) -> None:
    """A range without a step, and a key with the toolkit's own range, leave the size of the grid unknown. No section is no study."""
    llm = {"optimizable_params": ["temperature", "top_p"], "search_space": {"temperature": {"low": 0, "high": 1}}}
    study = study_of(tmp_path / "a.yml", {"llms": {"m": llm}, "optimizer": {"numeric": {"n_trials": 5}}})

    assert study is not None
    assert ([None, None], None, 5) == ([key.size for key in study.keys], study.combinations, study.trials)
    assert "over llms.m.temperature, llms.m.top_p, for no metric" in study.sentence
    assert study_of(tmp_path / "b.yml", {"llms": {"m": llm}}) is None


def test_wrong_type(tmp_path: Path) -> None:
    """A value of the wrong type is an error that names its key."""
    with pytest.raises(ConfigError, match=r"a\.yml: optimizer\.numeric\.n_trials must be a whole number"):
        study_of(tmp_path / "a.yml", {"optimizer": {"numeric": {"n_trials": "many"}}})
