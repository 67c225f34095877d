"""The command `agentbench`: the files that it writes, and its errors."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.cli import COMMANDS, main, parser
from pytest_agentbench.suites.folder import load_suite

BANKING = Path(__file__).parents[2] / "scenarios" / "banking"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_init_writes_a_project(empty: Path, capsys: Capture) -> None:
    """`init banking` writes the suite, its backend, .env.example and a pytest.ini, names each file, and says what to run next."""
    status = main(["init", "banking"])

    said = capsys.readouterr().out.splitlines()
    shipped = [f"scenarios/banking/{name}" for name in files(BANKING) if "__pycache__" not in name]
    assert 0 == status
    own = [".env.example", "backends/embedded.yaml", "pytest.ini", "scenarios/banking/suite.schema.json"]
    assert sorted([*own, *shipped]) == files(empty)
    assert [f"wrote {name}" for name in files(empty)] == sorted(said[:-1])
    assert "now run: pytest scenarios/banking" == said[-1]
    assert 100 == len(load_suite(empty / "scenarios/banking/suite.yaml").scenarios)
    assert "embedded" == load_backend("embedded", empty).name


def test_init_without_a_name_lists_suites(empty: Path, capsys: Capture) -> None:
    """`init` without a suite writes nothing, describes the available suites, and says how to get one."""
    status = main(["init"])

    banking, bfcl, hle, openthoughts, own, sessions, last = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert banking.startswith("banking      A hundred bank customers")
    assert bfcl.startswith("bfcl ")
    assert hle.startswith("hle ")
    assert openthoughts.startswith("openthoughts Five tasks")
    assert own.startswith("own          A template for your own suite")
    assert sessions.startswith("sessions     Synthetic sessions")
    assert "to copy one of them into this directory: agentbench init banking" == last
    assert [] == files(empty)


def test_init_adds_missing_files(empty: Path, capsys: Capture) -> None:
    """A second `init` writes only missing files: one that was removed, or those of another suite."""
    main(["init", "banking"])
    (empty / "scenarios/banking/README.md").unlink()
    capsys.readouterr()

    again, once_more, other = (main(["init", name]) for name in ("banking", "banking", "bfcl"))

    lines = capsys.readouterr().out.splitlines()
    assert (0, 0, 0) == (again, once_more, other)
    assert ["wrote scenarios/banking/README.md", "10 of 11 files existed already", "now run: pytest scenarios/banking"] == lines[:3]
    assert ["11 of 11 files existed already", "now run: pytest scenarios/banking"] == lines[3:5]
    assert "wrote scenarios/bfcl/suite.yaml" in lines[5:]
    assert "3 of 7 files existed already" in lines[5:]


def test_a_sourced_file_reaches_programs(empty: Path) -> None:
    """If a variable in .env.example is uncommented, programs see it after the shell's `source`."""
    main(["init", "banking"])
    text = (empty / ".env.example").read_text(encoding="utf-8")
    (empty / ".env").write_text(text.replace("# export NVIDIA_API_KEY=", "export NVIDIA_API_KEY=k"), encoding="utf-8")

    done = subprocess.run(["bash", "-c", "source .env; printenv NVIDIA_API_KEY"], capture_output=True, text=True, check=True)

    assert "k\n" == done.stdout


@pytest.mark.parametrize("there", ["backends/embedded.yaml", "scenarios/banking/suite.yaml"])
def test_init_keeps_what_differs(empty: Path, capsys: Capture, there: str) -> None:
    """An existing file that differs from the original is kept and named. The other files are written."""
    (empty / there).parent.mkdir(parents=True)
    (empty / there).write_text("mine")

    status = main(["init", "banking"])

    lines = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert "mine" == (empty / there).read_text()
    assert f"kept {there}, which differs from the original in agentbench" in lines
    assert {"backends/embedded.yaml", "pytest.ini", "scenarios/banking/suite.yaml"} <= set(files(empty))


def test_init_over_an_older_suite(empty: Path, capsys: Capture) -> None:
    """A suite.yaml from before it had a first line for editors counts as unchanged."""
    main(["init", "banking"])
    file = empty / "scenarios/banking/suite.yaml"
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    capsys.readouterr()

    assert 0 == main(["init", "banking"])
    assert "kept" not in capsys.readouterr().out


def test_init_without_write_access(empty: Path, capsys: Capture) -> None:
    """If a file has the name of a needed folder, the error is one sentence."""
    (empty / "scenarios").write_text("mine")

    status = main(["init", "banking"])

    assert 4 == status
    assert "agentbench: scenarios/banking/README.md: cannot be written: Not a directory\n" == capsys.readouterr().err


@pytest.mark.parametrize("name", ["pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"])
def test_init_keeps_a_pytest_configuration(empty: Path, capsys: Capture, name: str) -> None:
    """A directory with a pytest configuration keeps it and gets no second one."""
    (empty / name).write_text("# mine\n")

    status = main(["init", "banking"])

    said = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert "# mine\n" == (empty / name).read_text()
    assert {name, ".env.example"} == {file for file in files(empty) if "/" not in file}
    assert f"left {name} unchanged; the suite needs no setting in it" in said


def test_an_unknown_suite_lists_the_known(empty: Path, capsys: Capture) -> None:
    """`init` with an unknown suite writes nothing and lists the known ones."""
    status = main(["init", "bankng"])

    assert 4 == status
    assert [] == files(empty)
    assert (
        "agentbench: no example suite 'bankng' (did you mean 'banking'?); known: banking, bfcl, hle, openthoughts, own, sessions\n"
        == capsys.readouterr().err
    )


def test_subset(empty: Path, capsys: Capture) -> None:
    """`subset` writes this number of entries of a file and prints the number. With a seed it takes others."""
    status = main(["subset", str(BANKING / "banking.json"), "few.json", "--limit", "2"])
    seeded = main(["subset", str(BANKING / "banking.json"), "some.json", "--limit", "2", "--seed", "4"])

    few, some = (json.loads((empty / name).read_text()) for name in ("few.json", "some.json"))
    assert (0, 0) == (status, seeded)
    assert ["banking-000", "banking-001"] == [entry["id"] for entry in few]
    assert 2 == len(some)
    assert few != some
    assert "wrote 2 scenarios to few.json\nwrote 2 scenarios to some.json\n" == capsys.readouterr().out


def test_subset_of_a_missing_file(empty: Path, capsys: Capture) -> None:
    """A missing file is an error of one sentence with the exit status of a usage error."""
    status = main(["subset", "none.json", "few.json"])

    assert 4 == status
    assert [] == files(empty)
    assert "agentbench: none.json: No such file or directory\n" == capsys.readouterr().err


def test_init_of_tasks(empty: Path) -> None:
    """`init openthoughts` writes all files of the tasks, including hidden ones, and programs stay executable."""
    status = main(["init", "openthoughts"])

    assert 0 == status
    tasks = empty / "scenarios/openthoughts/tasks"
    assert (tasks / "configure-a-server/environment/site/public/.env").is_file()
    verifiers = [*tasks.glob("*/tests/test.sh")]
    assert 5 == len(verifiers)
    assert all(file.stat().st_mode & 0o100 for file in verifiers)


@pytest.mark.skipif(not importlib.util.find_spec("huggingface_hub"), reason="NOT TESTED: the extra `hub` is not installed")
def test_download_without_network(tmp_path: Path) -> None:
    """Without network, `download` prints one line, exits with 1 and writes nothing."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # The socket is bound but does not listen, so connections to it are refused.
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
    """A domain that the data set does not have is refused with a list of its domains, before any request."""
    status = main(["download", "agent-leaderboard", "--domains", "bank", "--revision", "v1"])

    assert 4 == status
    assert [] == files(empty)
    assert (
        "agentbench: no domain 'bank' (did you mean 'banking'?); known: banking, healthcare, insurance, investment, telecom\n"
        == capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["init", "download", "subset", "pytest scenarios/banking"]),
        (("init",), ["SUITE", "(default: list"]),
        (("download",), ["agent-leaderboard", "openthoughts"]),
        (("download", "agent-leaderboard"), ["--domains", "--revision", "--output"]),
        (("show",), ["RUN", "--as", "aiperf", "guidellm", "mlperf", "nat", "vllm-bench", "--reports"]),
        (("subset",), ["--limit", "--seed", "INPUT", "OUTPUT"]),
    ],
)
def test_help(capsys: Capture, command: tuple[str, ...], words: list[str]) -> None:
    """`--help` exits with 0 and names the arguments of the command."""
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])

    said = capsys.readouterr().out
    assert 0 == end.value.code
    assert [] == [word for word in words if word not in said]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(capsys: Capture, name: str) -> None:
    """The help of a command begins with its line in the list of commands, and ends with an example that the parser accepts."""
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out

    first = text.split("\n\n")[1].replace("\n", " ")
    line = next(line for line in listed.splitlines() if line.startswith(f"  {name} "))
    assert first.startswith(line.removeprefix(f"  {name}").strip())
    example = text.rstrip().splitlines()[-1].strip()
    assert example.startswith(f"agentbench {name}")
    parser().parse_args(shlex.split(example)[1:])


def test_version(capsys: Capture) -> None:
    """`--version` prints the version of the distribution."""
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert 0 == end.value.code
    assert f"agentbench {version('pytest-agentbench')}\n" == capsys.readouterr().out


@pytest.mark.parametrize(("words", "command"), [((), "init"), (("backend",), "up"), (("baseline",), "promote"), (("env",), "create")])
def test_no_command(capsys: Capture, words: tuple[str, ...], command: str) -> None:
    """Without a subcommand, the whole help is on stderr, and the exit status is that of a usage error."""
    status = main(words)

    printed = capsys.readouterr()
    assert (4, "") == (status, printed.out)
    assert printed.err.startswith(" ".join(["usage: agentbench", *words]))
    assert f"\n  {command} " in printed.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("download", "hle"), "agentbench download hle: the following arguments are required: --revision"),
        (("shwo",), "agentbench: no command 'shwo' (did you mean 'show'?); known: backend, "),
        (("backend", "chek"), "agentbench backend: no command 'chek' (did you mean 'check'?); known: check, down, logs, status, up; see"),
        (("show", "--colour"), "agentbench show: unrecognized arguments: --colour; see agentbench show --help"),
        (("compare", "a", "--refrence=b"), "agentbench compare: unrecognized arguments: --refrence=b (did you mean '--reference'?); see"),
        (("subset", "a", "b", "--limit", "few"), "agentbench subset: argument --limit: invalid int value: 'few'"),
        (("gate", "--inconclusive", "maybe"), "agentbench gate: argument --inconclusive: invalid choice: 'maybe'"),
        (("show", "no-such-run"), "agentbench: no run 'no-such-run'"),
        (("gate", "no-such-run"), "agentbench: no run 'no-such-run'"),
        (("env", "create", "no-such-one"), "agentbench: no environment 'no-such-one'"),
        (("backend", "down", "no-such-one"), "agentbench: no stack 'no-such-one' is running"),
        (("doctor", "no-such-one"), "agentbench: no backend 'no-such-one'"),
        (("power", "no-such-folder"), "agentbench: there is no suite in no-such-folder"),
        (("scrub", "no-such-folder"), "agentbench: no-such-folder is not a directory"),
    ],
)
def test_usage_errors_have_one_status(empty: Path, capsys: Capture, words: tuple[str, ...], sentence: str) -> None:
    """Whether the parser or the command finds the mistake, the exit status is 4, as for a wrong option of pytest."""
    try:
        status = main(words)
    except SystemExit as end:
        status = int(str(end.code))

    assert 4 == status
    assert capsys.readouterr().err.splitlines()[-1].startswith(sentence)
    assert [] == files(empty)


@pytest.mark.parametrize("words", ["init banking", "--help", "doctor", "env list", "shwo"])
def test_a_closed_pipe(empty: Path, words: str) -> None:
    """If the reader of the output has ended (`agentbench ... | head`), there is no traceback, and the exit status is that of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    stream = "stderr" if words == "shwo" else "stdout"
    command = [sys.executable, "-m", "pytest_agentbench.cli", *words.split()]
    done = subprocess.Popen(command, cwd=empty, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}, text=True)  # type: ignore[call-overload]
    os.close(write)
    out, err = done.communicate(timeout=60)

    assert (128 + signal.SIGPIPE, "") == (done.returncode, (out or "") + (err or ""))
