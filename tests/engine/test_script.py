"""The policy `script`: which rule answers, and how each fault looks to a plain client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_agentbench.engine.chat import Delivery, PolicyReply, ReplyCall, Stall
from pytest_agentbench.engine.script import Script, load_rules
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.engines import engine

Ask = Callable[..., httpx.Response]

FAULTS = """
- match: {contains: broken arguments}
  tool_calls: [{name: look_up, arguments: '{"city": '}]
- match: {contains: too many}
  status: 429
  message: Slow down.
  retry_after: 1.2
- match: {contains: failure, call: 1}
  status: 500
- match: {contains: failure}
  text: Recovered.
- match: {contains: broken event}
  text: one two three four
  malformed_json_after: 2
- match: {contains: error inside}
  text: one two three four
  error_event_after: 2
- match: {contains: cut}
  text: one two three four
  cut_after: 2
- match: {contains: nothing}
  empty: true
- match: {contains: chunky}
  text: one two three four five
  tool_calls: [{name: look_up, arguments: {city: Rome}}]
  tokens_per_chunk: 2
  finish_reason: content_filter
- match: {contains: umlauts}
  text: Grüße 🙂
  split_utf8: true
- match: {contains: death}
  exit: true
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an engine with the script above."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "faults.yaml").write_text(FAULTS)
    with engine(folder, policy="script", script=str(folder / "faults.yaml")) as url:
        yield url


def _script(tmp_path: Path, rules: list[Json]) -> Script:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(rules))
    return Script(path)


def _says(script: Script, text: str, turns: int = 0) -> str:
    messages = [{"role": "user", "content": text}, *[{"role": "assistant", "content": "Well."}] * turns]
    return script.reply({"messages": messages}).text


def _contents(response: httpx.Response) -> str:
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line and line != "data: [DONE]"]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if "choices" in event)


def test_first_rule_that_fits_answers(tmp_path: Path) -> None:
    """The first rule whose conditions all hold answers. A rule without conditions always matches."""
    rules: list[Json] = [
        {"match": {"contains": "a", "turn": 1}, "text": "both"},
        {"match": {"contains": "a"}, "text": "text"},
        {"text": "default"},
    ]
    script = _script(tmp_path, rules)

    assert ["text", "both", "default"] == [_says(script, "a"), _says(script, "a", turns=1), _says(script, "b", turns=1)]


def test_call_counts_the_requests_that_concern_a_rule(tmp_path: Path) -> None:
    """`call` selects the n-th request that meets the rule's other conditions, whichever rule answered the earlier ones."""
    rules: list[Json] = [
        {"match": {"contains": "a", "call": 1}, "text": "first"},
        {"match": {"contains": "a", "call": 2}, "text": "second"},
        {"text": "later"},
    ]
    script = _script(tmp_path, rules)

    assert ["later", "first", "second", "later"] == [_says(script, text) for text in ("b", "a", "a", "a")]


def test_a_rule_becomes_a_reply(tmp_path: Path) -> None:
    """The reply has the text, calls, finish reason and delivery of the rule."""
    rule = {
        "text": "Hm.",
        "tool_calls": [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": "{"}, {"name": "h"}],
        "finish_reason": "stop",
    }
    reply = _script(tmp_path, [{**rule, "ttft_ms": 5, "stall": {"after": 1, "ms": 2}}]).reply(
        {"messages": [{"role": "user", "content": ""}]}
    )

    assert PolicyReply("Hm.", (ReplyCall("f", {"x": 1}), ReplyCall("g", "{"), ReplyCall("h", {})), "stop", reply.delivery) == reply
    assert (5, None, Stall(after=1, ms=2)) == (reply.delivery.ttft_ms, reply.delivery.itl_ms, reply.delivery.stall)


def test_no_rule_fits(tmp_path: Path) -> None:
    """A request that no rule matches gets an error that names the script."""
    reply = _script(tmp_path, [{"match": {"turn": 3}}]).reply({"messages": [{"role": "user", "content": ""}]})

    assert PolicyReply(delivery=Delivery(status=400, message="No rule in rules.json matches this request.")) == reply


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("text: hello", ": must be a list of rules, not {'text': 'hello'}"),
        ("- {txt: hello}", ": rule 1: unknown key 'txt' (did you mean 'text'?); known keys: ttft_ms, "),
        (
            "- {text: a}\n- {match: {contain: a}}",
            ": rule 2: unknown key 'match.contain' (did you mean 'contains'?); known keys: contains, turn, call",
        ),
        ("- {cut_after: -1}", ": rule 1: cut_after: must be greater than or equal to 0, not -1"),
        ("- {status: 200}", ": rule 1: status: must be greater than or equal to 400, not 200"),
        ("- {stall: {after: 2}}", ": rule 1: the key 'stall.ms' is missing"),
        ("- {tool_calls: [{arguments: {}}]}", ": rule 1: the key 'tool_calls.0.name' is missing"),
        ("- {tool_calls: [{name: f, arguments: 3}]}", ": rule 1: tool_calls.0.arguments: must be a mapping or a text, not 3"),
        ("- {message: Oh}", ": rule 1: message and retry_after are only allowed together with status"),
        ("- {text: [}", ":1: not valid YAML: "),
    ],
)
def test_faults_of_a_script_name_file_and_key(tmp_path: Path, script: str, sentence: str) -> None:
    """An invalid script is refused with its name, the rule and the key."""
    path = tmp_path / "rules.yaml"
    path.write_text(script)
    with pytest.raises(ConfigError) as raised:
        load_rules(path)

    assert str(raised.value).startswith(f"{path}{sentence}")


def test_malformed_arguments(faulty: str, ask: Ask) -> None:
    """Arguments given as text arrive unchanged, streamed or not."""
    (call,) = ask(faulty, "broken arguments").json()["choices"][0]["message"]["tool_calls"]

    assert {"name": "look_up", "arguments": '{"city": '} == call["function"]


@pytest.mark.parametrize("stream", [False, True])
def test_error_status(faulty: str, ask: Ask, stream: bool) -> None:
    """An error answer has its status, message and Retry-After in whole seconds."""
    response = ask(faulty, "too many", stream=stream)

    assert (429, "2") == (response.status_code, response.headers["Retry-After"])
    assert {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": None} == response.json()["error"]


def test_fails_first_and_then_succeeds(faulty: str, ask: Ask) -> None:
    """With `call: 1` a retry succeeds."""
    first, second = ask(faulty, "failure"), ask(faulty, "failure")

    assert (500, "server_error") == (first.status_code, first.json()["error"]["type"])
    assert "Recovered." == second.json()["choices"][0]["message"]["content"]


def test_malformed_json(faulty: str, ask: Ask) -> None:
    """The third event after the role is not JSON, and the rest follows. Without streaming, the body is half of a JSON object."""
    lines = [line.removeprefix("data: ") for line in ask(faulty, "broken event", stream=True).text.splitlines() if line]
    broken = [index for index, line in enumerate(lines[:-1]) if not _is_json(line)]

    assert [3] == broken
    assert [" three", " four"] == [json.loads(line)["choices"][0]["delta"]["content"] for line in lines[4:6]]
    assert "[DONE]" == lines[-1]
    assert not _is_json(ask(faulty, "broken event").text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_error_inside_a_200(faulty: str, ask: Ask) -> None:
    """After two tokens the stream has an error and ends. Without streaming, the body is the error."""
    response = ask(faulty, "error inside", stream=True)
    whole = ask(faulty, "error inside")
    *_, last, done = [line for line in response.text.splitlines() if line]

    assert (200, "one two", "data: [DONE]") == (response.status_code, _contents(response), done)
    assert "server_error" == json.loads(last.removeprefix("data: "))["error"]["type"]
    assert (200, "server_error") == (whole.status_code, whole.json()["error"]["type"])


def test_cut(faulty: str, ask: Ask) -> None:
    """After two tokens the connection is closed in the body. Without streaming, it is closed in the middle of the body."""
    body = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "cut"}], "stream": True}
    seen: list[str] = []
    with (
        httpx.stream("POST", f"{faulty}/v1/chat/completions", json=body) as response,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
    ):
        seen.extend(response.iter_lines())
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        ask(faulty, "cut")

    assert [None, "one", " two"] == [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or None for line in seen if line
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_empty(faulty: str, ask: Ask, stream: bool) -> None:
    """An empty answer has status 200 and no body."""
    response = ask(faulty, "nothing", stream=stream)

    assert (200, b"") == (response.status_code, response.content)


def test_tokens_per_chunk(faulty: str, ask: Ask) -> None:
    """Chunks have the requested number of tokens, all of one kind, and the total number of tokens does not change."""
    events = [
        json.loads(line.removeprefix("data: "))
        for line in ask(faulty, "chunky", stream=True, stream_options={"include_usage": True}).text.splitlines()
        if line and "[DONE]" not in line
    ]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    calls = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]

    assert ["one two", " three four", " five"] == [delta["content"] for delta in deltas[1:-1] if "content" in delta]
    assert ["", '{"', 'city"', ':"', 'Rome"', "}"] == [call["arguments"] for call in calls]
    assert "content_filter" == events[-2]["choices"][0]["finish_reason"]
    assert 5 + 1 + 9 == events[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_split_characters(faulty: str, stream: bool) -> None:
    """Some writes end inside a character, and the joined text is complete."""
    body = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "umlauts"}], "stream": stream}
    cut = False
    for _ in range(50):  # On a busy machine two writes may arrive in one read.
        with httpx.stream("POST", f"{faulty}/v1/chat/completions", json=body) as response:
            parts = list(response.iter_raw())
        cut = cut or any(not _is_utf8(part) for part in parts)
        data = b"".join(parts).decode()

        assert all(text in data for text in ("Grüße", "🙂"))
        if cut:
            break
    assert cut


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_exit(start_engine: Callable[..., Child], ask: Ask, tmp_path: Path) -> None:
    """The process ends at once with exit code 70, and its client loses the connection."""
    (tmp_path / "death.yaml").write_text(FAULTS)
    child = start_engine(policy="script", script=str(tmp_path / "death.yaml"))
    port = child.ready(Listening).port
    with pytest.raises(httpx.RemoteProtocolError):
        ask(f"http://127.0.0.1:{port}", "death")

    assert 70 == child.process.wait(30)


def test_documented_example_is_a_script(tmp_path: Path) -> None:
    """The rules in the module docstring can be loaded."""
    import pytest_agentbench.engine.script as module

    lines: list[Any] = (module.__doc__ or "").splitlines()
    (tmp_path / "example.yaml").write_text("\n".join(line for line in lines if line.startswith(("    - ", "      "))))

    assert 3 == len(load_rules(tmp_path / "example.yaml"))
