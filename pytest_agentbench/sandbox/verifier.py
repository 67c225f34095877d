"""Verifies what an agent has done in a sandbox, and reads rewards and checks from what a verifier wrote.

docs/terminal-agent.md says by which rules.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import beginning, ending
from pytest_agentbench.lib.foreign import cut
from pytest_agentbench.records.rollout import LARGEST_SCORE, Verification, is_score
from pytest_agentbench.sandbox.sandbox import LOGS, SCRIPT, CommandResult, Sandbox, copy_artifacts
from pytest_agentbench.sandbox.tampering import CACHE
from pytest_agentbench.suites.suite import FAIL, Task

#: A line of pytest (`FAILED tests/test_x.py::test_a - AssertionError`), of unittest (`FAIL: test_a (tests.X)`), or of anybody.
_FAILED = re.compile(r"^(?:FAILED|FAIL:) +(?P<name>\S.*?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^(?:ERROR (?P<pytest>\S*\.py\S*)(?: - .*)?|ERROR: (?P<unittest>\w+ \(.*\)))$", re.MULTILINE)

#: `=== 1 passed, 2 skipped in 0.12s ===`, and unittest's `OK (skipped=2)`.
_SKIPPED = re.compile(
    r"^(?:=+ )?(?:\d+ \w+, )*(?P<pytest>[1-9]\d*) skipped\b.* in [\d.]+s|^(?:OK|FAILED) \(.*skipped=(?P<unittest>[1-9]\d*)", re.MULTILINE
)
_SKIPPED_NAME = re.compile(r"^SKIPPED \[\d+\] (?P<reason>.+)$|^(?=\S+?::\S)(?P<name>\S+) SKIPPED\b", re.MULTILINE)

NOT_RUN = frozenset({"skipped", "pending"})  # statuses of CTRF


class Checks(NamedTuple):
    """The first check that failed and the first that was skipped; empty where there is none, or where nobody tells."""

    failed: str = ""
    skipped: str = ""


def read_checks(ctrf: bytes | None, output: str) -> Checks:
    """By the CTRF report (`ctrf.json`) where there is one that can be read, else by the verifier's output."""
    tests = [*_reported_tests(ctrf)]
    if not tests:
        return _printed_checks(output)
    failed = next((name for name, status in tests if status not in NOT_RUN and status != "passed"), "")
    return Checks(failed, next((name for name, status in tests if status in NOT_RUN), ""))


def _reported_tests(ctrf: bytes | None) -> Iterator[tuple[str, str]]:
    """(name, status) of each test of a report."""
    try:
        report: Any = orjson.loads(ctrf or b"{}")
        tests = report["results"]["tests"]
        yield from [(str(test["name"]), str(test["status"])) for test in tests]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return  # what a report of another form says is in the output as well


def _printed_checks(output: str) -> Checks:
    failed = _FAILED.search(output) or _ERROR.search(output)
    name = next((text for text in failed.groups() if text), "") if failed else ""
    if (count := _SKIPPED.search(output)) is None:
        return Checks(name)
    which = _SKIPPED_NAME.search(output)
    number = count["pytest"] or count["unittest"]
    return Checks(name, (which["name"] or which["reason"]) if which else f"{number} check{'s' * (number != '1')}")


JSON, TEXT = "reward.json", "reward.txt"
MAIN = "reward"  # the name of the only reward of a reward.txt, and of the main one of a reward.json

_SHOWN = 80  # characters of a value in a sentence


def read_rewards(files: Mapping[str, bytes]) -> dict[str, float]:
    """Name -> reward, from the files that are there; `reward.json` wins over `reward.txt`. Raises InfraError with what is wrong."""
    name = next((each for each in (JSON, TEXT) if each in files), None)
    if name is None:
        raise InfraError(f"the verifier wrote neither {JSON} nor {TEXT} to /logs/verifier, so nothing was measured")
    content = files[name].strip()
    if not content:
        raise InfraError(f"the verifier's {name} is empty, so nothing was measured")
    return _from_json(content) if name == JSON else {MAIN: _from_text(content)}


def main_reward(rewards: Mapping[str, float]) -> float:
    """The one called `reward`, or the only one; raises InfraError where it is not known which one is meant."""
    if MAIN in rewards:
        return rewards[MAIN]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise InfraError(f"the verifier's {JSON} has no {MAIN!r} but {', '.join(map(repr, rewards))}, so the main one is not known")


def _from_text(content: bytes) -> float:
    try:
        return _number(float(content), TEXT, content)
    except ValueError:
        raise InfraError(f"the verifier's {TEXT} should be a number, not {_text(content)}") from None


def _from_json(content: bytes) -> dict[str, float]:
    try:
        rewards = orjson.loads(content)
    except orjson.JSONDecodeError:  # NaN and Infinity, too
        raise InfraError(f"the verifier's {JSON} is no JSON: {_text(content)}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise InfraError(f"the verifier's {JSON} should be names with numbers, not {_text(content)}")
    return {name: _number(value, f"{JSON}: {name!r}", value) for name, value in rewards.items()}


def _number(value: Any, where: str, written: Any) -> float:
    """A number, as which Harbor takes true and false, too."""
    if not isinstance(value, int | float):
        raise InfraError(f"the verifier's {where} should be a number, not {_text(written)}")
    if not is_score(value):
        raise InfraError(f"the verifier's {where} should be between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}, not {_text(written)}")
    return float(value)


def _text(value: Any) -> str:
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return beginning(text, _SHOWN)


CTRF = "ctrf.json"
READY = 60.0  # seconds for what is done before the tests
TAIL = 300  # characters of the output of one that gave no reward
FREE_SPACE = 8 << 20  # bytes that an agent leaves on the disk of a shared verifier, if it is not to blame for one that gives no reward
OUTPUT = 16_000  # bytes of the verifier's output that are kept
MOST_CHANGED = 50  # changed files that are kept
SEPARATE = "separate"
SIGNAL = 128  # exit codes above it are of a program that a signal ended

_SHELL = re.compile(rb"#! *(?:/usr)?/bin/(?:env +)?(bash|sh)\b")


class TamperedOutput(InfraError):
    """A verification that an agent has made impossible after the verifier was started."""


async def verify(sandbox: Sandbox, task: Task) -> Verification:
    """Returns what the verifier of a task says of what is in a sandbox; its reward is 0 where it was sabotaged.

    Raises InfraError where it says nothing that counts and the agent cannot be blamed, and AgentError for artifacts that cannot be copied.
    """
    try:
        await sandbox.end_processes()
        user = 0 if task.separate_verifier else await sandbox.bring_tests(_tests(task), task.verifier_user)
    except InfraError as error:
        return await _tampered_or_raise(sandbox, task, error)
    if task.separate_verifier:
        return await _verify_separately(sandbox, task)
    return await _run_verifier(
        sandbox, task, user, _SandboxState(await sandbox.changed_files(_tests(task)), await _has_space(sandbox, task))
    )


async def _verify_separately(sandbox: Sandbox, task: Task) -> Verification:
    fresh = await sandbox.fresh()
    try:
        await copy_artifacts(sandbox, fresh, task.artifacts)
        user = await fresh.bring_tests(_tests(task), task.verifier_user)
        return dataclasses.replace(await _run_verifier(fresh, task, user, _SandboxState()), mode=SEPARATE)
    finally:
        await fresh.end()


@dataclass(frozen=True)
class _SandboxState:
    """What an agent has left of the sandbox in which its work is verified."""

    changed: tuple[str, ...] | None = ()  # files of the verifier; None: not compared
    space: bool = True  # there is space on the disk


async def _has_space(sandbox: Sandbox, task: Task) -> bool:
    """Whether the verifier can write ROOM bytes, or a quarter of what a smaller disk has."""
    size = min(FREE_SPACE, task.storage_mb << 18)
    write = f"printf -v room '%{size}s' ''; : <<< \"$room\""  # Bash writes it to a file of TMPDIR, which it removes at once.
    answer = await sandbox.exec(write, seconds=READY, user=task.verifier_user, workdir="/", env={"TMPDIR": LOGS})
    return answer.exit_code != 1  # With which bash says so. Another one is of a shell that was killed.


async def _tampered_or_raise(sandbox: Sandbox, task: Task, error: InfraError) -> Verification:
    """Returns a reward of 0 for a sandbox that is not ready for its verifier if a new one for the same task is; else raises InfraError."""
    began = time.monotonic_ns()
    try:
        other = await sandbox.fresh()
        try:
            await other.bring_tests(_tests(task), task.verifier_user)
        finally:
            await other.end()
    except InfraError:
        raise error from None
    why = f"the agent left a sandbox in which no verifier can be started, and in a new one it can: {error}"
    verification = Verification(0.0, tampered=why, started_ns=began, ended_ns=time.monotonic_ns(), sandbox=sandbox.kind)
    return dataclasses.replace(verification, mode=SEPARATE) if task.separate_verifier else verification


async def _run_verifier(sandbox: Sandbox, task: Task, user: int, state: _SandboxState) -> Verification:
    """Runs the verifier as the user of this number."""
    started = time.monotonic_ns()
    workdir = await _workdir(sandbox, task)
    env = {**_ENV, **task.verifier_env}
    command = await sandbox.exec(
        _script(sandbox, task),
        seconds=task.verifier_timeout_s,
        user=task.verifier_user,
        workdir=workdir,
        env=env,
    )
    await sandbox.halt()  # no program writes any more
    verification = Verification(
        reward=0.0,
        exit_code=command.exit_code,
        output=cut(command.output, OUTPUT),
        started_ns=started,
        ended_ns=time.monotonic_ns(),
        sandbox=sandbox.kind,
        changed=None if state.changed is None else state.changed[:MOST_CHANGED],
    )
    try:
        if command.exit_code is None:
            raise InfraError(f"the verifier took longer than its {task.verifier_timeout_s:g} s and was killed, so nothing was measured")
        files = {name: content for name in (JSON, TEXT, CTRF) if (content := await _read_output(sandbox, name, user)) is not None}
        verification = dataclasses.replace(verification, rewards=read_rewards(files))
        return _with_reward(verification, task, read_checks(files.get(CTRF), command.output))
    except InfraError as error:
        why = f"{error}; its output ends with: {ending(command.output.strip(), TAIL) or '(it printed nothing)'}"
        if tampering := _tampering(error, command, state):
            return dataclasses.replace(verification, tampered=f"{tampering}: {why}")
        raise InfraError(why) from error


def _with_reward(verification: Verification, task: Task, checks: Checks) -> Verification:
    """Returns a verification with its reward, by the rewards that were written, the checks, and what the suite allows.

    Raises InfraError for rewards of which none is the main one.
    """
    reward = main_reward(verification.rewards)
    fails = bool(checks.skipped) and task.skipped == FAIL
    forged = _changes(verification.changed) if task.changed == FAIL else ""
    return dataclasses.replace(
        verification,
        reward=0.0 if fails or forged else reward,
        tampered=f"{forged}, which its suite does not allow" if forged else "",
        first_failure=checks.failed or (f"skipped: {checks.skipped}" if fails else ""),
        skipped=checks.skipped,
    )


def _tampering(error: InfraError, command: CommandResult, state: _SandboxState) -> str:
    """Returns by what a verifier that was started gave no reward, if the agent is to blame for it; else nothing."""
    if isinstance(error, TamperedOutput):
        return "something else stands where the verifier writes its reward"
    if command.exit_code is not None and command.exit_code > SIGNAL:
        return f"the verifier was killed (exit code {command.exit_code})"
    if not state.space:
        return "the agent left no space on the disk"
    changes = _changes(state.changed)
    return f"{changes}, and it gave no reward" if changes else ""


def _changes(changed: tuple[str, ...] | None) -> str:
    """Returns that an agent changed files of the verifier, with the first ones; nothing where it changed none that count."""
    used = [each for each in changed or () if each != CACHE]
    return f"the agent changed what the verifier uses ({', '.join(used[:3])})" if used else ""


#: Python looks for compiled modules here and not beside its modules, where an agent may have put its own.
_ENV = {"PYTHONPYCACHEPREFIX": f"{LOGS}/.pycache"}


def _tests(task: Task) -> Path:
    return Path(task.folder) / "tests"


def _script(sandbox: Sandbox, task: Task) -> str:
    """Returns the command that runs the script; one for a shell has that of the harness, whatever the agent did to those of the image."""
    beginning = (_tests(task) / "test.sh").read_bytes()[:100]
    shell = _SHELL.match(beginning)
    if shell is None and beginning.startswith(b"#!"):
        return shlex.quote(SCRIPT)
    return f"{sandbox.interpreter(shell[1].decode() if shell else 'bash')} {SCRIPT}"


async def _workdir(sandbox: Sandbox, task: Task) -> str | None:
    """Returns the folder in which the verifier starts: that of the task, or `/` where the agent has removed it."""
    answer = await sandbox.exec(":", seconds=READY, user=task.verifier_user, workdir=task.workdir)
    return task.workdir if answer.exit_code == 0 else "/"


async def _read_output(sandbox: Sandbox, name: str, user: int) -> bytes | None:
    """Returns a file of the verifier's; None where there is none. Raises Sabotaged for what is no file, too large, or another user's."""
    try:
        file = await sandbox.get(f"{LOGS}/{name}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TamperedOutput(f"the verifier's {name} is not read: {error}") from error
    if file.owner not in (0, user):
        raise TamperedOutput(f"the verifier's {name} is not read: it belongs to user {file.owner}, not to the verifier's")
    return file.content
