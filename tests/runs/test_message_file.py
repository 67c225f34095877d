"""messages.jsonl: what a session appends, what a later session finds, and what is left after a damage or a full disk."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_text import opened
from pytest_agentbench.lib.kept_values import FILE, NodeLine, ValueLine, node_id, value_id
from pytest_agentbench.records import KeptCall, LLMCall, Rollout
from pytest_agentbench.runs.conversations import Conversations, NotKept, Transcripts
from pytest_agentbench.runs.journal import record_line, rollout_of
from pytest_agentbench.runs.message_file import MessageFile, with_changed_ids


def lines(*contents: str) -> tuple[list[bytes], str]:
    """Returns the lines of a conversation, and the id of its last node."""
    made, node = [], ""
    for content in contents:
        text = json.dumps({"role": "user", "content": content}).encode()
        message = value_id("m", text)
        line = NodeLine(node_id(node, message), node, message)
        made += [ValueLine(message, text).written(), line.written()]
        node = line.id
    return made, node


def call(prompt: str) -> LLMCall:
    return LLMCall(0, 0, 1, kept=KeptCall("", prompt))


def contents(directory: Path, prompt: str) -> list[str]:
    return [message["content"] for message in Conversations(directory).prompt(call(prompt))]


@pytest.fixture
def open_file() -> Iterator[Callable[..., MessageFile]]:
    """Returns a function that opens messages.jsonl as a session does. The files are closed at the end of the test."""
    with ExitStack() as files:
        yield lambda *arguments, **options: files.enter_context(MessageFile(*arguments, **options))


def redacted(text: str) -> str:
    return text.replace("hush", "[redacted]")


def test_each_value_once(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A value or node is written once, also if a later session has it again, and every id is the hash of what its line contains."""
    made, node = lines("one", "two", "one")
    for _ in range(2):
        file = open_file(tmp_path, str)
        assert [{}, {}] == [file.add(made), file.add(made)]

    written = [json.loads(opened(line)) for line in file.path.read_bytes().splitlines()]
    assert ["m", "n", "m", "n", "n"] == [line["id"][0] for line in written]
    assert {line["id"] for line in written if "value" in line} == {
        value_id("m", json.dumps(line["value"]).encode()) for line in written if "value" in line
    }
    assert ["one", "two", "one"] == contents(tmp_path, node)


def test_secrets_change_ids(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """The ids of redacted values, and of all nodes after them, are those of the redacted texts. Records get the new ids."""
    made, node = lines("one", "it is hush", "two")
    _, clean = lines("one", "it is [redacted]", "two")

    changed = open_file(tmp_path, redacted).add(made)

    assert clean == changed[node]
    assert (3, 3) == (len(changed), len(set(changed.values())))
    assert b'{"a":"%b","b":"n1"}' % clean.encode() == with_changed_ids(b'{"a":"%b","b":"n1"}' % node.encode(), changed)
    assert ["one", "it is [redacted]", "two"] == contents(tmp_path, clean)
    assert changed == open_file(tmp_path, redacted).add(made)


def test_a_line_that_was_cut(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A session that was killed leaves an incomplete line. The next session removes it, and writes it when it is needed again."""
    made, node = lines("one", "two")
    open_file(tmp_path, str).add(made)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(NotKept, match=f"does not contain {node}"):
        contents(tmp_path, node)
    open_file(tmp_path, str).add(made)

    assert ["one", "two"] == contents(tmp_path, node)
    assert len(made) == len(path.read_bytes().splitlines())


def test_a_damaged_line(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A changed byte makes only the conversations with that message unreadable."""
    made, node = lines("one", "two")
    open_file(tmp_path, str).add([*made, *lines("other")[0]])
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b"two", b"twO"))

    with pytest.raises(NotKept, match="it is damaged, or"):
        contents(tmp_path, node)
    assert ["other"] == contents(tmp_path, lines("other")[1])


def test_the_largest_file(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A file that has reached its limit gets nothing more, and says so. The reader names the limit."""
    file = open_file(tmp_path, str, most=400)
    first, second = lines("one"), lines("x" * 400)
    file.add(first[0])
    file.add(second[0])
    assert file.is_full
    size = file.size
    file.add(lines("three")[0])

    assert size == file.path.stat().st_size
    assert ["one"] == contents(tmp_path, first[1])
    with pytest.raises(NotKept, match="had reached its largest size"):
        contents(tmp_path, lines("three")[1])


def test_a_full_disk(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """If there is no space for all lines, none of them stays in the file. They are written when there is space again."""
    made, node = lines("one", "two")
    file, (_, most) = open_file(tmp_path, str), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with pytest.raises(OSError, match="no space left for messages"):
            file.add(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert 0 == file.path.stat().st_size

    file.add(made)

    assert ["one", "two"] == contents(tmp_path, node)


def test_a_reader_sees_what_is_added(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """Values that a session writes after the file was opened are found."""
    file = open_file(tmp_path, str)
    file.add(lines("one")[0])
    messages = Conversations(tmp_path)
    made, node = lines("one", "two")
    file.add(made)

    assert 2 == len(messages.prompt(call(node)))


def test_transcripts(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A record that refers to its transcript gets it, as a rollout and as a line, whatever its other texts look like."""
    made, node = lines("one", "two")
    open_file(tmp_path, str).add(made)
    state = {"conversation": "", "text": '"conversation":""'}
    stored = Rollout("shop", "s", "default", 1, "ok", final_state=state, conversation=node)
    transcripts, whole = Transcripts(tmp_path, print), [{"role": "user", "content": content} for content in ("one", "two")]

    assert whole == [*transcripts.completed(stored).messages]
    assert replace(stored, messages=tuple(whole), conversation="") == rollout_of(transcripts.completed_line(record_line(stored)))


def test_records_without_a_reference(tmp_path: Path) -> None:
    """A record that contains its transcript stays as it is, also if the run has no messages.jsonl."""
    line = record_line(Rollout("shop", "s", "default", 1, "ok", messages=({"role": "user", "content": "one"},)))

    assert line == Transcripts(tmp_path, print).completed_line(line)


def test_a_missing_transcript(tmp_path: Path) -> None:
    """If transcripts are missing, the rollouts have none, and one sentence names the first of them."""
    sentences: list[str] = []
    transcripts = Transcripts(tmp_path, sentences.append)
    stored = [Rollout("shop", f"s-{number}", "default", 1, "ok", conversation=lines("one")[1]) for number in range(2)]

    assert stored == [transcripts.completed(each) for each in stored]
    assert [f"the transcript of shop[s-0] is missing: {tmp_path} has no messages.jsonl"] == [each.partition(";")[0] for each in sentences]


def test_without_a_file(tmp_path: Path) -> None:
    """A run without the file is refused with the option that would have made it."""
    with pytest.raises(ConfigError, match="--agentbench-keep=none"):
        Conversations(tmp_path)


@pytest.mark.parametrize(
    ("kept", "why"),
    [(None, "the session kept no requests"), (KeptCall(missing="limit"), "no memory left"), (KeptCall("f1"), "the call has no reply")],
)
def test_reasons(open_file: Callable[..., MessageFile], tmp_path: Path, kept: KeptCall | None, why: str) -> None:
    """What was not kept is refused with the reason."""
    open_file(tmp_path, str).add(lines("one")[0])

    with pytest.raises(NotKept, match=why):
        Conversations(tmp_path).reply(LLMCall(0, 0, 1, kept=kept))


def test_redacted_part_of_a_request(open_file: Callable[..., MessageFile], tmp_path: Path) -> None:
    """A form names a part with a secret, such as the tools, by the id that the redacted part has."""
    part, form = b'["hush"]', b'{"body":{"tools":null},"parts":{"tools":"%b"}}'
    id = value_id("p", part)
    named = form % id.encode()
    kept = value_id("f", named)

    changed = open_file(tmp_path, redacted).add([ValueLine(id, part).written(), ValueLine(kept, named).written()])

    request = LLMCall(0, 0, 1, kept=KeptCall(changed[kept]))
    assert {"tools": ["[redacted]"]} == Conversations(tmp_path).form(request)["parts"]
