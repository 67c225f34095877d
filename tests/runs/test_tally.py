"""Computing a Run from its rollouts: literal records in, literal numbers out."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain, read
from pytest_agentbench.records import UNDECLARED, Attempt, Json, Rollout, Scale, Score, ToolCall
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.runs.builder import build_suite, plan_suite
from pytest_agentbench.runs.identity import environment
from pytest_agentbench.runs.results import Mean, PlannedSuite, SuiteResult
from pytest_agentbench.runs.run_file import Environment, find_run, read_run, write_run
from pytest_agentbench.runs.tally import SuiteTally
from pytest_agentbench.stats.paired import ScenarioSample, against_limit
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from tests.amounts import amounts
from tests.frames import scenarios_of
from tests.made_runs import SCALES, run_of


def rollout(scenario: str, status: str = "ok", *, trial: int = 1, **keys: Any) -> Rollout:
    """Returns a rollout of the suite. Scores are given as plain numbers."""
    scores = {name: Score(value, explanation=f"because {value}") for name, value in keys.pop("scores", {}).items()}
    return Rollout("shop", scenario, "default", trial, status=status, scores=scores, **keys)


def shop(*scorers: str) -> Suite:
    return Suite(
        "shop",
        Path("scenarios/shop"),
        (),
        dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3),
        scorers={each: {} for each in scorers},
        scales={each: SCALES[each] for each in scorers if each in SCALES},
    )


def result_of(planned: PlannedSuite, *rollouts: Rollout, scale: Scale = UNDECLARED) -> SuiteResult:
    """Returns the result of a suite with these rollouts. `scale` is the scale of its main score while they are counted."""
    tally = SuiteTally()
    for each in rollouts:
        tally.add(each, planned.facts.main_score, scale)
    return build_suite(planned, tally, scenarios_of(*rollouts))


def summary(*rollouts: Rollout, scorers: tuple[str, ...] = ("tsq",), population: tuple[str, ...] = ()) -> Json:
    """Returns the part of run.json about a suite with these rollouts."""
    planned = plan_suite("shop", shop(*scorers), "default", {"tsq": 0.5}, population=population)
    part: Json = plain(result_of(planned, *rollouts, scale=shop(*scorers).scale(scorers[0])))
    return part


def values(part: Json, score: str = "tsq") -> tuple[float | None, float | None]:
    """Returns the two means of a score: over all rollouts and over the evaluable ones."""
    means = part["scores"][score]
    return means["mean"] and means["mean"]["value"], means["mean_evaluable"] and means["mean_evaluable"]["value"]


def test_an_agents_error_counts_as_the_worst_value() -> None:
    """An agent_error counts as 0 in `mean` and is not in `mean_evaluable`. A rollout with the status `limit` counts with its score."""
    part = summary(rollout("a", scores={"tsq": 0.5}), rollout("b", "limit", scores={"tsq": 1.0}), rollout("c", "agent_error"))

    assert (0.5, 0.75) == values(part)
    assert {"ok": 1, "limit": 1, "agent_error": 1, "infra_error": 0, "cancelled": 0} == part["rollouts"]


@pytest.mark.parametrize("status", ["infra_error", "cancelled"])
def test_unmeasured_rollouts_are_left_out(status: str) -> None:
    """An infra_error and a cancelled rollout do not change means. They are counted and listed with their reasons."""
    part = summary(rollout("a", scores={"tsq": 0.5}), rollout("b", status, reason="no GPU"))

    assert (0.5, 0.5) == values(part)
    assert {"ok": 1, status: 1} == {name: count for name, count in part["rollouts"].items() if count}
    assert [{"id": "b", "status": status, "reason": "no GPU"}] == part["errors"]


def test_nothing_measured_is_no_number() -> None:
    """Without a measured rollout a mean is None, not 0."""
    assert {"mean": None, "mean_evaluable": None} == summary(rollout("a", "infra_error"))["scores"]["tsq"]
    assert (0.0, None) == values(summary(rollout("a", "agent_error")))


def test_trials_are_averaged_within_their_scenario() -> None:
    """Trials are averaged per scenario first, agent errors included, so three trials of one weigh as much as one of another."""
    trials = [rollout("a", trial=k, scores={"tsq": value}) for k, value in ((1, 0.2), (2, 0.4), (3, 0.9))]
    failed = rollout("a", "agent_error", trial=4)

    assert (0.75, 0.75) == values(summary(*trials, rollout("b", scores={"tsq": 1.0})))
    assert (0.6875, 0.75) == values(summary(*trials, failed, rollout("b", scores={"tsq": 1.0})))


def test_counts_have_no_worst_value() -> None:
    """If a scale has no worst value, agent errors are left out of the mean, and values above 1 are not changed."""
    part = summary(
        rollout("a", scores={"tsq": 1.0, "repeated": 4.0}),
        rollout("b", scores={"tsq": 1.0, "repeated": 1.0}),
        rollout("c", "agent_error"),
        scorers=("tsq", "repeated"),
    )

    assert (2.5, 2.5) == values(part, "repeated")
    assert 2 == part["scores"]["repeated"]["mean"]["scenarios"]


def test_a_failed_scorer_is_counted() -> None:
    """A rollout whose scorer failed has no score and is not in its mean. Such rollouts are counted."""
    part = summary(rollout("a", scores={"tsq": 0.5}), rollout("b", score_errors={"tsq": "KeyError: 'x'"}))

    assert (0.5, 0.5) == values(part)
    assert {"tsq": 1} == part["score_errors"]


def test_a_score_without_values() -> None:
    """A score without any value is listed with null means."""
    assert (None, None) == values(summary(rollout("a", scores={"tsq": 0.5}), scorers=("tsq", "parameter_accuracy")), "parameter_accuracy")


def test_means_have_intervals() -> None:
    """A mean has an interval, the number of scenarios and the method. The interval stays within the bounds of the score."""
    mean = summary(*(rollout(f"{number}", scores={"tsq": number % 2}) for number in range(4)))["scores"]["tsq"]["mean"]

    assert {"value": 0.5, "low": 0.0, "high": 1.0, "of": "suite", "scenarios": 4, "clusters": 4, "method": "between-scenario t"} == mean


def test_intervals_use_clusters() -> None:
    """If a rule asks the population, all intervals are the ones that the gate uses. With clustered scenarios they are wider."""
    rollouts = [rollout(f"s{n}", cluster=f"template {n % 12}", scores={"tsq": n % 12 < 8}) for n in range(36)]
    again = rollout("s36", cluster="template 0", scores={"tsq": 0.0}, earlier_attempts=(Attempt(1, "infra_error"),))
    part = summary(*rollouts, again, population=("tsq",))
    samples = {each.scenario: ScenarioSample("", (float(each.scores["tsq"]),), each.cluster) for each in rollouts}
    gate = against_limit({**samples, "s36": ScenarioSample("", (0.0,), "template 0")}, 0.5, of="population")
    alone = summary(*(replace(each, cluster=None) for each in rollouts), population=("tsq",))["scores"]["tsq"]["mean"]

    for mean in part["scores"]["tsq"].values():
        assert (gate.low, gate.high, "clustered adjusted t", 37, 12) == (
            *(mean[name] for name in ("low", "high", "method", "scenarios", "clusters")),
        )
    assert "clustered adjusted t" == gate.method == part["retried_scores"]["tsq"]["others"]["method"]
    assert ("adjusted t", 36) == (alone["method"], alone["clusters"])
    assert part["scores"]["tsq"]["mean"]["low"] < alone["low"] - 0.1
    assert ("suite", 37) == tuple(summary(*rollouts, again)["scores"]["tsq"]["mean"][name] for name in ("of", "clusters"))
    assert ("population", 37, 12) == tuple(part["scores"]["tsq"]["mean"][name] for name in ("of", "scenarios", "clusters"))
    assert ["95 %", "37", "12"] == amounts(suite_phrases.mean_of(read(Mean, part["scores"]["tsq"]["mean"])))


def test_a_part_of_run_json_is_one_variant() -> None:
    """Each variant has its own part with the settings of its agent. Scores of a suite's own code have short names."""
    suite = replace(shop("tsq", "./scorers.py:polite"), agent={"kind": "a", "seed": 1}, variants={"hot": {"seed": 2}})

    part = plain(result_of(plan_suite("shop-hot", suite, "hot"), rollout("a", scores={"tsq": 0.5, "polite": 1.0})))

    assert ("hot", {"kind": "a", "seed": 2}, ["tsq", "polite"]) == (part["variant"], part["agent"], part["scorers"])
    assert (0.5, 1.0) == (values(part, "tsq")[0], values(part, "polite")[0])


def test_the_worst_come_first() -> None:
    """The five lowest scores are listed, the lowest first, then by id, independent of the order of ending. Others are left out."""
    scores = {"a": 0.9, "b": 0.3, "c": 0.5, "d": 0.3, "e": 1.0, "f": 0.0, "g": 0.5, "h": 0.5}
    rollouts = [rollout("x", "agent_error"), *(rollout(name, scores={"tsq": value}) for name, value in scores.items())]

    for order in (rollouts, rollouts[::-1], [*rollouts[4:], *rollouts[:4]]):
        worst = summary(*order)["worst"]
        assert [("f", 0.0), ("b", 0.3), ("d", 0.3), ("c", 0.5), ("g", 0.5)] == [(each["id"], each["score"]) for each in worst]


def test_perfect_scores_are_not_among_the_worst() -> None:
    """Perfect scores are not among the worst, nor is the best measured value if the scorer declares no range."""
    assert [] == summary(rollout("a", scores={"tsq": 1.0}), rollout("b", scores={"tsq": 1.0}))["worst"]
    values = (("a", 10.0), ("b", 1.0), ("c", 10.0))
    points = summary(*(rollout(name, scores={"points": value}) for name, value in values), scorers=("points",))

    assert ["b"] == [each["id"] for each in points["worst"]]


def test_the_worst_show_their_tools() -> None:
    """A low score has the expected tools, the called tools, and the explanation of the scorer."""
    calls = (ToolCall("order", {}, 1), ToolCall("order", {}, 2))
    part = summary(rollout("a", trial=2, scores={"tsq": 0.25}, expected=({"tool": "find"},), tool_calls=calls))

    assert [
        {
            "id": "a-t2",
            "scenario": "a",
            "question": "",
            "score": 0.25,
            "explanation": "because 0.25",
            "expected_tools": ["find"],
            "actual_tools": ["order", "order"],
        }
    ] == part["worst"]


def test_the_worst_show_their_question() -> None:
    """The question is the last user message of the scenario on one line, truncated. For unknown scenarios it is from the transcript."""
    user = {"role": "user", "content": [{"type": "text", "text": "Is there\na lamp?"}, {"type": "image_url"}]}
    history = ({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."})
    known = replace(shop("tsq"), scenarios=(Scenario("a", (*history, user)), Scenario("b", ({"role": "user", "content": "x" * 999},))))
    transcript = ({"role": "user", "content": "And a chair?"}, {"role": "assistant"}, {"role": "user", "content": "Thanks."})
    rollouts = [rollout(name, scores={"tsq": 0.5}, messages=transcript) for name in ("a", "b", "c")]

    questions = [each.question for each in result_of(plan_suite("shop", known), *rollouts).worst]

    assert ["Is there a lamp?", f"{'x' * 297}...", "And a chair?"] == questions


def test_pass_rates() -> None:
    """Scenarios with failed trials are listed, the worst first, with intervals. The suite has pass@k and pass^k.

    An agent error does not pass, and a rollout that was not measured is not a trial.
    """
    rollouts = [
        *(rollout("always", trial=number, scores={"tsq": 0.5}) for number in (1, 2, 3)),
        *(rollout("half", trial=number, scores={"tsq": number - 1.0}) for number in (1, 2)),
        *(rollout("half", "infra_error", trial=number) for number in (3,)),
        *(rollout("never", trial=number, scores={"tsq": 0.49}) for number in (1, 2)),
        rollout("never", "agent_error", trial=3),
        rollout("once", scores={"tsq": 0.0}),
    ]

    passes = summary(*rollouts)["passes"]

    assert ("tsq", 0.5, 1) == (passes["score"], passes["floor"], passes["always"])
    assert [("never", 0, 3), ("half", 1, 2)] == [(each["scenario"], each["passed"], each["trials"]) for each in passes["scenarios"]]
    assert (0.0126, 0.9874) == pytest.approx((passes["scenarios"][1]["low"], passes["scenarios"][1]["high"]), abs=1e-4)
    assert [(1, 4, 1.5 / 4), (2, 3, 1 / 3), (3, 2, 1 / 2)] == [(each["k"], each["scenarios"], each["value"]) for each in passes["pass_all"]]
    assert [1.5 / 4, 2 / 3, 1 / 2] == pytest.approx([each["value"] for each in passes["pass_at"]])
    assert passes == summary(*rollouts[::-1])["passes"]


def test_without_a_threshold_there_are_no_pass_rates() -> None:
    """There are no pass rates without a threshold or measured rollouts. Scenarios with one trial count only for the suite."""
    planned = plan_suite("shop", shop("tsq"), "default", {"tsq.mean": 0.5})

    assert result_of(planned, rollout("a", scores={"tsq": 1.0})).passes is None
    assert summary(rollout("a", "infra_error"))["passes"] is None
    alone = summary(rollout("a", scores={"tsq": 1.0}), rollout("b", scores={"tsq": 0.0}))["passes"]
    assert ([], 0, [1]) == (alone["scenarios"], alone["always"], [each["k"] for each in alone["pass_at"]])
    wrong = summary(rollout("a", scores={"repeated": 1.0}), scorers=("repeated", "tsq"))["passes"]
    assert wrong is None


def test_few_errors_are_listed_all_are_counted() -> None:
    """The list of errors has a maximum length and does not depend on the order in which rollouts end."""
    rollouts = [rollout(f"{number:02}", "infra_error") for number in range(30)]
    part = summary(*rollouts)

    assert [f"{number:02}" for number in range(10)] == [each["id"] for each in part["errors"]]
    assert part == summary(*rollouts[::-1])

    assert (30, 10) == (part["rollouts"]["infra_error"], len(part["errors"]))


def test_retries_are_counted() -> None:
    """A rollout that needed more than one attempt is counted once."""
    attempts: Any = (Attempt(1, "infra_error"), Attempt(2, "infra_error"))

    assert 1 == summary(rollout("a", attempt=3, earlier_attempts=attempts), rollout("b"))["retried"]


def test_run_json_is_written_whole(tmp_path: Path) -> None:
    """run.json is replaced atomically, keeps non-ASCII letters, and can be read again, whatever texts it contains."""
    for number in range(2):
        run = run_of(id=f"{number}", command=("pytest", "Müller", "\ud83d"))

        assert tmp_path / "run.json" == write_run(run, tmp_path)
        assert run == read_run(tmp_path)
    assert "Müller" in (tmp_path / "run.json").read_text(encoding="utf-8")
    assert ["run.json"] == [path.name for path in tmp_path.iterdir()]


def test_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a run has the versions, and in a git repository the commit and a hash of uncommitted changes."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert environment(tmp_path).git is None

    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    (tmp_path / "a").write_text("1")
    for command in (("init", "-q"), ("add", "a"), (*author, "commit", "-q", "-m", "one")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    clean = environment(tmp_path)
    (tmp_path / "untracked").write_text("1")
    assert clean == environment(tmp_path)
    (tmp_path / "a").write_text("2")
    dirty = environment(tmp_path)
    (tmp_path / "a").write_text("3")
    dirtier = environment(tmp_path)

    assert clean.git is not None and dirty.git is not None and dirtier.git is not None
    assert clean.git.diff is None
    assert dirty.git.diff != dirtier.git.diff
    assert (40, False, True) == (len(clean.git.commit), clean.git.dirty, dirty.git.dirty)
    assert os.cpu_count() == clean.cpus
    assert {"pytest", "pytest-agentbench"} <= clean.packages.keys()
    assert clean == read(Environment, json.loads(json.dumps(plain(clean))))


def test_finding_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is found by its path, by its run.json and by its name. For other names, the error lists the known runs."""
    monkeypatch.chdir(tmp_path)
    directory = Path("reports/20260304-050607")
    directory.mkdir(parents=True)
    write_run(run_of(), directory)
    Path("empty").mkdir()
    reports = Path("reports")

    assert [directory] * 3 == [find_run(name, reports) for name in (str(directory), f"{directory}/run.json", directory.name)]
    with pytest.raises(ConfigError, match=r"^no run 'latest'; known: 20260304-050607 \(in reports\)$"):
        find_run("latest", reports)
    with pytest.raises(ConfigError, match=r"^empty has no run\.json: it is not a run directory, .* did not finish; name another run$"):
        find_run("empty", reports)


@pytest.mark.parametrize("text", ["{", '{"schema": "agentbench-run/2"}', "[]"])
def test_reading_an_invalid_run(tmp_path: Path, text: str) -> None:
    """The error for an invalid run.json names the file."""
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(ConfigError, match=str(tmp_path / "run.json")):
        read_run(tmp_path)


def test_retried_rollouts_are_compared() -> None:
    """Each score has separate means for retried and for other rollouts. Without retried rollouts there are none."""
    again: Json = {"attempt": 2, "earlier_attempts": (Attempt(1, "infra_error"),)}
    part = summary(
        rollout("a", scores={"tsq": 0.5}, **again),
        rollout("b", scores={"tsq": 1.0}),
        rollout("c", scores={"tsq": 0.8}),
        rollout("d", "limit"),
    )

    means = part["retried_scores"]["tsq"]
    assert (0.5, 1, pytest.approx(0.9), 2) == (
        means["retried"]["value"],
        means["retried"]["scenarios"],
        means["others"]["value"],
        means["others"]["scenarios"],
    )
    assert {} == summary(rollout("a", scores={"tsq": 0.5}))["retried_scores"]


def test_a_scenario_is_among_the_lowest_once() -> None:
    """A scenario is listed once, with its lowest trial, independent of the order of ending."""
    trials = [rollout("a", trial=trial, scores={"tsq": score}) for trial, score in ((1, 0.2), (2, 0.0), (3, 0.1))]
    others = [rollout(id, scores={"tsq": 0.3}) for id in "bcdef"]

    for order in ([*trials, *others], [*others, *reversed(trials)], [trials[0], *others, *trials[1:], rollout("z", scores={"tsq": 1.0})]):
        assert [("a-t2", 0.0), *((id, 0.3) for id in "bcde")] == [(each["id"], each["score"]) for each in summary(*order)["worst"]]


def test_the_worst_by_the_declaration() -> None:
    """If lower is better, the highest scores are the worst, and scores at the least value are not listed."""
    values = {"a": 2.0, "b": 0.0, "c": 3.0, "d": 1.0}
    part = summary(*(rollout(name, scores={"repeated": value}) for name, value in values.items()), scorers=("repeated",))

    assert [("c", 3.0), ("a", 2.0), ("d", 1.0)] == [(each["id"], each["score"]) for each in part["worst"]]
    assert ["c", "a", "d", "b"] == [each["scenario"] for each in part["scenarios"]]


def test_a_worst_trial_that_comes_later_by_the_declaration() -> None:
    """If lower is better, a scenario is listed with its highest value, independent of the order of ending."""
    trials = [rollout("a", trial=at, scores={"repeated": value}) for at, value in ((1, 1.0), (2, 4.0), (3, 2.0))]

    for order in (trials, trials[::-1]):
        assert [4.0] == [each["score"] for each in summary(*order, scorers=("repeated",))["worst"]]


def test_agent_errors_count_as_the_greatest_value() -> None:
    """If lower is better and the range is bounded, an agent error counts as the greatest value, here 10, in `mean`.

    It is left out of `mean_evaluable`.
    """
    marks = Scale("lower", 0.0, 10.0, declared=True)
    rollouts = rollout("a", scores={"marks": 1.0}), rollout("b", scores={"marks": 2.0}), rollout("c", "agent_error")
    part = plain(result_of(plan_suite("shop", replace(shop("marks"), scales={"marks": marks})), *rollouts, scale=marks))

    assert [pytest.approx(13 / 3), 1.5] == [*values(part, "marks")]
