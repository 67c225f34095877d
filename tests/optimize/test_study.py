"""The settings of a study, with which it is continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.study import StudySettings, continue_study

PLAN = StudyPlan((("a",), ("b",), ("c",)), ("d",), settings=5, confirmation_trials=1, concurrency=2, seed=0)
STUDY = StudySettings("scenarios/shop", {"parameters": {"concurrency": {"values": [1, 2]}}}, ("-x",), 0.05, PLAN)


def test_a_study_continues_with_the_same_settings(tmp_path: Path) -> None:
    """The same settings continue a study, and so does another number of settings to try."""
    continue_study(tmp_path / "study", STUDY)
    more = replace(STUDY, plan=replace(PLAN, settings=9))

    assert STUDY == continue_study(tmp_path / "study", STUDY)
    assert more == continue_study(tmp_path / "study", more)


def test_a_study_with_other_settings_is_refused(tmp_path: Path) -> None:
    """Another margin or space would make trials that cannot be compared, so the names of the differences are told."""
    continue_study(tmp_path, STUDY)
    other = replace(STUDY, margin=0.1, plan=replace(PLAN, seed=1))

    with pytest.raises(ConfigError, match=r"study\.json: this study has other settings: seed, margin; .*--output"):
        continue_study(tmp_path, other)
