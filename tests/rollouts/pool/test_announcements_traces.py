"""Request traces of Dynamo's frontend complete calls whose answers lack facts, and show which rollouts have arrived."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import aiohttp
import pytest

from pytest_agentbench.records import Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool import announcements
from pytest_agentbench.rollouts.pool.announcements import Announcer, RequestTrace
from pytest_agentbench.runs.attempts import RolloutTally

WORKER: Json = {"prefill_worker_id": 1, "decode_worker_id": 2}


def line(request: str, session: str = "run:1", **more: object) -> str:
    """Returns a trace line with the fields of Dynamo that are read."""
    facts = {"request_id": request, "worker": WORKER, "ttft_ms": 7.5, "kv_hit_rate": 0.5, "queue_depth": 3, "input_tokens": 9, **more}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": {"session_id": session}, "request": facts}
    return json.dumps({"timestamp": 1, "event": event}) + "\n"


def answered(response_id: str | None, server: Json | None = None) -> LLMCall:
    return LLMCall(0, 1, 2, http_status=200, response_id=response_id, server=server)


def test_lines(tmp_path: Path) -> None:
    """New complete lines of this run's sessions are read. Times have the names that answers use."""
    file = tmp_path / "requests.jsonl"
    file.write_text(line("from-before"))
    trace = RequestTrace(file, "run:")
    whole, truncated = line("a"), line("b")
    with file.open("a") as end:
        end.write(line("c", session="probe:1") + json.dumps({"event": {"event_type": "tool_end"}}) + "\n" + whole + truncated[:40])
        end.flush()
        trace.read_new()
        early = trace.take("chatcmpl-b")
        end.write(truncated[40:])
    trace.read_new()

    facts = {"worker_id": WORKER, "timing": {"ttft_ms": 7.5, "kv_hit_rate": 0.5, "router_queue_depth": 3}}
    assert ({"run:1"}, None) == (trace.sessions, early)
    assert [facts, facts, None, None, None] == [trace.take(f"chatcmpl-{id}") for id in ("a", "b", "b", "c", "from-before")]


def test_a_file_that_begins_again(tmp_path: Path) -> None:
    """A restarted frontend may write its file from the start. A frontend that has not started has no lines."""
    file = tmp_path / "requests.jsonl"
    trace = RequestTrace(file, "run:")
    trace.read_new()
    for id in ("first", "a"):
        file.write_text(line(id) * (2 if id == "first" else 1))
        trace.read_new()

    assert None is not trace.take("cmpl-a")


async def test_lines_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may come a little after its answer. The wait for a line that never comes ends."""
    file = tmp_path / "requests.jsonl"
    file.touch()
    trace = RequestTrace(file, "run:")
    waiting = asyncio.create_task(trace.wait(["chatcmpl-a"]))
    await asyncio.sleep(0)
    file.write_text(line("a"))
    came = await waiting
    monkeypatch.setattr(announcements, "PATIENCE", 0.0)  # The time itself is not tested.

    assert (True, False) == (came, await trace.wait(["chatcmpl-b"]))


async def test_calls_get_what_their_answers_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls get worker and times from the trace unless their answer had them. Rollouts count as arrived if the trace names them."""
    monkeypatch.setattr(announcements, "PATIENCE", 0.0)
    file = tmp_path / "requests.jsonl"
    labels: Json = {"kind": "dynamo", "trace": str(file)}
    async with aiohttp.ClientSession() as session:
        stack = Announcer(Endpoint("http://127.0.0.1:9/v1", "m", labels=labels), session, "run")
        ids = [stack.announce(token, RolloutKey("shop", "a")).headers["x-dynamo-session-id"] for token in ("1", "2", "3")]
        file.write_text(line("a", ids[0]) + line("b", ids[0]))
        own_facts: Json = {"worker_id": {"decode_worker_id": 9}}
        made = answered("chatcmpl-a"), answered("chatcmpl-b", own_facts), answered("resp_c"), answered(None)
        calls = await stack.complete("1", made)
        stack.end("1", calls)
        stack.end("2", await stack.complete("2", (answered("chatcmpl-lost"),)))
        stack.end("3", await stack.complete("3", ()))
        before = asdict(stack.tally)
        with file.open("a") as end:
            end.write(line("late", ids[1]))
        await stack.release_all()

    assert [WORKER, {"decode_worker_id": 9}, None, None] == [call.server and call.server["worker_id"] for call in calls]
    assert f"labels: {ids[1]}: {file} lacks requests that were answered, so facts about some calls are missing\n" == capsys.readouterr().err
    assert asdict(RolloutTally(labelled=3, announced=1)) == before
    assert asdict(RolloutTally(labelled=3, announced=2)) == asdict(stack.tally)
