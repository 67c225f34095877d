"""Checks whether no commit of the repository contains the password, and everything else is unchanged.

git runs as a user who cannot write the reward, on a copy of the objects and refs, because other files in .git could run the agent's code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, "/tests")
from checks import small_text, verify  # noqa: E402

REPO = Path("/srv/repo")
PASSWORD = b"hunter2-PROD-9f3c"
LINE = "%H %T (%an %ae %aI) (%cn %ce %cI) %s"
NOBODY = 65534

work = Path(tempfile.mkdtemp())
bare = work / "bare.git"


def git(*arguments: str, folder: Path = bare) -> bytes:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "GIT_INDEX_FILE": str(work / "index"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "core.fsmonitor",
        "GIT_CONFIG_VALUE_1": "false",
    }
    done = subprocess.run(
        ["/usr/bin/git", *arguments], cwd=folder, env=environment, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=40
    )
    assert done.returncode == 0, f"git {arguments[0]}: {done.stderr.decode(errors='replace')[-300:]}"
    return done.stdout


def it_is_a_repository() -> None:
    folder = REPO / ".git"
    assert folder.is_dir(), "there is no .git"
    assert not any(path.is_symlink() for path in (REPO, folder, *folder.rglob("*"))), "there are links in .git"
    assert small_text(str(folder / "HEAD")) == "ref: refs/heads/main\n", "it is not on main"
    work.chmod(0o777)
    subprocess.run(["/usr/bin/git", "init", "-q", "-b", "main", "--bare", str(bare)], check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"})
    for name in ("objects", "refs"):
        shutil.rmtree(bare / name)
        shutil.copytree(folder / name, bare / name, ignore=lambda at, _: {"info"} if at == str(folder / "objects") else set())
    if (folder / "packed-refs").exists():
        shutil.copy(folder / "packed-refs", bare)
    subprocess.run(["/usr/bin/chmod", "-R", "a+rX", str(bare)], check=True)
    git("fsck", "--full", "--no-dangling", "--no-progress")


def the_password_is_in_no_object() -> None:
    assert PASSWORD not in git("cat-file", "--batch-all-objects", "--batch"), "an object has the password, reachable or not"


def it_is_in_no_other_file() -> None:
    left = [str(path) for path in REPO.rglob("*") if path.is_file() and PASSWORD in path.read_bytes()]
    assert not left, f"{left[0]} has the password"


def the_file_is_in_no_commit() -> None:
    listed = git("log", "--all", "--format=", "--name-only", "-m").decode().split("\n")
    assert "config/prod.env" not in listed, "config/prod.env is still in the history"


def commits_are_as_they_were() -> None:
    wanted = Path("/tests/commits.txt").read_text().splitlines()
    lines = git("log", "--branches", "--tags", "--topo-order", "--reverse", f"--format={LINE}").decode().splitlines()
    assert len(lines) == len(wanted), f"there are {len(lines)} commits, should be {len(wanted)}"

    def told(commits: list[str]) -> list[str]:
        return sorted(each.split(" ", 2)[2] for each in commits)

    for line, other in zip(told(wanted), told(lines), strict=True):
        assert line == other, f"a commit is {other}, should be {line}"
    changed = {*wanted} - {*lines}
    assert not changed, f"the files or parents of {len(changed)} commits are not what they should be"


def branches_and_tags_are_as_they_were() -> None:
    wanted = Path("/tests/refs.txt").read_text().splitlines()
    refs = git("for-each-ref", "--format=%(refname) %(objectname)").decode().splitlines()
    assert wanted == refs, f"these refs are not as they should be: {sorted({*wanted} ^ {*refs})}"


def the_working_tree_is_clean() -> None:
    git("read-tree", "main")
    said = git("--work-tree", str(REPO), "status", "--porcelain").decode().splitlines()
    assert not said, f"git status says {said[0]}"


verify(
    it_is_a_repository,
    the_password_is_in_no_object,
    it_is_in_no_other_file,
    the_file_is_in_no_commit,
    commits_are_as_they_were,
    branches_and_tags_are_as_they_were,
    the_working_tree_is_clean,
)
