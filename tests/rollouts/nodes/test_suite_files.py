"""The files of suites reach a node complete, with their modes and relative places, and settings refer to them there."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts.nodes import suite_files
from pytest_agentbench.rollouts.nodes.suite_files import at_controller, at_node, check, code_problem, pack, package_hash, unpack
from pytest_agentbench.rollouts.protocol import HOST_BOUND, PoolSettings
from pytest_agentbench.rollouts.rollout import prepare
from pytest_agentbench.sandbox.factory import default_count
from pytest_agentbench.suites.datasets.harbor import load
from pytest_agentbench.suites.suite import PoolSuite, Scenario
from tests.rollouts.pool.test_server import pool_settings, shop
from tests.tasks import write_task

AGENT = "async def run(scenario, llm, tools):\n    return 'hello'\n"
USER = ({"role": "user", "content": "hello"},)


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def a_suite(folder: Path, files: Mapping[str, str | bytes], kind: str = "./agent.py:run") -> PoolSuite:
    """Writes the files of a suite, and returns the suite, whose name is that of its folder."""
    return PoolSuite(write(folder, files).name, folder, (Scenario("one", USER),), {"kind": kind}, scorers={})


def settings_of(*suites: PoolSuite, sys_path: tuple[str, ...] = ()) -> PoolSettings:
    return replace(pool_settings(shop()), suites={suite.name: suite for suite in suites}, sys_path=sys_path)


def sent(node: Path, *suites: PoolSuite, sys_path: tuple[str, ...] = ()) -> PoolSettings:
    """Packs the files of suites, unpacks them into `node`, and returns the settings for this place."""
    settings = settings_of(*suites, sys_path=sys_path)
    unpack(pack(settings.suites), node)
    return at_node(settings, node, None)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_files_of_a_suite(tmp_path: Path) -> None:
    """All files of a suite travel, with their modes and empty folders, but no caches, hidden files or virtual environments."""
    database = tmp_path / "bank.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table accounts (id)")
    connection.close()
    read: dict[str, str | bytes] = {
        "agent.py": AGENT,
        "prompts/system.txt": "Be kind.",
        "bank.db": database.read_bytes(),
        "variants.yaml": "a: 1",
        "run.sh": "#!/bin/sh",
    }
    left: dict[str, str | bytes] = {
        "__pycache__/agent.pyc": "",
        ".env": "KEY=hush",
        ".git/config": "",
        "venv/pyvenv.cfg": "",
        "venv/lib/x.py": "",
    }
    suite = a_suite(tmp_path / "shop", {**read, **left})
    (suite.folder / "run.sh").chmod(0o755)
    (suite.folder / "prompts/system.txt").chmod(0o664)
    (suite.folder / "output").mkdir()
    there = sent(tmp_path / "node", suite).suites["shop"].folder

    assert {*read} == files_in(there)
    assert all((suite.folder / name).read_bytes() == (there / name).read_bytes() for name in read)
    assert [0o755, 0o664] == [(there / name).stat().st_mode & 0o777 for name in ("run.sh", "prompts/system.txt")]
    assert (there / "output").is_dir()
    assert there.is_relative_to(tmp_path / "node")


def test_the_agent_runs_at_the_node(tmp_path: Path) -> None:
    """The code of a suite is loaded from the files on the node, after the folder of the controller is gone."""
    suite = a_suite(
        tmp_path / "shop",
        {"agent.py": "from pathlib import Path\nPROMPT = Path(__file__).with_name('p.txt').read_text()\n" + AGENT, "p.txt": "hello"},
    )
    there = sent(tmp_path / "node", suite).suites["shop"]
    suite.folder.rename(tmp_path / "gone")

    assert {"kind": "./agent.py:run"} == there.agent
    assert prepare(there, "default").agent is not None


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    """An archive does not depend on times, owners and the order of files, but on each content and mode."""
    suite = a_suite(tmp_path / "shop", {"agent.py": AGENT, "data.txt": "1"})
    first = pack({"shop": suite})
    os.utime(suite.folder / "agent.py", (1, 1))
    again = pack({"shop": suite})
    (suite.folder / "data.txt").chmod(0o600)

    assert first == again
    assert first != pack({"shop": suite})


def test_settings_of_this_host(tmp_path: Path) -> None:
    """Each field of the settings that is valid only on the controller's host has a value of this host."""
    suite = a_suite(tmp_path / "shop", {"agent.py": AGENT})
    here = sent(tmp_path / "node", suite, sys_path=(str(tmp_path), "/no/such/folder"))
    bound = {name for kind, name in HOST_BOUND if kind is PoolSettings}

    assert {"sys_path", "sandboxes"} == bound
    assert default_count() == here.sandboxes
    assert 3 == at_node(settings_of(suite), tmp_path / "node", 3).sandboxes
    assert str(tmp_path / "node" / "files") + str(tmp_path) == here.sys_path[0]
    assert {*filter(None, sys.path)} <= {*here.sys_path}
    assert "/no/such/folder" not in here.sys_path
    assert here == codec.received(PoolSettings, json.loads(json.dumps(codec.plain(here))))


def test_folders_that_others_can_write(tmp_path: Path) -> None:
    """Of the controller's folders with modules, those that exist here are used, but not if other users of this host can write them."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    places = (str(tmp_path / "shared"), str(tmp_path / "open"))
    here = at_node(settings_of(sys_path=places), tmp_path / "node", None)

    assert [places[0]] == [each for each in here.sys_path if each in places]


def test_suites_that_import_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites with a common parent folder find each other: by modules, by relative paths and by relative imports."""
    root = tmp_path / "project"
    files = {"agent.py": "from scenarios.both.common import run\nfrom ..both import common\nfrom scenarios import SHARED\n"}
    a = a_suite(root / "scenarios" / "a", files, kind="scenarios.a.agent:run")
    both = a_suite(root / "scenarios" / "both", {"common.py": AGENT}, kind="./common.py:run")
    c = a_suite(root / "scenarios" / "c", {"x.txt": ""}, kind="../both/common.py:run")
    for folder in (root / "scenarios", a.folder, both.folder):
        (folder / "__init__.py").write_text("SHARED = 1\n")
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    here = sent(tmp_path / "node", a, both, c, sys_path=(str(root),))
    root.rename(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", [*here.sys_path])

    assert "" == code_problem(here, tmp_path / "node", "n1")
    assert [True] * 3 == [prepare(suite, "default").agent is not None for suite in here.suites.values()]
    assert sys.modules.pop("scenarios.both.common").__file__ == str(here.suites["both"].folder / "common.py")
    for name in [name for name in sys.modules if name.partition(".")[0] == "scenarios"]:
        del sys.modules[name]


def test_code_at_a_relative_path_outside(tmp_path: Path) -> None:
    """A file that a suite names at a relative path outside of its folder travels with the Python files beside it, and nothing else."""
    write(tmp_path / "common", {"agent.py": AGENT, "helpers.py": "", "notes.txt": "", "deep/more.py": ""})
    suite = a_suite(tmp_path / "shop", {"x.txt": ""}, kind="../common/agent.py:run")
    there = sent(tmp_path / "node", suite).suites["shop"]

    assert {"agent.py", "helpers.py"} == files_in(there.folder.parent / "common")
    assert prepare(there, "default").agent is not None


def test_the_working_directory_of_a_command(tmp_path: Path) -> None:
    """The folder in which the program of a command agent works travels, also one outside of the suite's folder."""
    write(tmp_path / "js", {"agent.js": "", "lib/x.js": ""})
    suite = replace(a_suite(tmp_path / "shop", {"x.txt": ""}), agent={"kind": "command", "program": ["cat"], "cwd": "../js"})
    there = sent(tmp_path / "node", suite).suites["shop"]
    (tmp_path / "js").rename(tmp_path / "gone")

    assert {"agent.js", "lib/x.js"} == files_in(there.folder.parent / "js")
    assert prepare(there, "default").agent is not None


def test_data_that_scenarios_contain(tmp_path: Path) -> None:
    """A large data file stays behind, and travels if code of the suite names it. A small one travels. A link out of the folder stays."""
    large = "[]" + " " * suite_files.SMALL
    files = {"suite.yaml": "dataset: {file: data.json, tools: tools.json}", "data.json": large, "tools.json": "[]", "agent.py": AGENT}
    suite = a_suite(tmp_path / "shop", files)
    unread = files_in(sent(tmp_path / "unread", suite).suites["shop"].folder)
    write(suite.folder, {"agent.py": "DATA = 'data.json'\n" + AGENT})
    named = files_in(sent(tmp_path / "named", suite).suites["shop"].folder)
    write(suite.folder, {"agent.py": AGENT})
    (suite.folder / "data.json").unlink()
    (suite.folder / "data.json").symlink_to(write(tmp_path / "hub", {"data.json": "[]"}) / "data.json")
    linked = files_in(sent(tmp_path / "linked", suite).suites["shop"].folder)

    assert {"suite.yaml", "tools.json", "agent.py"} == unread == linked
    assert {*files} == named


@pytest.mark.parametrize("place", ["shop/tasks", "elsewhere"])
def test_tasks(tmp_path: Path, place: str) -> None:
    """The folders of a suite's tasks travel completely, wherever they are, and their modes, so that their images stay the same."""
    directory = write_task(
        tmp_path / place, "hello", files={"environment/.dockerignore": "x", "environment/__pycache__/x.pyc": "", "environment/data/x": "1"}
    )
    (directory / "environment/data").chmod(0o775)
    (directory / "environment/data/x").chmod(0o660)
    write_task(tmp_path / "shop/tasks", "unused")
    scenarios = tuple(each for each in load(tmp_path / place) if each.id == "hello")
    suite = replace(a_suite(tmp_path / "shop", {"x.txt": ""}), scenarios=scenarios, agent={"kind": "oracle"})
    there = sent(tmp_path / "node", suite).suites["shop"]
    task = there.scenarios[0].task
    directory.rename(tmp_path / "gone")

    assert task is not None
    assert not (there.folder / "tasks/unused").exists()
    assert {*files_in(tmp_path / "gone")} == files_in(Path(task.folder))
    assert replace(task, folder=str(directory)) == suite.scenarios[0].task
    (again,) = (each.task for each in load(Path(task.folder).parent))
    assert again == task


def test_folders_behind_links(tmp_path: Path) -> None:
    """A suite whose folder is reached through a link is found at the node, together with the files beside its real place."""
    write(tmp_path / "real" / "common", {"agent.py": AGENT})
    a_suite(tmp_path / "real" / "shop", {"x.txt": ""})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    suite = PoolSuite("shop", tmp_path / "link" / "shop", (Scenario("one", USER),), {"kind": "../common/agent.py:run"}, scorers={})
    there = sent(tmp_path / "node", suite).suites["shop"]
    (tmp_path / "real").rename(tmp_path / "gone")

    assert {"x.txt"} == files_in(there.folder)
    assert prepare(there, "default").agent is not None


def test_links(tmp_path: Path) -> None:
    """Links within the files that travel are links on the node, too, absolute ones included. A link to another place is refused."""
    suite = a_suite(tmp_path / "shop", {"agent.py": AGENT, "data/x.txt": "1"})
    other = a_suite(tmp_path / "other", {"y.txt": "2"})
    (suite.folder / "relative").symlink_to("data/x.txt")
    (suite.folder / "absolute").symlink_to(suite.folder / "data")
    (suite.folder / "neighbour").symlink_to(tmp_path / "other" / "y.txt")
    there = sent(tmp_path / "node", suite, other).suites["shop"].folder

    assert ["1", "1", "2"] == [(there / name).read_text() for name in ("relative", "absolute/x.txt", "neighbour")]
    assert all((there / name).resolve().is_relative_to(tmp_path / "node") for name in ("relative", "absolute", "neighbour"))
    with pytest.raises(
        ConfigError, match=r"shop/neighbour: is a link that leads to .*other/y\.txt, which is not sent to node workers; replace"
    ):
        pack({"shop": suite})
    with pytest.raises(ConfigError, match="which is not sent to node workers"):
        check({"shop": suite})
    check({"shop": suite, "other": other})


def test_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are too large are refused. The error names the largest files with their sizes."""
    suite = a_suite(tmp_path / "shop", {"agent.py": AGENT, "big.bin": b"x" * 3_000_000, "small.bin": b"x" * 400_000})
    monkeypatch.setattr(suite_files, "MOST_BYTES", 2_000_000)

    with pytest.raises(
        ConfigError, match=r"have 3 MB, and at most 2 MB .* largest are /.*/big\.bin \(3\.0 MB\), /.*/small\.bin \(0\.4 MB\)"
    ):
        pack({"shop": suite})
    with pytest.raises(ConfigError, match="have 3 MB"):
        check({"shop": suite})


@pytest.mark.skipif(os.getuid() == 0, reason="root can read every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """A file that cannot be read is an error that names it."""
    suite = a_suite(tmp_path / "shop", {"agent.py": AGENT, "key": ""})
    (suite.folder / "key").chmod(0)

    with pytest.raises(ConfigError, match=r"shop/key cannot be sent to node workers: Permission denied"):
        pack({"shop": suite})


@pytest.mark.parametrize(("name", "link"), [("../evil", ""), ("files/link", "/etc/passwd"), ("files/link", "../../evil")])
def test_an_archive_that_leads_outside(tmp_path: Path, name: str, link: str) -> None:
    """An archive with members or links outside of the folder is refused, and nothing is written there."""
    body = BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        archive.addfile(member)

    with pytest.raises(tarfile.FilterError):
        unpack(body.getvalue(), tmp_path / "node")
    assert not (tmp_path / "evil").exists()


def test_the_hash_of_the_package() -> None:
    """The hash is computed once in a process, and is equal in all processes."""
    assert 16 == len(package_hash())
    assert package_hash() is package_hash()


def test_records_have_the_paths_of_the_controller(tmp_path: Path) -> None:
    """A record of a node names files of suites as the controller's host does. Other paths and values stay."""
    place, file = f"{tmp_path}/files/home/me/shop", "/home/me/shop"
    settings = {"cwd": place, "program": ["python", f"{place}/agent.py"], "env": {"HOME": str(tmp_path)}, "limit": 3, "stream": None}
    errors = {"tsq": f"KeyError in {place}/score.py"}
    rollout = Rollout(
        "shop", "one", "default", 1, status="agent_error", settings=settings, score_errors=errors, reason=place, log=f"{place}\n"
    )

    moved = at_controller(rollout, tmp_path)

    assert {**settings, "cwd": file, "program": ["python", f"{file}/agent.py"]} == moved.settings
    assert ({"tsq": f"KeyError in {file}/score.py"}, file, f"{file}\n") == (moved.score_errors, moved.reason, moved.log)
