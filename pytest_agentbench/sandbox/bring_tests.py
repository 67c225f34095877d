"""Brings the tests into a sandbox by programs that run inside: for environments into which nothing can be put in any other way."""

from __future__ import annotations

from pathlib import Path

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.sandbox.sandbox import LOGS, SCRIPT, TESTS, CommandResult, Sandbox

READY = 60.0  # seconds for what is done before the tests

#: Runs as root, with nothing of the agent running. A link or a file where a folder should be is replaced.
_CLEARED = f"""set -e
rm -rf {TESTS} {LOGS}
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; mkdir /logs; fi
chown 0:0 /logs
chmod 755 /logs
mkdir -m 700 {LOGS}"""

#: Runs as root, when the tests have arrived. {user} is the number of the user as whom they run.
_READY = f"chmod -R a+rX {TESTS} && chmod a+x {SCRIPT} && chown {{user}} {LOGS}"


async def bring_tests(sandbox: Sandbox, tests: Path, user: str | None) -> int:
    """Puts the tests where nothing of the agent's is, and returns the number of the user as whom they run."""
    await _done(sandbox, _CLEARED)
    await sandbox.put(tests, TESTS)
    answer = await sandbox.exec("id -u", seconds=READY, user=user, workdir="/")
    if not answer.output.strip().isdecimal():
        raise _unusable(answer)
    number = int(answer.output)
    await _done(sandbox, _READY.format(user=number))
    return number


async def _done(sandbox: Sandbox, command: str) -> None:
    done = await sandbox.exec(command, seconds=READY, user="root", workdir="/")
    if done.exit_code != 0:
        raise _unusable(done)


def _unusable(command: CommandResult) -> InfraError:
    why = ending(command.output.strip(), 300) or f"exit code {command.exit_code}"
    return InfraError(f"the sandbox is left in a state in which the verifier cannot be started: {why}")
