"""The history of a suite: which changes count as steps, and when a regression is new, fixed or recurring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import write_baseline
from pytest_agentbench.gate.evidence import CallTimes, Evidence
from pytest_agentbench.gate.trend import History, Regression, Trend, TrendSeries, read_history, trend_of
from pytest_agentbench.records import Json
from tests.gate.evidences import HASHES, evidence, trial
from tests.made_runs import run_directory
from tests.tables.shop import ALL

OTHER_SCORING = {**HASHES, "scorers": {"tsq": "another way"}}


def night(day: int, share: float = 0.9, *, ttft: float = 100.0, content: Json = HASHES, **facts: Any) -> Evidence:
    """Returns a run of 40 scenarios with three trials, a share of which passes. Each night has its own commit."""
    random = Random(day)
    trials = [
        trial(name, float(random.random() < share), number=number, ttft=ttft + random.randrange(20), content=content, began_at=float(name))
        for name in range(40)
        for number in (1, 2, 3)
    ]
    known = {"run": f"n{day}", "commit": f"c{day}", "finished_at": f"2026-03-{day + 1:02}T05:00:00+00:00", **facts}
    return evidence(trials, **known)


def history(*nights: Evidence) -> Trend:
    return trend_of(History(tuple((each.facts.run, each) for each in nights), ()))


def series(trend: Trend, metric: str = "tsq.mean") -> TrendSeries:
    return next(each for each in trend.suites["shop"].series if each.metric == metric)


def steps(found: Sequence[Regression]) -> list[tuple[str, str, str, str | None, str | None]]:
    return [(each.kind, each.state, each.run, each.commit, each.fixed_commit) for each in found]


def test_new_fixed_recurring() -> None:
    """Good, worse, worse, good, worse: the first regression is new and fixed, the second recurring and open, with their commits."""
    trend = history(*(night(day, share) for day, share in enumerate((0.9, 0.9, 0.4, 0.4, 0.9, 0.9, 0.3))))

    found = series(trend).regressions

    assert [("new", "fixed", "n2", "c2", "c4"), ("recurring", "open", "n6", "c6", None)] == steps(found)
    assert ["c0", "c4"] == [each.reference_commit for each in found]
    assert found[0].high < 0


def test_a_partial_recovery_fixes_nothing() -> None:
    """A run that is better than the worst one, but still worse than before, leaves the regression open."""
    trend = history(*(night(day, share) for day, share in enumerate((1.0, 0.2, 0.6, 0.6, 1.0))))

    assert [("new", "fixed", "n1", "c1", "c4")] == steps(series(trend).regressions)
    assert [("new", "open", "n1", "c1", None)] == steps(series(history(*(night(d, s) for d, s in enumerate((1.0, 0.2, 0.6))))).regressions)


def test_two_steps_down() -> None:
    """Two steps down have an entry each. A run as good as before the first fixes both."""
    trend = history(*(night(day, share) for day, share in enumerate((1.0, 0.6, 0.1, 1.0))))

    assert [("new", "fixed", "n1", "c1", "c3"), ("new", "fixed", "n2", "c2", "c3")] == steps(series(trend).regressions)


@pytest.mark.parametrize(("factor", "count"), [(1.05, 0), (2.0, 1)])
def test_latencies_have_a_margin(factor: float, count: int) -> None:
    """A doubled latency is a step. An increase of five percent is not, however certain."""
    trend = history(night(0), night(1), night(2, ttft=100.0 * factor + 10 * (factor - 1)))

    assert count == len(series(trend, "ttft.p50").regressions)


def test_each_comparison_has_a_smaller_risk() -> None:
    """The k-th comparison of a metric has a risk of 0.05 / k (k + 1), which all together never exceed 0.05."""
    trend = history(night(0), night(1), night(2), night(3, 0.2))

    (found,) = series(trend).regressions

    assert pytest.approx(1 - 0.05 / (3 * 4)) == found.confidence


def test_reported_regressions_do_not_change() -> None:
    """A later night changes nothing about an earlier regression except whether it is fixed."""
    nights = [night(day, share) for day, share in enumerate((0.9, 0.3, 0.3, 0.9, 0.9, 0.3, 0.9))]

    for count in range(2, len(nights)):
        before, after = (series(history(*nights[:size])).regressions for size in (count, count + 1))
        assert [(each.run, each.low, each.high) for each in before] == [(each.run, each.low, each.high) for each in after[: len(before)]]


def test_scored_in_another_way() -> None:
    """A run with another scorer is not a step. If the next one is scored alike, a new level begins, on which steps are found."""
    lower = [night(day, 0.3, content=OTHER_SCORING) for day in (2, 3)]

    assert () == series(history(night(0), night(1), *lower)).regressions
    assert () == series(history(night(0), lower[0], night(3), night(4))).regressions
    assert ["n4"] == [each.run for each in series(history(night(0), *lower, night(4, 0.0, content=OTHER_SCORING))).regressions]


def test_a_regression_of_an_earlier_level_is_unknown() -> None:
    """A regression that is open when another level begins becomes unknown, and no later run fixes it."""
    others = [night(day, content=OTHER_SCORING) for day in (2, 3)]

    assert [("new", "unknown", "n1", "c1", None)] == steps(series(history(night(0), night(1, 0.3), *others)).regressions)


def test_saturated_clients_decide_nothing() -> None:
    """Latencies of a saturated client are not a step. The scores of such a run are still compared."""
    trend = history(night(0), night(1), night(2, 0.3, ttft=900.0, stopwatch="client-saturated"))

    assert () == series(trend, "ttft.p50").regressions
    assert ["n2"] == [each.run for each in series(trend).regressions]


def test_setups_that_changed() -> None:
    """Each change of data, agent, scoring, cache or stopwatch is listed at the first run with it. Unknown parts are not changes."""
    agent, unknown = {**HASHES, "agent": "z"}, {name: value for name, value in HASHES.items() if name != "agent"}
    nights = [night(0), night(1, content=unknown), night(2, content=agent), night(3, content=agent, cache="cold")]
    nights.append(night(4, content=agent, cache="cold", stopwatch_version=2))

    changed = [("n2", ("agent",)), ("n3", ("cache",)), ("n4", ("stopwatch",))]
    assert changed == [(each.run, each.parts) for each in history(*nights).suites["shop"].setups]


def test_fewer_scenarios_are_the_same_data() -> None:
    """A different selection of scenarios is listed as `scenarios`, a scenario with other content as `data`."""
    every, first, other = ([trial(name, content=content) for name in names] for names, content in
                           ((range(4), HASHES), (range(2), HASHES), (range(2), {**HASHES, "scenario": "t"})))  # fmt: skip
    nights = [evidence(trials, run=f"n{day}", finished_at=f"2026-03-0{day + 1}T05:00:00+00:00")
              for day, trials in enumerate((every, every, first, other))]  # fmt: skip

    assert [("n2", ("scenarios",)), ("n3", ("data",))] == [(each.run, each.parts) for each in history(*nights).suites["shop"].setups]


def test_points_have_the_intervals_of_reports() -> None:
    """Each run is a point with its own interval, in time order."""
    points = series(history(night(0), night(1))).points

    assert ["n0", "n1"] == [each.run for each in points]
    assert all(each.low is not None and each.high is not None and each.low < each.value < each.high for each in points)


def test_a_latency_of_zero() -> None:
    """If the gaps between tokens were measured as 0 ms, the point is 0 ms as in run.json, and its interval begins at 0."""
    call = CallTimes({"ttft": 100.0, "tpot": 0.0}, 11, failed=False)
    found = evidence(trial(number, calls=(call,), began_at=float(number)) for number in range(60))
    (point,) = series(history(found), "tpot.p50").points

    assert 0.0 == point.value == point.low


def test_a_directory_is_read(tmp_path: Path) -> None:
    """Runs and baselines of a directory are read in time order, each run once. Unreadable ones are listed with the reason."""
    run_directory(tmp_path / "20260304-050607", *ALL, finished_at="2026-03-02T06:00:00+00:00")
    for day in (3, 0):
        (tmp_path / "baselines").mkdir(exist_ok=True)
        write_baseline(night(day), "shop", tmp_path / "baselines" / f"{day}.jsonl")
    write_baseline(night(0), "shop", tmp_path / "again.jsonl")
    (tmp_path / "broken.jsonl").write_text('{"schema": "agentbench-baseline/1", "suite": "shop"}\n')

    past = read_history(tmp_path)

    assert ["again.jsonl", "20260304-050607", "3.jsonl"] == [source for source, _ in past.evidence]
    (left_out,) = past.left_out
    assert ("broken.jsonl", True) == (left_out.source, "schema agentbench-baseline/1" in left_out.why)


def test_a_run_without_its_journal(tmp_path: Path) -> None:
    """A run without rollouts.jsonl is left out with a reason. The history of the other runs is complete."""
    run_directory(tmp_path / "20260304-050607", *ALL)
    (run_directory(tmp_path / "20260305-050607", *ALL) / "rollouts.jsonl").unlink()

    past = read_history(tmp_path)

    assert ["20260304-050607"] == [source for source, _ in past.evidence]
    assert ["has no rollouts.jsonl, so its rollouts cannot be read; choose a run that has one"] == [
        each.why.partition(f"{each.source} ")[2] for each in past.left_out
    ]


def test_a_run_from_a_recording(tmp_path: Path) -> None:
    """A run whose answers come from a recording is no point of a history."""
    for name, kind in (("20260304-050607", "url"), ("20260305-050607", "recorded")):
        file = run_directory(tmp_path / name, *ALL) / "run.json"
        run = json.loads(file.read_text())
        file.write_text(json.dumps({**run, "backend": {**run["backend"], "kind": kind}}))

    past = read_history(tmp_path)

    assert (["20260304-050607"], ["20260305-050607"]) == ([name for name, _ in past.evidence], [each.source for each in past.left_out])


def test_directories_without_runs(tmp_path: Path) -> None:
    """A missing or empty directory, a single run, and a directory without readable runs are refused, each with a sentence."""
    with pytest.raises(ConfigError, match=r"nights is not a directory; name the directory that contains the runs"):
        read_history(tmp_path / "nights")
    with pytest.raises(ConfigError, match="has no finished runs and no baselines; name the directory that contains the runs"):
        read_history(tmp_path)
    with pytest.raises(ConfigError, match="is one run, which has no history; name the directory that contains the runs"):
        read_history(run_directory(tmp_path / "one", *ALL))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "broken.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"contains no usable run or baseline; .*broken.jsonl is not a baseline"):
        read_history(tmp_path / "old")
