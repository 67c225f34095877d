"""Resuming a run: kept rollouts, rollouts that run again, and all reasons to refuse."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Attempt, Chunk, Json, LLMCall, Rollout, RolloutKey
from pytest_agentbench.runs.journal import EarlierWork, Journal, record_line, rollout_of
from pytest_agentbench.runs.sessions import SESSIONS_FILE as FILE
from pytest_agentbench.runs.sessions import Session, append_session, find_resumable, folder_of, read_sessions, resume_journal, with_earlier
from pytest_agentbench.suites.hashes import ContentHashes, PromptSource, digest, suite_identity
from pytest_agentbench.suites.suite import DatasetInfo, PoolSuite, Scenario, Suite

BACKEND = {"kind": "embedded", "ttft_ms": 0}
RERUN = ("infra_error", "cancelled")


def shop(question: str = "A lamp?", ids: tuple[str, ...] = ("a", "b", "c"), **keys: Any) -> Suite:
    scenarios = tuple(Scenario(id, ({"role": "user", "content": question},)) for id in ids)
    return Suite("shop", Path("scenarios/shop"), scenarios, dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3), **keys)


def one_prompt(suite: PoolSuite, variant: str) -> Json | None:
    """Returns the hashes of an agent with one prompt."""
    return {"system": "0"}


class Run:
    """A run directory with rollouts of one session with the suite defined above."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.suite = shop()
        self.sessions = [Session(1, "yesterday", ("pytest",), 8, BACKEND, {"shop": suite_identity(self.suite, one_prompt)})]

    def write(self, scenario: str, status: str = "ok", **keys: Any) -> RolloutKey:
        key = RolloutKey("shop", scenario)
        content = keys.pop("content", None) or ContentHashes({"shop": self.suite}, digest(BACKEND), one_prompt).of(key)
        record = Rollout(*key, status=status, content=content, **keys)
        with Journal(self.directory) as journal:
            journal.append(key, record_line(record))
        return key

    def resume_journal(
        self, suite: Suite | None = None, backend: Json = BACKEND, rerun: tuple[str, ...] = RERUN, prompts: PromptSource = one_prompt
    ) -> tuple[EarlierWork, Journal]:
        """Resumes the run in a second session, with optional changes."""
        suites = {"shop": self.suite if suite is None else suite}
        identities = {name: suite_identity(each, prompts) for name, each in suites.items()}
        with Journal(self.directory) as journal:
            return resume_journal(
                journal, 2, ContentHashes(suites, digest(backend), prompts), identities, backend, self.sessions, rerun
            ), journal


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_kept_rollouts(run: Run) -> None:
    """Measured rollouts and agent errors are kept, and an infra_error runs again."""
    a, b, c = run.write("a"), run.write("b", "agent_error"), run.write("c", "infra_error")

    stored, _ = run.resume_journal()

    assert {a: "ok", b: "agent_error"} == stored.kept
    assert {c} == stored.again


def call(at: int) -> LLMCall:
    return LLMCall(received_ns=at, sent_ns=at, ended_ns=at + 5, chunks=(Chunk(at + 1, "content"),), error_kind="cut")


def test_attempts_of_all_sessions_are_one_record() -> None:
    """The record of a rollout that ran again begins with the attempts of earlier sessions, and attempts are numbered continuously."""
    one, two, three, four = (call(at) for at in (10, 20, 3, 4))
    old = shop_rollout(calls=(two,), attempt=2, ended_ns=30, earlier_attempts=(Attempt(1, "infra_error", "cut", calls=(one,), ended_ns=9),))
    mine = Attempt(1, "infra_error", "gone", session=2, calls=(three,), other_calls=(one,))
    new = replace(old, status="ok", reason="", session=2, calls=(four,), earlier_attempts=(mine,))

    both = rollout_of(with_earlier(record_line(new), record_line(old)))

    earlier = (old.earlier_attempts[0], Attempt(2, "infra_error", "boom", 1, 0, 30, (two,)), replace(mine, attempt=3))
    assert replace(new, attempt=4, earlier_attempts=earlier) == both
    assert (one, two, three, four) == both.all_calls


def test_a_damaged_record_has_no_attempts() -> None:
    """If the earlier record cannot be read, the new record contains only its own attempts."""
    new = shop_rollout(session=2)

    assert new == rollout_of(with_earlier(record_line(new), b'{"suite": "shop", "status'))


def shop_rollout(**keys: Any) -> Rollout:
    return Rollout(*RolloutKey("shop", "c"), **{"status": "infra_error", "reason": "boom", **keys})


@pytest.mark.parametrize(("rerun", "kept"), [((), "abc"), (("agent_error",), "ac"), (("ok", "agent_error", "infra_error"), "")])
def test_the_policy_is_by_status(run: Run, rerun: tuple[str, ...], kept: str) -> None:
    """Rollouts with the given statuses run again, and all others are kept."""
    run.write("a"), run.write("b", "agent_error"), run.write("c", "infra_error")

    stored, _ = run.resume_journal(rerun=rerun)

    assert kept == "".join(sorted(key.scenario for key in stored.kept))
    assert {*"abc"} - {*kept} == {key.scenario for key in stored.again}


def test_rollouts_that_run_again_are_forgotten(run: Run) -> None:
    """The old record of a rollout that runs again cannot be read."""
    a, b = run.write("a"), run.write("b", "infra_error")
    suites = {"shop": run.suite}
    with Journal(run.directory) as journal:
        identities = {"shop": suite_identity(run.suite, one_prompt)}
        resume_journal(journal, 2, ContentHashes(suites, digest(BACKEND), one_prompt), identities, BACKEND, run.sessions, RERUN)

        assert b"shop" in journal.line(a)
        with pytest.raises(KeyError):
            journal.line(b)


def refusal(run: Run, **today: Any) -> list[str]:
    """Returns the reasons why a run cannot be resumed."""
    with pytest.raises(ConfigError) as refused:
        run.resume_journal(**today)
    first, *reasons, last = str(refused.value).splitlines()
    assert f"the run {run.directory.name} cannot be resumed:" == first
    assert "undo these changes, or leave out --agentbench-resume to start a new run" == last
    return [reason.removeprefix("  - ").partition("hash ")[0] for reason in reasons]


def test_changes_are_named(run: Run) -> None:
    """Changes of scenario, agent, scorers and backend are reported with old and new values."""
    run.write("a")

    assert ["the scenario a of shop has changed ("] == refusal(run, suite=shop("A chair?"))
    assert ["the agent of shop has changed: temperature unset is now 0.6; "] == refusal(
        run, suite=shop(agent={"kind": "tool_calling", "temperature": 0.6})
    )
    assert ["the scorers of shop have changed: names unset is now {}; "] == refusal(run, suite=shop(scorers={"tsq": {}, "names": {}}))
    assert ["the backend has changed: ttft_ms 0 is now 20; "] == refusal(run, backend={**BACKEND, "ttft_ms": 20})
    assert ['the prompts of shop have changed: system "0" is now "1"; '] == refusal(run, prompts=lambda *_: {"system": "1"})
    assert ["the scenario a of shop is no longer in its data set"] == refusal(run, suite=shop(ids=("b",)))


def test_all_changes_at_once(run: Run) -> None:
    """All changes are reported at once. If many scenarios changed, the first five are named."""
    ids = tuple("abcdefgh")
    run.suite = shop(ids=ids)
    for id in ids:
        run.write(id)

    reasons = refusal(run, suite=shop("A chair?", ids, agent={"kind": "other"}), backend={**BACKEND, "kind": "url"})

    assert 2 + 5 + 1 == len(reasons)
    assert "3 more scenarios have changed" == reasons[-1]


def test_a_missing_suite(run: Run) -> None:
    """A run cannot be resumed without one of its suites, because its results would be incomplete."""
    run.write("a")
    with (
        Journal(run.directory) as journal,
        pytest.raises(ConfigError, match="1 of its rollouts belong to the suite shop, which the command"),
    ):
        resume_journal(journal, 2, ContentHashes({}, digest(BACKEND), one_prompt), {}, BACKEND, run.sessions, RERUN)


def test_records_without_hashes(run: Run) -> None:
    """A run cannot be resumed if hashes of a kept rollout are missing, as in records of older versions."""
    run.write("a", content={"scenario": "x"})
    run.sessions = []

    reasons = refusal(run)

    assert ["the agent of shop has changed: ", "the backend has changed: ", "the prompts of shop have changed: "] == reasons[:3]
    assert "the scorers of shop have changed: " == reasons[3]


def test_settings_of_repeated_rollouts_may_change(run: Run) -> None:
    """If all rollouts failed because of a wrong setting, the setting may change, because only kept rollouts have to match."""
    run.write("a", "infra_error")

    stored, _ = run.resume_journal(backend={**BACKEND, "ttft_ms": 20})

    assert ({}, 1) == (stored.kept, len(stored.again))


def test_choosing_the_run(tmp_path: Path) -> None:
    """`latest` is the run whose journal was written last, even if the link is older. Other runs are given by name or path.

    A run that was scored again has no sessions, so it cannot be resumed.
    """
    for age, name in ((3, "one"), (1, "two"), (2, "three")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rollouts.jsonl").touch()
        (tmp_path / name / FILE).touch()
        os.utime(tmp_path / name / "rollouts.jsonl", (1000 - age, 1000 - age))
    (tmp_path / "rescored").mkdir()
    (tmp_path / "rescored" / "rollouts.jsonl").touch()
    (tmp_path / "latest").symlink_to("one")

    assert "two" == find_resumable("latest", tmp_path).name
    assert "three" == find_resumable("three", tmp_path).name
    assert "one" == find_resumable(str(tmp_path / "one"), tmp_path / "elsewhere").name
    with pytest.raises(ConfigError, match=r"no run 'rescored'; known: one, three, two \(in .*\); a run that can be resumed "):
        find_resumable("rescored", tmp_path)
    with pytest.raises(ConfigError, match=r"there is no run in .* to resume; leave out --agentbench-resume to start one"):
        find_resumable("latest", tmp_path / "elsewhere")


def test_sessions_are_written_down(tmp_path: Path) -> None:
    """Each session is a redacted line. An incomplete line of a killed session is ignored and does not damage the next one."""
    one = Session(1, "now", ("pytest", "-k", "hush"), 8, BACKEND, {"shop": {}})
    append_session(tmp_path, one, lambda text: text.replace("hush", "[redacted]"))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + whole[: len(whole) // 2])
    append_session(tmp_path, Session(2, "later", ()), str)

    assert [1, 2] == [session.number for session in read_sessions(tmp_path)]
    assert ("pytest", "-k", "[redacted]") == read_sessions(tmp_path)[0].command
    assert (BACKEND, {"shop": {}}) == (read_sessions(tmp_path)[0].backend, read_sessions(tmp_path)[0].suites)
    assert [] == read_sessions(tmp_path / "elsewhere")


def test_each_session_has_its_own_logs(tmp_path: Path) -> None:
    """Logs of the second session are in another folder than those of the first."""
    assert (tmp_path, tmp_path / "session-2") == (folder_of(tmp_path, 1), folder_of(tmp_path, 2))
