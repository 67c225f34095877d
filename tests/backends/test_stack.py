"""Stacks with real processes: start order, readiness, deaths, and a complete stop."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from pytest_agentbench.backends.stack import ownership, registry
from pytest_agentbench.backends.stack.protocol import ServicesRestarting
from pytest_agentbench.backends.stack.spec import dependencies
from pytest_agentbench.errors import BackendError, ConfigError, MissingError
from tests.backends.conftest import Boot, service, spec
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(60)

Log = Callable[[], str]


def get(url: str) -> object:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def root(url: str) -> str:
    return url.removesuffix("/v1")


def failure(held: registry.HeldStack, kind: type[BackendError] = BackendError) -> str:
    with pytest.raises(BackendError) as caught:
        held.ready()

    assert kind is caught.type
    return str(caught.value)


def test_services_start_in_the_order_of_their_needs(boot: Boot, daemon_log: Log) -> None:
    """A service starts after those that it names, with their addresses filled in. The endpoint stops first."""
    engines, router = service("--slow", "0.4", replicas=2), service("--say", "engines {engine.urls} first {engine.url} of {model}")
    held = boot(spec(services={"router": router, "engine": engines}, endpoint="router"))
    endpoint = held.ready()
    said = (held.home.parent.parent / "logs" / "router.log").read_text()
    held.stop()
    log = daemon_log()

    first, second = re.findall(r"http://127.0.0.1:\d+", said.split(" first ")[0])
    assert f"engines {first},{second} first {first} of tiny\n" == said
    assert "tiny" == endpoint.model
    assert log.index("engine-1 is ready") < log.index("starting router") < log.index("router ended") < log.index("engine-0 ended")
    assert ["port", "models", "chat", "tools"] == [rung["name"] for rung in held.boot["proof"]]


def test_progress_has_the_last_line_of_a_log(boot: Boot) -> None:
    """While a service boots, users see the last line of its log, without colours and not longer than a line of the terminal."""
    told: list[str] = []
    boot(spec(services={"engine": service("--slow", "2.5", "--say", f"\x1b[2mloading\x1b[0m {'x' * 300}")})).ready(told.append)

    assert f"engine: waiting for /health · loading {'x' * 152} [148 characters left out]" in told


def test_a_cycle() -> None:
    """Services that wait for each other are refused before anything starts."""
    with pytest.raises(ConfigError, match=r"^these services wait for each other: a, b$"):
        dependencies(spec(services={"a": service("{b.url}"), "b": service(after=["a"])}))


def test_an_unknown_template(boot: Boot) -> None:
    """The message for an unknown template lists the known ones."""
    wrong = failure(boot(spec(services={"engine": service("{prot}")}, settings={"depth": 3})))

    assert wrong.startswith("services.engine: {prot} is unknown; known: {depth}, {engine.host}, {engine.port}, {engine.url}")


def test_json_in_a_command_stays(boot: Boot) -> None:
    """Only names in braces are templates."""
    held = boot(spec(services={"engine": service("--say", '{"a": {"port": "{port}"}}')}))
    port = root(held.ready().url).rpartition(":")[2]

    assert f'{{"a": {{"port": "{port}"}}}}\n' == (held.home.parent.parent / "logs" / "engine.log").read_text()


def test_templates_beyond_commands(boot: Boot, tmp_path: Path) -> None:
    """Interpreters and regular expressions may contain templates, whose values are escaped in regular expressions.

    A command may be in `cwd`.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "serve").write_text(f'#!/bin/sh\nexec python {service()["run"][1]} "$@"\n')
    (tmp_path / "serve").chmod(0o755)
    own = {
        "run": ["./serve", "--port", "{port}"],
        "cwd": "{home}",
        "python": "{here}",
        "ready": {"http": "/v1/models", "says": '"{model}"'},
    }
    fine = {**own, "run": ["./serve", "--port", "{port}", "--model", "tiny+"], "cwd": "."}
    held = boot(spec(here=str(tmp_path), model="tiny+", services={"engine": fine}))

    assert "tiny+" == held.ready().model
    assert "the command './serve' (of " in failure(boot(spec(here=str(tmp_path), services={"engine": own})))


def test_a_death_at_boot(boot: Boot) -> None:
    """A service that dies before it is ready fails the boot at once, with command, exit code and the end of its log."""
    dies = service("--slow", "60", "--die-after", "0.3", "--say", "Traceback: out of luck")
    reason = failure(boot(spec(services={"engine": dies})))

    assert re.match(r"engine ended with exit code 3: `.*service.py --port \d+ --slow 60 .*`\n", reason)
    assert reason.endswith("engine.log:\n    Traceback: out of luck")


def test_a_missing_command(boot: Boot) -> None:
    """A command that does not exist is named, with advice."""
    reason = failure(boot(spec(services={"engine": {"run": ["no-such-engine", "--port", "{port}"]}})))

    assert re.match(r"the command 'no-such-engine' \(of `no-such-engine --port \d+`\) does not exist", reason)


def test_never_ready(boot: Boot) -> None:
    """After the timeout, the message has the request, the answer and the end of the log."""
    reason = failure(boot(spec(services={"engine": service("--slow", "600", "--say", "loading")}, ready={"timeout": 3})))

    assert re.match(r"engine is not ready in time: GET http://127.0.0.1:\d+/health answered 503 Service Unavailable", reason)
    assert reason.endswith("    loading")


def test_a_model_that_is_not_served(boot: Boot) -> None:
    """The boot fails at the readiness check that fails."""
    reason = failure(boot(spec(services={"engine": service("--model", "other")}, ready={"timeout": 3})))

    assert re.match(r"not ready in time, check `models` failed: .* does not serve 'tiny'; it lists: other\n", reason)


def test_tools_are_proven(boot: Boot) -> None:
    """The checks find an engine without a tool parser. A stack can declare that it has no tools."""
    without = {"engine": service("--no-tools")}
    refused = failure(boot(spec(services=without)))
    fine = boot(spec(services=without, ready={"tools": "none"}))

    assert "requires --enable-auto-tool-choice" in refused and "check that the engine has a tool parser" in refused
    assert "tiny" == fine.ready().model


def test_workers_are_counted(boot: Boot) -> None:
    """Dynamo's own list of workers is checked if the YAML has their numbers."""
    enough = boot(spec(ready={"workers": {"decode": 2}}))
    enough.ready()
    too_few = failure(boot(spec(ready={"workers": {"decode": 3}, "timeout": 3})))

    assert {"name": "workers", "detail": "2 decode"}.items() <= enough.boot["proof"][2].items()
    assert "workers: 2 of 3 decode" in too_few


def test_warm_up(boot: Boot) -> None:
    """Warm-up requests are sent before the stack is ready: the number in the YAML, or else the concurrency."""
    for wanted, keys in ((3, {}), (1, {"warm_up": 1}), (0, {"warm_up": 0})):
        held = boot(spec(**keys), warm_up=3)
        asked = get(f"{root(held.ready().url)}/seen")

        assert isinstance(asked, list)
        assert wanted == asked.count("Count to ten.") == held.boot["warm_up"]["requests"]


def test_a_death_in_the_warm_up(boot: Boot) -> None:
    """The message names the service that died, not the failed requests."""
    reason = failure(boot(spec(services={"engine": service("--die-at", "Count to ten.")}), warm_up=3))

    assert reason.startswith("engine ended with exit code 7: ")


def test_a_death_in_the_middle(boot: Boot) -> None:
    """The death of a service in a running stack is reported at once, with exit code and the end of its log."""
    held = boot()
    url = root(held.ready().url)
    with pytest.raises(OSError):  # noqa: PT011 - the message depends on how much of the answer has arrived
        urlopen(f"{url}/die", timeout=5)
    reason = held.death()

    assert reason.startswith("engine ended with exit code 7: ") and reason.endswith("    Traceback: the engine has had enough")


def test_a_restart(boot: Boot, daemon_log: Log) -> None:
    """With `restart: 1`, a service that dies is restarted once, on the same port."""
    held = boot(spec(services={"engine": service(restart=1)}))
    url = root(held.ready().url)
    for _ in range(2):
        wait_for(lambda: answers(url), "an answer")
        with pytest.raises(OSError):  # noqa: PT011
            urlopen(f"{url}/die", timeout=5)

    assert held.death().startswith("engine ended with exit code 7")
    assert 1 == daemon_log().count("starting it again")


@contextmanager
def restarted(held: registry.HeldStack) -> Iterator[tuple[str, list[ServicesRestarting]]]:
    """Returns the URL of a stack whose engine has died and serves again, and the messages about it."""
    url = root(held.ready().url)
    told: list[ServicesRestarting] = []
    watching = threading.Thread(target=lambda: held.death(told.append))
    watching.start()
    with pytest.raises(OSError):  # noqa: PT011
        urlopen(f"{url}/die", timeout=5)
    wait_for(lambda: len(told) == 2, "both of what is told")
    yield url, told
    held.stop()
    watching.join()


def test_holders_learn_of_a_restart(boot: Boot) -> None:
    """Holders learn which service is restarting, and that it serves again after it is ready."""
    held = boot(spec(services={"engine": service("--slow", "0.5", restart=1)}))
    with restarted(held) as (url, told):
        assert [ServicesRestarting(("engine",), {"engine": 1}), ServicesRestarting((), {"engine": 1})] == told
        assert answers(url)


def test_a_restart_waits_for_the_dead(boot: Boot, tmp_path: Path) -> None:
    """Dynamo lists a dead worker for about ten seconds and sends it calls. Until then, the stack is not ready."""
    ghost = tmp_path / "lives"
    held = boot(spec(services={"engine": service("--ghost", str(ghost), restart=1)}, ready={"workers": {"decode": 2}}))
    with restarted(held) as (url, _):
        assert "xx" == ghost.read_text()
        assert '"workers": 2' in json.dumps(get(f"{url}/v1/models/tiny/ready"))


def test_a_restart_that_is_never_ready(boot: Boot, tmp_path: Path) -> None:
    """A service that is not ready in time after a restart counts as dead."""
    once = f"test -e {tmp_path}/again && exec sleep 60; touch {tmp_path}/again; exec {shlex.join(service()['run'])}"
    held = boot(spec(services={"engine": service(run=["sh", "-c", once], restart=1)}, ready={"timeout": 4}))
    url = root(held.ready().url)
    with pytest.raises(OSError):  # noqa: PT011
        urlopen(f"{url}/die", timeout=5)

    assert "\nand could not be started again: engine is not ready in time: " in held.death()


def answers(url: str) -> bool:
    try:
        get(f"{url}/health")
    except OSError:
        return False
    return True


def test_a_service_that_ignores_sigterm(boot: Boot, daemon_log: Log) -> None:
    """SIGTERM, then SIGKILL after the grace period. Processes in other sessions are killed, too."""
    held = boot(spec(services={"engine": service("--stubborn", "--leave-behind", grace=0.3)}))
    held.ready()
    held.stop()

    assert "engine ended with -9" in daemon_log()
    assert re.search(r"killed processes that the services left behind: \d+\n", daemon_log())


def test_stopped_while_it_boots(boot: Boot) -> None:
    """A boot ends if the stack is no longer needed."""
    held = boot(spec(services={"engine": service("--slow", "600")}))
    threading.Timer(0.5, held.stop).start()

    assert "the stack was stopped while it started" == failure(held)


def test_a_port_in_use(boot: Boot) -> None:
    """A fixed port that is in use is an error with the name of the process, which is not killed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = failure(boot(spec(services={"engine": service(port=port)})))

    assert f"engine needs port {port}, which is used by pid {os.getpid()} (" in reason


def test_a_port_that_is_stolen(boot: Boot, daemon_log: Log) -> None:
    """A port that another program takes before the service starts is reported with its process. The stop does not wait for it."""
    steal = "import socket,sys,time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    thief = f"env -u {ownership.VARIABLE} setsid {sys.executable} -c {shlex.quote(steal)} {{port}} & echo $! > {{run_dir}}/thief; sleep 1; "
    held = boot(spec(services={"engine": service(run=["sh", "-c", f"{thief} exec {shlex.join(service()['run'])}"])}))
    reason = failure(held)
    pid = int((held.home / "run" / "thief").read_text())
    held.stop()
    os.kill(pid, signal.SIGKILL)

    assert re.search(rf"^its port \d+ is taken by pid {pid} \(python", reason, re.MULTILINE)
    assert re.search(rf"port \d+ is still in use by pid {pid} ", daemon_log())


def test_secrets_come_by_name(boot: Boot, monkeypatch: pytest.MonkeyPatch, daemon_log: Log) -> None:
    """A secret has to be set. Its value reaches the service, but no file."""
    wanted = spec(services={"engine": service(secrets=["SHOP_KEY"], env={"PLAIN": "{model}"})})
    missing = failure(boot(wanted), MissingError)
    monkeypatch.setenv("SHOP_KEY", "open sesame")
    held = boot(wanted)
    seen = get(f"{root(held.ready().url)}/environ")

    assert "services.engine needs the environment variable SHOP_KEY, which is not set" == missing
    assert isinstance(seen, dict)
    assert ("open sesame", "tiny", "") == (seen["SHOP_KEY"], seen["PLAIN"], seen["CUDA_VISIBLE_DEVICES"])
    files = [file for file in held.home.parent.parent.rglob("*") if file.is_file()]
    assert [] == [file for file in files if b"open sesame" in file.read_bytes()]


def test_gpus(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica sees only the GPUs that were leased for it. They are free when the stack has stopped."""
    monkeypatch.setenv("AGENTBENCH_GPUS", "2,5,7")
    held = boot(spec(services={"engine": service("--say", "{gpus}: {gpu_list}", gpus=1, replicas=2)}))
    held.ready()
    logs = held.home.parent.parent / "logs"
    said = sorted((logs / f"engine-{replica}.log").read_text() for replica in (0, 1))
    too_few = failure(boot(spec(services={"engine": service(gpus=2)})), MissingError)
    impossible = failure(boot(spec(services={"engine": service(gpus=4)})), MissingError)
    held.stop()
    pinned = boot(spec(services={"engine": service(gpus=[7, 2])}))
    pinned.ready()

    assert ["1: 2\n", "1: 5\n"] == said
    assert "small needs 2 GPUs, and too few are free" in too_few
    assert "4 GPUs needed; visible here: 2, 5, 7" == impossible
    assert {"engine": ["7", "2"]} == pinned.boot["gpus"]


def test_the_stack_daemon_is_killed(boot: Boot) -> None:
    """The holder of a stack whose daemon dies learns that, and cleans up."""
    held = boot()
    held.ready()
    pid = next(facts.pid for home, facts in registry.running() if home == held.home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    assert held.death().startswith("the daemon of the stack has died")
    assert 1 == len(list(ownership.processes(str(held.home))))
    held.stop()
    assert [] == list(ownership.processes(str(held.home)))
