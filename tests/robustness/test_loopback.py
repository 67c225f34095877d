"""Where the processes of a session listen."""

from __future__ import annotations

from tests.project import WAYS, Project

#: Looks at all descendants of the controller while it runs, itself included.
LOOKS = '''
import os
from pathlib import Path

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def family():
    """The processes that the user's pytest has started, and itself."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parent(entry.name)
            except OSError:
                pass
    top = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    found = {top}
    while more := {pid for pid, above in parents.items() if above in found} - found:
        found |= more
    return found

def inodes(pid):
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            yield os.readlink(link).removeprefix("socket:[").removesuffix("]")
        except OSError:
            pass

def listening():
    """Addresses, as the kernel writes them."""
    ours = {inode for pid in family() for inode in inodes(pid)}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in ours:
                yield fields[1].partition(":")[0]

def test_it(rollout):
    addresses = [*listening()]
    assert len(addresses) >= 4, addresses  # the pool, the tap's two, the engine
    assert {"0100007F"} == {*addresses}
'''


@WAYS
def test_nobody_listens_elsewhere(project: Project, way: tuple[str, ...]) -> None:
    """Pool, tap and embedded engine listen on 127.0.0.1 and on nothing else, with and without workers."""
    project.suite(scenarios=1, test=LOOKS)

    project.run(*way, "scenarios/shop").assert_outcomes(passed=1)
