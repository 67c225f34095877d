"""Evidence: the data taken from a rollout. A baseline file contains all of it, and no text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.gate.baselines import default_baseline, find_baseline, read_evidence, write_baseline
from pytest_agentbench.gate.evidence import CallTimes, Evidence, RunFacts, Trial, good_shares, trial_of
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import goodput, objectives_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Attempt, Chunk, LLMCall, Rollout, Score, ToolCall
from tests.frames import scenarios_of
from tests.gate.evidences import evidence, trial
from tests.record_values import values_of

MS = 1_000_000  # nanoseconds

numbers = st.floats(min_value=0, max_value=1e9)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
calls = st.builds(CallTimes, st.dictionaries(st.sampled_from([*registry.objectives()]), numbers), st.integers(0, 10_000), st.booleans())
trials = st.builds(
    Trial,
    st.sampled_from(["shop", "bank"]),
    st.sampled_from(["shop", "shop-hot", "bank"]),
    names,
    st.integers(1, 5),
    st.sampled_from(["ok", "limit", "agent_error", "infra_error", "cancelled"]),
    content=st.dictionaries(st.sampled_from(["scenario", "agent", "scorers", "backend"]), names),
    cluster=st.none() | names,
    attempts=st.integers(1, 3),
    scores=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False)),
    unscored=st.lists(names, max_size=2).map(tuple),
    duration_ms=numbers,
    calls=st.lists(calls, max_size=3).map(tuple),
)
facts = values_of(RunFacts)


@given(facts, st.lists(trials, max_size=6))
def test_a_baseline_is_the_evidence_written_down(known: RunFacts, every: list[Trial]) -> None:
    """Evidence that is written to a baseline file is read back with equal numbers."""
    shop = Evidence.of(known, [each for each in every if each.suite == "shop"])
    with TemporaryDirectory() as folder:
        file = write_baseline(Evidence.of(known, every), "shop", Path(folder) / "shop.jsonl")

        assert shop == read_evidence(file)


def rollout(**keys: Any) -> Rollout:
    chunks = (Chunk(130 * MS, "content"), Chunk(150 * MS, "content"), Chunk(210 * MS, "content"))
    call = LLMCall(0, 100 * MS, 220 * MS, chunks, completion_tokens=5)
    return Rollout(
        "shop",
        "s-1",
        "hot",
        2,
        "ok",
        content={"scenario": "abc"},
        cluster="lamps",
        attempt=3,
        started_ns=0,
        ended_ns=500 * MS,
        calls=(call, LLMCall(0, None, 5, error_kind="connect", error="FAULT")),
        tool_calls=(ToolCall("find", {"item": "ARGUMENT"}, 1),),
        answer="ANSWER",
        messages=({"role": "user", "content": "MESSAGE"},),
        scores={"tsq": Score(0.5, explanation="WHY")},
        score_errors={"judge": "SCORER"},
        log="LOG",
        **keys,
    )


def test_the_data_of_a_rollout() -> None:
    """Evidence has scores, hashes, attempts, and timings derived from timestamps. Failed calls are marked."""
    assert Trial(
        suite="shop",
        group="shop-hot",
        scenario="s-1",
        trial=2,
        status="ok",
        content={"scenario": "abc"},
        cluster="lamps",
        attempts=3,
        scores={"tsq": 0.5},
        unscored=("judge",),
        duration_ms=500.0,
        calls=(CallTimes({"ttft": 30.0, "itl": 60.0, "tpot": 20.0, "e2e": 120.0}, 5, failed=False), CallTimes({}, 0, failed=True)),
    ) == trial_of(rollout())


def test_calls_of_earlier_attempts_are_evidence() -> None:
    """Calls of earlier attempts are judged too, so a retry does not hide a failed call."""
    failed = LLMCall(0, 0, 1, error_kind="cut")
    last = rollout()

    found = trial_of(replace(last, earlier_attempts=(Attempt(1, "infra_error", calls=(failed,)),)))

    assert (CallTimes({}, 0, failed=True), *trial_of(last).calls) == found.calls


def test_no_text_is_in_a_baseline(tmp_path: Path) -> None:
    """Prompts, answers, arguments, logs and errors are not in a baseline file."""
    lines = write_baseline(Evidence.of(RunFacts("r"), [trial_of(rollout())]), "shop", tmp_path / "shop.jsonl").read_text()

    assert [] == [text for text in ("FAULT", "ARGUMENT", "ANSWER", "MESSAGE", "WHY", "SCORER", "LOG") if text in lines]


stamps = st.lists(st.integers(1, 400), max_size=4).map(sorted)
objectives = st.dictionaries(st.sampled_from([*registry.objectives()]), st.sampled_from([10.0, 50.0, 150.0]), min_size=1)


@given(stamps, st.none() | st.integers(0, 9), st.sampled_from([None, "cut"]), objectives)
def test_a_call_is_good_as_in_the_report(at: list[int], tokens: int | None, error: str | None, slo: dict[str, float]) -> None:
    """Derived timings give a call the same goodput verdict as its raw timestamps."""
    call = LLMCall(0, 0, 400 * MS, tuple(Chunk(each * MS, "content") for each in at), completion_tokens=tokens, error_kind=error)
    one = Rollout("shop", "s-1", "default", 1, "ok", calls=(call,))
    judged = goodput(scenarios_of(one, terms=Terms(objectives_of(slo))))
    shares = good_shares([trial_of(one)], slo)["s-1"].scores

    assert judged is not None
    assert {(1.0,): (1, 0, 0), (0.0,): (0, 1, 0), (): (0, 0, 1)}[shares] == (judged.good_calls, judged.bad_calls, judged.unknown_calls)


def test_writing(tmp_path: Path) -> None:
    """A baseline is a file under reports/baselines. Its first line has the replaced run and the reason."""
    run = evidence([trial(1), trial(2)], run="20260101-000000")

    path = write_baseline(run, "shop", default_baseline("shop", tmp_path), "20251231-000000", "a smaller model")

    assert tmp_path / "baselines" / "shop.jsonl" == path
    assert run == read_evidence(find_baseline(str(path), tmp_path))
    header = json.loads(path.read_text().splitlines()[0])
    assert ("20251231-000000", "a smaller model") == (header["replaces"], header["reason"])
    assert ["shop.jsonl"] == [path.name for path in (tmp_path / "baselines").iterdir()]


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"schema": "agentbench-baseline/5"}', '{"schema": "agentbench-baseline/5", "suite": "s"}', "3"]
)
def test_an_invalid_baseline(tmp_path: Path, text: str) -> None:
    """If a file is not a baseline, the error names the file and the command that writes a baseline."""
    path = tmp_path / "base.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"base\.jsonl is not a baseline: .*; `agentbench baseline promote RUN` writes one"):
        read_evidence(path)


def test_an_unknown_baseline(tmp_path: Path) -> None:
    """A name that is neither a file nor a run is refused with the known runs."""
    with pytest.raises(ConfigError, match="no run 'nightly'; known: none"):
        find_baseline("nightly", tmp_path)


def test_good_shares_of_nothing() -> None:
    """A suite without rollouts has no good shares, and does not prevent verdicts about other suites."""
    assert {} == good_shares([], {"ttft": 500.0})
