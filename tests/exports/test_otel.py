"""`agentbench export --as otel`: spans of calls, with messages of three APIs in the form of OpenTelemetry's conventions."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Json
from tests.exports.kept_run import asked, kept_run
from tests.made_runs import run_directory
from tests.project import TOOLS, Project
from tests.tables.shop import ALL, NOON

SCHEMA: Json = {"type": "object", "properties": {"item": {"type": "string"}}}
FUNCTION: Json = {"name": "find_item", "description": "Finds an item.", "parameters": SCHEMA}

#: The same conversation in three APIs: request and reply of its second call.
CHAT: tuple[Json, Json] = (
    {
        "model": "m",
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "tools": [{"type": "function", "function": FUNCTION}],
        "messages": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": "A lamp?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find_item", "arguments": '{"item":"lamp"}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one lamp"},
        ],
    },
    {"choices": [{"message": {"role": "assistant", "content": "Yes.", "reasoning_content": "One is left."}}]},
)
RESPONSES: tuple[Json, Json] = (
    {
        "model": "m",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "instructions": "Help.",
        "tools": [{"type": "function", **FUNCTION}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "A lamp?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "id": "f", "name": "find_item", "arguments": '{"item":"lamp"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "one lamp"},
        ],
    },
    {
        "output": [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "One is left."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        ]
    },
)
MESSAGES: tuple[Json, Json] = (
    {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "system": "Help.",
        "tools": [{"name": "find_item", "description": "Finds an item.", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "A lamp?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "find_item", "input": {"item": "lamp"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "one lamp"}]},
        ],
    },
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "One is left."}, {"type": "text", "text": "Yes."}]},
)


def exported(directory: Path, out: Path) -> tuple[list[Json], list[str]]:
    """Returns the files of an export, and the notes on what they lack."""
    chosen = ChosenRuns([directory])
    out.mkdir()
    load_writer("otel")(chosen, out)
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((out / directory.name).iterdir())], chosen.notes


def attribute(span: Json, name: str) -> Any:
    return json.loads(span["attributes"][f"gen_ai.{name}"])


def text(content: str) -> Json:
    return {"type": "text", "content": content}


@pytest.mark.parametrize(("dialect", "asked_and_told"), [("chat", CHAT), ("responses", RESPONSES), ("messages", MESSAGES)])
def test_one_form_for_three_apis(tmp_path: Path, dialect: str, asked_and_told: tuple[Json, Json]) -> None:
    """A request of each API becomes the same messages, tools and parameters. Arguments of tools stay as the API has them."""
    [session], notes = exported(kept_run(tmp_path / "run", [asked(100, *asked_and_told, dialect=dialect)]), tmp_path / "out")

    [span] = session["spans"]
    arguments = '{"item": "lamp"}' if dialect == "messages" else '{"item":"lamp"}'
    assert [
        {"role": "system", "parts": [text("Help.")]},
        {"role": "user", "parts": [text("A lamp?")]},
        {"role": "assistant", "parts": [text("I look."), {"type": "tool_call", "id": "c1", "name": "find_item", "arguments": arguments}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "one lamp"}]},
    ] == attribute(span, "input.messages")
    reasoning = {"type": "reasoning", "content": "One is left."}
    assert [{"role": "assistant", "parts": [reasoning, text("Yes.")], "finish_reason": "stop"}] == attribute(span, "output.messages")
    assert [{"type": "function", **FUNCTION}] == attribute(span, "tool.definitions")
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "shop[shop-0]-1",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 1,
    }.items() <= span["attributes"].items()
    assert [] == notes


def test_spans_of_a_session(tmp_path: Path) -> None:
    """A session is a trace: its spans have one trace id, ids of their own, and the times of the calls."""
    [session, other], _ = exported(kept_run(tmp_path / "run", [asked(100, *CHAT), asked(300, *CHAT)], [asked(0, *CHAT)]), tmp_path / "out")

    first, second = session["spans"]
    assert ("shop[shop-0]-1", 2) == (session["session_id"], session["span_count"])
    assert {session["trace_id"]} == {first["trace_id"], second["trace_id"]}
    assert session["trace_id"] != other["trace_id"]
    assert (32, 16, 16) == (len(first["trace_id"]), len(first["span_id"]), len({*first["span_id"], *"0123456789abcdef"}))
    assert first["span_id"] != second["span_id"]
    times = [datetime.fromisoformat(span[key]).timestamp() - NOON for span in (first, second) for key in ("start_time", "end_time")]
    assert [0.1, 0.15, 0.3, 0.35] == pytest.approx(times, abs=1e-5)


def test_odd_contents(tmp_path: Path) -> None:
    """A picture stays as it is, the first of several choices is the answer, and a message without content has no parts."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body: Json = {"model": "m", "messages": [{"role": "user", "content": [picture, {"type": "text", "text": "?"}]}, {"role": "assistant"}]}
    choices = [{"message": {"role": "assistant", "content": answer}} for answer in ("A", "B")]
    [session], _ = exported(kept_run(tmp_path / "run", [asked(0, body, {"choices": choices})]), tmp_path / "out")

    [span] = session["spans"]
    assert [{"role": "user", "parts": [picture, text("?")]}, {"role": "assistant", "parts": []}] == attribute(span, "input.messages")
    assert [[text("A")]] == [message["parts"] for message in attribute(span, "output.messages")]
    assert "gen_ai.tool.definitions" not in span["attributes"]


def test_other_apis_are_left_out(tmp_path: Path) -> None:
    """A call of the Completions API has no messages. It is left out, and a note says so. A run without kept requests is refused."""
    conversation = [asked(0, *CHAT), asked(100, {"model": "m", "prompt": "Hi"}, {"choices": [{"text": "Yes."}]}, dialect="completions")]
    [session], notes = exported(kept_run(tmp_path / "run", conversation), tmp_path / "out")

    assert 1 == session["span_count"]
    assert ["run: 1 of 2 calls are left out: 1 of another API"] == notes
    with pytest.raises(ConfigError, match="--agentbench-keep=none"):
        exported(run_directory(tmp_path / "other", *ALL), tmp_path / "more")


def test_a_real_run(project: Project) -> None:
    """Each rollout of a run is a file. A second prompt is the first one, its answer and the result of the tool."""
    project.suite()
    project.run_once("scenarios/shop")
    sessions, _ = exported(project.directory, project.root / "out")

    assert 3 == len(sessions)
    for session in sessions:
        first, second = session["spans"]
        prompt, answer = attribute(first, "input.messages"), attribute(first, "output.messages")
        assert "tool_calls" == answer[0].pop("finish_reason")
        assert [*prompt, *answer] == attribute(second, "input.messages")[:-1]
        assert "tool" == attribute(second, "input.messages")[-1]["role"]
        assert [tool["title"] for tool in TOOLS] == [tool["name"] for tool in attribute(first, "tool.definitions")]
