"""rollouts.jsonl: what is written is found again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.journal import FILE, Journal, read_index, read_journal, record_line
from pytest_agentbench.records import LLMCall, Rollout, RolloutKey


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


# ----------------------------------------------------------------------------------------------------- after a crash

HASHES = {"scenario": "a" * 16, "agent": "b" * 16, "scorers": {"tsq": "c" * 16, "names": "e" * 16}, "backend": "d" * 16}
TEXT = st.text(max_size=20)
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@ONE_FOLDER
@given(TEXT, TEXT, TEXT, st.integers(1, 10**6), st.integers(1, 99), st.sampled_from(["scenario", "adhoc"]))
def test_an_index_reads_no_body(tmp_path: Path, suite: str, scenario: str, variant: str, trial: int, session: int, kind: str) -> None:
    """Whatever a scenario is called, its record is found by the first fields of its line: a body that cannot be parsed does not matter."""
    record = Rollout(
        suite, scenario, variant, trial, "ok", reason=variant, session=session, content=HASHES, kind=kind, calls=(LLMCall(1, 2, 3),)
    )
    written = record_line(record)
    (tmp_path / FILE).write_bytes(written.replace(b'"calls":[', b'"calls":!') + b"\n")

    index = read_index(tmp_path)

    assert [] == index.damaged
    ((key, entry),) = index.entries.items()
    assert record.key == key
    assert ("ok", session, HASHES, kind, 0, len(written)) == (
        entry.status,
        entry.session,
        entry.content,
        entry.kind,
        entry.offset,
        entry.size,
    )


@ONE_FOLDER
@given(st.integers(0, 3), st.integers(1, 400))
def test_a_torn_record_is_cut_off(tmp_path: Path, whole: int, size: int) -> None:
    """After a kill in the middle of a write the next session appends to whole records only, wherever the write was cut."""
    torn = record_line(rollout(9))[:size]
    (tmp_path / FILE).write_bytes(b"".join(record_line(rollout(number)) + b"\n" for number in range(whole)) + torn)

    with Journal(tmp_path) as journal:
        assert (len(torn), whole) == (journal.index.torn, len(journal.index.entries))
        journal.append(rollout(7).key, record_line(rollout(7)))

    assert [*map(rollout, range(whole)), rollout(7)] == [*read_journal(tmp_path, pytest.fail)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 4096,
        b"caf\xe9",
        b"[1]",
        b'{"suite":"shop"}',
        record_line(rollout(5))[:80],
        record_line(rollout(5))[:80] + record_line(rollout(6)),
        record_line(rollout(5))[:-20] + record_line(rollout(6)),
        record_line(rollout(5)).replace(b"[]", b"[\0\0]", 1),
    ],
)
def test_garbage_in_the_middle(tmp_path: Path, garbage: bytes) -> None:
    """A line that is no record is left out and named by its number; the records around it are not lost."""
    (tmp_path / FILE).write_bytes(b"\n".join([record_line(rollout(0)), garbage, record_line(rollout(1)), b""]))
    damage: list[str] = []

    assert [rollout(0), rollout(1)] == [*read_journal(tmp_path, damage.append)]
    (sentence,) = damage
    assert sentence.startswith(f"line 2 of {tmp_path / FILE} is no record, and is left out: b'")
    with Journal(tmp_path) as journal:
        assert damage == journal.index.damaged
        assert record_line(rollout(1)) == journal.line(rollout(1).key)


def test_a_damaged_body_is_named(tmp_path: Path) -> None:
    """Damage within a record is found when the record is read; that costs this record, and whoever reads is told."""
    spoilt = record_line(rollout(0)).replace(b'"attempt":', b'"attempt"!')
    (tmp_path / FILE).write_bytes(spoilt + b"\n" + record_line(rollout(1)) + b"\n")
    damage: list[str] = []

    assert [rollout(1)] == [*read_journal(tmp_path, damage.append)]
    (sentence,) = damage
    assert sentence.startswith(f"the record of shop[s-0] at byte 0 of {tmp_path / FILE} cannot be read, and is left out: ")


def test_damage_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that reads a journal, and does not ask about damage, is told on stderr."""
    (tmp_path / FILE).write_bytes(b"nonsense\n")

    assert [] == [*read_journal(tmp_path)]
    assert f"agentbench: line 1 of {tmp_path / FILE} is no record" in capsys.readouterr().err


def test_the_last_record_counts(tmp_path: Path) -> None:
    """Of a rollout that ran again in a later session the earlier record stays in the file, and does not count."""
    failed = Rollout("shop", "s-0", "default", 1, status="infra_error", session=1)
    again = Rollout("shop", "s-0", "default", 1, status="ok", session=2)
    with Journal(tmp_path) as journal:
        for record in (failed, rollout(1), again):
            journal.append(record.key, record_line(record))

    assert [rollout(1), again] == [*read_journal(tmp_path)]
    assert (1, 2) == (read_index(tmp_path).repeated, read_index(tmp_path).entries[again.key].session)
    assert 3 == (tmp_path / FILE).read_bytes().count(b"\n")


def test_one_session_at_a_time(tmp_path: Path) -> None:
    """A journal that somebody writes to is not taken up by another session; its end, however it comes, lets go of it."""
    with Journal(tmp_path), pytest.raises(ConfigError, match="another session is writing to"):
        Journal(tmp_path)

    Journal(tmp_path).close()


def test_a_forgotten_record(tmp_path: Path) -> None:
    """What is to run again is as if it had not been written, until it is written again."""
    with Journal(tmp_path) as journal:
        journal.append(rollout(0).key, line(rollout(0)))
        journal.forget(rollout(0).key)

        with pytest.raises(KeyError):
            journal.line(rollout(0).key)
        journal.append(rollout(0).key, line(rollout(0, "again")))

        assert line(rollout(0, "again")) == journal.line(rollout(0).key)
