"""The requests and replies of calls in report.html, in a real Chromium."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.reports import page as report
from pytest_agentbench.reports.page import PAGE, write_page
from pytest_agentbench.reports.page.data import run_data
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import BackendUse, read_run
from tests.made_runs import run_directory
from tests.reports.page.conftest import call, poll, rollout
from tests.reports.page.test_page import CONTRAST, NAMELESS
from tests.runs.test_conversations import kept

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
HOSTILE = 'It\'s $(touch ran) `touch ran` "quoted" \\ \u202eevil\nAGENTBENCH\n</script>'
SYSTEM = {"role": "system", "content": "You run a shop."}
QUESTION = {"role": "user", "content": HOSTILE}
FUNCTION = {"name": "find_item", "arguments": '{"item": "lamp"}'}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"found": 3}'}
ANSWER = {"role": "assistant", "content": "There are three lamps."}


def asked(path: str, body: Json, reply: Json, role: str = "", dialect: str = "chat") -> tuple[tuple[str, Json, Json], Json]:
    """Returns a call for `written`: what messages.jsonl keeps of it, and its other facts."""
    return (path, {"model": "m", **body}, reply), {"role": role, "dialect": dialect}


def chat(messages: list[Json], reply: Json, role: str = "") -> tuple[tuple[str, Json, Json], Json]:
    tools = [{"type": "function", "function": {"name": "find_item", "description": "Finds an item." * 20}}]
    return asked(
        "/chat/completions", {"messages": messages, "tools": tools}, {"id": "x", "choices": [{"index": 0, "message": reply}]}, role
    )


def calls_of(directory: Path, *calls: tuple[tuple[str, Json, Json], Json]) -> tuple[LLMCall, ...]:
    """Writes what the calls of a rollout requested to messages.jsonl, and returns the calls, 100 ms apart."""
    directory.mkdir(exist_ok=True)
    _, done = kept(directory, *(each for each, _ in calls))
    return tuple(call(100 * place, kept=each.kept, **facts) for place, (each, (_, facts)) in enumerate(zip(done, calls, strict=True)))


def written(directory: Path, *rollouts: Any, **changes: Any) -> Path:
    """Writes a run and its messages.jsonl, which `calls_of` has written beside it, and returns the page."""
    run_directory(directory, *rollouts, **changes)
    (directory.with_name("kept") / "messages.jsonl").rename(directory / "messages.jsonl")
    return report.write(read_run(directory), directory)


def shop(tmp_path: Path) -> Path:
    """Returns the page of a rollout in which an agent, an expert and a judge make calls."""
    reasoned = {**CALLING, "reasoning_content": "I must look it up."}
    calls = calls_of(
        tmp_path / "kept",
        chat([SYSTEM, QUESTION], reasoned),
        chat([{"role": "user", "content": "How many lamps?"}], {"role": "assistant", "content": "three"}, "expert"),
        chat([SYSTEM, QUESTION, CALLING, RESULT], ANSWER),
        chat([{"role": "user", "content": "Is the answer right?"}], {"role": "assistant", "content": "yes"}, "judge"),
    )
    return written(tmp_path / "run", rollout("a", calls=calls[:3], other_calls=calls[3:], ended_ns=calls[-1].ended_ns))


def test_a_conversation_of_several_roles(tmp_path: Path, opened: Opened) -> None:
    """Each call has its request and its reply. New messages are marked, reasoning is folded, and calls of roles are inside the agent's."""
    page = opened(shop(tmp_path), "#a")
    poll(page, "document.querySelector('.exchange')")

    around = "each.parentElement.closest('.exchange')?.dataset.exchange"
    inside = f"[...document.querySelectorAll('.exchange')].map(each => [each.dataset.exchange, {around}])"
    assert [["1-0", None], ["1-1", "1-0"], ["1-2", None], ["1-3", "1-2"]] == page.evaluate(inside)
    assert ["expert", "judge"] == page.locator(".exchange > summary .mark").all_inner_texts()
    (new,) = page.locator("li.new").all_inner_texts()
    assert "find_item" in new and '{"found": 3}' in new
    assert ["3 messages that call 1 had or answered"] == page.locator(".earlier > summary").all_inner_texts()
    assert "I must look it up." not in page.inner_text("dialog")
    page.click(".reasoning > summary")
    page.get_by_text("I must look it up.").wait_for()  # The text is added when the fold has opened.


def test_the_timeline_opens_calls(tmp_path: Path, opened: Opened) -> None:
    """A click on a call in the timeline, or on its number in the table, opens its whole request and its reply."""
    page = opened(shop(tmp_path), "#a")
    poll(page, "document.querySelector('.exchange')")

    assert not page.get_by_text("How many lamps?").is_visible()
    page.locator(".timeline g[data-call='1'] rect").first.click()
    assert page.get_by_text("How many lamps?").is_visible()
    assert not page.locator("[data-exchange='1-2'] .earlier li").first.is_visible()
    page.get_by_role("button", name="3", exact=True).click()
    page.locator("[data-exchange='1-2'] .earlier li").first.wait_for()
    assert "1-2" == page.evaluate("document.activeElement.closest('.exchange').dataset.exchange")
    assert 5 == page.locator("[data-exchange='1-2'] > .exchange-body li").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_accessibility_of_calls(tmp_path: Path, opened: Opened, scheme: str, width: int) -> None:
    """With everything opened, texts have contrast, controls have names, and nothing is wider than the screen."""
    page = opened(shop(tmp_path), "#a", color_scheme=scheme, viewport={"width": width, "height": 800})
    poll(page, "document.querySelector('.exchange')")

    page.evaluate("document.querySelectorAll('dialog details').forEach(each => { each.open = true; })")
    page.wait_for_timeout(100)
    page.evaluate("document.querySelectorAll('dialog details').forEach(each => { each.open = true; })")
    poll(page, "document.querySelectorAll('.raw').length === 12")
    assert page.evaluate("dialog.scrollWidth <= dialog.clientWidth")
    assert [] == page.evaluate(CONTRAST)
    assert 0 == page.evaluate(NAMELESS)


def of_every_api(directory: Path) -> list[tuple[tuple[str, Json, Json], Json]]:
    """Returns two calls of each API; the second one adds a message."""
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "What kind?"}]}
    first, second = {"role": "user", "content": "Is there a lamp?"}, {"role": "user", "content": "A red one."}
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "What kind?"}]}
    return [
        chat([first], {"role": "assistant", "content": "What kind?"}),
        chat([first, {"role": "assistant", "content": "What kind?"}, second], ANSWER),
        asked("/messages", {"system": "Shop " * 60, "messages": [first]}, thought, dialect="messages"),
        asked("/messages", {"system": "Shop " * 60, "messages": [first, thought, second]}, thought, dialect="messages"),
        asked("/responses", {"instructions": "Shop", "input": [first]}, {"id": "r", "output": [item]}, dialect="responses"),
        asked("/responses", {"instructions": "Shop", "input": [first, item, second]}, {"id": "r", "output": [item]}, dialect="responses"),
        asked("/completions", {"prompt": "Is there a lamp?"}, {"choices": [{"text": "What kind?"}]}, dialect="completions"),
        asked("/completions", {"prompt": "Is there a lamp? A red one."}, {"choices": [{"text": "What kind?"}]}, dialect="completions"),
    ]


def test_requests_of_every_api(tmp_path: Path, opened: Opened) -> None:
    """Requests and replies as JSON are those that the agent and the server sent, in each API. The message that was added is marked."""
    given = of_every_api(tmp_path)
    calls = calls_of(tmp_path / "kept", *given)
    page = opened(
        written(tmp_path / "run", *(rollout(name, calls=calls[at : at + 2]) for at, name in zip((0, 2, 4, 6), "abcd", strict=True)))
    )

    for at, name in zip((0, 2, 4, 6), "abcd", strict=True):
        page.evaluate(f"location.hash = '{name}'")
        poll(page, f"document.querySelector('dialog h2')?.textContent.startsWith('{name} ') && document.querySelector('.exchange')")
        for place in (0, 1):
            for kind, value in (("Request", given[at + place][0][1]), ("Reply", given[at + place][0][2])):
                raw = page.locator(f"[data-exchange='1-{place}'] .raws details", has_text=f"{kind} as JSON")
                raw.locator("summary").click()
                assert value == json.loads(raw.locator("pre").inner_text())
        assert ["A red one." in text for text in page.locator("li.new").all_inner_texts()] == [True]
        assert "What kind?" in page.inner_text("[data-exchange='1-0'] .transcript >> nth=-1")


def test_the_command_of_another_api(tmp_path: Path, opened: Opened) -> None:
    """The `curl` has the address of the backend or of the role's endpoint if the run knows it, and the header for the key of its API."""
    own, expert = calls_of(tmp_path / "kept", *of_every_api(tmp_path)[2:4])
    backend = BackendUse(name="b", note="", kind="url", served_model="m", failure="", more={"url": "http://10.0.0.1:8000/v1"})
    calls = (own, replace(expert, role="expert", endpoint="https://example.org/v1"))
    page = opened(written(tmp_path / "run", rollout("a", calls=calls), backend=backend), "#a")
    poll(page, "document.querySelector('.exchange')")

    page.evaluate("openCall(document.querySelector('.pane'), '1-1')")
    page.evaluate("document.querySelectorAll('.raws details').forEach(each => { each.open = true; })")
    poll(page, "document.querySelectorAll('.raw').length === 6")
    commands = [text for text in page.locator(".raw pre").all_inner_texts() if text.startswith("curl")]
    assert ["curl http://10.0.0.1:8000/v1/messages \\", "curl https://example.org/v1/messages \\"] == [
        text.split("\n")[0] for text in commands
    ]
    assert all('-H "x-api-key: $API_KEY"' in text for text in commands)


class Recorder(BaseHTTPRequestHandler):
    """Keeps the request that it gets."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got = self.path, dict(self.headers), json.loads(body)  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing."""


def test_a_copied_command_repeats_the_request(tmp_path: Path, opened: Opened) -> None:
    """The copied `curl` sends the same request with the user's key, and a shell runs no part of foreign texts."""
    page = opened(shop(tmp_path), "#a", permissions=["clipboard-read", "clipboard-write"])
    poll(page, "document.querySelector('.exchange')")
    raw = page.locator("[data-exchange='1-0'] > .exchange-body .raws details", has_text="curl")
    raw.locator("summary").click()
    raw.get_by_role("button", name="copy").click()
    raw.get_by_role("button", name="copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")

    with HTTPServer(("127.0.0.1", 0), Recorder) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        variables = {"BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "API_KEY": "k", "PATH": os.environ["PATH"]}
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=variables, check=True)
        thread.join()
    path, headers, body = server.got  # type: ignore[attr-defined]
    assert ("/v1/chat/completions", "Bearer k") == (path, headers["Authorization"])
    assert [SYSTEM, QUESTION] == body["messages"]
    assert "\u202e" not in command
    assert not (tmp_path / "ran").exists()


def test_a_page_that_cannot_contain_everything(tmp_path: Path, opened: Opened) -> None:
    """Failed rollouts come first. The page says how many it contains, and how to see each of the others."""
    words = random.Random(7)
    texts = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000)) for _ in range(8)]
    rollouts = [rollout(f"s-{place}", place / 10, messages=({"role": "user", "content": text},)) for place, text in enumerate(texts)]
    directory = run_directory(tmp_path / "run", *rollouts)
    run = read_run(directory)
    data = run_data(run, directory, pytest.fail, 70_000)
    page = opened(write_page([RunView(run, directory)], [data], [], directory / PAGE), "#s-0")

    poll(page, "document.querySelector('dialog .transcript')")
    assert [[0], [1], [2]] == data.index["contents"]
    assert page.inner_text("#contained").startswith("The page contains the conversations and timelines of 3 of 8 rollouts: the failed ")
    page.evaluate("location.hash = 's-7'")
    poll(page, "document.querySelector('dialog')?.textContent.includes('agentbench show run s-7')")
    assert ["agentbench show run s-7", "agentbench watch run"] == page.locator("dialog .raw pre").all_inner_texts()
    assert "tsq 0.7" in page.inner_text("dialog")
    assert 0 == page.locator(".timeline").count()


def test_a_run_without_messages(tmp_path: Path, opened: Opened) -> None:
    """Without messages.jsonl the page shows the transcript, and says why requests and replies are missing."""
    run_directory(tmp_path / "run", rollout("a"))
    page = opened(report.write(read_run(tmp_path / "run"), tmp_path / "run"), "#a")

    poll(page, "document.querySelector('dialog .transcript')")
    text = page.inner_text("dialog")
    assert "Is there a lamp, a?" in text
    assert "Requests and replies are missing" in text
