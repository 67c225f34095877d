"""The run recorder: journal, counts and durations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import codec
from pytest_agentbench.records import Rollout, RolloutKey
from pytest_agentbench.rollouts.protocol import RolloutFinished
from pytest_agentbench.runs.journal import read_journal, rollout_of
from pytest_agentbench.session.recorder import DURATIONS, RunRecorder, known_durations, remember_durations


class HushedRecorder:
    """A RunRecorder that redacts the word `hush`, and the lines that its hooks got."""

    def __init__(self, directory: Path) -> None:
        self.told: list[bytes] = []
        self.inner = RunRecorder(directory, lambda text: text.replace("hush", "[redacted]"), self.told.append)

    def finish(self, name: str, answer: str = "", **keys: Any) -> bytes:
        """Records a rollout as if it came from the pool."""
        record = Rollout("shop", name, "default", 1, status="ok", answer=answer)
        finished = RolloutFinished(record.key, "scenario", "ok", {}, tokens=0, calls=0, duration_s=0.0)
        summary = dataclasses.replace(finished, **keys)
        return self.inner.finished(summary, json.dumps(codec.plain(record)).encode())


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[HushedRecorder]:
    recorder = HushedRecorder(tmp_path)
    yield recorder
    recorder.inner.close()


def test_records_are_redacted_first(recorder: HushedRecorder, tmp_path: Path) -> None:
    """The journal, the hooks and the test get the same redacted line."""
    line = recorder.finish("a", "hush!")

    assert "[redacted]!" == rollout_of(line).answer
    assert [line] == recorder.told
    assert line == recorder.inner.recorded(RolloutKey("shop", "a"))
    assert b"hush" not in (tmp_path / "rollouts.jsonl").read_bytes()
    assert ["[redacted]!"] == [rollout.answer for rollout in read_journal(tmp_path)]


def test_additional_rounds(recorder: HushedRecorder) -> None:
    """Additional rollouts are counted with the others. The backend is needed only if one of them is not recorded yet."""
    inner = recorder.inner
    inner.planned(2, 2, {"shop": 2})
    inner.added(2, 2)
    assert not inner.backend_needed.is_set()

    inner.added(2, 1)

    assert inner.backend_needed.is_set()
    assert (6, 5, 5) == (inner.planned_keys, inner.reused, inner.done)


def test_progress_is_counted(recorder: HushedRecorder) -> None:
    """Rollouts, tokens and scores are summed up. Only evaluable rollouts have a duration."""
    recorder.inner.planned(4, 0, {"shop": 5})
    recorder.finish("a", scores={"tsq": 0.5, "calls": 2.0}, tokens=10, duration_s=1.5)
    recorder.finish("b", scores={"tsq": 1.0}, tokens=5, duration_s=2.5, status="limit")
    recorder.finish("c", tokens=1, duration_s=3.5, status="infra_error")
    inner = recorder.inner

    assert (4, {"shop": 5}, 3, 3, 16) == (inner.planned_keys, inner.selected, inner.done, inner.in_journal, inner.tokens)
    assert {"tsq": (1.5, 2), "calls": (2.0, 1)} == inner.score_sums
    assert {"shop[a]": 1.5, "shop[b]": 2.5} == inner.durations


def test_manual_calls_do_not_count(recorder: HushedRecorder) -> None:
    """Manual calls of tests are in the journal, but in no count."""
    recorder.finish("a", kind="adhoc", tokens=10, duration_s=1.5, scores={"tsq": 1.0})

    assert (1, 0, 0, {}, {}) == (
        recorder.inner.in_journal,
        recorder.inner.done,
        recorder.inner.tokens,
        recorder.inner.score_sums,
        recorder.inner.durations,
    )
    assert 1 == len(recorder.told)


def test_durations_are_remembered_by_backend(tmp_path: Path) -> None:
    """Each backend has its own durations. New durations replace old ones of the same rollout; the others stay."""
    remember_durations(tmp_path, "embedded", {"shop[a]": 1.00004, "shop[b]": 2.0})
    remember_durations(tmp_path, "vllm", {"shop[a]": 9.0})
    remember_durations(tmp_path, "embedded", {"shop[b]": 3.0, "shop[c]": 4.0})

    assert {"shop[a]": 1.0, "shop[b]": 3.0, "shop[c]": 4.0} == known_durations(tmp_path, "embedded")
    assert {"shop[a]": 9.0} == known_durations(tmp_path, "vllm")
    assert {} == known_durations(tmp_path, "other")
    assert [DURATIONS] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    "broken", [None, "", "{", "[1]", "5", '{"embedded": [1]}', '{"embedded": {"a": "long"}}', '{"embedded": null}', b"\xff"]
)
def test_broken_durations_are_no_trouble(tmp_path: Path, broken: str | bytes | None) -> None:
    """An invalid file counts as empty and is replaced, because it only improves the order of rollouts."""
    if broken is not None:
        (tmp_path / DURATIONS).write_bytes(broken if isinstance(broken, bytes) else broken.encode())

    assert {} == known_durations(tmp_path, "embedded")

    remember_durations(tmp_path, "embedded", {"shop[a]": 1.0})

    assert {"shop[a]": 1.0} == known_durations(tmp_path, "embedded")


def test_a_record_that_comes_twice(recorder: HushedRecorder, tmp_path: Path) -> None:
    """A record that a pool sends twice is written and counted once and gets the same answer. A different record is written."""
    assert recorder.finish("a", "hush") == recorder.finish("a", "hush")
    assert (1, 1, 1) == (len(recorder.told), recorder.inner.done, recorder.inner.in_journal)
    assert {RolloutKey("shop", "a"): "ok"} == recorder.inner.kept

    recorder.finish("a", "silence")

    assert 2 == len((tmp_path / "rollouts.jsonl").read_bytes().splitlines())
