"""The command `agentbench`: what it writes, what it refuses, and how it says so."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.scenarios import load_suite
from pytest_agentbench.serving.spec import load_backend

BANKING = Path(__file__).parents[1] / "scenarios" / "banking"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_init_writes_a_project(empty: Path, capsys: Capture) -> None:
    """`init banking` writes the suite's files, its backend and a pytest.ini, names each of them, and says what to run next."""
    status = main(["init", "banking"])

    said = capsys.readouterr().out.splitlines()
    shipped = [f"scenarios/banking/{name}" for name in files(BANKING) if "__pycache__" not in name]
    assert 0 == status
    assert sorted(["backends/embedded.yaml", "pytest.ini", *shipped]) == files(empty)
    assert [f"wrote {name}" for name in files(empty)] == sorted(said[:-1])
    assert "now run: pytest scenarios/banking" == said[-1]
    assert 100 == len(load_suite(empty / "scenarios/banking/suite.yaml").scenarios)
    assert "embedded" == load_backend("embedded", empty).name


@pytest.mark.parametrize("there", ["backends/embedded.yaml", "scenarios/banking/suite.yaml"])
def test_init_overwrites_nothing(empty: Path, capsys: Capture, there: str) -> None:
    """Where one of its files exists, `init` leaves it as it is, writes no other, and names it."""
    (empty / there).parent.mkdir(parents=True)
    (empty / there).write_text("mine")

    status = main(["init", "banking"])

    assert 1 == status
    assert [there] == files(empty)
    assert "mine" == (empty / there).read_text()
    assert f"agentbench: not overwriting {there}; remove it or use an empty directory\n" == capsys.readouterr().err


@pytest.mark.parametrize("name", ["pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"])
def test_init_leaves_a_configuration_alone(empty: Path, capsys: Capture, name: str) -> None:
    """A directory with a pytest configuration of its own keeps it and gets no second one."""
    (empty / name).write_text("# mine\n")

    status = main(["init", "banking"])

    said = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert "# mine\n" == (empty / name).read_text()
    assert {name} == {file for file in files(empty) if "/" not in file}
    assert f"left {name} alone; the suite needs nothing in it" in said


def test_an_unknown_suite_lists_the_known(empty: Path, capsys: Capture) -> None:
    """`init` of a suite that is not shipped writes nothing and lists those that are."""
    status = main(["init", "bankng"])

    assert 1 == status
    assert [] == files(empty)
    assert "agentbench: no shipped suite 'bankng'; known: banking, bfcl\n" == capsys.readouterr().err


def test_subset(empty: Path, capsys: Capture) -> None:
    """`subset` writes so many entries of a file and says how many; with a seed it takes other ones."""
    status = main(["subset", str(BANKING / "banking.json"), "few.json", "--limit", "2"])
    seeded = main(["subset", str(BANKING / "banking.json"), "some.json", "--limit", "2", "--seed", "4"])

    few, some = (json.loads((empty / name).read_text()) for name in ("few.json", "some.json"))
    assert (0, 0) == (status, seeded)
    assert ["banking-000", "banking-001"] == [entry["id"] for entry in few]
    assert 2 == len(some)
    assert few != some
    assert "wrote 2 scenarios to few.json\nwrote 2 scenarios to some.json\n" == capsys.readouterr().out


def test_subset_of_nothing(empty: Path, capsys: Capture) -> None:
    """A missing file is one sentence and exit status 1."""
    status = main(["subset", "none.json", "few.json"])

    assert 1 == status
    assert [] == files(empty)
    assert "agentbench: none.json: No such file or directory\n" == capsys.readouterr().err


@pytest.mark.skipif(not importlib.util.find_spec("huggingface_hub"), reason="NOT TESTED: the extra `hub` is not installed")
def test_download_without_network(tmp_path: Path) -> None:
    """Without network `download` says so in one line, exits 1 and writes nothing."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: whoever connects is refused
        host = f"http://127.0.0.1:{closed.getsockname()[1]}"
        command = ["download", "agent-leaderboard", "--domains", "banking", "healthcare", "--revision", "v1", "--output", "data"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest_agentbench.cli", *command],
            cwd=tmp_path,
            env={**os.environ, "HF_ENDPOINT": host, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert 1 == done.returncode
    assert "" == done.stdout
    assert 1 == len(done.stderr.splitlines())
    assert done.stderr.startswith(f"agentbench: {host} is unreachable")
    assert [] == files(tmp_path)


def test_download_of_an_unknown_domain(empty: Path, capsys: Capture) -> None:
    """A domain that the data set does not have is refused, with those that it has, before the network is asked."""
    status = main(["download", "agent-leaderboard", "--domains", "bank", "--revision", "v1"])

    assert 1 == status
    assert [] == files(empty)
    assert "agentbench: no domain 'bank'; known: banking, healthcare, insurance, investment, telecom\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["init", "download", "subset", "pytest scenarios/banking"]),
        (("init",), ["suite"]),
        (("download",), ["--domains", "--revision", "--output", "agent-leaderboard"]),
        (("show",), ["RUN", "--as", "aiperf", "guidellm", "mlperf", "nat", "vllm-bench", "--reports"]),
        (("subset",), ["--limit", "--seed", "input", "output"]),
    ],
)
def test_help(capsys: Capture, command: tuple[str, ...], words: list[str]) -> None:
    """`--help` exits 0 and names what the command takes."""
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])

    said = capsys.readouterr().out
    assert 0 == end.value.code
    assert [] == [word for word in words if word not in said]


def test_no_command(capsys: Capture) -> None:
    """Without a command, or without a revision to download, the usage and exit status 2."""
    for arguments in ([], ["download", "agent-leaderboard"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)

        assert 2 == end.value.code
        assert capsys.readouterr().err.startswith("usage: agentbench")
