"""The log of a run's attempts: the next pool and the next session read all entries, however the previous one ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.redact import MARK
from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.runs import attempts
from pytest_agentbench.runs.attempts import (
    FILE,
    AddressClosed,
    AddressOpened,
    AttemptBegun,
    AttemptEntry,
    AttemptFailed,
    AttemptLog,
    AttemptState,
    EndRollout,
    LabelReleased,
    OpenLabel,
    PoolDied,
    PrepareBlock,
    RolloutRead,
    RolloutsPlanned,
    RolloutTally,
    RoundAdded,
    RunAlone,
    read_attempts,
)

ONE, TWO, THREE = (RolloutKey("shop", f"s-{number}") for number in range(3))
FIRST = Attempt(1, "infra_error", "no route", started_ns=10, ended_ns=20, calls=(LLMCall(11, 12, 13),))
SECOND = Attempt(2, "infra_error", "interrupted", started_ns=30, ended_ns=40)
URL = "http://127.0.0.1:9/v1"


@contextmanager
def log(directory: Path, session: int = 1) -> Iterator[AttemptLog]:
    opened = AttemptLog(directory, session, lambda text: text, lambda _: None)
    try:
        yield opened
    finally:
        opened.close()


def written(directory: Path, *entries: AttemptEntry, session: int = 1) -> AttemptState:
    """Writes entries of a session. Returns the state of its log."""
    with log(directory, session) as opened:
        for entry in entries:
            opened.append(entry)
        return opened.state


def read(directory: Path, session: int = 1, **recorded: int) -> AttemptState:
    """Returns the state that the next pool of a session reads. `recorded`: scenario -> session of its record, with `_` for `-`."""
    return read_attempts(directory, session, {RolloutKey("shop", name.replace("_", "-")): number for name, number in recorded.items()})


def test_a_run_without_a_log(tmp_path: Path) -> None:
    """A run of an older version, or a run of which only the journal was kept, has no attempts and no plan."""
    assert AttemptState() == read(tmp_path)


def test_a_missing_plan_differs_from_an_empty_one(tmp_path: Path) -> None:
    """The plan is None if the pool died before there was one. It is empty if each test has got its rollout."""
    assert read(tmp_path).plan is None

    written(tmp_path, RolloutsPlanned((ONE, ONE, TWO)), RolloutRead(ONE))
    assert Counter({ONE: 1, TWO: 1}) == read(tmp_path).plan

    written(tmp_path, RolloutRead(ONE), RolloutRead(TWO))
    plan = read(tmp_path).plan
    assert plan is not None
    assert Counter() == +plan


def test_attempts_of_a_pool_that_died(tmp_path: Path) -> None:
    """Failed attempts are kept with their calls. Attempts in flight become interrupted, with the reason, until the next pool notes them."""
    begun = AttemptBegun(ONE, 10), AttemptFailed(ONE, FIRST, interrupted=False), AttemptBegun(ONE, 30), AttemptBegun(TWO, 31)
    live = written(tmp_path, *begun)
    assert {ONE: 30, TWO: 31} == live.in_flight

    live = written(tmp_path, PoolDied("signal 9"))
    state = read(tmp_path)
    assert {} == live.in_flight == state.in_flight
    assert {ONE: (30, "signal 9"), TWO: (31, "signal 9")} == state.interrupted
    assert {ONE: [AttemptFailed(ONE, FIRST, interrupted=False)]} == state.failed

    live = written(tmp_path, AttemptFailed(ONE, SECOND, interrupted=True))
    state = read(tmp_path)
    assert [FIRST, SECOND] == [each.attempt for each in state.failed[ONE]]
    assert [TWO] == [*state.interrupted]
    assert 1 == live.interruptions


def test_a_second_pool_that_dies_early(tmp_path: Path) -> None:
    """The third pool knows the attempts that were in flight in the first one. They are not suspects in the death of the second one."""
    with log(tmp_path) as opened:
        for entry in (AttemptBegun(ONE, 10), PoolDied("signal 9"), AttemptBegun(TWO, 20)):
            opened.append(entry)
        assert {TWO} == opened.in_flight
        opened.append(PoolDied("signal 11"))

    assert {ONE: (10, "signal 9"), TWO: (20, "signal 11")} == read(tmp_path).interrupted


def test_a_pool_whose_death_is_not_in_the_log(tmp_path: Path) -> None:
    """Nothing is in flight when a pool begins, even if the entry on the death of the previous pool is missing."""
    written(tmp_path, AttemptBegun(ONE, 10))

    assert {ONE: (10, "the pool died")} == read(tmp_path).interrupted


def test_recorded_attempts(tmp_path: Path) -> None:
    """Attempts up to a record are part of it, so the state contains only later ones."""
    written(tmp_path, AttemptBegun(ONE, 10), AttemptFailed(ONE, FIRST, interrupted=False), AttemptBegun(ONE, 30))
    assert {} == read(tmp_path, 1, s_0=1).failed

    written(tmp_path, AttemptBegun(ONE, 10), AttemptFailed(ONE, FIRST, interrupted=True), session=2)
    assert {ONE: [AttemptFailed(ONE, FIRST, interrupted=True)]} == read(tmp_path, 3, s_0=1).failed
    assert AttemptState() == read(tmp_path, 3, s_0=2)


def test_a_session_that_resumes(tmp_path: Path) -> None:
    """A session that resumes a run continues with earlier attempts, but not with entries on earlier processes and tests."""
    tally = RolloutTally(labelled=1)
    written(
        tmp_path,
        RolloutsPlanned((ONE, TWO)),
        RoundAdded((THREE,)),
        PrepareBlock("a", 2),
        AttemptBegun(ONE, 10),
        AddressOpened("1.1", ONE, lent=False, label=OpenLabel("r-1", URL), tally=tally),
        AttemptFailed(ONE, FIRST, interrupted=False),
        AttemptBegun(ONE, 30),
        AttemptBegun(TWO, 35),
        RunAlone((ONE,)),
        EndRollout(Rollout(*TWO, status="agent_error", reason="it ends its process")),
    )

    state = read(tmp_path, 2)

    killed = [Attempt(number, "infra_error", "interrupted: session 1 ended", 1, began, 35) for number, began in ((2, 30), (1, 35))]
    assert [FIRST, killed[0]] == [each.attempt for each in state.failed[ONE]]
    assert [AttemptFailed(TWO, killed[1], interrupted=True)] == state.failed[TWO]
    assert AttemptState(failed=state.failed) == state


def test_three_sessions(tmp_path: Path) -> None:
    """The attempts of a session follow those of the session before and continue their numbers."""
    for session in (1, 2, 3):
        written(tmp_path, AttemptBegun(ONE, 10 * session), session=session)

    failed = read(tmp_path, 4).failed[ONE]

    assert [(1, 1), (2, 2), (3, 3)] == [(each.attempt.attempt, each.attempt.session) for each in failed]
    assert [ONE] == [*read(tmp_path, 3).interrupted]


def test_addresses_and_labels(tmp_path: Path) -> None:
    """The state has addresses until they are closed, labels until they are released, and the tally of all pools so far."""
    tally, released = RolloutTally(labelled=2), RolloutTally(labelled=2, released=1)
    opened = [
        AddressOpened("1.1", ONE, lent=False, label=OpenLabel("r-a", URL), tally=tally),
        AddressOpened("1.2", TWO, lent=True, label=None, tally=tally),
        AddressOpened("1.3", THREE, lent=False, label=OpenLabel("r-c", URL), tally=tally),
    ]
    live = written(tmp_path, *opened, AddressClosed("1.3", 3, unreleased=True, tally=tally))

    state = read(tmp_path)
    assert (["1.1", "1.2"], {"r-c": OpenLabel("r-c", URL)}, tally) == ([*state.addresses], state.labels, state.tally)
    assert 3 == live.unrecorded

    written(tmp_path, LabelReleased("r-c", released))
    assert ({}, released) == (read(tmp_path).labels, read(tmp_path).tally)


def test_decisions_and_blocks(tmp_path: Path) -> None:
    """A later pool runs the same rollouts alone, ends the same rollouts, and continues the round and the count of blocks."""
    end = Rollout(*TWO, status="agent_error", reason="it blocks", log="hello\n")
    written(tmp_path, RunAlone((ONE,)), RunAlone((THREE,)), EndRollout(end), RoundAdded((ONE,)), PrepareBlock("a", 3), PrepareBlock("b", 3))

    state = read(tmp_path)
    assert ({ONE, THREE}, {TWO: end}, (ONE,), 2) == (state.alone, state.ends, state.round, state.blocks)

    written(tmp_path, RoundAdded(()))
    assert () == read(tmp_path).round


def test_a_size(tmp_path: Path) -> None:
    """A pool reads only the entries that were written before it started, because it receives later ones as messages."""
    with log(tmp_path) as opened:
        opened.append(RunAlone((ONE,)))
        size = opened.size
        opened.append(RunAlone((TWO,)))

    assert {ONE} == read_attempts(tmp_path, 1, {}, size).alone


def test_a_torn_line(tmp_path: Path) -> None:
    """Readers ignore an incomplete last entry of a killed session, and the next session removes it."""
    for size in range(1, 40):
        path = tmp_path / str(size) / FILE
        path.parent.mkdir()
        written(path.parent, RunAlone((ONE,)))
        whole = path.read_bytes()
        path.write_bytes(whole + whole[:size])

        assert ({ONE}, []) == (read(path.parent).alone, read(path.parent).damaged)
        with log(path.parent, 2) as opened:
            assert len(whole) == opened.size
        assert whole == path.read_bytes()


def test_a_log_with_only_an_incomplete_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with only an incomplete line becomes empty, even if the line is longer than one read."""
    monkeypatch.setattr(attempts, "BLOCK", 8)
    (tmp_path / FILE).write_bytes(b"x" * 100)

    with log(tmp_path) as opened:
        assert 0 == opened.size
    assert b"" == (tmp_path / FILE).read_bytes()


def test_damaged_lines(tmp_path: Path) -> None:
    """A line with a changed byte and an unknown entry are reported with their line numbers, and the other lines count."""
    written(tmp_path, RunAlone((ONE,)), RunAlone((TWO,)), RunAlone((THREE,)))
    first, second, third = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    unknown = sealed(b'{"session":1,"entry":["Sing",{}]}') + b"\n"
    (tmp_path / FILE).write_bytes(first + second.replace(b"s-1", b"s-7") + unknown + third)

    state = read(tmp_path)

    assert {ONE, THREE} == state.alone
    path = tmp_path / FILE
    assert f"line 2 of {path} is damaged and is ignored: its checksum does not match" == state.damaged[0]
    assert state.damaged[1].startswith(f"line 3 of {path} is damaged and is ignored: ")
    assert 2 == len(state.damaged)


FULL = """
import resource
import sys
from pathlib import Path
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.runs.attempts import AttemptBegun, AttemptLog

resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
said = []
log = AttemptLog(Path(sys.argv[1]), 1, lambda text: text, said.append)
for number in range(5):
    log.append(AttemptBegun(RolloutKey("shop", f"s-{number}"), number))
print(len(log.state.in_flight), *said, sep="\\n")
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """If the disk is full, the user gets one warning, no incomplete line stays, and the state of the session is complete."""
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, timeout=30, check=True)

    known, sentence = done.stdout.splitlines()
    assert 5 == int(known)
    assert sentence.startswith(f"{tmp_path / FILE} cannot be written: ")
    assert sentence.endswith("; if the pool dies, the next one will not know what it ran")
    assert (3, []) == (len(read(tmp_path).interrupted), read(tmp_path).damaged)
    assert (tmp_path / FILE).read_bytes().endswith(b"\n")


def test_secrets(tmp_path: Path) -> None:
    """Each entry is redacted before it is written."""
    opened = AttemptLog(tmp_path, 1, lambda text: text.replace("hush", MARK), lambda _: None)
    opened.append(AttemptFailed(ONE, Attempt(1, "infra_error", "the key hush was refused"), interrupted=False))
    opened.close()

    assert f"the key {MARK} was refused" == read(tmp_path).failed[ONE][0].attempt.reason


KEYS = st.sampled_from([ONE, TWO, THREE])
ENTRIES: st.SearchStrategy[AttemptEntry] = st.one_of(
    st.builds(AttemptBegun, KEYS, st.integers(0, 100)),
    st.builds(AttemptFailed, KEYS, st.builds(Attempt, st.just(1), st.just("infra_error")), st.booleans()),
    st.builds(PoolDied, st.text(max_size=3)),
    st.builds(RolloutRead, KEYS),
    st.builds(RolloutsPlanned, st.lists(KEYS).map(tuple)),
    st.builds(RoundAdded, st.lists(KEYS).map(tuple)),
    st.builds(RunAlone, st.lists(KEYS).map(tuple)),
    st.builds(lambda number: AddressOpened(number, ONE, lent=False, label=None, tally=RolloutTally()), st.sampled_from("ab")),
    st.builds(lambda number: AddressClosed(number, 1, unreleased=False, tally=RolloutTally(released=1)), st.sampled_from("ab")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(ENTRIES, max_size=20), cut=st.integers(0, 20))
def test_the_log_has_the_state_of_the_session(tmp_path_factory: pytest.TempPathFactory, entries: list[AttemptEntry], cut: int) -> None:
    """For any sequence of entries, a new pool reads the state that the controller has after the old pool has died."""
    directory = tmp_path_factory.mktemp("run")
    live = written(directory, *entries[:cut], PoolDied("the pool died"))

    state = read(directory)

    assert live.interruptions == sum(isinstance(each, AttemptFailed) and each.interrupted for each in entries[:cut])
    assert live == state
    for line in (directory / FILE).read_bytes().splitlines():
        assert {"crc", "session", "entry"} == json.loads(line).keys()
