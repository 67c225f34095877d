"""The requests and replies in the data of report.html, without a browser."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pytest_agentbench.records import Json
from pytest_agentbench.reports.page.blocks import NumberedRollouts
from pytest_agentbench.reports.page.data import PageBlocks, urgency
from pytest_agentbench.reports.page.rollouts import detail
from tests.reports.page.conftest import call, rollout
from tests.runs.test_conversations import kept


def talk(turns: int) -> list[Json]:
    """Returns the messages of a conversation of some turns."""
    return [{"role": ("user", "assistant")[place % 2], "content": f"message {place} " * 20} for place in range(2 * turns + 1)]


def details_of(directory: Path, prompts: list[list[Any]], path: str = "/chat/completions") -> Json:
    """Returns the details of a rollout whose calls have these prompts, as the journal has them."""
    reply = {"choices": [{"message": {"role": "assistant", "content": "the same reply"}}]}
    _, done = kept(directory, *((path, {"messages": prompt}, reply) for prompt in prompts))
    calls = tuple(call(100 * place, 0, kept=each.kept) for place, each in enumerate(done))
    details: Json = json.loads(json.dumps(detail(rollout("a", calls=calls, messages=()))))
    return details


def test_sizes_grow_with_the_number_of_messages(tmp_path: Path) -> None:
    """A conversation of twice as many turns takes twice as much, although each request repeats all messages before it."""
    messages = talk(80)
    sizes = []
    for turns in (40, 80):
        (directory := tmp_path / str(turns)).mkdir()
        sizes.append(len(NumberedRollouts(directory).alone(details_of(directory, [messages[: 2 * n + 1] for n in range(turns)]))))

    assert 1.9 < sizes[1] / sizes[0] < 2.1


def test_a_prompt_continues_the_right_call(tmp_path: Path) -> None:
    """A request continues the last call of its own conversation, also beside another one and with a shortened history."""
    one, other = talk(3), [{"role": "user", "content": "another"}, *talk(3)]
    prompts = [one[:1], other[:1], one[:3], other[:3], [one[0], other[0]]]
    numbered = NumberedRollouts(tmp_path).numbered(details_of(tmp_path, prompts))

    asked = [each["asked"] for each in numbered["attempts"][0]["calls"]]
    assert [(-1, 0, 1), (-1, 0, 1), (0, 1, 2), (1, 1, 2), (2, 1, 1)] == [(each["from"], each["same"], len(each["then"])) for each in asked]
    assert {None} == {each["raw"] for each in asked}


def test_values_of_a_dropped_block_are_numbered_again(tmp_path: Path) -> None:
    """Rollouts of a block that does not fit are tried alone. Those that fit have all of their values, and each value has one number."""
    details = [details_of(tmp_path, [talk(place)]) for place in range(1, 5)]
    noise = {"role": "user", "content": "".join(random.Random(3).choices("abcdefghijklmnop", k=60_000))}
    details.insert(2, details_of(tmp_path, [[noise]]))
    blocks = PageBlocks(NumberedRollouts(tmp_path), 20_000)
    for place, each in enumerate(details):
        blocks.add(place, each)
    blocks.close()

    assert [[0], [1], [3], [4]] == blocks.contents
    assert 4 == len(blocks.starts) == len(blocks.texts)
    assert sum(map(len, blocks.texts)) <= 20_000


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    """If a line of messages.jsonl is damaged, the message says so in its place, and the others are shown.

    Without the file, each call has the reason.
    """
    details = details_of(tmp_path, [talk(1)])
    file = tmp_path / "messages.jsonl"
    file.write_bytes(file.read_bytes().replace(b"message 1 message 1", b"massage 1 message 1", 1))
    block = json.loads(NumberedRollouts(tmp_path).alone(details))

    (made,) = block["rollouts"][0]["attempts"][0]["calls"]
    shown = [block["values"][number] for number in made["asked"]["then"]]
    assert ["user", "not kept", "user"] == [each["role"] for each in shown]
    assert shown[1]["content"].startswith("messages.jsonl does not contain ")
    file.unlink()
    (made,) = NumberedRollouts(tmp_path).numbered(details)["attempts"][0]["calls"]
    assert (None, "the run has no messages.jsonl", None) == (made["asked"], made["missing"], made["replied"])


def test_the_order_of_the_rollouts_of_a_page() -> None:
    """Failures come first, by the kind of failure and then the worst score. Then come first trials, and then the others."""
    mains = {"shop": {"score": "tsq", "falling": False}}

    def place(status: str, score: float | None, passed: bool | None, trial: int) -> tuple[int, int, float]:
        scores = {} if score is None else {"tsq": score}
        return urgency({"suite": "shop", "variant": "default", "status": status, "scores": scores, "passed": passed, "trial": trial}, mains)

    ordered = [
        *(place("agent_error", None, False, 2), place("limit", 0.9, True, 2), place("ok", 0.1, False, 2), place("ok", 0.7, False, 1)),
        *(place("ok", 0.6, True, 1), place("ok", 0.9, True, 1), place("ok", 0.6, True, 2)),
    ]
    assert sorted(ordered) == ordered
    falling = {"shop": {"score": "tsq", "falling": True}}
    row = {"suite": "shop", "variant": "default", "status": "ok", "passed": True, "trial": 1}
    assert urgency({**row, "scores": {"tsq": 9.0}}, falling) < urgency({**row, "scores": {"tsq": 1.0}}, falling)
