"""The search, with settings whose speed and quality are known: it finds the best, forgets nothing, and continues where it ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.evidence import Trial
from pytest_agentbench.optimize.plan import StudyPlan
from pytest_agentbench.optimize.ranking import ComparedSettings, RankingTerms
from pytest_agentbench.optimize.search import NotMeasured, finished, importances, open_study, pareto_set, require_optuna, search, winner
from pytest_agentbench.optimize.space import ParameterSpec, SpaceSpec
from pytest_agentbench.records import SHARE, Json

PLAN = StudyPlan((tuple("abcd"), tuple("efgh"), tuple("ijkl")), ("m",), settings=12, confirmation_trials=1, concurrency=1, seed=3)
TERMS = RankingTerms(("rollout.p50",), "tsq", SHARE)
RANGE = SpaceSpec(parameters={"agent.x": ParameterSpec(low=0.0, high=1.0), "agent.kind": ParameterSpec(values=["u", "v"])})
CHOICES = SpaceSpec(parameters={"agent.x": ParameterSpec(values=[0.2, 0.3, 0.6, 0.9])})


class Killed(BaseException):
    """Ends a search as a kill does: nothing is told to Optuna."""


class KnownSpeeds:
    """Settings whose rollouts take longer the further `agent.x` is from 0.3. `killed_at` is the number of sessions that it allows."""

    def __init__(self, killed_at: int | None = None, broken: float | None = None, quality: float = 1.0) -> None:
        self.names: list[str] = []
        self._killed_at, self._broken, self._quality = killed_at, broken, quality

    def __call__(self, settings: Json, scenarios: Sequence[str], name: str) -> ComparedSettings:
        if self._killed_at == len(self.names):
            raise Killed
        if settings["agent.x"] == self._broken:
            raise NotMeasured("the backend did not start")
        self.names.append(name)
        ms = 80 + 100 * abs(settings["agent.x"] - 0.3)
        return ComparedSettings(
            [self._trial(each, 100 + place, 1.0) for place, each in enumerate(scenarios)],
            [self._trial(each, ms + place, self._quality) for place, each in enumerate(scenarios)],
        )

    @staticmethod
    def _trial(scenario: str, ms: float, score: float) -> Trial:
        return Trial("shop", "shop", scenario, 1, "ok", scores={"tsq": score}, duration_ms=ms)


def test_all_settings_of_a_small_space_are_tried_once() -> None:
    """If the space has no more settings than the study tries, each is tried once, and the best one wins."""
    study, sessions = open_study(CHOICES), KnownSpeeds()

    search(study, CHOICES, TERMS, PLAN, sessions)

    assert [0.2, 0.3, 0.6, 0.9] == sorted(each.settings["agent.x"] for each in finished(study))
    best = winner(study)
    assert best is not None
    assert {"agent.x": 0.3} == best.settings
    assert ["trial-0-part-0", "trial-0-part-1", "trial-0-part-2"] == sessions.names[:3]


def test_optuna_prunes_and_leads() -> None:
    """In a continuous space, later trials are closer to the best setting than the first ones, and bad ones are pruned."""
    study = open_study(RANGE)

    search(study, RANGE, TERMS, PLAN, KnownSpeeds())

    assert PLAN.settings == len(finished(study))
    assert {"complete", "pruned"} == {each.state for each in finished(study)}
    best = winner(study)
    assert best is not None
    assert abs(best.settings["agent.x"] - 0.3) < 0.2
    assert {"agent.x", "agent.kind"} == importances(study).keys()


@pytest.mark.parametrize("killed_at", [0, 4, 17])
def test_a_study_that_was_killed_equals_one_that_was_not(tmp_path: Path, killed_at: int) -> None:
    """A study in a file continues after a kill with the same trials, settings, values and winner."""
    whole = open_study(RANGE)
    search(whole, RANGE, TERMS, PLAN, KnownSpeeds())

    with pytest.raises(Killed):
        search(open_study(RANGE, tmp_path / "trials"), RANGE, TERMS, PLAN, KnownSpeeds(killed_at))
    again = open_study(RANGE, tmp_path / "trials")
    search(again, RANGE, TERMS, PLAN, KnownSpeeds())

    assert finished(whole) == finished(again)
    assert winner(whole) == winner(again)


def test_settings_that_cannot_be_measured_are_not_ranked() -> None:
    """Settings with which the backend does not start have no value, and the search goes on."""
    study = open_study(CHOICES)

    search(study, CHOICES, TERMS, PLAN, KnownSpeeds(broken=0.3))

    [failed] = [each for each in finished(study) if each.state == "fail"]
    assert ({"agent.x": 0.3}, (), "the backend did not start") == (failed.settings, failed.values, failed.why)
    best = winner(study)
    assert best is not None
    assert {"agent.x": 0.2} == best.settings


def test_nothing_to_confirm() -> None:
    """If all settings lose more quality than they gain speed, none is the winner."""
    study = open_study(CHOICES)

    search(study, CHOICES, TERMS, PLAN, KnownSpeeds(quality=0.5))

    assert winner(study) is None


def test_a_study_may_end_early() -> None:
    """A search that is over starts no further trial."""
    study, told = open_study(RANGE), list[int]()

    search(study, RANGE, TERMS, PLAN, KnownSpeeds(), tell=lambda each: told.append(each.number), is_over=lambda: len(told) == 2)

    assert [0, 1] == told


def test_several_objectives_have_a_pareto_set() -> None:
    """With several objectives the trials that no other is better than are found, the fastest first, and nothing is pruned."""
    space = CHOICES.model_copy(update={"objectives": ["rollout.p50", "ttft.p50"]})
    terms = RankingTerms(("rollout.p50", "quality"), "tsq", SHARE)
    study = open_study(space)

    search(study, space, terms, PLAN, KnownSpeeds())

    assert {"complete"} == {each.state for each in finished(study)}
    assert [{"agent.x": 0.3}] == [each.settings for each in pareto_set(study)]


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Optuna the message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(ConfigError, match=r"pip install 'pytest-agentbench\[optimize\]'"):
        require_optuna()
