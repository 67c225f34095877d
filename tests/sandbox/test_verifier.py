"""The verifier on a real Docker Engine, after agents that cheat, break things and leave processes running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox.containers import KIND, UNLIMITED_KIND
from pytest_agentbench.sandbox.verifier import verify
from pytest_agentbench.suites.suite import Task
from tests.sandbox.conftest import Open, task

pytestmark = pytest.mark.slow

REWARD = "/logs/verifier/reward.txt"
JSON = "/logs/verifier/reward.json"

#: Gives 1 if the agent has made /app/solved.
HONEST = f"""#!/bin/bash
ls -A /tests | grep -vx test.sh && echo "FAILED there is more in /tests"
if [ -f /app/solved ]; then echo 1 > {REWARD}; else echo "FAILED test_solved - no such file"; echo 0 > {REWARD}; exit 1; fi
"""

#: Commands of an agent that runs as root and has not solved the task.
CHEATS = {
    "forged rewards": f"mkdir -p /logs/verifier; echo 1 > {REWARD}; echo '{{\"reward\": 1}}' > {JSON}",
    "a folder of its own": f"mkdir -p /app/mine/verifier; rm -rf /logs; ln -s /app/mine /logs; echo '{{\"reward\": 1}}' > {JSON}",
    "a file in the way": "rm -rf /logs; touch /logs",
    "a writer in the background": f"(setsid bash -c 'while mkdir -p /logs/verifier; do echo \"{{}}\" > {JSON}; done' >/dev/null 2>&1 &)",
    "tests of its own": f"mkdir /tests; echo 'echo 1 > {REWARD}' > /tests/test.sh; chmod a+x /tests/test.sh; touch /tests/conftest.py",
    "tests elsewhere": "ln -s /app /tests",
    "its folder removed": "rm -rf /app",
    "a fork bomb": "bomb() { bomb | bomb & }; bomb",
}


@pytest.fixture
def tests(tmp_path: Path) -> Callable[[str], int]:
    """Returns a function that writes the script of the task. Before it is called, the script is HONEST."""
    script = tmp_path / "tests" / "test.sh"
    script.parent.mkdir()
    script.write_text(HONEST)
    return script.write_text


@pytest.mark.parametrize("cheat", CHEATS)
async def test_cheats(opened: Open, tests: Callable[[str], int], tmp_path: Path, cheat: str) -> None:
    """An agent that has solved nothing gets 0, whatever files or processes it leaves in the places of the verifier."""
    async with opened() as sandbox:
        await sandbox.exec(CHEATS[cheat], seconds=10)
        verification = await verify(sandbox, task(tmp_path))

    assert (0.0, {"reward": 0.0}, 1, "test_solved") == (
        verification.reward,
        verification.rewards,
        verification.exit_code,
        verification.first_failure,
    )


async def test_an_honest_agent(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """An honest agent gets its reward, with the verifier's times.

    No process of the verifier is left, and the agent cannot see its files.
    """
    tests(f"{HONEST}\n(setsid sleep 900 >/dev/null 2>&1 &)\nstat -c '%a %u' /logs/verifier; id -u; echo $WORD\n")
    async with opened() as sandbox:
        before = await sandbox.exec("ls -d /tests /logs; touch /app/solved", seconds=10)
        mine = await verify(sandbox, task(tmp_path, verifier_env={"WORD": "secret"}))
        others = await verify(sandbox, task(tmp_path, verifier_user="worker"))

    assert 2 == before.output.count("No such file")
    assert (1.0, "", 0) == (mine.reward, mine.first_failure, mine.exit_code)
    assert mine.sandbox in (KIND, UNLIMITED_KIND)
    assert "700 0\n0\nsecret\n" == mine.output
    assert mine.started_ns < mine.ended_ns
    assert (1.0, "700 1000\n1000\n\n") == (others.reward, others.output)


async def test_verifiers_without_a_reward(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """A verifier without a reward is an infra error with the reason and the end of its output. The next attempt starts afresh."""
    silent = {
        "echo hello": "neither reward.json nor reward.txt.*; the verifier's output ends with: hello",
        f"echo nan > {REWARD}": "must be between",
        f"printf '' > {REWARD}": "is empty",
        f"echo 1 > {REWARD}; echo '[]' > {JSON}": "must be an object of names and numbers",
        f"echo 1 > {REWARD}; echo waiting; sleep 600": "took longer than its 2 s and was killed.*waiting",
    }
    async with opened() as sandbox:
        for script, words in silent.items():
            tests(f"{script}\n")
            with pytest.raises(InfraError, match=f"(?s){words}"):
                await verify(sandbox, task(tmp_path, verifier_timeout_s=2.0))
        tests(f'echo \'{{"reward": 0.5, "speed": 3}}\' > {JSON}; echo 1 > {REWARD}; exit 7\n')
        verification = await verify(sandbox, task(tmp_path))

    assert (0.5, {"reward": 0.5, "speed": 3.0}, 7) == (verification.reward, verification.rewards, verification.exit_code)


async def test_something_else_in_place_of_the_reward(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """If something other than the verifier's file is in the place of the reward, the reward is 0, with a description of it."""
    planted = {
        f"ln -s /etc/passwd {REWARD}": "a link",
        f"mkfifo {REWARD}": "a pipe",
        f"mkdir {REWARD}": "a folder",
        f"ln -s /etc/passwd {JSON}; echo 1 > {REWARD}": "reward.json is not read",
        f"yes | head -c 2000000 > {REWARD}": "1048576",
        f"echo 1 > {REWARD}; chown 1000 {REWARD}": "belongs to user 1000",
    }
    found = []
    async with opened() as sandbox:
        for script in planted:
            tests(f"{script}\n")
            found.append(await verify(sandbox, task(tmp_path)))

    assert [0.0] * len(planted) == [each.reward for each in found]
    assert [] == [words for each, words in zip(found, planted.values(), strict=True) if words not in each.tampered]


async def test_skipped_checks(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """A skipped check is shown beside the reward. If the suite has `skipped: fail`, the reward is 0."""
    report = '{"results": {"tests": [{"name": "test_a", "status": "passed"}, {"name": "test_b", "status": "skipped"}]}}'
    tests(f"echo 1 > {REWARD}; echo '{report}' > /logs/verifier/ctrf.json\n")
    async with opened() as sandbox:
        allowed = await verify(sandbox, task(tmp_path))
        reported = await verify(sandbox, task(tmp_path, skipped="fail"))
        tests(f"echo 1 > {REWARD}; echo '=== 2 skipped in 0.01s ==='\n")
        printed = await verify(sandbox, task(tmp_path, skipped="fail"))

    assert (1.0, "", "test_b") == (allowed.reward, allowed.first_failure, allowed.skipped)
    assert (0.0, {"reward": 1.0}, "skipped: test_b") == (reported.reward, reported.rewards, reported.first_failure)
    assert (0.0, "skipped: 2 checks") == (printed.reward, printed.first_failure)


async def test_a_sandbox_that_does_not_start_again(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """An agent that leaves a sandbox that cannot be restarted gets 0, with the reason."""
    async with opened() as sandbox:
        await sandbox.exec("rm -rf /dev /sys /etc /bin 2>/dev/null; ln -s /nowhere /sys", seconds=10)
        found = await verify(sandbox, task(tmp_path))

    assert 0.0 == found.reward
    assert "the verifier cannot be started in the sandbox that the agent left, but in a new one it can" in found.tampered


async def test_a_separate_verifier(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """A separate verifier gets only the artifacts of the agent: files and folders, without links to its own tests and without the agent's
    programs.
    """
    asked = {"separate_verifier": True, "artifacts": ("/app/out", "/app/none")}
    tests("cd /app; find . /logs/artifacts | sort; cat out/answer out/again; ls /bin/evil; echo 1 > /logs/verifier/reward.txt\n")
    async with opened() as sandbox:
        await sandbox.exec(
            "mkdir -p /app/out/deep /logs/artifacts; echo 42 > /app/out/answer; ln /app/out/answer /app/out/again;"
            " ln -s /tests/test.sh /app/out/stolen; mkfifo /app/out/deep/pipe; touch /app/solved /bin/evil /logs/artifacts/log",
            seconds=10,
        )
        verification = await verify(sandbox, task(tmp_path, **asked))
        kept = await sandbox.exec("ls /app/solved /tests", seconds=10)

    assert 1.0 == verification.reward
    listed = ".\n./out\n./out/again\n./out/answer\n./out/deep\n/logs/artifacts\n/logs/artifacts/log\n42\n42\n"
    assert verification.output.startswith(f"{listed}ls: cannot access '/bin/evil'")
    assert "/app/solved\n" in kept.output
    assert "cannot access '/tests'" in kept.output


async def test_no_artifacts(opened: Open, tests: Callable[[str], int], tmp_path: Path) -> None:
    """An agent without artifacts is verified without any."""
    asked: Task = task(tmp_path, separate_verifier=True, artifacts=("/app/out",))
    async with opened() as sandbox:
        verification = await verify(sandbox, asked)

    assert (0.0, "test_solved") == (verification.reward, verification.first_failure)
