"""Environments that a project describes itself, in `backends/environments` beside its backends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import (
    EnvironmentSpec,
    create,
    environments,
    home_of,
    is_whole,
    resolve_python,
)
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.cli import main
from pytest_agentbench.errors import ConfigError, MissingError
from tests.backends.machine.test_virtual_environments import Capture


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an empty folder for descriptions of environments, as the working directory."""
    monkeypatch.setenv("AGENTBENCH_ENVS", str(tmp_path / "envs"))
    (tmp_path / "project" / "backends" / "environments").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def describe(project: Path, name: str, text: str, folder: str = "backends") -> Path:
    file = project / folder / "environments" / f"{name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def pretend(name: str) -> None:
    """Makes an environment look complete, without an installation."""
    home = home_of(name)
    (home / "bin").mkdir(parents=True)
    for file in (home / "bin" / "python", home / "whole"):
        file.touch()


def test_found_by_name(project: Path, capsys: Capture) -> None:
    """An environment of the project is listed, suggested for an unknown name, and found by its name, also from a shipped YAML."""
    describe(project, "my-router", "# a router\nrouter==1.0\n")
    pretend("my-router")

    assert 0 == main(["env", "list"])
    assert re.search(
        rf"^my-router +a router \(router==1.0\)\n +{re.escape(str(home_of('my-router')))}$", capsys.readouterr().out, re.MULTILINE
    )
    assert 4 == main(["env", "create", "my-ruter"])
    assert "did you mean 'my-router'?" in capsys.readouterr().err
    assert home_of("my-router") / "bin" / "python" == resolve_python("my-router", Path("/elsewhere"))


def test_replaces_one_of_the_package(project: Path) -> None:
    """A file of the project goes before the package's file of that name, so that a project can pin another version."""
    before = home_of("smg")
    describe(project, "smg", "# another version\nsmg==1.12.0\n")

    assert ("smg==1.12.0",) == environments()["smg"].pins
    assert before != home_of("smg")
    assert ("vllm==0.26.0",) == environments()["vllm"].pins


def test_beside_a_yaml(project: Path, capsys: Capture) -> None:
    """A folder beside a YAML that is elsewhere is read as well. The advice names the file, which `agentbench env create` accepts."""
    file = describe(project, "my-router", "# a router\n./no-such-folder\n", "other")
    (file.parents[1] / "mine.yaml").write_text("python: my-router\nservices: {router: {run: [python]}}\n")

    with pytest.raises(MissingError) as caught:
        resolve_python("my-router", file.parents[1])
    checks = load_backend(str(file.parents[1] / "mine.yaml"), project).checks(reach=False)
    doctor = next(each for each in checks if each.name == "python")

    assert f"the environment 'my-router' does not exist: agentbench env create {file}" == str(caught.value)
    assert f"agentbench env create {file}" == doctor.fix
    assert "my-router" not in environments()
    assert 4 == main(["env", "create", str(file), "no-such-name"])
    assert "no environment 'no-such-name'" in capsys.readouterr().err


def test_without_resolution(project: Path) -> None:
    """With `# no-deps`, pip gets --no-deps, so the pins are all packages of the environment. Its folder is another one."""
    describe(project, "plain", "# a server\na==1\nb==2\n")
    describe(project, "pinned", "# a server\n# no-deps\na==1\nb==2\n")

    assert EnvironmentSpec("a server", ("a==1", "b==2"), no_deps=True) == environments()["pinned"]
    assert ("--no-deps", "a==1", "b==2") == environments()["pinned"].from_index
    assert home_of("plain").name.partition("-")[2] != home_of("pinned").name.partition("-")[2]


def test_many_pins(project: Path) -> None:
    """The line about an environment with many pins shows the first eight and the number of the others."""
    describe(project, "many", "# a server\n" + "".join(f"p{index}==1\n" for index in range(11)))

    assert "a server (p0==1, p1==1, p2==1, p3==1, p4==1, p5==1, p6==1, p7==1 and 3 more)" == environments()["many"].summary


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("# a server\n", "it has no packages; write one on each line"),
        ("# a server\n# driver: new\na==1\n", "write `# python: 3.12` and `# driver: 580`"),
    ],
)
def test_mistakes(project: Path, text: str, error: str) -> None:
    """The error about a file that cannot be used names the file and what would be right."""
    file = describe(project, "broken", text)

    with pytest.raises(ConfigError, match=error) as caught:
        environments()

    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.slow  # an environment is created
def test_create_without_resolution(project: Path) -> None:
    """Only the pins are installed, and nothing that they require."""
    (project / "own").mkdir()
    (project / "own" / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
        '[project]\nname = "own"\nversion = "1"\ndescription = "-"\ndependencies = ["no-package-has-this-name==1"]\n'
    )
    (project / "own" / "own.py").write_text("")
    describe(project, "alone", "# a package whose requirement does not exist\n# no-deps\n./own\n")

    python = create("alone", lambda _: None)

    assert is_whole(home_of("alone"))
    assert [*python.parents[1].glob("lib/python3.*/site-packages/own.py")]
