"""Sessions on a stack of real processes: when it starts, what happens if it dies, sharing it, and cleaning up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level
from pytest_agentbench.session.progress import Heartbeat
from tests.findings import report_of, said
from tests.project import PYTEST, TWO_WORKERS, WAYS, Project, family
from tests.robustness.processes import Background
from tests.small_stacks import PASSES, agentbench, is_gone, marked, own_folder, stack, until_gone
from tests.terminal import Screen, run_on_terminal
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: This test writes the URL of the stack to a file.
WHERE = """
from pathlib import Path

def test_where(backend):
    Path("urls.txt").open("a").write(f"{backend.url}\\n")
"""


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the test's stacks. Afterwards no stack may be left."""
    with own_folder(monkeypatch) as folder:
        yield folder


@pytest.fixture
def small(project: Project) -> Project:
    """A project whose backend is a stack of one small server."""
    stack(project)
    project.suite(scenarios=4, test=PASSES)
    project.pytester.makeini(
        "[pytest]\naddopts = --import-mode=importlib\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "agentbench_backend = small\n"
    )
    return project


def urls(project: Project) -> list[str]:
    return (project.root / "urls.txt").read_text().split()


def log_of(project: Project, name: str = "stack_daemon") -> str:
    return (project.directory / "backend" / f"{name}.log").read_text()


@WAYS
def test_a_stack_starts_once(small: Project, way: tuple[str, ...]) -> None:
    """A session starts its stack once, records the start in run.json, and stops the stack."""
    result = small.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=4)
    told = small.run_json["backend"]
    assert ("small", "stack", "tiny", False, {}, "") == tuple(
        told[name] for name in ("name", "kind", "served_model", "reused", "restarts", "failure")
    )
    assert ["port", "models", "chat", "tools"] == [rung["name"] for rung in told["boot"]["proof"]]
    assert {"requests": 1}.items() <= told["boot"]["warm_up"].items()
    assert 0 < told["boot"]["services_s"] < told["boot"]["boot_s"]
    assert 1 == log_of(small).count("starting engine: ")
    assert " stopped in " in log_of(small)


#: Options that select no test of the suite shop, or only inspect tests.
LOOKS = {
    "collect": ["--collect-only"],
    "k": ["-k", "nothing"],
    "m": ["-m", "not shop"],
    "plan": ["--setup-plan"],
    "deselect": ["--deselect", "scenarios/shop/test_shop.py"],
}


@family("look", {name: [look] for name, look in LOOKS.items()}, "deselect")
def test_no_start_without_selected_tests(small: Project, look: list[str], way: tuple[str, ...]) -> None:
    """If no selected test needs the stack, it is not started."""
    small.run(*way, *look, "scenarios/shop")

    assert [] == [*small.root.rglob("stack_daemon.log")]


def test_no_start_for_tests_without_rollouts(small: Project) -> None:
    """Skipped tests, and tests that only read a scenario, need no stack."""
    small.suite(
        scenarios=2,
        test="import pytest\n\n@pytest.mark.skip\ndef test_it(rollout): pass\n\ndef test_look(scenario): pass\n\ndef test_plain(): pass\n",
    )

    result = small.run("scenarios/shop")

    result.assert_outcomes(passed=3, skipped=2)
    assert [] == [*small.root.rglob("stack_daemon.log")]


@pytest.mark.parametrize(
    "test", [WHERE, "async def test_by_hand(llm): assert 'Hello' in str(await llm.chat([{'role': 'user', 'content': 'Hi'}]))\n"]
)
def test_a_fixture_starts_the_stack(small: Project, test: str) -> None:
    """A test without a rollout that uses `backend` or `llm` starts the stack, too."""
    small.suite(test=test)

    result = small.run(*TWO_WORKERS, "scenarios/shop")

    result.assert_outcomes(passed=1)
    (log,) = small.root.rglob("stack_daemon.log")
    assert " stopped in " in log.read_text()


def test_a_stack_that_does_not_start(small: Project) -> None:
    """If a service ends while it starts, an ERROR has its command, exit code and the end of its log."""
    stack(small, "--slow", "60", "--die-after", "0.2", "--say", "Traceback: out of luck")

    result = small.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*the backend 'small' is not available: engine ended with exit code 3: `*service.py --port *`",
            "the end of *engine.log:",
            "    Traceback: out of luck",
        ]
    )
    assert (CANNOT_MEASURE, "NOT MEASURED") == (result.ret, small.run_json["verdict"])


@WAYS
def test_a_service_that_dies(small: Project, way: tuple[str, ...]) -> None:
    """If a service dies, an ERROR has the end of its log, the session ends, and finished rollouts are in the journal."""
    stack(small, "--die-at", "Customer shop-3:")
    small.suite(scenarios=6, test=PASSES)

    result = small.run(*way, "--agentbench-concurrency=1", "scenarios/shop")

    assert 3 == result.parseoutcomes()["passed"]
    assert 1 <= result.parseoutcomes().get("errors", 1) <= (3 if way else 1)
    result.stdout.fnmatch_lines(
        [
            "shop?shop-[3-7]?: infra_error: the backend 'small' is gone: engine ended with exit code 7: `*`",
            "    Traceback: the engine has had enough",
            f"3 finished rollouts are saved in {small.directory}/rollouts.jsonl",
        ]
    )
    assert ["ok", "ok", "ok", "infra_error"] == [rollout.status for rollout in small.rollouts]
    assert (CANNOT_MEASURE, "NOT MEASURED") == (result.ret, small.run_json["verdict"])


def test_a_service_that_is_restarted(small: Project) -> None:
    """If a service with `restart` dies, it is restarted.

    Rollouts wait for it, those in flight are attempted again, and reports count the restart.
    """
    dies = ("--slow", "2", "--die-at", "Customer shop-1:", "--once", str(small.root / "died"))
    stack(small, *dies, service={"restart": 1})
    small.suite(scenarios=6, test=PASSES)

    small.run("--agentbench-concurrency=2", "scenarios/shop").assert_outcomes(passed=6)

    assert {"engine": 1} == small.run_json["backend"]["restarts"]
    for level in (Level.FIRST_PAGE, Level.VERBOSE):
        assert [{"engine": 1}] == [backend.restarts for (backend,) in said(report_of(small.directory, level), phrases.restarts)]
    assert 1 <= len([rollout for rollout in small.rollouts if rollout.earlier_attempts]) <= 2
    assert 2 >= max(rollout.attempt for rollout in small.rollouts)


LACKS = pytest.mark.parametrize(
    ("service", "missing"),
    [
        ({"gpus": 1}, "1 GPU needed; visible here: none, because AGENTBENCH_GPUS is ''"),
        ({"secrets": ["SHOP_KEY"]}, "services.engine needs the environment variable SHOP_KEY, which is not set"),
        ({"python": "no-such-thing"}, "no-such-thing"),
    ],
    ids=["gpu", "secret", "interpreter"],
)


@LACKS
def test_a_machine_that_lacks_something(small: Project, monkeypatch: pytest.MonkeyPatch, service: dict[str, object], missing: str) -> None:
    """If the backend is not requested explicitly and the machine lacks something, its tests are skipped with the reason, and the session
    does not fail.
    """
    monkeypatch.setenv("AGENTBENCH_GPUS", "")
    stack(small, service=service)

    result = small.run(*TWO_WORKERS, "-rs", "scenarios/shop")

    result.assert_outcomes(skipped=4)
    assert 0 == result.ret
    assert missing in result.stdout.str()
    assert "SKIPPED" == small.run_json["verdict"]


@LACKS
@pytest.mark.parametrize(
    "insist", ["--agentbench-backend=small", "--agentbench-threshold=tsq.mean=0.1", "--agentbench-gate=tsq.mean >= 0.1"]
)
def test_a_requested_backend_that_cannot_run(
    small: Project, monkeypatch: pytest.MonkeyPatch, service: dict[str, object], missing: str, insist: str
) -> None:
    """If the backend is named, or a gate or threshold is given, a machine that lacks something is an ERROR instead of a skip."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "")
    stack(small, service=service)

    result = small.run(insist, "scenarios/shop")

    result.assert_outcomes(errors=1)
    assert missing in result.stdout.str()
    assert (CANNOT_MEASURE, "NOT MEASURED") == (result.ret, small.run_json["verdict"])


def test_waiting_for_gpus(small: Project, stacks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --agentbench-gpu-wait, a session waits for a GPU that another process holds. Without it, the tests are skipped."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    stack(small, service={"gpus": 1})
    lease = gpus.lease(1, stack="a neighbour")
    impatient = small.run("scenarios/shop", "-rs")
    impatient.assert_outcomes(skipped=4)

    def release() -> None:
        wait_for(lambda: [*stacks.glob("*/stack.json")], "the stack's daemon")
        time.sleep(1)
        lease.release()

    neighbour = threading.Thread(target=release)
    neighbour.start()
    result = small.run("scenarios/shop", "--agentbench-gpu-wait=60s")
    neighbour.join()

    impatient.stdout.fnmatch_lines(["*small needs 1 GPU, and too few are free: GPU 0 is held by process * for a neighbour since *"])
    result.assert_outcomes(passed=4)
    assert 0.5 < small.run_json["backend"]["boot"]["waited_for_gpus_s"]
    assert {"engine": ["0"]} == small.run_json["backend"]["boot"]["gpus"]


def test_two_sessions_at_once(small: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions have separate stacks and ports, and one waits until the other's GPU is free."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    stack(small, "--slow", "1", service={"gpus": 1})
    small.suite(scenarios=2, test=PASSES + WHERE)
    sessions = [Background(small, "--agentbench-gpu-wait=60s", "scenarios/shop") for _ in range(2)]
    try:
        statuses = [each.ended(90) for each in sessions]
    finally:
        for each in sessions:
            each.clean_up()
    boots = [json.loads(file.read_text())["backend"]["boot"] for file in small.root.glob("reports/2*/run.json")]
    waited = sorted(boot["waited_for_gpus_s"] for boot in boots)

    assert [0, 0] == statuses, sessions[0].output
    assert waited[0] < 0.5 < waited[1]
    assert 2 == len({*urls(small)})


def test_a_stack_is_kept(small: Project, stacks: Path) -> None:
    """A kept stack is reused by the next session with the same spec, but not with another spec. `backend down` ends it.

    Its services no longer have the address of the metrics of a run that has ended.
    """
    small.suite(scenarios=1, test=PASSES + WHERE)
    keep = "--agentbench-keep-backend=10m"

    small.run(keep, "scenarios/shop").assert_outcomes(passed=2)
    first = small.run_json["backend"]["reused"]
    small.run("scenarios/shop", "--agentbench-metrics-port=0").assert_outcomes(passed=2)
    second = small.run_json["backend"]["reused"]
    addresses = [file.read_text() for file in stacks.glob("*/run/run-metrics.json")]
    small.run("scenarios/shop", "--agentbench-set", "backend.env.DEPTH=four").assert_outcomes(passed=2)
    other = small.run_json["backend"]["reused"]
    there = len(marked(stacks))
    down = agentbench(small, "backend", "down", "small")

    assert (False, True, False) == (first, second, other)
    assert ["[]"] == addresses
    assert urls(small)[0] == urls(small)[1] != urls(small)[2]
    assert 1 == there
    assert 0 == down.returncode and down.stdout.startswith("small is down after ")
    assert is_gone(urls(small)[0])


def test_a_kept_stack_with_another_environment(small: Project, stacks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an engine's environment variable has changed, the kept stack is not reused, and the session says what has changed."""
    small.suite(scenarios=1, test=PASSES + WHERE)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    small.run("--agentbench-keep-backend=10m", "scenarios/shop").assert_outcomes(passed=2)
    first = small.run_json
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    result = small.run("-v", "scenarios/shop")
    second = small.run_json
    agentbench(small, "backend", "down", "small")

    changed = 'environment.NCCL_DEBUG "INFO" is now "WARN"; `agentbench backend down small` ends it'
    passed_over = f"a kept small is not used, because it was started with something else: {changed}"
    assert (False, "") == (first["backend"]["reused"], first["backend"]["passed_over"])
    assert (False, passed_over) == (second["backend"]["reused"], second["backend"]["passed_over"])
    assert passed_over in result.stdout.str()
    assert ["INFO", "WARN"] == [run["identity"]["backend"]["environment"]["NCCL_DEBUG"] for run in (first, second)]
    assert first["identity"]["hashes"]["backend"] != second["identity"]["hashes"]["backend"]


def test_a_kept_stack_has_a_deadline(small: Project, stacks: Path) -> None:
    """A kept stack ends by itself when its time is over."""
    small.run("--agentbench-keep-backend=500ms", "scenarios/shop").assert_outcomes(passed=4)

    until_gone(stacks)


def test_stack_commands(small: Project, stacks: Path) -> None:
    """`agentbench backend` starts, lists, checks and ends a stack without pytest, and a session can use it meanwhile."""
    small.suite(scenarios=1, test=PASSES + WHERE)
    (small.root / "reports" / ".gitignore").unlink(missing_ok=True)
    said = {step[0]: agentbench(small, "backend", *step) for step in (("up", "small"), ("status",), ("logs", "small"), ("check", "small"))}
    small.run("scenarios/shop").assert_outcomes(passed=2)
    # Logs contain paths of this machine, so the folder is ignored by git.
    assert "*" == (small.root / "reports" / ".gitignore").read_text().split()[0]
    again, down, status = (agentbench(small, "backend", *step) for step in (("up", "small"), ("down", "small"), ("status",)))
    gone = agentbench(small, "backend", "down", "small")

    assert [0] * 4 == [each.returncode for each in said.values()], said
    assert "small is up after " in said["up"].stdout and urls(small)[0] in said["up"].stdout
    assert f"ready     {urls(small)[0]}" in said["status"].stdout
    assert "starting engine: " in said["logs"].stdout
    assert ["port", "models", "chat", "tools", "speed"] == [line.split()[1] for line in said["check"].stdout.splitlines()]
    assert small.run_json["backend"]["reused"]
    assert f"small is already up at {urls(small)[0]}\n" == again.stdout
    assert (0, "no stack is running\n") == (down.returncode, status.stdout)
    assert (1, "no stack 'small' is running; running stacks: none; start one with `agentbench backend up`") == (
        gone.returncode != 0,
        gone.stderr.strip().removeprefix("agentbench: "),
    )


def test_backend_up_on_a_terminal(small: Project, stacks: Path) -> None:
    """On a terminal, `backend up` shows a status line while it waits, and erases it at the end."""
    stack(small, "--slow", "2", "--say", "loading weights")
    command = [sys.executable, "-m", "pytest_agentbench.cli", "backend", "up", "small", "--for", "1s"]
    status, written = run_on_terminal(command, small.root, child_environment())
    wrong = agentbench(small, "backend", "up", "small", "--for", "10x")
    until_gone(stacks)

    assert 0 == status
    assert re.search(r"\d s  engine: waiting for /health · loading weights", written)
    assert str(Screen(written)).startswith("small is up after ")
    assert (4, "agentbench: --for 10x: must be a time such as 90s, 10m or 2h\n") == (wrong.returncode, wrong.stderr)


def test_backend_up_is_interrupted(small: Project, stacks: Path) -> None:
    """Ctrl-C ends `backend up` without a traceback and leaves nothing. Meanwhile, `backend check` says that the stack is still starting."""
    stack(small, "--slow", "600")
    command = [sys.executable, "-m", "pytest_agentbench.cli", "backend", "up", "small"]
    up = subprocess.Popen(command, cwd=small.root, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any("engine" in file.name for file in small.root.rglob("engine.log")), "the engine's log")
    check = agentbench(small, "backend", "check", "small")
    up.send_signal(signal.SIGINT)
    _, said = up.communicate(timeout=60)

    assert (130, "agentbench: interrupted") == (up.returncode, said.splitlines()[-1])
    assert "Traceback" not in said
    assert "agentbench: small is booting; wait until `agentbench backend status` lists it as ready\n" == check.stderr
    until_gone(stacks)


def test_a_stack_that_another_process_ends(small: Project, stacks: Path) -> None:
    """If its stack is ended by `backend down`, the session ends at once with that reason."""
    stack(small, "--think", "0.5")
    small.suite(scenarios=200, test=PASSES)
    session = Background(small, "--agentbench-concurrency=1", "scenarios/shop")
    try:
        session.in_the_middle()
        agentbench(small, "backend", "down", "small")
        status = session.ended(60)
    finally:
        session.clean_up()

    assert 6 == status
    assert "the backend 'small' is gone: the stack was stopped: requested by pid " in session.output


@pytest.mark.parametrize("test", [PASSES, WHERE], ids=["rollouts", "by-hand"])
def test_a_start_on_a_terminal(small: Project, test: str) -> None:
    """While the stack starts, the progress line shows the elapsed time and the service that it waits for. At the end it is erased."""
    stack(small, "--slow", "3", "--say", "loading weights")
    small.suite(scenarios=1, test=test)

    status, written = run_on_terminal([*PYTEST, "scenarios/shop"], small.root, child_environment())

    assert 0 == status
    assert re.search(r"agentbench boots small · \d s · engine: waiting for /health · loading weights", written)
    assert "agentbench boots" not in str(Screen(written))


def test_a_start_in_a_log() -> None:
    """In a log, regular lines show that the session is still waiting for its stack."""
    lines: list[str] = []
    reporter = SimpleNamespace(ensure_newline=lambda: None, write_line=lines.append)
    services = SimpleNamespace(
        backend=SimpleNamespace(name="small"), boot_began=time.monotonic() - 83, boot_status="engine: waiting for /health"
    )
    opened = SimpleNamespace(services=services, recorder=None)
    heartbeat = Heartbeat(reporter, SimpleNamespace(opened=opened), every=0.05, rollouts=False)  # type: ignore[arg-type]
    heartbeat.pytest_runtestloop()
    wait_for(lambda: len(lines) >= 2, "the second line")
    services.boot_status = ""
    heartbeat.pytest_sessionfinish()

    assert "agentbench boots small · 83 s · engine: waiting for /health" == lines[0]
