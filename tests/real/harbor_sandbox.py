"""Uses a sandbox of Harbor, in an interpreter that has Harbor: `python -m tests.real.harbor_sandbox TASK FOLDER`, with a task directory.

Prints the results of commands, files and ends as JSON. The test that runs this program checks them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.sandbox.factory import open_sandbox
from pytest_agentbench.sandbox.sandbox import CommandResult, Sandbox
from pytest_agentbench.suites.datasets.harbor import scenario

#: Counts the processes that sleep for this long. The images of our tasks have no `ps`.
LEFT = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep {}' | wc -l"

SANDBOX = "harbor:pytest_agentbench.harbor:Environment"


async def commands(sandbox: Sandbox) -> Json:
    """Returns the output and the exit code of several commands. The last one exceeds its time limit."""
    given: dict[str, Json] = {
        "in order": {"command": "echo one; echo two >&2; echo three; exit 3"},
        "unknown": {"command": "no-such-program"},
        "as somebody": {"command": "echo $COLOUR; pwd; id -u", "user": "nobody", "workdir": "/tmp", "env": {"COLOUR": "red"}},
        "quotes": {"command": """echo "it's" '$HOME' \\\\ "$(printf 'a\\tb')" """},
        "too long": {"command": "x" * 200_000},
        "much": {"command": "head -c 3000000 /dev/zero | tr '\\0' x"},
        "late": {"command": "echo begun; (setsid sleep 999 &); sleep 998", "seconds": 2},
        "left": {"command": LEFT.format("99[89]")},
    }
    ended = {name: await sandbox.exec(**{"seconds": 30, **each}) for name, each in given.items()}
    return {name: _told(each) for name, each in ended.items()}


def _told(command: CommandResult) -> Json:
    return {"code": command.exit_code, "output": command.output[:200], "omitted": command.omitted}


async def files(sandbox: Sandbox, folder: Path) -> Json:
    """Copies a folder to the sandbox and reads files of it. Returns contents, and the errors of files that cannot be read."""
    (folder / "data").mkdir(parents=True)
    (folder / "run.sh").write_text("echo ran")
    (folder / "run.sh").chmod(0o750)
    (folder / "data" / "bytes").write_bytes(bytes(range(256)))
    await sandbox.put(folder, "/deep/folder")
    await sandbox.exec("ln -s /etc/passwd /link; mkfifo /pipe; head -c 2000000 /dev/zero > /large", seconds=30)
    told: Json = {"modes": (await sandbox.exec("stat -c '%a %u:%g' /deep/folder/run.sh; /deep/folder/run.sh", seconds=30)).output}
    file = await sandbox.get("/deep/folder/data/bytes")
    told["same"] = (file.content == bytes(range(256)), file.owner)
    for path in ("/link", "/pipe", "/deep", "/large", "/nowhere"):
        try:
            await sandbox.get(path)
        except OSError as error:
            told[path] = f"{type(error).__name__}: {error}"
    return told


async def ends(sandbox: Sandbox) -> Json:
    """Ends processes and sandboxes. Returns what is left of them, and the error of a sandbox that has ended."""
    await sandbox.exec("echo kept > /kept; (setsid env -i sleep 777 &)", seconds=30)
    await sandbox.end_processes()
    told: Json = {"after": (await sandbox.exec(f"{LEFT.format('77[7]')}; cat /kept", seconds=30)).output}
    other = await sandbox.fresh()
    told["fresh"] = (await other.exec("cat /kept", seconds=30)).exit_code
    await other.end()
    await sandbox.end()
    await sandbox.end()
    try:
        await sandbox.exec("true", seconds=30)
    except InfraError as error:
        told["ended"] = str(error)
    return told


async def main() -> None:
    task = scenario(Path(sys.argv[1])).task
    assert task is not None
    released = 0

    def release() -> None:
        nonlocal released
        released += 1

    sandbox = await open_sandbox(RolloutKey("a-suite", "a-task"), dataclasses.replace(task, sandbox=SANDBOX), 60, "a-run", release)
    told = {"commands": await commands(sandbox), "files": await files(sandbox, Path(sys.argv[2])), "ends": await ends(sandbox)}
    print(json.dumps({**told, "kind": sandbox.kind, "released": released}))


if __name__ == "__main__":
    asyncio.run(main())
