"""The pool and the taps of a session are started again when they die, and no rollout is lost or measured twice."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import BlockSettings
from pytest_agentbench.rollouts.questions_of_tests import GetRollout, GetScenario, UnrecordedRollout
from pytest_agentbench.runs import journal
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import Scenario
from tests.engines import engine
from tests.labelled_router import routing
from tests.rollouts.parts.running_parts import (
    ANSWER,
    MODEL,
    A,
    B,
    C,
    Owner,
    RunningParts,
    running_parts,
    small_suite,
    stalled,
)
from tests.rollouts.pool.test_server import pool_settings
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(180)


def attempts(rollout: Rollout) -> list[tuple[int, str, str, int]]:
    """Returns number, status, reason and number of calls of each attempt."""
    return [(each.attempt, each.status, each.reason, len(each.calls)) for each in rollout.attempts]


def refuses(running: RunningParts) -> bool:
    """Returns whether connections to the pool's port are refused."""
    try:
        running.test.ask(GetScenario(A))
    except ConnectionRefusedError:
        return True
    finally:
        running.test.close()
    return False


KILLED = "interrupted: the pool died (exit code -9)"


def test_tests_connect_before_the_backend_answers(tmp_path: Path) -> None:
    """Tests send plans and requests before the backend answers, and get rollouts after `begin`, even from a later pool."""
    with engine(tmp_path, [ANSWER]) as url, running_parts(tmp_path) as running:
        running.test.plan(A, B)
        running.test.send(GetRollout(A))
        running.kill("pool")
        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(A))
        running.test.close()
        running.test.plan(A, B)  # The new connection is like that of a second test process.
        running.test.send(GetRollout(A))
        running.begin(url)

        assert running.test.receive(GetRollout(A))[1] == running.owner.journal.line(A)
        assert [(1, "ok", "", 1)] == attempts(running.test.read(B))
    assert [(A, "ok"), (B, "ok")] == running.recorded
    assert [protocol.PlanMade((A, B), 0, {"shop": 2})] == [note for note in running.owner.notes if isinstance(note, protocol.PlanMade)]


def test_a_pool_that_is_killed(tmp_path: Path) -> None:
    """The next pool answers on the same port.

    Rollouts in flight run again and keep the interrupted attempt. Rollouts already read do not.
    """
    request_log = tmp_path / "requests.jsonl"
    with engine(tmp_path, [stalled(B, 1), ANSWER], request_log=str(request_log)) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.test.plan(A, B)
        first = running.test.read(A)
        running.in_flight(B, request_log=request_log, requests=2)
        running.test.send(GetRollout(B))
        running.kill("pool")
        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(B))
        running.test.close()

        again = running.test.read(B)

        assert first == running.test.read(A)
    assert [(1, "ok", "", 1)] == attempts(first)
    assert [(1, "infra_error", KILLED, 1), (2, "ok", "", 1)] == attempts(again)
    assert [(A, "ok"), (B, "ok")] == running.recorded
    assert (2, 3) == (running.lines, len(request_log.read_text().splitlines()))
    assert (0, 1) == (running.parts.log.state.unrecorded, running.parts.log.state.interruptions)
    assert [] == [*running.owner.failures, *filter(None, running.owner.losses)]


def test_a_tap_that_is_killed(tmp_path: Path) -> None:
    """One of two taps is started again on the same port. Its calls are lost, and the rollouts are repeated without spending a retry."""
    request_log = tmp_path / "requests.jsonl"
    with (
        engine(tmp_path, [stalled(A, 1), stalled(B, 1), ANSWER], request_log=str(request_log)) as url,
        running_parts(tmp_path, taps=2) as running,
    ):
        running.begin(url)
        running.test.plan(A, B, C)
        running.in_flight(A, B, request_log=request_log, requests=2)
        for name in ("tap", "tap-2"):  # Only the kernel knows which of them has the call.
            running.kill(name)

        rollouts = [running.test.read(key) for key in (A, B, C)]

        assert {"tap": 1, "tap-2": 1} == running.parts.deaths.counts
        assert running.owner.looks
    assert [("ok", "")] * 3 == [(rollout.status, rollout.reason) for rollout in rollouts]
    assert {"infra_error"} == {each.status for rollout in rollouts for each in rollout.earlier_attempts}
    assert 3 == running.lines


def test_pool_and_tap_are_killed_at_once(tmp_path: Path) -> None:
    """If pool and tap die at once, both are started again.

    The calls recorded by the tap are lost. The rollout runs again and is recorded once.
    """
    request_log = tmp_path / "requests.jsonl"
    with engine(tmp_path, [stalled(A, 1), ANSWER], request_log=str(request_log)) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.test.plan(A)
        running.in_flight(A, request_log=request_log, requests=1)
        running.kill("pool", "tap")

        assert [(1, "infra_error", KILLED, 0), (2, "ok", "", 1)] == attempts(running.test.read(A))
        assert {"pool": 1, "tap": 1} == running.parts.deaths.counts
    assert [(A, "ok")] == running.recorded


def test_no_attempt_begins_while_a_part_is_unavailable(tmp_path: Path) -> None:
    """Attempts wait until no source reports an unavailable part. A pool that starts meanwhile waits, too."""
    with engine(tmp_path, [ANSWER]) as url, running_parts(tmp_path) as running:
        running.begin(url)

        assert running.parts.report_unavailable("backend", {"engine"})
        assert running.parts.report_unavailable("other", {"disk"})
        running.test.plan(A)
        running.parts.report_unavailable("other", ())
        running.kill("pool")
        running.test.ask(GetScenario(A))
        time.sleep(0.3)  # An attempt that did not wait would begin in this time.
        released = time.monotonic_ns()
        running.parts.report_unavailable("backend", ())

        assert running.test.read(A).started_ns > released
        assert {"pool": 1, "engine": 1, "disk": 1} == running.parts.deaths.counts


def test_a_backend_that_has_moved(tmp_path: Path) -> None:
    """After `move`, calls go to the new address, also those of a later pool."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with (
        engine(tmp_path / "old", [{"text": "old"}]) as old,
        engine(tmp_path / "new", [{"text": "new"}]) as new,
        running_parts(tmp_path) as running,
    ):
        running.begin(old)
        running.test.plan(A)
        answers = [running.test.read(A).answer]
        running.parts.move(Endpoint(f"{new}/v1", MODEL))
        answers.append(running.test.read(B).answer)
        running.kill("pool")
        answers.append(running.test.read(C).answer)

    assert ["old", "new", "new"] == answers


#: An agent that ends the process of the pool once for each file `go`, after its first call.
DEADLY = """
import asyncio
import os
import signal
from pathlib import Path

from pytest_agentbench.agents.tool_calling import ToolCalling

GO = Path(__file__).parent / "go"


class Deadly(ToolCalling):
    async def run(self, scenario, llm, tools):
        answer = await super().run(scenario, llm, tools)
        if scenario.id == "s-0":
            while not GO.exists():
                await asyncio.sleep(0.02)
            GO.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
"""


def test_agent_code_that_kills_the_pool(tmp_path: Path) -> None:
    """Rollouts in flight at two deaths run alone. The third death makes the responsible one an agent_error. The others are complete."""
    (tmp_path / "agent.py").write_text(DEADLY)
    go, request_log = tmp_path / "go", tmp_path / "requests.jsonl"
    settings = pool_settings(small_suite(tmp_path, agent={"kind": "./agent.py:Deadly"}))
    rules = [stalled(B, 1), stalled(B, 2), ANSWER]
    with engine(tmp_path, rules, request_log=str(request_log)) as url, running_parts(tmp_path, settings) as running:
        running.begin(url)
        running.test.plan(A, B, C)
        running.in_flight(A, B, request_log=request_log, requests=2)
        go.touch()
        wait_for(lambda: running.parts.deaths.counts["pool"] == 1, "the first death")
        running.in_flight(A, B, request_log=request_log, requests=4)
        after_one = {*running.parts.log.state.alone}
        go.touch()
        wait_for(lambda: running.parts.log.state.alone, "the second death")
        after_two = {*running.parts.log.state.alone}
        go.touch()
        killer, other = running.test.read(A), running.test.read(B)

    died = "the rollout ended the pool process (signal 9): the pool died 3 times while it ran, the last time with nothing else in flight"
    isolate = "`isolation: process` keeps code of the suite out of the pool"
    assert (set(), {A, B}) == (after_one, after_two)
    assert [(1, "infra_error", KILLED, 1), (2, "infra_error", KILLED, 1)] == attempts(killer)[:2]
    assert [(3, "agent_error", f"{died}; {isolate}", 1)] == attempts(killer)[2:]
    assert [(1, "infra_error", KILLED, 1), (2, "infra_error", KILLED, 1), (3, "ok", "", 1)] == attempts(other)
    assert ({"pool": 3}, []) == (running.parts.deaths.counts, running.owner.failures)


def test_a_pool_that_dies_again_and_again(tmp_path: Path) -> None:
    """After three deaths with no finished rollout the owner fails. A last pool tells tests why. If it dies, too, they are refused."""
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.test.ask(GetScenario(A))
        for _ in range(2):
            running.kill("pool")
        assert [] == running.owner.failures

        running.kill("pool")
        answer, _ = running.test.ask(GetRollout(A))
        (failure,) = running.owner.failures

        assert UnrecordedRollout("infra_error", failure, None, over=False) == answer
        assert failure.startswith(
            "the pool is gone: `python -m pytest_agentbench.rollouts.pool` died repeatedly, with no rollout finished in between"
        )

        running.killed("pool")
        (loss,) = wait_for(lambda: running.owner.losses, "the loss of the pool")

        assert refuses(running)
        assert loss.startswith("the pool is gone: `python -m pytest_agentbench.rollouts.pool` died in the middle of the run (exit code -9)")


def test_a_tap_that_dies_again_and_again(tmp_path: Path) -> None:
    """After three deaths with no finished rollout the owner fails, and tests are told why."""
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        for _ in range(2):
            running.kill("tap")
        running.killed("tap")
        (failure,) = wait_for(lambda: running.owner.failures, "the failure of the tap")

        assert failure.startswith("the tap is gone: `python -m pytest_agentbench.tap` died repeatedly, with no rollout finished in between")
        assert UnrecordedRollout("infra_error", failure, None, over=False) == running.test.ask(GetRollout(A))[0]


def test_a_failure_before_there_is_a_pool(tmp_path: Path) -> None:
    """Tests that have already connected are refused, and so are later ones."""
    with running_parts(tmp_path, start=False) as running:
        running.test.send(GetRollout(A))
        running.owner.fail("no GPU")

        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(A))
        assert refuses(running)
        assert ["no GPU"] == running.owner.losses
        assert [] == running.parts.stop()


def test_a_pool_that_does_not_serve(tmp_path: Path) -> None:
    """If the first pool dies before it serves, it is not started again. Tests are refused, and the reason has the end of its log."""
    with running_parts(tmp_path, start=False) as running:
        (running.directory / journal.FILE).unlink()
        running.test.send(GetRollout(A))
        running.parts.start()
        (loss,) = wait_for(lambda: running.owner.losses, "the loss of the pool")

        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(A))
        assert refuses(running)
        assert loss.startswith("the pool is gone: `python -m pytest_agentbench.rollouts.pool` died in the middle of the run (exit code 1)")
        assert "FileNotFoundError" in loss
        assert ({}, []) == (running.parts.deaths.counts, running.owner.failures)


def test_a_pool_that_cannot_be_started_again(tmp_path: Path) -> None:
    """If the next pool's log cannot be created, no pool is started, and tests are refused instead of waiting."""
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.test.ask(GetScenario(A))
        running.test.send(GetRollout(A))
        running.logs.rename(tmp_path / "elsewhere")
        running.logs.touch()
        running.killed("pool")
        wait_for(lambda: running.owner.losses, "the loss of the pool")

        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(A))
        assert refuses(running)
        assert f"agentbench cannot run rollouts: [Errno 17] File exists: '{running.logs}'" == running.owner.losses[0]


def test_a_tap_that_cannot_be_started_again(tmp_path: Path) -> None:
    """If the next tap's log cannot be created, the owner fails, and tests are told why."""
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.logs.rename(tmp_path / "elsewhere")
        running.logs.touch()
        running.killed("tap")
        (failure,) = wait_for(lambda: running.owner.failures, "the failure of the tap")

        assert f"the tap is gone: [Errno 17] File exists: '{running.logs}'" == failure
        assert UnrecordedRollout("infra_error", failure, None, over=False) == running.test.ask(GetRollout(A))[0]


def test_taps_that_do_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` raises BackendError with the end of the tap's log. The pool then runs, and tests get the reason why there are no rollouts."""
    (tmp_path / "uvloop.py").write_text("raise ImportError('this is another uvloop')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_parts(tmp_path, start=False) as running:
        with pytest.raises(BackendError, match="this is another uvloop"):
            running.parts.start()
        running.owner.fail("no tap")

        assert UnrecordedRollout("infra_error", "no tap", None, over=False) == running.test.ask(GetRollout(A))[0]


class FailingLook(Owner):
    """An owner that cannot check whether its backend still answers."""

    def check_backend(self) -> None:
        raise LookupError("no such stack")


def test_a_look_that_fails(tmp_path: Path) -> None:
    """If the owner's check of the backend fails, no attempt waits for it: the session is given up, and tests are refused."""
    with engine(tmp_path, [{"text": "It ends here.", "cut_after": 1}]) as url, running_parts(tmp_path, owner=FailingLook) as running:
        running.begin(url)
        running.test.plan(A)
        running.test.send(GetRollout(A))

        with pytest.raises(ConnectionError):
            running.test.receive(GetRollout(A))
        assert refuses(running)
        assert "agentbench cannot run rollouts: LookupError('no such stack')" == running.owner.losses[0].split(" (")[0]


def test_after_the_end_nothing_is_started(tmp_path: Path) -> None:
    """After `end` neither the pool nor a tap is started again, no failure is reported, and the owner learns that the pool is lost."""
    with engine(tmp_path) as url, running_parts(tmp_path, taps=2) as running:
        running.begin(url)
        running.test.ask(GetScenario(A))
        running.parts.end()
        assert not running.parts.report_unavailable("backend", {"engine"})
        children = running.killed("pool", "tap", "tap-2")
        wait_for(lambda: running.owner.losses, "the end of the pool to be noticed")

        assert [""] == running.owner.losses
        assert children == running.parts.children
        assert [*children.values()] == running.parts.stop()
    assert [] == running.owner.failures


def test_a_tap_that_dies_just_before_the_end(tmp_path: Path) -> None:
    """If the session ends before it is known what a tap's death interrupted, the tap is not restarted, and no failure is reported."""
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        running.test.ask(GetScenario(A))
        pool, tap = running.parts.children["pool"].process, running.parts.children["tap"]
        pipe = tap.process.stdin
        assert pipe is not None
        pool.send_signal(signal.SIGSTOP)  # A stopped pool cannot report which attempts have begun.
        running.killed("tap")
        wait_for(lambda: pipe.closed, "the death of the tap to be noticed")
        running.parts.end()
        pool.send_signal(signal.SIGCONT)
        wait_for(lambda: "watch-tap" not in names_of_threads(), "the end of the thread that watches the tap")

        assert [] == running.owner.failures
        assert tap is running.parts.children["tap"]


#: A module that a tap needs and cannot import: it waits for the file `go`.
ANOTHER_UVLOOP = """
import time
from pathlib import Path

Path(__file__).with_name("began").touch()
while not Path(__file__).with_name("go").exists():
    time.sleep(0.02)
raise ImportError("this is another uvloop")
"""


def test_an_end_while_a_tap_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the session ends while a tap is started again that does not serve, no further one is started, and no failure is reported."""
    (tmp_path / "uvloop.py").write_text(ANOTHER_UVLOOP)
    with engine(tmp_path) as url, running_parts(tmp_path) as running:
        running.begin(url)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        running.killed("tap")
        wait_for((tmp_path / "began").exists, "the next tap")
        running.parts.end()
        (tmp_path / "go").touch()
        wait_for(lambda: "watch-tap" not in names_of_threads(), "the end of the thread that watches the tap")

        assert [] == running.owner.failures
        assert 1 == (running.logs / "tap.log").read_text().count("ImportError: this is another uvloop")


def names_of_threads() -> set[str]:
    return {thread.name.removeprefix("agentbench-") for thread in threading.enumerate()}


class BusyOwner(Owner):
    """An owner that waits when the pool has died, like a session whose arm is being loaded, and adds a round of trials meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.is_paused, self.may_continue = threading.Event(), threading.Event()

    def on_pool_died(self) -> None:
        self.is_paused.set()
        assert self.may_continue.wait(60)


def test_an_end_while_the_owner_is_busy(tmp_path: Path) -> None:
    """An owner that is busy with the death of the pool does not delay the end of the session. No pool is started after that."""
    with running_parts(tmp_path, owner=BusyOwner) as running:
        owner = running.owner
        assert isinstance(owner, BusyOwner)
        running.test.ask(GetScenario(A))
        children = running.killed("pool")
        assert owner.is_paused.wait(30)
        ending = threading.Thread(target=running.parts.end)
        ending.start()
        ending.join(30)
        is_stuck = ending.is_alive()
        owner.may_continue.set()
        wait_for(lambda: owner.losses, "the end of the pool to be noticed")

        assert not is_stuck
        assert [""] == owner.losses
        assert children["pool"] is running.parts.children["pool"]


def test_entries_of_a_time_without_a_pool(tmp_path: Path) -> None:
    """Entries that are added while no pool lives, and while the next one starts, reach that pool exactly once."""
    rounds = [(RolloutKey("shop", key.scenario, trial=trial),) for trial, key in ((2, A), (3, B))]
    with engine(tmp_path, [ANSWER]) as url, running_parts(tmp_path, owner=BusyOwner) as running:
        owner = running.owner
        assert isinstance(owner, BusyOwner)
        running.begin(url)
        running.test.plan(A)
        running.test.read(A)
        children = running.killed("pool")
        assert owner.is_paused.wait(30)
        running.parts.add_round(rounds[0], tell=True)
        owner.may_continue.set()
        wait_for(lambda: running.parts.children["pool"] is not children["pool"], "the next pool")
        running.parts.add_round(rounds[1], tell=True)
        settled = protocol.PlanSettled(whole=True)
        wait_for(lambda: owner.notes.count(settled) >= 2, "the end of both rounds")
        running.parts.report_unavailable("backend", {"engine"})  # This waits until all earlier messages of the pool are handled.

        assert [(A, "ok"), (rounds[0][0], "ok"), (rounds[1][0], "ok")] == running.recorded
        assert 2 == owner.notes.count(settled)


def test_the_endpoint_of_an_earlier_turn(tmp_path: Path) -> None:
    """The next pool releases a label at the endpoint of a block of the dead pool, although it never gets that endpoint itself."""
    waits = Scenario(A.scenario, ({"role": "user", "content": "This takes forever."},))
    suite = replace(small_suite(tmp_path), scenarios=(waits,))
    blocks = BlockSettings({"default": VariantOrigin("default", "a")}, "carry", in_sequence=False, own={})
    settings = pool_settings(suite, blocks=blocks)
    with routing() as router, engine(tmp_path) as url, running_parts(tmp_path, settings) as running:
        turn = Endpoint(router.url, "m", labels={"kind": "thunderagent"})
        running.owner.turns += [protocol.Turn(turn, ""), protocol.NoTurn("the arm is gone")]
        running.begin(url)
        running.test.plan(A)
        wait_for(lambda: router.open, "the call")
        running.kill("pool")
        answer, _ = running.test.ask(GetRollout(A))
        wait_for(lambda: router.releases, "the release")
        (id,) = router.open

        assert UnrecordedRollout("infra_error", "the arm is gone", None, over=False) == answer
        assert [(id, True)] == router.releases
        wait_for(lambda: not running.parts.log.state.labels, "the release to be noted")
        assert 1 == running.parts.log.state.tally.released
