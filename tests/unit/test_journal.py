"""rollouts.jsonl: what is written is found again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_agentbench.journal import Journal, read_journal
from pytest_agentbench.records import Rollout, RolloutKey


def rollout(number: int, answer: str = "") -> Rollout:
    return Rollout("shop", f"s-{number}", "default", 1, status="ok", answer=answer)


def line(record: Rollout) -> bytes:
    return json.dumps(record.to_dict()).encode()


def test_rollouts_come_back_in_order(tmp_path: Path) -> None:
    """A journal holds one line per rollout, in the order in which they were appended, while it is still open."""
    records = [rollout(2), rollout(0), rollout(1, answer="two\nlines, \u2028 and é")]

    with Journal(tmp_path) as journal:
        for record in records:
            journal.append(record.key, line(record))

        assert records == [*read_journal(tmp_path)]
    assert 3 == (tmp_path / "rollouts.jsonl").read_bytes().count(b"\n")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """A kill in the middle of a write costs the rollout that was being written, and no other."""
    whole, torn = rollout(0), line(rollout(1))

    for size in (1, len(torn) // 2, len(torn)):
        (tmp_path / "rollouts.jsonl").write_bytes(line(whole) + b"\n" + torn[:size])

        assert [whole] == [*read_journal(tmp_path)]


def test_an_empty_journal(tmp_path: Path) -> None:
    """A run without rollouts has an empty journal; a directory without one is an error."""
    with pytest.raises(FileNotFoundError):
        [*read_journal(tmp_path)]
    Journal(tmp_path).close()

    assert [] == [*read_journal(tmp_path)]


def test_a_record_is_found_by_its_key(tmp_path: Path) -> None:
    """`line` gives back a record as it was written, between further appends; a key written twice gives the last, here and to readers."""
    with Journal(tmp_path) as journal:
        for number in range(20):
            journal.append(rollout(number).key, line(rollout(number, "x" * number)))

            assert line(rollout(number // 2, "x" * (number // 2))) == journal.line(rollout(number // 2).key)
        journal.append(rollout(3).key, line(rollout(3, "again")))

        assert line(rollout(3, "again")) == journal.line(rollout(3).key)
        with pytest.raises(KeyError):
            journal.line(RolloutKey("shop", "s-99"))
    assert 20 == len([*read_journal(tmp_path)])


def test_an_existing_journal_is_appended_to(tmp_path: Path) -> None:
    """Nothing that stands in a journal is ever rewritten."""
    for number in range(2):
        with Journal(tmp_path) as journal:
            journal.append(rollout(number).key, line(rollout(number)))

            assert line(rollout(number)) == journal.line(rollout(number).key)

    assert [rollout(0), rollout(1)] == [*read_journal(tmp_path)]


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    """Records appended and read from several threads stay whole."""
    records = [rollout(number, "x" * (number * 37 % 5000)) for number in range(200)]

    def work(record: Rollout) -> bytes:
        journal.append(record.key, line(record))
        return journal.line(record.key)

    with Journal(tmp_path) as journal, ThreadPoolExecutor(8) as threads:
        found = [*threads.map(work, records)]

    assert [line(record) for record in records] == found
    assert set(map(str, records)) == set(map(str, read_journal(tmp_path)))
