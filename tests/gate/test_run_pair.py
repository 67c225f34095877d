"""Differences between the setups of two runs, and reasons why their speeds are not comparable."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.gate.run_pair import ComparedRun, setup_changes, speed_warnings
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics.stopwatch import READ_TOO_LATE, Stopwatch
from pytest_agentbench.records import Json
from pytest_agentbench.runs.identity import SuiteSetup, run_identity
from pytest_agentbench.runs.provenance import SuiteOptions
from pytest_agentbench.runs.results import Means
from pytest_agentbench.stats.quantiles import latency_spread
from pytest_agentbench.suites.hashes import digest
from tests.gate.evidences import evidence, trial
from tests.made_runs import mean, run_of

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
TREES = st.dictionaries(st.text("abc", min_size=1, max_size=2), VALUES | st.lists(VALUES, max_size=3), max_size=3)


def run(found: Evidence | None = None, **changes: Any) -> ComparedRun:
    """Returns a run of the suite shop on a backend. `changes` are changes of its agent, options, GPUs and so on."""
    setup = SuiteSetup(
        data={"sha256": "d"},
        prompts={"system_prompt": changes.get("prompt", "p")},
        tools="t",
        agent=changes.get("agent", {"kind": "tool_calling"}),
        scoring={"tsq": {}},
        options=SuiteOptions(1, 600.0, "none"),
    )
    base, names = run_of(), changes.get("suites", ("shop",))
    timings = {"ttft_ms": latency_spread([10.0]), "prefix_cache_hit_ratio": changes.get("hits")}
    measured = replace(
        base,
        environment=replace(base.environment, cpus=changes.get("cpus", 2)),
        settings=replace(base.settings, concurrency=changes.get("concurrency", 8), cache=changes.get("cache", "carry")),
        stopwatch=Stopwatch(verdict=changes.get("stopwatch", "ok"), unusable=changes.get("unusable", ())),
        suites=dict.fromkeys(names, replace(base.suites["shop"], scores={"tsq": Means(mean(), mean())})),
        performance=replace(base.performance, metrics={**base.performance.metrics, **timings}),
    )
    about = {"hardware": {"gpus": changes.get("gpus", []), "driver": None}, "services": changes.get("services")}
    identity = run_identity(measured, dict.fromkeys(names, setup), {"kind": "stack", **changes.get("backend", {})}, about)
    return ComparedRun(replace(measured, identity=identity), found or evidence([trial(number) for number in range(3)]))


@given(TREES, TREES)
def test_differing_settings_are_listed(old: Json, new: Json) -> None:
    """Only differing settings are listed, each with its old and its new value."""
    found = [*setup_changes(run(agent=old), run(agent=new))]

    assert {f"shop.{name}" for name in {*old, *new} if old.get(name) != new.get(name)} == {each.path for each in found}
    assert {"agent"} >= {each.part for each in found}
    assert [] == [*setup_changes(run(agent=old), run(agent=copy.deepcopy(old)))]


def test_a_hash_is_not_listed_as_well() -> None:
    """If the backend's settings differ, its hash is not listed as well."""
    found = [*setup_changes(run(), run(backend={"seed": 1}))]

    assert [("backend", "spec.seed", None, 1)] == [(each.part, each.path, each.old, each.new) for each in found]


def test_suites_of_one_run() -> None:
    """A suite that only one run has does not make all its parts count as changed."""
    assert [] == [*setup_changes(run(suites=("shop", "store")), run())]


def test_a_run_without_an_identity() -> None:
    """The setup of an imported run is unknown, which causes no warning about speeds."""
    old, new = ComparedRun(replace(run().facts, identity=None), run().evidence), run()

    assert ([], []) == ([*setup_changes(old, new)], [*speed_warnings(old, new)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"agent": {"kind": "react"}}, []),
        ({"gpus": ["NVIDIA H100"]}, ["the GPUs or the driver differ"]),
        ({"cpus": 64}, ["the host differs"]),
        ({"concurrency": 4}, ["different numbers of rollouts in flight: 8 and 4"]),
        ({"cache": "cold"}, ["different policies for the prefix cache: carry and cold"]),
        (
            {"stopwatch": "client-saturated"},
            ["in the new run the client was saturated, so its timings describe the client, not the backend"],
        ),
        (
            {"unusable": ("ttft.p50", "itl.p99")},
            [f"in the new run TTFT p50 is not usable: {READ_TOO_LATE}"],
        ),
        ({"hits": 0.9}, ["the prefix cache was not in the same state: hit ratio 0.50 and 0.90"]),
    ],
)
def test_speed_warnings(change: Json, said: list[str]) -> None:
    """Other hardware, concurrency, cache or a saturated client cause a warning about speeds. Another agent does not."""
    assert said == [*speed_warnings(run(hits=0.5), run(**{"hits": 0.5, **change}))]


def test_versions_of_the_stopwatch() -> None:
    """Speeds that different versions of the stopwatch measured get a warning if many calls could be affected."""
    old = run(evidence([trial(0)]))
    new = run(evidence([trial(0)], stopwatch_version=2, delayed_ack_share=0.25))

    (why,) = speed_warnings(old, new)

    assert why.startswith("TTFT of versions 1 and 2 of the stopwatch differs by up to 40 ms in 25 % of these calls")
    assert [] == [*speed_warnings(new, new)]


def test_unknown_hardware() -> None:
    """Unknown hardware is not treated as equal hardware."""
    assert ["the hardware of the old run and the new run is unknown"] == [*speed_warnings(run(gpus=None), run(gpus=None))]
    assert ["the hardware of the new run is unknown"] == [*speed_warnings(run(), run(gpus=None))]


def test_equal_setups_have_one_hash() -> None:
    """Two runs of one setup have the same identity."""
    assert digest(plain(run().identity)) == digest(plain(run().identity))
