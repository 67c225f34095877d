"""The ThunderAgent router's step_profiles.csv completes the calls of this session's programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool import announcements
from pytest_agentbench.rollouts.pool.announcements import COLUMNS, Announcer, StepProfiles

HEAD = ",".join(COLUMNS) + "\n"


def row(program: str, step: int, pause: float, hit_rate: str = "0.5") -> str:
    """Returns a row as ThunderAgent 0.1.0 writes it."""
    return f"{program},{step},0.04,0.2,{pause},1.5,{hit_rate},1767225600.1234\n"


def answered(ended_ns: int, tokens: int | None = 5, server: Json | None = None, error_kind: str | None = None) -> LLMCall:
    return LLMCall(0, 1, ended_ns, completion_tokens=tokens, error_kind=error_kind, server=server, http_status=200)


def queue(call: LLMCall) -> float | None:
    return float(call.server["timing"]["router_queue_ms"]) if call.server else None


async def test_steps_are_of_the_calls_that_were_counted(tmp_path: Path) -> None:
    """The rows of a program go to its answered calls in the order in which they ended. A failed call has no row."""
    file = tmp_path / "announcements.csv"
    profiles = StepProfiles(file, "run:")
    file.write_text(HEAD + row("run:a", 1, 0.25) + row("run:b", 1, 9.0) + row("run:a", 2, 0.0, hit_rate=""))
    made = answered(30), answered(20, None, error_kind="server_error"), answered(10)
    (later, failed, first), complete = await profiles.complete("run:a", made)

    assert complete
    whole = {"router_queue_ms": 250.0, "prefill_time_ms": 40.0, "decode_time_ms": 200.0, "tool_call_time_ms": 1500.0, "kv_hit_rate": 0.5}
    assert {"timing": whole} == first.server
    assert {"timing": {name: value for name, value in whole.items() if name != "kv_hit_rate"} | {"router_queue_ms": 0.0}} == later.server
    assert None is failed.server


async def test_a_file_of_several_runs(tmp_path: Path) -> None:
    """The router only appends, so earlier rows and rows of other runs or probes are ignored."""
    file = tmp_path / "announcements.csv"
    file.write_text(HEAD + row("run:a", 1, 7.0))
    profiles = StepProfiles(file, "run:")
    with file.open("a") as end:
        end.write(row("other:a", 1, 7.0) + row("agentbench-probe:x", 1, 7.0) + row("run:a", 1, 0.5))
    (call,), complete = await profiles.complete("run:a", (answered(10),))

    assert (True, 500.0, {"run:a"}) == (complete, queue(call), profiles.sessions)


async def test_incomplete_rows_and_a_file_that_begins_again(tmp_path: Path) -> None:
    """Only complete rows count. A restarted router may have begun its file again."""
    file = tmp_path / "announcements.csv"
    profiles = StepProfiles(file, "run:")
    truncated = row("run:a", 1, 0.5)
    file.write_text(HEAD + truncated[:9])
    profiles.read_new()
    before = set(profiles.sessions)
    with file.open("a") as end:
        end.write(truncated[9:])
    profiles.read_new()
    file.write_text(HEAD + row("run:b", 1, 0.5)[:-1])
    profiles.read_new()
    with file.open("a") as end:
        end.write("\n")
    profiles.read_new()

    assert (set(), {"run:a", "run:b"}) == (before, profiles.sessions)


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_steps_that_are_not_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """If the numbers of rows and answers differ, no call gets times, because they could be those of another call."""
    monkeypatch.setattr(announcements, "STEP_PATIENCE", 0.0)  # The time itself is not tested.
    file = tmp_path / "announcements.csv"
    profiles = StepProfiles(file, "run:")
    file.write_text(HEAD + "".join(row("run:a", number, 0.5) for number in range(1, steps + 1)))
    calls, complete = await profiles.complete("run:a", (answered(10), answered(20)))

    assert (False, [None, None]) == (complete, [call.server for call in calls])


async def test_rows_that_come_late(tmp_path: Path) -> None:
    """The row of a step may come a little after its answer, and is awaited."""
    file = tmp_path / "announcements.csv"
    profiles = StepProfiles(file, "run:")
    waiting = asyncio.create_task(profiles.complete("run:a", (answered(10),)))
    await asyncio.sleep(0)
    file.write_text(HEAD + row("run:a", 1, 0.5))
    (call,), came = await waiting

    assert (True, 500.0) == (came, queue(call))


async def test_calls_of_a_rollout_have_the_routers_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If labels name the file, each call gets the router's times. The log names a rollout whose rows are missing."""
    monkeypatch.setattr(announcements, "STEP_PATIENCE", 0.0)
    file = tmp_path / "announcements.csv"
    labels: Json = {"kind": "thunderagent", "trace": str(file)}
    async with aiohttp.ClientSession() as session:
        stack = Announcer(Endpoint("http://127.0.0.1:9/v1", "m", labels=labels), session, "run")
        ids = [str(stack.announce(token, RolloutKey("shop", "a")).fields["program_id"]) for token in ("1", "2")]
        file.write_text(HEAD + row(ids[0], 1, 0.25))
        calls = [call for token in ("1", "2") for call in await stack.complete(token, (answered(10),))]

    assert [250.0, None] == [queue(call) for call in calls]
    assert f"labels: {ids[1]}: {file} lacks requests that were answered, so facts about some calls are missing\n" == capsys.readouterr().err
