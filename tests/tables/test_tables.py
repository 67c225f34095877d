"""The tables of runs: rows, units, and unknown values."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench import load
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics import registry, timings
from pytest_agentbench.records import Json
from pytest_agentbench.tables import COLUMNS, Tables, read_tables
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT, LOST, MS, NOON, START, TRIED

SAMPLES: list[Json] = [
    {
        "round": 1,
        "at": NOON,
        "ns": START,
        "service": "engine",
        "replica": 0,
        "first": True,
        "series": [["running", {"m": "a"}]],
        "values": [[0, 2.0]],
    },
    {"round": 1, "at": NOON, "ns": START, "gpu": "0", "used_mib": 100, "total_mib": 200, "sm_percent": 50.0, "power_w": None},
    {"round": 2, "at": NOON + 1, "ns": START + 1000 * MS, "service": "engine", "replica": 0, "values": [[0, 3.0]]},
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A run directory with rollouts and samples."""
    directory = run_directory(tmp_path / "reports" / "shop-run", *ALL)
    (directory / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in SAMPLES))
    return directory


@pytest.fixture
def tables(shop: Path) -> Tables:
    return read_tables([shop])


def test_calls_of_all_attempts(tables: Tables) -> None:
    """Each call has a row that identifies its rollout, including calls of earlier attempts and of judges."""
    calls = tables.calls

    assert ["shop-0", "shop-0", "shop-0", "shop-1", "shop-1"] == calls["scenario"].tolist()
    assert [1, 1, 1, 1, 2] == calls["attempt"].tolist()
    assert [True, True, False, True, True] == calls["measured"].tolist()
    assert ["", "", "judge", "", ""] == calls["role"].tolist()
    assert [1, 2, 1, 1, 1] == calls["number"].tolist()
    assert [None, None, None, "server_error", None] == calls["error_kind"].tolist()
    assert {"shop-run"} == set(calls["run"])


def test_durations_are_those_of_the_metrics(tables: Tables) -> None:
    """Durations equal the metrics of the registry in milliseconds. A failed call has none, and a single event has no gap."""
    expected = [timings.ttft_ns(call) for call in (*BOUGHT.calls, *BOUGHT.other_calls)]

    assert [value / 1e6 for value in expected if value is not None] == tables.calls["ttft_ms"][:3].tolist()
    assert [100.0, 200.0, 50.0, None, 400.0] == [None if np.isnan(value) else value for value in tables.calls["ttft_ms"]]
    assert (30.0, 30.0, 40.0) == tuple(tables.calls[f"itl_{name}_ms"][0] for name in ("mean", "median", "max"))
    assert np.isnan(tables.calls["itl_mean_ms"][1])
    assert 1000.0 == tables.rollouts["rollout_ms"][0]


def test_every_metric_is_a_column() -> None:
    """Each metric of the registry is a column of its table, with its unit."""
    calls, rollouts = ({column.name: column for column in COLUMNS[name]} for name in ("calls", "rollouts"))

    assert set() == {metric.key for metric in registry.latencies("call").values()} - set(calls)
    assert set() == {f"{metric.name}_max_ms" for metric in registry.latencies("event").values()} - set(calls)
    assert set() == {metric.key for metric in registry.latencies("rollout").values()} - set(rollouts)


def test_units_in_names() -> None:
    """A column whose name ends in a unit has that unit."""
    for columns in COLUMNS.values():
        for column in columns:
            ending = re.search(r"_(ms|s|tokens)$", column.name)

            assert ending is None or column.unit in (ending[1], f"tokens/{ending[1]}")


def test_rollouts_and_scores(tables: Tables) -> None:
    """Each rollout has a row, whatever its status. Each score, each part of a score and each missing score has a row."""
    rollouts, scores = tables.rollouts, tables.scores

    assert ["ok", "ok", "infra_error"] == rollouts["status"].tolist()
    assert [1, 2, 1] == rollouts["attempts"].tolist()
    assert ["find_item", "", ""] == rollouts["tools"].tolist()
    assert [4.0, 2.0] == rollouts["output_tokens"][:2].tolist()
    assert np.isnan(rollouts["output_tokens"][2])
    assert [("tsq", None, 1.0), ("tsq", "precision", 1.0), ("tsq", "recall", 1.0), ("tsq", None, 0.0), ("exact", None, None)] == [
        row[6:9] for row in scores.rows()
    ]
    assert "ValueError: no label" == scores["error"][-1]


def test_times_are_of_the_calendar(tables: Tables) -> None:
    """Timestamps of session clocks are converted to seconds since 1970."""
    assert [NOON, NOON + 0.4, NOON + 1.4] == pytest.approx(tables.rollouts["started_s"].tolist(), abs=1e-6)
    assert NOON + 0.5 == pytest.approx(tables.calls["sent_s"][1], abs=1e-6)


def test_sessions_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Times of a second session are converted with its own clock."""
    later = replace(LOST, session=2, started_at=NOON + 500, started_ns=7 * MS, ended_ns=8 * MS)
    tables = read_tables([run_directory(tmp_path / "two", BOUGHT, later)])

    assert [NOON, NOON + 500] == pytest.approx(tables.rollouts["started_s"].tolist(), abs=1e-6)


def test_unknown_times(tmp_path: Path) -> None:
    """A rollout without timestamps, as in some imported results, has no times."""
    tables = read_tables([run_directory(tmp_path / "untimed", replace(LOST, started_at=0.0, started_ns=0, ended_ns=0))])

    assert [None, None] == [None if np.isnan(tables.rollouts[name][0]) else 0 for name in ("started_s", "rollout_ms")]


def test_samples(tables: Tables) -> None:
    """Each value of a service or a GPU has a row, and unknown values are NaN."""
    samples = tables.samples

    assert [("running", 2.0), ("used_mib", 100.0), ("total_mib", 200.0), ("sm_percent", 50.0), ("power_w", None), ("running", 3.0)] == [
        (row[5], row[7]) for row in samples.rows()
    ]
    assert 'm="a"' == samples["labels"][0]
    assert [NOON, NOON + 1] == [samples["at_s"][0], samples["at_s"][-1]]


def test_metrics(tables: Tables) -> None:
    """Each number and each statistic in run.json is a row with its part of the run. Unknown values have no row."""
    rows = [*tables.metrics.rows()]

    assert [("run", None, None), ("suite", "shop", None), ("role", "shop", "agent"), ("role", "shop", "judge")] == [
        *dict.fromkeys((part, suite, role) for _, part, suite, _, _, role, *_ in rows)
    ]
    assert [("n", 3.0, None), ("mean", pytest.approx(700 / 3), "ms"), ("p50", 200.0, "ms"), ("min", 100.0, "ms"), ("max", 400.0, "ms")] == [
        row[7:] for row in rows if (row[1], row[6]) == ("run", "ttft")
    ]
    rates = {metric: value for _, part, *_, metric, statistic, value, _ in rows if part == "run" and statistic is None}
    speedup = 4.0 / ((3 / 0.2 + 1 / 0.3 + 2 / 0.7) / 3)  # divided by the mean output tok/s of the three calls
    assert {
        "output_tokens_per_s": 4.0,
        "rollouts_per_hour": 4800.0,
        "calls_per_minute": 120.0,
        "speedup": pytest.approx(speedup),
        "prefix_cache_hit_ratio": 0.6,
        "call_prefix_cache_hit_ratio": pytest.approx(0.6),
    } == rates
    assert [("tokens_per_rollout", 153.0), ("seconds_per_rollout", 1.0)] == [(row[6], row[8]) for row in rows if row[1] == "suite"][:2]
    assert set() == {"goodput_per_s", "cost", "served_ttft"} & {row[6] for row in rows}


def test_types(tables: Tables) -> None:
    """Counts are int64, numbers float64, flags bool and texts objects."""
    kinds = {"count": np.int64, "number": np.float64, "flag": np.bool_, "text": np.object_}
    for table in tables.all:
        assert {head.name: kinds[head.kind] for head in table.every_head} == {name: values.dtype for name, values in table.columns.items()}


def test_empty_tables(tmp_path: Path) -> None:
    """The tables of a run without rollouts have all columns and no rows."""
    tables, full = (read_tables([run_directory(tmp_path / name, *rollouts)]) for name, rollouts in (("empty", ()), ("full", ALL)))

    assert [0, 0, 0, 0, 0] == [len(table) for table in tables.all]
    assert [column.name for column in COLUMNS["calls"]] == [head.name for head in tables.calls.heads]
    assert list(full.calls.columns) == list(tables.calls.columns)


def test_several_runs(tmp_path: Path) -> None:
    """Rows of several runs follow each other and contain the name of their run."""
    both = [run_directory(tmp_path / name, rollout) for name, rollout in (("one", BOUGHT), ("two", TRIED))]

    assert [("one", "shop-0"), ("two", "shop-1")] == [row[:3:2] for row in read_tables(both).rollouts.rows()]


def test_rows_that_a_mask_takes(tables: Tables) -> None:
    """Selecting rows keeps all columns."""
    agent = tables.calls.where(tables.calls["measured"])

    assert (4, 5) == (len(agent), len(tables.calls))
    assert ["m"] * 4 == agent["model"].tolist()


def test_runs_that_cannot_be_told_apart(tmp_path: Path) -> None:
    """Two runs with the same name, and a directory without a journal, are refused."""
    one, other = (run_directory(tmp_path / folder / "same", BOUGHT) for folder in "ab")
    with pytest.raises(ConfigError, match="two runs are called same"):
        read_tables([one, other])
    with pytest.raises(ConfigError, match=r"has no rollouts\.jsonl"):
        read_tables([tmp_path])


def test_data_frames(shop: Path) -> None:
    """`load` returns the tables as data frames with units, for a directory or a name in the reports directory."""
    frames = load("shop-run", reports=shop.parent)

    assert (5, 3, 5, 6) == (len(frames.calls), len(frames.rollouts), len(frames.scores), len(frames.samples))
    assert "ms" == frames.calls.attrs["units"]["ttft_ms"]
    assert [column.name for column in COLUMNS["calls"]] == [*frames.calls.columns]
    assert 400.0 == load(shop).calls["ttft_ms"].max()
    with pytest.raises(ConfigError, match=r"no run 'shop-rum' .did you mean 'shop-run'..; known: shop-run"):
        load("shop-rum", reports=shop.parent)
    with pytest.raises(ConfigError, match=r"load\(\) needs a run"):
        load()
