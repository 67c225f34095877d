"""The real ThunderAgent router with the built-in engine: the beginning and the end of programs."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import aiohttp
import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack import ownership
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Endpoint, Json, Rollout
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.tap.client import Taps
from pytest_agentbench.tap.protocol import OpenAddress, TapConfig, TapListening
from pytest_agentbench.tap.routing_hints import make_labels
from tests.real.booted_stack import ROOT, Booted, booted, run
from tests.waits import wait_for

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_whole(home_of("thunderagent")), reason="NOT TESTED with ThunderAgent: agentbench env create thunderagent"),
]

LONG = "A lamp that stands on a table. " * 50  # about 350 tokens
WAITS = 2.0  # seconds after which a call without an answer counts as held by the router


@contextmanager
def stack(folder: Path, *, decay: bool = True, mode: str = "tr", replicas: int = 1, **settings: Any) -> Iterator[Booted]:
    """Boots thunderagent-embedded with other settings. Without decay, the router starts as in the original's script."""
    spec = load_backend("thunderagent-embedded", ROOT)
    assert isinstance(spec, StackSpec)
    command = [word for word in spec.services["router"].run if decay or word != "--use-acting-token-decay"]
    command = [f"--router={mode}" if word.startswith("--router=") else word for word in command]
    changes = [(f"settings.{name}", value) for name, value in settings.items()]
    with booted(
        "thunderagent-embedded", folder, [*changes, ("services.engine.replicas", replicas), ("services.router.run", command)]
    ) as found:
        yield found


def programs(stack: Booted) -> dict[str, Json]:
    """Returns the programs that the router knows."""
    known: dict[str, Json] = json.loads(stack.get("/programs"))
    return known


def release(stack: Booted, id: str) -> bool:
    """Releases a program, and returns whether the router released it."""
    request = urllib.request.Request(
        f"{stack.url.removesuffix('/v1')}/programs/release", json.dumps({"program_id": id}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bool(json.loads(answer.read())["released"])


def is_held(stack: Booted, text: str, id: str) -> bool:
    """Returns whether a call gets no answer in time. The connection is then closed."""
    body = {"model": stack.model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "program_id": id}
    request = urllib.request.Request(f"{stack.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAITS) as answer:
            answer.read()
    except TimeoutError:
        return True
    return False


def test_the_life_of_a_program(tmp_path: Path) -> None:
    """A program is released only once, and its name can be used again.

    After a failed call it counts as running, and a release ends that.
    """
    with stack(tmp_path) as router:
        router.chat("Hello", program_id="run:a")
        released = [release(router, id) for id in ("run:a", "run:a", "run:unknown")]
        router.chat("Hello", program_id="run:a")
        begun_anew = programs(router)["run:a"]["step_count"]
        with pytest.raises(urllib.error.HTTPError):
            router.chat("Hello", program_id="run:b", model="nobody")
        failed = programs(router)["run:b"]["status"]
        router.chat("Hello", program_id="run:b")
        mended = programs(router)["run:b"]["status"]
        with pytest.raises(urllib.error.HTTPError):
            router.chat("Hello", program_id="run:c", model="nobody")
        left = [release(router, id) for id in ("run:a", "run:b", "run:c")]

        assert [True, False, False] == released
        assert (1, "reasoning", "acting") == (begun_anew, failed, mended)
        assert ([True] * 3, {}) == (left, programs(router))


@pytest.mark.parametrize("options", [{"include_usage": True, "continuous_usage_stats": True}, {"include_usage": False}])
async def test_the_size_of_a_program(tmp_path: Path, options: Json) -> None:
    """The router takes the size of a program from the first usage in a stream.

    Through the tap the usage is right, whatever the agent asks for.
    """
    tap = Child("pytest_agentbench.tap", TapConfig("t"), tmp_path / "tap.log")
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True, "stream_options": options, "program_id": "straight"}
    try:
        with stack(tmp_path / "stack") as router:
            ports, id = tap.ready(TapListening), uuid4().hex
            taps = await Taps.connect([ports.control_port], "t")
            await taps.point_at(Endpoint(router.url, router.model))
            await taps.open(OpenAddress(id, label=make_labels({"kind": "thunderagent"}).label("tapped")))
            async with aiohttp.ClientSession() as session:
                for base, asked in ((router.url, body), (f"http://127.0.0.1:{ports.port}/r/{id}/v1", {**body, "program_id": ""})):
                    async with session.post(f"{base}/chat/completions", json={"model": router.model, **asked}) as answer:
                        await answer.read()
            (call,), _ = await taps.close(id)
            known = programs(router)
            taps.disconnect()
    finally:
        tap.stop()
    whole = (call.prompt_tokens or 0) + (call.completion_tokens or 0)

    assert ("acting", whole) == (known["tapped"]["status"], known["tapped"]["total_tokens"])
    assert (known["straight"]["status"], known["straight"]["total_tokens"]) in (("acting", call.prompt_tokens), ("reasoning", ANY))


def test_a_release_while_a_call_is_open(tmp_path: Path) -> None:
    """If a program is released during a call, the call is still answered, but the program is unknown.

    So we end calls first, and use each name once.
    """
    with stack(tmp_path, ttft_ms=1500) as router:
        answers: list[Json] = []
        calls = [threading.Thread(target=lambda: answers.append(router.chat("Hello", program_id="run:a"))) for _ in range(2)]
        for call in calls:
            call.start()
        wait_for(lambda: programs(router).get("run:a", {}).get("step_count") == 2, "both calls")
        released = release(router, "run:a")
        for call in calls:
            call.join()

        assert (True, 2, {}) == (released, len(answers), programs(router))


def test_programs_that_were_not_released(tmp_path: Path) -> None:
    """Without decay, a program that was not released keeps new ones waiting.

    The router still sends their calls after the client has left.
    """
    with stack(tmp_path, decay=False, kv_blocks=64) as router:
        router.chat(LONG * 2, program_id="left-over")
        held = is_held(router, LONG, "run:a")
        paused = programs(router)["run:a"]["state"]
        release(router, "left-over")
        wait_for(lambda: programs(router)["run:a"]["status"] == "acting", "the call of the client that left")
        swept = release(router, "run:a")

        assert (True, "paused", True, {}) == (held, paused, swept, programs(router))


def test_a_release_of_a_queued_program(tmp_path: Path) -> None:
    """A release of a queued program sends its waiting call at once, without regard to the capacity."""
    with stack(tmp_path, decay=False, kv_blocks=64) as router:
        router.chat(LONG * 2, program_id="left-over")
        answers: list[Json] = []
        call = threading.Thread(target=lambda: answers.append(router.chat(LONG, program_id="run:a")))
        call.start()
        wait_for(lambda: programs(router).get("run:a", {}).get("state") == "paused", "the queue")
        released = release(router, "run:a")
        call.join()

        assert (True, 1, ["left-over"]) == (released, len(answers), [*programs(router)])


def test_rollouts_that_end_in_the_queue(tmp_path: Path) -> None:
    """Rollouts that are larger than the whole cache end at their own time limit, have no score, and leave no program behind."""
    small = [f"--agentbench-set=backend.settings.{each}" for each in ("kv_blocks=16", "scheduler_interval=0.2")]
    limits = ("--agentbench-budget-rollout=3s", "--agentbench-limit=3", "--agentbench-set=backend.warm_up=0")
    said = run("thunderagent-embedded", tmp_path, *small, *limits, status=6)
    rollouts: list[Rollout] = [*read_journal(tmp_path / "latest")]

    assert [("infra_error", {}, 3)] * 3 == [(each.status, each.scores, 1 + len(each.earlier_attempts)) for each in rollouts]
    assert {"labelled": 9, "announced": 9, "released": 9, "failed": 0, "bypassed": 0, "left": 0} == said["labels"]


def test_decay_lets_others_in(tmp_path: Path) -> None:
    """With decay, as in our YAML files, a program that was not released is paused in favour of a new one."""
    with stack(tmp_path, kv_blocks=64) as router:
        router.chat(LONG * 2, program_id="left-over")
        router.chat(LONG, program_id="run:a")

        assert {"left-over", "run:a"} == programs(router).keys()


def test_the_default_mode(tmp_path: Path) -> None:
    """In the default mode of the baseline, the router becomes ready in the same way, knows programs, and holds none, however full the cache
    is.
    """
    with stack(tmp_path, decay=False, mode="default", kv_blocks=64) as router:
        router.chat(LONG * 2, program_id="run:a")
        router.chat(LONG * 2, program_id="run:b", job_id="run:b", is_last_step=False)
        known = {id: each["state"] for id, each in programs(router).items()}

        assert {"run:a": "active", "run:b": "active"} == known


def test_two_engines(tmp_path: Path) -> None:
    """A program stays with the engine of its first call, and two programs are on two engines."""
    with stack(tmp_path, replicas=2) as router:
        places = []
        for id in ("run:a", "run:b", "run:a", "run:b"):
            router.chat("Hello", program_id=id)
            places.append(programs(router)[id]["backend"])

        assert places[:2] == places[2:]
        assert 2 == len({*places})


def test_a_program_moves(tmp_path: Path) -> None:
    """A program that is paused because its engine is full continues on another engine, which has nothing of its prompt in the cache."""
    with stack(tmp_path, replicas=2, kv_blocks=64) as router:
        router.chat(LONG, program_id="run:a")
        home = programs(router)["run:a"]["backend"]
        router.chat(f"{LONG} It is old.", program_id="run:b")
        router.chat("Hello", program_id="run:c")
        at_home = _cached(router.chat(LONG, program_id="run:a"))
        neighbour = programs(router)["run:c"]["backend"]
        release(router, "run:b")
        router.chat("A chair. " * 200, program_id="run:c")
        wait_for(lambda: programs(router)["run:a"]["backend"] not in (None, home), "the other engine")
        elsewhere, again = (_cached(router.chat(LONG, program_id="run:a")) for _ in range(2))

        assert home == neighbour
        assert elsewhere < at_home == again
        assert {"active"} == {each["state"] for each in programs(router).values()}


def _cached(answer: Json) -> int:
    """Returns the cached tokens of a prompt."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_program_that_never_fits(tmp_path: Path) -> None:
    """A program that is larger than the whole cache waits at the router for half an hour. Our own time limit ends it without a score."""
    with stack(tmp_path, kv_blocks=64) as router:
        held = is_held(router, LONG * 8, "run:a")
        with suppress(KeyError):
            release(router, "run:a")

        assert held


def test_a_router_that_does_not_know_its_engine(tmp_path: Path) -> None:
    """A router that started before its engine never learns the capacity and holds all calls. So the boot does not accept it as ready."""
    spec = load_backend("thunderagent-embedded", ROOT)
    assert isinstance(spec, StackSpec)
    command = ["--backends=http://127.0.0.1:9" if word.startswith("--backends=") else word for word in spec.services["router"].run]
    early = [("services.router.run", command), ("services.router.after", []), ("services.router.ready.timeout", 4)]

    with pytest.raises(BackendError, match=r"router.*total_tokens_capacity"), booted("thunderagent-embedded", tmp_path, early):
        pass


def test_the_end_of_a_router_that_holds_a_call(tmp_path: Path) -> None:
    """SIGTERM does not end a router that holds a call. The stack ends nevertheless, and none of its processes is left."""
    with stack(tmp_path, kv_blocks=64) as router:
        held, home = is_held(router, LONG * 8, "run:a"), router.home

    assert held
    assert [] == [pid for pid, of in ownership.processes() if of == str(home)]


def test_steps_are_read_into_calls(tmp_path: Path) -> None:
    """Each call of a session has the time for which the router held it. The report shows it apart from TTFT."""
    said = run("thunderagent-embedded", tmp_path, "--agentbench-limit", "8")
    rollouts: list[Rollout] = [*read_journal(tmp_path / "latest")]
    timings = [call.server and call.server["timing"] for rollout in rollouts for call in rollout.calls]

    assert timings and all(each and each["router_queue_ms"] >= 0 for each in timings)
    assert len(timings) == said["performance"]["server_queue_ms"]["n"]
    assert {"labelled": 8, "announced": 8, "released": 8, "failed": 0, "bypassed": 0, "left": 0} == said["labels"]
