"""The files of a study: its fixed settings, with which an existing study is continued, and its result."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.file_system import write_whole
from pytest_agentbench.lib.json_text import read_json_file
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.records import Json

STUDY_FILE, TRIALS_FILE, RUNS = "study.json", "trials.journal", "runs"


@dataclass(frozen=True)
class StudySettings:
    """The fixed settings of a study. Only its number of settings may differ when it is continued."""

    suite: str  # folder of the suite
    space: Json  # contents of space.yaml
    options: tuple[str, ...]  # further options of pytest
    margin: float  # accepted loss of the main score, in its unit
    plan: StudyPlan


def continue_study(directory: Path, now: StudySettings) -> StudySettings:
    """Writes the settings of a new study, or checks that those of an existing one are the same. Returns the settings to use.

    Raises ConfigError with the settings that differ, because the trials would not be comparable.
    """
    file = directory / STUDY_FILE
    if file.exists():
        before = codec.read(StudySettings, read_json_file(file))
        plan = replace(before.plan, settings=now.plan.settings)
        if changed := _differences(replace(before, plan=plan), now):
            raise ConfigError(
                f"{file}: this study has other settings: {', '.join(changed)}; use the same ones, or name another directory with --output"
            )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RUNS).mkdir(exist_ok=True)
    write_whole(file, json.dumps(codec.plain(now), indent=2) + "\n")
    return now


def _differences(before: StudySettings, now: StudySettings) -> list[str]:
    was, given = ({**each.pop("plan"), **each} for each in (codec.plain(before), codec.plain(now)))
    return [name for name in given if was.get(name) != given[name]]
