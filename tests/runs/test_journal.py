"""rollouts.jsonl: writing records, reading them by key, and detecting damage."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import LLMCall, Rollout, RolloutKey, ToolCall
from pytest_agentbench.runs.journal import FILE, Journal, read_index, read_journal, record_line


def rollout(number: int, answer: str = "") -> Rollout:
    return Rollout("shop", f"s-{number}", "default", 1, status="ok", answer=answer)


def line(record: Rollout) -> bytes:
    return json.dumps(codec.plain(record)).encode()


def written(record: Rollout) -> bytes:
    """Returns a line of a journal."""
    return sealed(record_line(record)) + b"\n"


def test_rollouts_come_back_in_order(tmp_path: Path) -> None:
    """An open journal contains one line per rollout, in the order of appending."""
    records = [rollout(2), rollout(0), rollout(1, answer="two\nlines, \u2028 and é")]

    with Journal(tmp_path) as journal:
        for record in records:
            journal.append(record.key, line(record))

        assert records == [*read_journal(tmp_path)]
    assert 3 == (tmp_path / "rollouts.jsonl").read_bytes().count(b"\n")


@pytest.mark.parametrize("beside", [0, 10**30, "\ud83d"])
def test_numbers_that_json_cannot_represent(beside: object) -> None:
    """NaN in an argument becomes null, in the fast and in the slow conversion to JSON."""
    call = ToolCall("pay", {"amount": math.nan, "limit": -math.inf, "beside": beside}, 1)
    record = replace(rollout(0, answer="\ud83d\ude00"), tool_calls=(call,))

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads(record_line(record), parse_constant=refused)

    (tool_call,) = data["tool_calls"]
    assert (None, None) == (tool_call["arguments"]["amount"], tool_call["arguments"]["limit"])


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """If a session is killed while it writes a record, only that record is lost."""
    whole, truncated = rollout(0), written(rollout(1))[:-1]

    for size in (1, len(truncated) // 2, len(truncated)):
        (tmp_path / "rollouts.jsonl").write_bytes(written(whole) + truncated[:size])

        assert [whole] == [*read_journal(tmp_path)]


def test_an_empty_journal(tmp_path: Path) -> None:
    """A run without rollouts has an empty journal, and a directory without a journal is an error."""
    with pytest.raises(FileNotFoundError):
        [*read_journal(tmp_path)]
    Journal(tmp_path).close()

    assert [] == [*read_journal(tmp_path)]


def test_a_record_is_found_by_its_key(tmp_path: Path) -> None:
    """`line` returns a record unchanged between further appends. If a key was written twice, `line` and readers get the last record."""
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
    """Opening and appending do not change existing lines of a journal."""
    for number in range(2):
        with Journal(tmp_path) as journal:
            journal.append(rollout(number).key, line(rollout(number)))

            assert line(rollout(number)) == journal.line(rollout(number).key)

    assert [rollout(0), rollout(1)] == [*read_journal(tmp_path)]


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    """Records stay intact when several threads append and read."""
    records = [rollout(number, "x" * (number * 37 % 5000)) for number in range(200)]

    def work(record: Rollout) -> bytes:
        journal.append(record.key, line(record))
        return journal.line(record.key)

    with Journal(tmp_path) as journal, ThreadPoolExecutor(8) as threads:
        found = [*threads.map(work, records)]

    assert [line(record) for record in records] == found
    assert set(map(str, records)) == set(map(str, read_journal(tmp_path)))


HASHES = {"scenario": "a" * 16, "agent": "b" * 16, "scorers": {"tsq": "c" * 16, "names": "e" * 16}, "backend": "d" * 16}
TEXT = st.text(max_size=20)
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@ONE_FOLDER
@given(TEXT, TEXT, TEXT, st.integers(1, 10**6), st.integers(1, 99), st.sampled_from(["scenario", "adhoc"]))
def test_an_index_reads_no_body(tmp_path: Path, suite: str, scenario: str, variant: str, trial: int, session: int, kind: str) -> None:
    """A record is indexed by its first fields, whatever the name of the scenario, and even if its body cannot be parsed."""
    record = Rollout(
        suite, scenario, variant, trial, "ok", reason=variant, session=session, content=HASHES, kind=kind, calls=(LLMCall(1, 2, 3),)
    )
    whole = sealed(record_line(record).replace(b'"calls":[', b'"calls":!'))
    (tmp_path / FILE).write_bytes(whole + b"\n")

    index = read_index(tmp_path)

    assert [] == index.damaged
    ((key, entry),) = index.entries.items()
    assert record.key == key
    assert ("ok", session, HASHES, kind, 0, len(whole)) == (
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
    """If a session is killed during a write, the next session removes the incomplete record before it appends."""
    truncated = written(rollout(9))[:-1][:size]
    (tmp_path / FILE).write_bytes(b"".join(written(rollout(number)) for number in range(whole)) + truncated)

    with Journal(tmp_path) as journal:
        assert (len(truncated), whole) == (journal.index.truncated, len(journal.index.entries))
        journal.append(rollout(7).key, record_line(rollout(7)))

    assert [*map(rollout, range(whole)), rollout(7)] == [*read_journal(tmp_path, pytest.fail)]


NOTHING = "it contains no record and is ignored: b'"
OTHER = "the record of shop[s-5] does not match its checksum and is ignored"
ONE_OF_TWO = "it contains 1 undamaged record; the rest is ignored"


@pytest.mark.parametrize(
    ("garbage", "sentence"),
    [
        (b"", NOTHING),
        (b"\0" * 4096, NOTHING),
        (b"caf\xe9", NOTHING),
        (b"[1]", NOTHING),
        (b'{"suite":"shop"}', NOTHING),
        (sealed(b'{"suite":"shop"}'), NOTHING),
        (sealed(b"[]"), NOTHING),
        (record_line(rollout(5)), NOTHING),
        (written(rollout(5))[:80], NOTHING),
        (written(rollout(5))[:-21], OTHER),
        (written(rollout(5)).strip().replace(b"[]", b"[\0\0]", 1), OTHER),
        (written(rollout(5)).strip().replace(b'"turns"', b'"turnz"'), OTHER),
        (written(rollout(5)).strip().replace(b"shop", b"sh\xffp"), "the record of "),
        (written(rollout(5))[:80] + written(rollout(1)).strip(), ONE_OF_TWO),
        (written(rollout(5))[:-20] + written(rollout(1)).strip(), ONE_OF_TWO),
        (written(rollout(0)).strip() + b"!" + written(rollout(1)).strip(), "it contains 2 undamaged records; the rest is ignored"),
    ],
)
def test_garbage_in_the_middle(tmp_path: Path, garbage: bytes, sentence: str) -> None:
    """A damaged line is reported with its number and its rollout. Undamaged records in that line and in others are kept."""
    (tmp_path / FILE).write_bytes(b"".join([written(rollout(0)), garbage + b"\n", written(rollout(1))]))
    damage: list[str] = []

    assert [rollout(0), rollout(1)] == sorted(read_journal(tmp_path, damage.append), key=str)
    (found,) = damage
    assert found.startswith(f"line 2 of {tmp_path / FILE} is damaged: {sentence}")
    with Journal(tmp_path) as journal:
        assert damage == journal.index.damaged
        assert record_line(rollout(1)) == journal.line(rollout(1).key)


def flipped(data: bytes, place: int, bits: int) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


BY_CONTENT = [Rollout("shop", f"s-{number}", "default", 1, "ok", content=HASHES, answer="é" * number) for number in range(4)]


@settings(ONE_FOLDER, max_examples=400)
@given(st.data(), st.integers(1, 255))
def test_a_flipped_byte(tmp_path: Path, data: st.DataObject, bits: int) -> None:
    """Any changed byte of a journal is detected, and at most the rollout of that byte is lost."""
    lines = [written(each) for each in BY_CONTENT]
    place = data.draw(st.integers(0, sum(map(len, lines)) - 1))
    (tmp_path / FILE).write_bytes(flipped(b"".join(lines), place, bits))
    hit = next(number for number in range(4) if place < sum(map(len, lines[: number + 1])))
    others = [each for each in BY_CONTENT if each is not BY_CONTENT[hit]]

    with Journal(tmp_path) as journal:
        index = journal.index
        assert index.damaged or index.truncated
        known = [each for each in BY_CONTENT if each.key in index.entries]
        assert known in (others, BY_CONTENT)  # all records if the byte was the end of a line
        assert [record_line(each) for each in known] == [journal.line(each.key) for each in known]
        journal.append(BY_CONTENT[hit].key, record_line(BY_CONTENT[hit]))

    assert {each.key: each for each in BY_CONTENT} == {each.key: each for each in read_journal(tmp_path, lambda _: None)}


@ONE_FOLDER
@given(st.lists(st.sampled_from([*map(written, BY_CONTENT), b"{", b"}", b"\n", b'{"crc":"', b"\xff", b"\0", b'"']), max_size=12))
def test_any_pieces(tmp_path: Path, pieces: list[bytes]) -> None:
    """Whatever bytes are before and between records, reading raises no error and returns only records that were written."""
    (tmp_path / FILE).write_bytes(b"".join(pieces))

    with Journal(tmp_path):
        rollouts = [*read_journal(tmp_path, lambda _: None)]

    assert [] == [each for each in rollouts if each not in BY_CONTENT]


def test_a_record_of_another_version_is_named(tmp_path: Path) -> None:
    """An undamaged record that this version cannot read is skipped and reported."""
    other = sealed(record_line(rollout(0)).replace(b'"attempt":', b'"endeavour":'))
    (tmp_path / FILE).write_bytes(other + b"\n" + written(rollout(1)))
    damage: list[str] = []

    assert [rollout(1)] == [*read_journal(tmp_path, damage.append)]
    (sentence,) = damage
    assert sentence.startswith(f"the record of shop[s-0] at byte 0 of {tmp_path / FILE} cannot be read and is ignored: ")


def test_a_record_that_changes_after_indexing(tmp_path: Path) -> None:
    """A byte that changes while the journal is open is detected when the record is read."""
    with Journal(tmp_path) as journal:
        journal.append(rollout(0).key, record_line(rollout(0)))
        (tmp_path / FILE).write_bytes(flipped(written(rollout(0)), 90, 1))

        with pytest.raises(ValueError, match="its checksum does not match"):
            journal.line(rollout(0).key)


def test_damage_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage is printed to stderr if a script reads a journal without `on_damage`."""
    (tmp_path / FILE).write_bytes(b"nonsense\n")

    assert [] == [*read_journal(tmp_path)]
    assert f"agentbench: line 1 of {tmp_path / FILE} is damaged: it contains no record" in capsys.readouterr().err


def test_the_last_record_counts(tmp_path: Path) -> None:
    """If a rollout ran again in a later session, its earlier record stays in the file but does not count."""
    failed = Rollout("shop", "s-0", "default", 1, status="infra_error", session=1)
    again = Rollout("shop", "s-0", "default", 1, status="ok", session=2)
    with Journal(tmp_path) as journal:
        for record in (failed, rollout(1), again):
            journal.append(record.key, record_line(record))

    assert [rollout(1), again] == [*read_journal(tmp_path)]
    assert (1, 2) == (read_index(tmp_path).repeated, read_index(tmp_path).entries[again.key].session)
    assert 3 == (tmp_path / FILE).read_bytes().count(b"\n")


def test_one_session_at_a_time(tmp_path: Path) -> None:
    """A session cannot open the journal of a running session. The lock ends with the process, however that ends."""
    with Journal(tmp_path), pytest.raises(ConfigError, match="another session is writing to"):
        Journal(tmp_path)

    Journal(tmp_path).close()


def test_a_forgotten_record(tmp_path: Path) -> None:
    """A forgotten rollout has no record until it is written again."""
    with Journal(tmp_path) as journal:
        journal.append(rollout(0).key, line(rollout(0)))
        journal.forget(rollout(0).key)

        with pytest.raises(KeyError):
            journal.line(rollout(0).key)
        journal.append(rollout(0).key, line(rollout(0, "again")))

        assert line(rollout(0, "again")) == journal.line(rollout(0).key)
