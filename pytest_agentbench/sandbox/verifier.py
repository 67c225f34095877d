"""Verifies what an agent has done in a sandbox: docs/terminal-agent.md says by which rules.

The agent may have been root in there. What it left running is killed before the tests arrive, and what it left where the verifier
writes is removed. What counts is read from outside.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.lib.middle import without_middle
from pytest_agentbench.records.verification import Verification
from pytest_agentbench.sandbox.artifacts import handed_over
from pytest_agentbench.sandbox.checks import read_checks
from pytest_agentbench.sandbox.rewards import JSON, TEXT, main_reward, read_rewards
from pytest_agentbench.sandbox.sandbox import CommandResult, Sandbox
from pytest_agentbench.suites.task import Task

TESTS, LOGS = "/tests", "/logs/verifier"
SCRIPT = f"{TESTS}/test.sh"
CTRF = "ctrf.json"
READY = 60.0  # seconds for what is done before the tests
TAIL = 300  # characters of the output of one that gave no reward
OUTPUT = 16_000  # characters of the verifier's output that are kept

#: As root, with nothing of the agent running. A link or a file where a folder should be is replaced.
_CLEARED = f"""set -e
rm -rf {TESTS} {LOGS}
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; mkdir /logs; fi
chown 0:0 /logs
chmod 755 /logs
mkdir -m 700 {LOGS}"""

#: As root, when the tests have arrived. {user} is the number of whom they run as.
_READY = f"chmod -R a+rX {TESTS} && chmod a+x {SCRIPT} && chown {{user}} {LOGS}"


class Unusable(AgentError):
    """A sandbox in which the verifier cannot be started. It could before the agent came."""


async def verify(sandbox: Sandbox, task: Task) -> Verification:
    """What the verifier of a task says of what is in a sandbox.

    Raises InfraError where it says nothing that counts, and AgentError where an agent left a sandbox in which nothing can run.
    """
    await sandbox.end_processes()
    if not task.separate_verifier:
        return await _verified(sandbox, task)
    fresh = await sandbox.fresh()
    try:
        await handed_over(sandbox, fresh, task.artifacts)
        return await _verified(fresh, task)
    except Unusable as error:
        raise InfraError(str(error)) from error  # the agent was never in there
    finally:
        await fresh.end()


async def _verified(sandbox: Sandbox, task: Task) -> Verification:
    started = time.monotonic_ns()
    user, workdir = await _make_ready(sandbox, task)
    command = await sandbox.exec(
        shlex.quote(SCRIPT), seconds=task.verifier_timeout_s, user=task.verifier_user, workdir=workdir, env=task.verifier_env
    )
    await sandbox.end_processes()  # nobody writes any more
    try:
        if command.exit_code is None:
            raise InfraError(f"the verifier took longer than its {task.verifier_timeout_s:g} s and was killed, so nothing was measured")
        files = {name: content for name in (JSON, TEXT, CTRF) if (content := await _written(sandbox, name, user)) is not None}
        rewards = read_rewards(files)
        reward = main_reward(rewards)
    except InfraError as error:
        raise InfraError(f"{error}; its output ends with: {command.output.strip()[-TAIL:] or '(it printed nothing)'}") from error
    checks = read_checks(files.get(CTRF), command.output)
    return Verification(
        reward=0.0 if checks.skipped else reward,
        rewards=rewards,
        exit_code=command.exit_code,
        output=without_middle(command.output, OUTPUT),
        first_failure=checks.failed or (f"skipped: {checks.skipped}" if checks.skipped else ""),
        started_ns=started,
        ended_ns=time.monotonic_ns(),
        sandbox=sandbox.kind,
    )


async def _make_ready(sandbox: Sandbox, task: Task) -> tuple[int, str | None]:
    """Puts the tests where nothing of the agent's is; the number of the user whom they run as, and the folder, which may be gone."""
    await _done(sandbox, _CLEARED)
    await sandbox.put(Path(task.folder) / "tests", TESTS)
    workdir = task.workdir
    answer = await sandbox.exec("id -u", seconds=READY, user=task.verifier_user, workdir=workdir)
    if answer.exit_code != 0:
        workdir = "/"
        answer = await sandbox.exec("id -u", seconds=READY, user=task.verifier_user, workdir=workdir)
    if not answer.output.strip().isdecimal():
        raise _unusable(answer)
    user = int(answer.output)
    await _done(sandbox, _READY.format(user=user))
    return user, workdir


async def _done(sandbox: Sandbox, command: str) -> None:
    done = await sandbox.exec(command, seconds=READY, user="root", workdir="/")
    if done.exit_code != 0:
        raise _unusable(done)


def _unusable(command: CommandResult) -> Unusable:
    why = command.output.strip()[-300:] or f"exit code {command.exit_code}"
    return Unusable(f"the sandbox is left in a state in which the verifier cannot be started: {why}")


async def _written(sandbox: Sandbox, name: str, user: int) -> bytes | None:
    """A file of the verifier's; None where there is none. Raises InfraError for what is no file, too large, or somebody else's."""
    try:
        file = await sandbox.get(f"{LOGS}/{name}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InfraError(f"the verifier's {name} is not read: {error}") from error
    if file.owner not in (0, user):
        raise InfraError(f"the verifier's {name} is not read: it belongs to user {file.owner}, not to the verifier's")
    return file.content
