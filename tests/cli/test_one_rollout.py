"""`agentbench show RUN ID` and `--failed`, and the requests and replies of a run wherever the run goes: shared, scored again, resumed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from pytest_agentbench import Conversations
from pytest_agentbench.cli import main
from pytest_agentbench.records import LLMCall, Rollout, Score
from pytest_agentbench.runs.journal import read_journal
from tests.made_runs import run_directory
from tests.project import Project
from tests.report_page import data_of, unpacked

Capture = pytest.CaptureFixture[str]

SECRET = "zebra-42-quartz-lantern"


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a finished run, as the working directory."""
    project.suite()
    project.run_once("scenarios/shop")
    monkeypatch.chdir(project.root)
    return project


def calls(directory: Path) -> list[LLMCall]:
    return [call for rollout in read_journal(directory) for call in rollout.all_calls]


def all_are_exact(directory: Path) -> bool:
    conversations = Conversations(directory)
    return all(conversations.is_exact(call) and conversations.reply(call) for call in calls(directory))


def test_a_rollout_on_the_terminal(shop: Project, capsys: Capture) -> None:
    """Each call has a headline, its new messages and its reply. What the call before had is not repeated."""
    assert 0 == main(["show", "latest", "shop-1"])

    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert ["call 1, attempt 1, chat: tool_calls", "call 2, attempt 1, chat: stop"] == [line for line in lines if line.startswith("call ")]
    assert ['  -> assistant find_item({"item":"lamp"})', "  -> assistant Here is what was found for you."] == [
        line for line in lines if line.startswith("  ->")
    ]
    assert 1 == printed.count("Customer shop-1")
    assert any(line.startswith("  tool       ") for line in lines)


def test_the_parts_of_a_rollout(shop: Project, capsys: Capture) -> None:
    """A rollout begins with its result, scores with explanations, the tools expected and called, and a timeline; its files are last."""
    assert 0 == main(["show", "latest", "shop-1"])

    first, *lines = capsys.readouterr().out.splitlines()
    labels = [line.split()[0] for line in lines if line[:1].strip() and not line.startswith("call ")]
    assert ("shop[shop-1]", ["result", "scores", "expected", "called", "offered", "timeline", "record"]) == (first, labels)
    assert lines[0].startswith("result      ok, ")
    assert lines[1].startswith("scores      tsq 1.000: ")
    assert ['find_item({"item": "lamp"})'] * 2 == [line[12:] for line in lines if line.startswith(("expected", "called"))]
    bars = [line for line in lines if line.count("|") == 2]
    assert ["call 1", "find_item", "call 2"] == [line[12:].partition("|")[0].strip() for line in bars]
    assert [True, True, True] == [bool(line.split("|")[1].strip(" -=")) is (mark == "#") for mark, line in zip("=#=", bars, strict=True)]
    assert lines[-2].endswith("/rollouts.jsonl")


@pytest.mark.parametrize("name", ["shop/shop-1", "shop[shop-1]", "scenarios/shop/test_shop.py::test_tools[shop-1]"])
def test_names_of_a_rollout(tmp_path: Path, capsys: Capture, name: str) -> None:
    """A rollout is found by its suite and id, as reports name it, and by the node id of its test."""
    run = run_directory(tmp_path / "run", Rollout("shop", "shop-1", "default", 1, "ok"))

    assert 0 == main(["show", str(run), name])
    assert "shop[shop-1]" == capsys.readouterr().out.splitlines()[0]


def test_the_same_id_in_two_suites(tmp_path: Path, capsys: Capture) -> None:
    """If two suites have the id, the message names both, and the suite before the id chooses one. Variant and trial belong to the id."""
    run = run_directory(
        tmp_path / "run",
        Rollout("shop", "s-1", "react", 2, "ok", answer="of the shop"),
        Rollout("bank", "s-1", "react", 2, "ok", answer="of the bank"),
        suites={},
    )

    assert 4 == main(["show", str(run), "s-1-react-t2"])
    assert "several suites have s-1-react-t2; name one of shop/s-1-react-t2, bank/s-1-react-t2" in capsys.readouterr().err
    assert 0 == main(["show", str(run), "bank/s-1-react-t2"])
    assert "answer      of the bank" in capsys.readouterr().out.splitlines()


def test_the_failed_rollouts(tmp_path: Path, capsys: Capture) -> None:
    """The list has rollouts with another status, without a score, and below the threshold, each with the command that prints it."""
    good, low = (Rollout("shop", f"s-{value}", "default", 1, "ok", scores={"tsq": Score(value)}) for value in (1.0, 0.25))
    broken = Rollout("shop", "s-broken", "default", 1, "agent_error", reason="KeyError: 'x'")
    unscored = Rollout("shop", "s-unscored", "default", 1, "ok", score_errors={"tsq": "ValueError: no label"})
    run = run_directory(tmp_path / "run", good, low, broken, unscored)

    assert 0 == main(["show", str(run), "--failed"])

    lines = capsys.readouterr().out.splitlines()
    assert "3 of 4 rollouts failed" == lines[-1]
    assert [f"    agentbench show {run} {name}" for name in ("s-0.25", "s-broken", "s-unscored")] == [
        line for line in lines if line.startswith("    agentbench")
    ]
    assert "    tsq: ValueError: no label" in lines
    assert any(line.startswith("shop[s-broken]  agent_error  KeyError: 'x'") for line in lines)


def test_options_that_do_not_fit(tmp_path: Path, capsys: Capture) -> None:
    """--json needs an id, and an id cannot be combined with options about the whole run."""
    run = str(run_directory(tmp_path / "run", Rollout("shop", "s-1", "default", 1, "ok")))

    assert 4 == main(["show", run, "--json"])
    assert "--json prints one rollout" in capsys.readouterr().err
    assert 4 == main(["show", run, "s-1", "--failed"])
    assert "s-1 is one rollout" in capsys.readouterr().err


def test_as_json(shop: Project, capsys: Capture) -> None:
    """Each line is a call with its whole request and its whole reply."""
    assert 0 == main(["show", "latest", "shop-1", "--json"])

    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (1, "", True) == (first["attempt"], first["role"], first["exact"])
    assert ("/chat/completions", ["find_item", "order_item", "return_item"]) == (
        first["request"]["path"],
        [tool["function"]["name"] for tool in first["request"]["body"]["tools"]],
    )
    assert first["request"]["body"]["messages"] == second["request"]["body"]["messages"][:2]
    assert "Here is what was found for you." == second["reply"]["choices"][0]["message"]["content"]


def test_a_misspelt_rollout(shop: Project, capsys: Capture) -> None:
    """The message suggests the rollout that was meant."""
    assert 4 == main(["show", "latest", "shop1"])

    assert "no rollout 'shop1' (did you mean 'shop-1'?); known: " in capsys.readouterr().err


def test_a_run_that_kept_nothing(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """With --agentbench-keep=none there is no file, no id, and no line in the header. The command names the option."""
    project.suite()
    result = project.run("scenarios/shop", "--agentbench-keep=none")
    monkeypatch.chdir(project.root)

    assert "messages.jsonl" not in result.stdout.str()
    assert {None} == {call.kept for call in calls(project.directory)}
    assert 0 == main(["show", "latest", "shop-1"])
    assert "conversation: not kept (--agentbench-keep)" in capsys.readouterr().out
    assert 4 == main(["show", "latest", "shop-1", "--json"])
    assert (
        "has no messages.jsonl; imported runs and runs without calls or with --agentbench-keep=none may have none"
        in capsys.readouterr().err
    )


def test_the_header_says_what_is_kept(project: Project) -> None:
    """A session says that it keeps requests and replies, where, and with which option."""
    project.suite()

    project.run("scenarios/shop").stdout.fnmatch_lines(
        ["agentbench: keeping all requests and replies in messages.jsonl (--agentbench-keep)"]
    )
    assert all_are_exact(project.directory)


@pytest.mark.parametrize("without", [False, True])
def test_shared(shop: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, without: bool) -> None:
    """An archive has the file, redacted once more, and says so; or neither the file nor the page in it has requests."""
    monkeypatch.setenv("SHOP_API_KEY", "Here is what was found")

    assert 0 == main(["share", *(["--without-messages"] if without else [])])

    assert without is ("all requests and replies" not in capsys.readouterr().out)
    with tarfile.open(shop.root / f"{shop.directory.name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    archive = tmp_path / shop.directory.name
    assert without is not (archive / "messages.jsonl").exists()
    (page,), _ = data_of((archive / "report.html").read_text(encoding="utf-8"))
    asked = [
        call["asked"]
        for block in page.blocks
        for rollout in unpacked(block)["rollouts"]
        for attempt in rollout["attempts"]
        for call in attempt["calls"]
    ]
    assert without is (None in asked)
    assert without is not any(asked)
    if not without:
        assert "Here is what was found" not in (archive / "messages.jsonl").read_text()
        replies = [Conversations(archive).reply(call)["choices"][0]["message"]["content"] for call in calls(archive)]
        assert {None, "[redacted] for you."} == {*replies}


def test_scored_again(shop: Project, capsys: Capture) -> None:
    """The rescored run has the requests and replies of the run."""
    assert 0 == main(["rescore"])

    rescored = Path(capsys.readouterr().out.splitlines()[-1].removeprefix("wrote "))
    assert (len(calls(shop.directory)), True) == (len(calls(rescored)), all_are_exact(rescored))


def test_resumed(shop: Project) -> None:
    """A resumed run adds what its rollouts say to the file, and what was there is not written again."""
    before = (shop.directory / "messages.jsonl").read_bytes()
    lines = (shop.directory / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (shop.directory / "rollouts.jsonl").write_bytes(b"".join(lines[:1]))
    (shop.directory / "messages.jsonl").write_bytes(before[:-20])

    shop.run("scenarios/shop", f"--agentbench-resume={shop.directory.name}")

    after = (shop.directory / "messages.jsonl").read_bytes()
    assert after.startswith(before[:-20].rpartition(b"\n")[0])
    assert len(before.splitlines()) - 4 <= len(after.splitlines()) <= len(before.splitlines()) + 10
    assert all_are_exact(shop.directory)
