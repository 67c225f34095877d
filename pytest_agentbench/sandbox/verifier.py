"""Verifies the work of an agent in a sandbox, and reads the rewards and checks from the verifier's output.

docs/terminal/terminal-agent.md describes the rules.
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

#: A line of pytest (`FAILED tests/test_x.py::test_a - AssertionError`), of unittest (`FAIL: test_a (tests.X)`), or a similar one.
_FAILED = re.compile(r"^(?:FAILED|FAIL:) +(?P<name>\S.*?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^(?:ERROR (?P<pytest>\S*\.py\S*)(?: - .*)?|ERROR: (?P<unittest>\w+ \(.*\)))$", re.MULTILINE)

#: `=== 1 passed, 2 skipped in 0.12s ===`, and unittest's `OK (skipped=2)`.
_SKIPPED = re.compile(
    r"^(?:=+ )?(?:\d+ \w+, )*(?P<pytest>[1-9]\d*) skipped\b.* in [\d.]+s|^(?:OK|FAILED) \(.*skipped=(?P<unittest>[1-9]\d*)", re.MULTILINE
)
_SKIPPED_NAME = re.compile(r"^SKIPPED \[\d+\] (?P<reason>.+)$|^(?=\S+?::\S)(?P<name>\S+) SKIPPED\b", re.MULTILINE)

NOT_RUN = frozenset({"skipped", "pending"})  # statuses of CTRF


class Checks(NamedTuple):
    """The first failed check and the first skipped check. Empty if there is none, or if the output does not show it."""

    failed: str = ""
    skipped: str = ""


def read_checks(ctrf: bytes | None, output: str) -> Checks:
    """Reads the checks from the CTRF report (`ctrf.json`), or from the verifier's output if there is no valid report."""
    tests = [*_reported_tests(ctrf)]
    if not tests:
        return _printed_checks(output)
    failed = next((name for name, status in tests if status not in NOT_RUN and status != "passed"), "")
    return Checks(failed, next((name for name, status in tests if status in NOT_RUN), ""))


def _reported_tests(ctrf: bytes | None) -> Iterator[tuple[str, str]]:
    """Yields (name, status) of each test in a CTRF report."""
    try:
        report: Any = orjson.loads(ctrf or b"{}")
        tests = report["results"]["tests"]
        yield from [(str(test["name"]), str(test["status"])) for test in tests]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return  # The report is invalid. The output contains the same facts.


def _printed_checks(output: str) -> Checks:
    failed = _FAILED.search(output) or _ERROR.search(output)
    name = next((text for text in failed.groups() if text), "") if failed else ""
    if (count := _SKIPPED.search(output)) is None:
        return Checks(name)
    which = _SKIPPED_NAME.search(output)
    number = count["pytest"] or count["unittest"]
    return Checks(name, (which["name"] or which["reason"]) if which else f"{number} check{'s' * (number != '1')}")


JSON, TEXT = "reward.json", "reward.txt"
MAIN = "reward"  # name of the reward in a reward.txt, and of the main reward in a reward.json

_SHOWN = 80  # characters of a value in an error


def read_rewards(files: Mapping[str, bytes]) -> dict[str, float]:
    """Returns name -> reward from `reward.json`, or else from `reward.txt`. Raises InfraError with the reason if neither is valid."""
    name = next((each for each in (JSON, TEXT) if each in files), None)
    if name is None:
        raise InfraError(f"the verifier wrote neither {JSON} nor {TEXT} to /logs/verifier; test.sh must write one of them")
    content = files[name].strip()
    if not content:
        raise InfraError(f"the verifier's {name} is empty; test.sh must write a reward to it")
    return _from_json(content) if name == JSON else {MAIN: _from_text(content)}


def main_reward(rewards: Mapping[str, float]) -> float:
    """Returns the reward called `reward`, or the only reward. Raises InfraError if there are several others."""
    if MAIN in rewards:
        return rewards[MAIN]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise InfraError(f"the verifier's {JSON} has several rewards ({', '.join(map(repr, rewards))}); call the main one {MAIN!r}")


def _from_text(content: bytes) -> float:
    try:
        return _number(float(content), TEXT, content)
    except ValueError:
        raise InfraError(f"the verifier's {TEXT} must be a number, not {_text(content)}") from None


def _from_json(content: bytes) -> dict[str, float]:
    try:
        rewards = orjson.loads(content)
    except orjson.JSONDecodeError:  # Also for NaN and Infinity.
        raise InfraError(f"the verifier's {JSON} is not JSON: {_text(content)}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise InfraError(f"the verifier's {JSON} must be an object of names and numbers, not {_text(content)}")
    return {name: _number(value, f"{JSON}: {name!r}", value) for name, value in rewards.items()}


def _number(value: Any, where: str, written: Any) -> float:
    """Checks a reward. True and false are numbers, as in Harbor. Raises InfraError for anything else, and for numbers out of range."""
    if not isinstance(value, int | float):
        raise InfraError(f"the verifier's {where} must be a number, not {_text(written)}")
    if not is_score(value):
        raise InfraError(f"the verifier's {where} must be between -{LARGEST_SCORE:g} and {LARGEST_SCORE:g}, not {_text(written)}")
    return float(value)


def _text(value: Any) -> str:
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return beginning(text, _SHOWN)


CTRF = "ctrf.json"
READY = 60.0  # seconds for each preparation before the tests
TAIL = 300  # characters of a verifier's output in the error about a missing reward
#: Bytes that an agent must leave free on the disk of a shared verifier. With less, it is responsible for a missing reward.
FREE_SPACE = 8 << 20
OUTPUT = 16_000  # bytes kept of the verifier's output
MOST_CHANGED = 50  # changed files that are kept in the record
SEPARATE = "separate"
SIGNAL = 128  # higher exit codes mean that a signal ended the program

_SHELL = re.compile(rb"#! *(?:/usr)?/bin/(?:env +)?(bash|sh)\b")


class TamperedOutput(InfraError):
    """Raised if a file of the verifier's output was replaced by the agent while the verifier ran. See `_read_output`."""


async def verify(sandbox: Sandbox, task: Task) -> Verification:
    """Runs the verifier of a task in a sandbox. The reward is 0 if the agent has tampered with the verification.

    Raises InfraError if the verifier gives no valid reward and the agent is not responsible, and AgentError if artifacts cannot be copied.
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
    """The state of a sandbox after the agent, before its work is verified there."""

    changed: tuple[str, ...] | None = ()  # changed files that the verifier may use; None if they were not compared
    space: bool = True  # whether there is enough space on the disk


async def _has_space(sandbox: Sandbox, task: Task) -> bool:
    """Returns whether the verifier can write FREE_SPACE bytes, or a quarter of the disk if that is less."""
    size = min(FREE_SPACE, task.storage_mb << 18)
    write = f"printf -v room '%{size}s' ''; : <<< \"$room\""  # Bash writes the text to a file in TMPDIR, and removes it at once.
    answer = await sandbox.exec(write, seconds=READY, user=task.verifier_user, workdir="/", env={"TMPDIR": LOGS})
    return answer.exit_code != 1  # Bash exits with 1 if writing fails. Any other code means that it was killed.


async def _tampered_or_raise(sandbox: Sandbox, task: Task, error: InfraError) -> Verification:
    """Decides whether the agent is to blame for `error`, with which the verifier could not be started in the agent's sandbox.

    Opens a new sandbox. If the verifier can be started there, the agent is to blame: its reward is 0. Otherwise raises `error`.
    """
    began = time.monotonic_ns()
    try:
        other = await sandbox.fresh()
        try:
            await other.bring_tests(_tests(task), task.verifier_user)
        finally:
            await other.end()
    except InfraError:
        raise error from None
    why = f"the verifier cannot be started in the sandbox that the agent left, but in a new one it can: {error}"
    verification = Verification(0.0, tampered=why, started_ns=began, ended_ns=time.monotonic_ns(), sandbox=sandbox.kind)
    return dataclasses.replace(verification, mode=SEPARATE) if task.separate_verifier else verification


async def _run_verifier(sandbox: Sandbox, task: Task, user: int, state: _SandboxState) -> Verification:
    """Runs the verifier and reads its rewards. `user` is the id of its user."""
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
    await sandbox.halt()  # No process may write to the output while it is read.
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
            raise InfraError(
                f"the verifier took longer than its {task.verifier_timeout_s:g} s and was killed (timeout_sec of [verifier] in task.toml)"
            )
        files = {name: content for name in (JSON, TEXT, CTRF) if (content := await _read_output(sandbox, name, user)) is not None}
        verification = dataclasses.replace(verification, rewards=read_rewards(files))
        return _with_reward(verification, task, read_checks(files.get(CTRF), command.output))
    except InfraError as error:
        why = f"{error}; the verifier's output ends with: {ending(command.output.strip(), TAIL) or '(it printed nothing)'}"
        if tampering := _tampering(error, command, state):
            return dataclasses.replace(verification, tampered=f"{tampering}: {why}")
        raise InfraError(why) from error


def _with_reward(verification: Verification, task: Task, checks: Checks) -> Verification:
    """Adds the reward to a verification, from the rewards that were written, the checks, and the rules of the suite.

    Raises InfraError if none of the rewards is the main one.
    """
    reward = main_reward(verification.rewards)
    fails = bool(checks.skipped) and task.skipped == FAIL
    forged = _changes(verification.changed) if task.changed == FAIL else ""
    return dataclasses.replace(
        verification,
        reward=0.0 if fails or forged else reward,
        tampered=f"{forged}, which the suite does not allow" if forged else "",
        first_failure=checks.failed or (f"skipped: {checks.skipped}" if fails else ""),
        skipped=checks.skipped,
    )


def _tampering(error: InfraError, command: CommandResult, state: _SandboxState) -> str:
    """Returns why the verifier gave no reward if the agent is responsible, otherwise an empty text."""
    if isinstance(error, TamperedOutput):
        return "the agent replaced a file of the verifier's output"
    if command.exit_code is not None and command.exit_code > SIGNAL:
        return f"the verifier was killed (exit code {command.exit_code})"
    if not state.space:
        return "the agent left no space on the disk"
    changes = _changes(state.changed)
    return f"{changes}, and the verifier gave no reward" if changes else ""


def _changes(changed: tuple[str, ...] | None) -> str:
    """Returns a clause with the first changed files that the verifier uses, or an empty text if there are none."""
    used = [each for each in changed or () if each != CACHE]
    return f"the agent changed files that the verifier uses ({', '.join(used[:3])})" if used else ""


#: Makes Python read compiled modules from this folder instead of those next to its modules, which an agent may have replaced.
_ENV = {"PYTHONPYCACHEPREFIX": f"{LOGS}/.pycache"}


def _tests(task: Task) -> Path:
    return Path(task.folder) / "tests"


def _script(sandbox: Sandbox, task: Task) -> str:
    """Returns the command that runs the verifier's script. Shell scripts run with `Sandbox.interpreter`."""
    beginning = (_tests(task) / "test.sh").read_bytes()[:100]
    shell = _SHELL.match(beginning)
    if shell is None and beginning.startswith(b"#!"):
        return shlex.quote(SCRIPT)
    return f"{sandbox.interpreter(shell[1].decode() if shell else 'bash')} {SCRIPT}"


async def _workdir(sandbox: Sandbox, task: Task) -> str | None:
    """Returns the working directory of the verifier: that of the task, or `/` if it does not exist any more."""
    answer = await sandbox.exec(":", seconds=READY, user=task.verifier_user, workdir=task.workdir)
    return task.workdir if answer.exit_code == 0 else "/"


async def _read_output(sandbox: Sandbox, name: str, user: int) -> bytes | None:
    """Returns a file that the verifier wrote, or None if it does not exist.

    Raises TamperedOutput if it is not a regular file, is too large, or belongs to neither this user nor root.
    """
    try:
        file = await sandbox.get(f"{LOGS}/{name}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TamperedOutput(f"the verifier's {name} is not read: {error}") from error
    if file.owner not in (0, user):
        raise TamperedOutput(f"the verifier's {name} is not read: the file belongs to user {file.owner}, not to the verifier's user")
    return file.content
