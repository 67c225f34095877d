"""Faults of node workers: the session goes on with the same record, or ends with a sentence and can be resumed."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib.process import lives
from pytest_agentbench.rollouts.nodes.connection import VARIABLE
from pytest_agentbench.rollouts.nodes.protocol import NotAdmitted
from pytest_agentbench.runs.journal import read_journal
from tests.node_workers import POOL, RUNNER, TAP, WORKER, NodeWorker, Relay, ScriptedNode, free_port, lasting, token_of
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background, command_of, descendants
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Start = Callable[..., Background]
Join = Callable[..., NodeWorker]
Close = Callable[[Any], Any]

#: Rollouts of a session. `NODE_ROLLOUTS=300 .venv/bin/pytest tests/robustness/test_nodes_faults.py` takes longer.
ROLLOUTS = int(os.environ.get("NODE_ROLLOUTS", "90"))

WITHOUT_RETRIES = ("--agentbench-retries=0", "scenarios/shop")


@pytest.fixture
def join(project: Project) -> Iterator[Join]:
    """Starts node workers with the same arguments as NodeWorker. Those that are left at the end of the test are killed."""
    started: list[NodeWorker] = []

    def join(*arguments: Any, **named: Any) -> NodeWorker:
        started.append(NodeWorker(project, *arguments, **named))
        return started[-1]

    yield join
    for worker in started:
        worker.clean_up()


@pytest.fixture
def closing() -> Iterator[Close]:
    """Returns its argument, and closes it at the end of the test."""
    with ExitStack() as stack:

        def closing(resource: Any) -> Any:
            stack.callback(resource.close)
            return resource

        yield closing


def shop(project: Project, scenarios: int = ROLLOUTS, ttft_ms: float = 150) -> None:
    """Creates a suite whose rollouts all pass, on an engine with this delay."""
    project.suite(scenarios=scenarios)
    project.backend([{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER])


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The records of a session without node workers, once it has run."""
    return {}


@pytest.fixture
def shopped(project: Project, known: dict[str, Any]) -> dict[str, Any]:
    """Creates the suite, and returns what the records of a session without node workers are."""
    shop(project)
    if not known:
        project.run("-p", "no:cacheprovider", "--agentbench-reports=elsewhere", "--agentbench-concurrency=8", "scenarios/shop")
        known.update(lasting([*read_journal(next((project.root / "elsewhere").glob("2*")))]))
        assert ROLLOUTS == len(known)
    return known


def listening(start: Start, *options: str) -> tuple[Background, int, Path]:
    """Starts a session that node workers can join. Returns it, its port, and the file with its token."""
    port = free_port()
    background = start(f"--agentbench-nodes-listen=127.0.0.1:{port}", *WITHOUT_RETRIES, *options)
    return background, port, token_of(background)


def children(pid: int, module: str) -> list[int]:
    """Returns the living processes of a module below a process."""
    return [each for each in descendants(pid) if module in command_of(each).split() and lives(each)]


def workers(background: Background) -> list[int]:
    return [pid for pid in background.children(WORKER) if "--node" in command_of(pid)]


def has_the_same_record(background: Background, known: dict[str, Any]) -> None:
    """Waits for the end of a session whose tests all pass. Each rollout has one record, which is that of a session without nodes."""
    assert 0 == background.ended(150), background.output
    assert f"{ROLLOUTS} passed" in background.output
    records = background.rollouts
    assert dict.fromkeys(known, 1) == Counter(str(each.key) for each in records)
    assert known == lasting(records)


def told(background: Background, *words: str) -> bool:
    """Returns whether a line of the session's output has all these words."""
    return any(all(word in line for word in words) for line in background.output.splitlines())


def check_told(background: Background, *words: str) -> None:
    assert told(background, *words), f"no line has {words}:\n{background.output}"


def test_no_fault(shopped: dict[str, Any], start: Start) -> None:
    """Without a fault, three node workers make the same record as a session without node workers, each rollout at its first attempt."""
    background = start("--agentbench-nodes=local:3", "--agentbench-concurrency=9", *WITHOUT_RETRIES)
    background.in_the_middle(5)

    has_the_same_record(background, shopped)
    assert {1} == {each.attempt for each in background.rollouts}
    assert {"w1", "w2", "w3"} == {each.node for each in background.rollouts}
    assert not [pid for pid in background.seen if lives(pid)]


@pytest.mark.parametrize("part", ["worker", "runner", "tap", "pool"])
def test_death(shopped: dict[str, Any], start: Start, part: str) -> None:
    """If a node worker, a process of it or the session's pool is killed, the session goes on, and no retry is used."""
    background = start("--agentbench-nodes=local:3", "--agentbench-concurrency=9", *WITHOUT_RETRIES)
    background.in_the_middle(5)
    victim = workers(background)[0]
    below = {*descendants(victim)}
    pid = {
        "worker": lambda: victim,
        "runner": lambda: children(victim, RUNNER)[0],
        "tap": lambda: children(victim, TAP)[0],
        "pool": lambda: background.child(POOL),
    }[part]()

    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not [each for each in below if lives(each)], "the end of the processes of the node worker")

    has_the_same_record(background, shopped)
    interrupted = [each for record in background.rollouts for each in record.earlier_attempts]
    assert interrupted
    assert {"infra_error"} == {each.status for each in interrupted}
    if part != "pool":
        check_told(background, "node worker w", "was lost")
    if part in ("runner", "tap"):
        check_told(background, "was lost", f"{RUNNER if part == 'runner' else TAP}` died")
    assert not [pid for pid in background.seen if lives(pid)]


def test_suspended(shopped: dict[str, Any], start: Start, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node worker that is suspended for longer than the silence loses its leases, and joins again when it goes on."""
    monkeypatch.setenv(VARIABLE, "4")
    background, port, token = listening(start, "--agentbench-concurrency=8")
    stays, stops = (join(port, token, "--slots", "4", name=name) for name in ("stays", "stops"))
    background.in_the_middle(10)

    stops.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: told(background, "on stops was lost", "nothing has come from it for"), "the loss of the node worker")
    stops.process.send_signal(signal.SIGCONT)

    has_the_same_record(background, shopped)
    assert [0, 0] == [stays.ended(), stops.ended()]
    assert 2 == stops.output.count("joined the session as")
    assert 1 == stays.output.count("joined the session as")


def test_network_cut(
    shopped: dict[str, Any], start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, closing: Callable[[Any], Any]
) -> None:
    """If the network between session and node worker is cut, both notice, and the node worker joins again when it is back."""
    monkeypatch.setenv(VARIABLE, "4")
    background, port, token = listening(start, "--agentbench-concurrency=8")
    relay = closing(Relay(port))
    join(port, token, "--slots", "4", name="near")
    far = join(relay.port, token, "--slots", "4", name="far")
    background.in_the_middle(10)

    relay.stop()
    wait_for(lambda: told(background, "on far was lost", "nothing has come"), "the loss of the node worker")
    wait_for(lambda: "nothing has come from the session" in far.output, "the node worker to notice")
    wait_for(lambda: not children(far.process.pid, RUNNER), "the end of its processes")
    relay.resume()

    has_the_same_record(background, shopped)
    assert 2 == far.output.count("joined the session as") or "no session answers" in far.output


def test_late(shopped: dict[str, Any], start: Start, join: Join) -> None:
    """A node worker that joins in the middle gets rollouts."""
    background, port, token = listening(start, "--agentbench-concurrency=8")
    join(port, token, "--slots", "4", name="first")
    background.in_the_middle(10)

    join(port, token, "--slots", "4", name="late")

    has_the_same_record(background, shopped)
    assert {"w1", "w2"} == {each.node for each in background.rollouts}


def test_wrong_records(shopped: dict[str, Any], start: Start, join: Join, closing: Close) -> None:
    """A late, a second and a foreign record are ignored. The attempts of a node worker that sends a wrong one are made elsewhere."""
    background, port, token = listening(start, "--agentbench-concurrency=8")
    node = closing(ScriptedNode(port, token.read_text().strip()))
    lease, other = node.lease(), node.lease()
    node.end(lease.lease + 1000, lease.key)
    node.connection.close()
    again = closing(ScriptedNode(port, token.read_text().strip()))
    given = again.lease()
    again.end(lease.lease, lease.key)  # It was given to the connection before.
    again.end(other.lease, other.key)
    again.end(given.lease, given.key._replace(trial=77))
    assert again.is_closed()

    join(port, token, "--slots", "8", name="real")

    has_the_same_record(background, shopped)
    check_told(background, "on scripted was lost", "it has sent the record of")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, with a little more space than a node worker needs. Skips if this process may not mount one."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=260m", "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here, so a full disk is not tested: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> None:
    """Writes a file until the disk has no space left."""
    for size in (1 << 20, 4096):
        with (folder / f"filler-{size}").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(size))


def test_full_disk(shopped: dict[str, Any], start: Start, join: Join, full_disk: Path) -> None:
    """A node worker without space for its files ends with a sentence, and the session goes on with the others."""
    background, port, token = listening(start, "--agentbench-concurrency=8")
    fill(full_disk)
    full = join(port, token, "--slots", "4", "--logs", str(full_disk), "--patience", "3", name="full")
    assert 3 == full.ended(40)
    assert "could not be started" in full.output
    assert "No space left on device" in full.output

    join(port, token, "--slots", "8", name="other")

    has_the_same_record(background, shopped)
    assert 1 == background.output.count("on full was lost")


def test_disk_becomes_full(shopped: dict[str, Any], start: Start, join: Join, full_disk: Path) -> None:
    """A node worker whose disk becomes full while it runs, so that nothing can be logged, makes the same records."""
    background, port, token = listening(start, "--agentbench-concurrency=4")
    worker = join(port, token, "--slots", "4", "--logs", str(full_disk), name="full")
    background.in_the_middle(5)
    fill(full_disk)

    has_the_same_record(background, shopped)
    assert 0 == worker.ended()


def test_controller_dies(project: Project, start: Start, join: Join) -> None:
    """If the controller is killed, node workers end with the status 3, and no process of theirs is left."""
    shop(project)
    background, port, token = listening(start, "--agentbench-concurrency=8")
    nodes = [join(port, token, "--slots", "4", name=name) for name in ("n1", "n2")]
    background.in_the_middle(5)
    below = [pid for node in nodes for pid in descendants(node.process.pid)]
    assert below

    os.kill(background.process.pid, signal.SIGKILL)

    assert [3, 3] == [node.ended() for node in nodes]
    wait_for(lambda: not [pid for pid in below if lives(pid)], "the end of the processes")
    assert all("no session answers at" in node.output for node in nodes)


@pytest.mark.parametrize("place", [(), ("--agentbench-nodes=local:2",)], ids=["without-nodes", "with-nodes"])
def test_all_nodes_gone(shopped: dict[str, Any], project: Project, start: Start, join: Join, place: tuple[str, ...]) -> None:
    """If all node workers are gone for longer than the wait, the session ends with a sentence. It can be resumed."""
    background, port, token = listening(start, "--agentbench-concurrency=8", "--agentbench-nodes-wait=2s")
    node = join(port, token, "--slots", "4")
    background.in_the_middle(5)

    node.process.kill()

    status = background.ended(60)
    assert "no node worker has been there for 2 s" in background.output
    assert 6 == status, background.output
    assert 5 <= len(background.rollouts) < ROLLOUTS

    result = project.run(*place, "--agentbench-concurrency=6", "--agentbench-resume", *WITHOUT_RETRIES)

    assert 0 == result.ret
    assert shopped == lasting([each for each in project.rollouts if each.status == "ok"])


def test_three_losses(project: Project, start: Start, closing: Close) -> None:
    """A rollout that was in flight at three lost node workers ends as infra_error with that reason."""
    shop(project, scenarios=1)
    background, port, token = listening(start)
    for number in range(3):
        node = closing(ScriptedNode(port, token.read_text().strip(), name=f"n{number}"))
        node.start(node.lease())
        node.connection.close()
        wait_for(functools.partial(told, background, f"on n{number} was lost"), "the loss")

    assert 6 == background.ended(30), background.output
    (rollout,) = background.rollouts
    assert "infra_error" == rollout.status
    assert "3 node workers were lost while this rollout ran" in rollout.reason
    assert 2 == len(rollout.earlier_attempts)


def test_fails_fast(project: Project, start: Start, join: Join, closing: Close) -> None:
    """A node worker where every rollout fails at once gets few of them, and is told so. Those that failed there pass elsewhere."""
    shop(project, scenarios=40)
    background, port, token = listening(start, "--agentbench-retries=5", "--agentbench-concurrency=6")
    bad = closing(ScriptedNode(port, token.read_text().strip(), name="bad"))
    leases: list[Any] = [bad.lease(), bad.lease()]
    join(port, token, "--slots", "4", name="good")
    wait_for(lambda: told(background, "on good has joined"), "the other node worker")
    failed = 0
    while not isinstance(leases[-1], NotAdmitted):
        lease = leases.pop(0)
        bad.end(lease.lease, lease.key, "infra_error", "the route is dead")
        failed += 1
        leases.append(bad.next())
    assert leases[-1].again

    assert 0 == background.ended(100), background.output
    assert failed < 8
    check_told(background, "on bad was lost", "rollouts in a row have failed there alone: the route is dead")
    assert {"ok": 40} == Counter(each.status for each in background.rollouts)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_is_asked_to_end(shopped: dict[str, Any], start: Start, join: Join, number: int) -> None:
    """A node worker that gets a signal gives its leases back at once and ends with the status 3. The session goes on."""
    background, port, token = listening(start, "--agentbench-concurrency=8")
    leaves = join(port, token, "--slots", "4", name="leaves")
    join(port, token, "--slots", "4", name="stays")
    background.in_the_middle(10)
    below = descendants(leaves.process.pid)

    leaves.process.send_signal(number)

    assert 3 == leaves.ended()
    assert not [pid for pid in below if lives(pid)]
    assert "left the session" in leaves.output
    has_the_same_record(background, shopped)
    check_told(background, "on leaves was lost", f"{signal.Signals(number).name} came", "again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_session_is_asked_to_end(project: Project, start: Start, join: Join, number: int) -> None:
    """If the session gets a signal, it ends as one without node workers, and a node worker ends with the status 0."""
    shop(project)
    background, port, token = listening(start, "--agentbench-concurrency=4")
    node = join(port, token, "--slots", "4")
    background.in_the_middle(5)
    below = descendants(node.process.pid)

    os.kill(background.process.pid, number)

    assert background.ended(30) in (2, 128 + number, -number), background.output
    assert node.ended() in (0, 3)
    assert not [pid for pid in (*below, *background.seen) if lives(pid)]
    assert len(background.rollouts) < ROLLOUTS
    run = json.loads((background.directory / "run.json").read_text())
    assert run
