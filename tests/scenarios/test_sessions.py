"""The suite of synthetic sessions: its sessions follow from a few settings, and every backend gets the same prompts."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import pytest

from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.user_code import load_object
from pytest_agentbench.suites.suite import Scenario
from tests.project import ROOT, TWO_WORKERS, Project

FOLDER = ROOT / "scenarios" / "sessions"

#: Two short sessions with hardly any pauses.
SMALL = tuple(
    word
    for setting in ("sessions=2", "calls=[3,4]", "first_tokens=[20,30]", "message_tokens=[5,9]", "answer_tokens=6", "think_s=0.001")
    for word in ("--agentbench-set", f"dataset.options.{setting}")
)


def sessions(**options: Any) -> list[Scenario]:
    load: Any = load_object("dataset format", "./sessions.py:load", {}, FOLDER)
    scenarios: list[Scenario] = load(FOLDER / "words.txt", **options)
    return scenarios


def digest(scenarios: list[Scenario]) -> str:
    return hashlib.sha256(json_text.dumps(codec.plain(scenarios))).hexdigest()[:16]


def text(scenario: Scenario) -> str:
    return " ".join(str(message["content"]) for message in scenario.messages)


def words(text: str) -> int:
    return len(text.split())


def test_settings_are_kept() -> None:
    """Numbers and lengths are within the settings, all sessions share the system message, and the pauses have the wanted mean."""
    made = sessions(sessions=200, calls=[3, 5], system_tokens=7, first_tokens=[4, 6], message_tokens=[2, 3], answer_tokens=5, think_s=2.0)

    later = [each for scenario in made for each in scenario.metadata["later"]]
    assert 200 == len({scenario.id for scenario in made})
    assert {3, 4, 5} == {1 + len(scenario.metadata["later"]) for scenario in made}
    (system,) = {scenario.messages[0]["content"] for scenario in made}
    assert 7 == words(system)
    assert {4, 5, 6} == {words(scenario.messages[1]["content"]) for scenario in made}
    assert {2, 3} == {words(each["message"]) for each in later}
    assert {5} == {words(each["answer"]) for each in later}
    assert 1.8 < sum(each["think_s"] for each in later) / len(later) < 2.2


def test_equal_settings_give_equal_sessions() -> None:
    """The shipped sessions are the same on every machine and Python. More sessions leave the others unchanged, another seed does not."""
    first, other = sessions(), sessions(seed=2)

    assert "bb14e8b77c8b362d" == digest(first)
    assert first == sessions(sessions=30)[:24]
    assert not {text(each) for each in first} & {text(each) for each in other}


def test_impossible_settings_are_refused() -> None:
    """A range that is empty and an amount that is not above 0 are errors that name the setting."""
    with pytest.raises(ValueError, match=r"calls must be two numbers.* not \[5, 3\]"):
        sessions(calls=[5, 3])
    with pytest.raises(ValueError, match="think_s must be above 0"):
        sessions(think_s=0)


@pytest.mark.slow
def test_all_backends_get_the_same_prompts(project: Project) -> None:
    """Two engines with different answers get the same requests, call by call. Each prompt of a session is longer than the one before."""
    project.shipped("sessions")
    for name, answer in (("terse", "Yes."), ("verbose", "That is a long story, which nobody has ever told to its end.")):
        project.backend([{"text": answer}], name, model="served")

    project.run("scenarios/sessions", "--agentbench-ab=terse,verbose", *SMALL)

    requests, prompts = defaultdict[str, list[list[int | None]]](list), defaultdict[str, list[list[int]]](list)
    for rollout in project.rollouts:
        assert (1.0, "ok") == (float(rollout.score("answered")), rollout.status), rollout.reason
        requests[rollout.scenario].append([call.request_crc for call in rollout.calls])
        prompts[rollout.scenario].append([call.prompt_tokens or 0 for call in rollout.calls])
    assert [2, 2] == [*map(len, requests.values())]
    assert all(one == other and 3 <= len(one) <= 4 for one, other in requests.values())
    assert all(tokens == sorted(set(tokens)) for pair in prompts.values() for tokens in pair)


@pytest.mark.slow
def test_unanswered_calls_lower_the_score(project: Project) -> None:
    """A session that a limit ends after two of its calls has the share of answered calls as its score, and fails the suite's threshold."""
    project.shipped("sessions")

    result = project.run("scenarios/sessions", *SMALL, "--agentbench-set", "limits.calls=2", *TWO_WORKERS)

    result.assert_outcomes(failed=2)
    assert ["limit"] * 2 == [rollout.status for rollout in project.rollouts]
    planned = {each.id: 1 + len(each.metadata["later"]) for each in sessions(sessions=2, calls=[3, 4], first_tokens=[20, 30])}
    assert {name: 2 / count for name, count in planned.items()} == {
        rollout.scenario: float(rollout.score("answered")) for rollout in project.rollouts
    }
