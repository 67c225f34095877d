"""The wheel and the sdist: their contents and metadata, and first steps with the wheel in an empty directory."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.rollouts.nodes.suite_files import package_hash
from tests.project import WAYS

ROOT = Path(__file__).parents[1]


STRICT = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--strict-config"]
filterwarnings = ["error"]
asyncio_default_fixture_loop_scope = "function"
"""


def run(*command: str | Path, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**child_environment(), "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def build(kind: str, source: Path, folder: Path) -> Path:
    """Builds the wheel or the sdist of a folder with the build backend of this environment. Returns its file."""
    done = run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source, folder=folder)
    assert 0 == done.returncode, done.stdout + done.stderr
    (built,) = folder.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return built


def names(wheel: Path) -> list[str]:
    """Returns the names of the files in a wheel, sorted."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The file METADATA of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this checkout."""
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


class Newcomer:
    """An environment with the installed wheel, which uses only the dependencies of this environment."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.home = folder
        venv.create(folder / "venv", symlinks=True)
        self.python = folder / "venv/bin/python"
        done = run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", wheel, folder=folder)
        assert 0 == done.returncode, done.stderr

    def __call__(self, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the package, or a module of a dependency."""
        script = self.home / "venv/bin" / command[0]
        start = [script] if script.exists() else [self.python, "-m", command[0]]
        # A folder on PYTHONPATH is not searched for .pth files, so an editable install does not bring the checkout back. The own folder
        # comes first, so that a package that is installed beside the dependencies is not used.
        own = sysconfig.get_path("purelib", "venv", {"base": str(self.home / "venv")})
        dependencies = os.pathsep.join(dict.fromkeys([own, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))]))
        return run(*start, *command[1:], folder=folder, path=dependencies)


@pytest.fixture(scope="module")
def newcomer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    return Newcomer(tmp_path_factory.mktemp("newcomer"), wheel)


@pytest.fixture(scope="module")
def project(newcomer: Newcomer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that `agentbench init banking` created in an empty directory."""
    folder = tmp_path_factory.mktemp("empty")
    done = newcomer(folder, "agentbench", "init", "banking")
    assert 0 == done.returncode, done.stderr
    return folder


def test_contents(wheel: Path, metadata: Message) -> None:
    """The wheel contains the package, its types, the licence, shipped suites, backends, docs and .env.example, and nothing else of the
    checkout.
    """
    shipped = [
        f"scenarios/banking/{name}"
        for name in ("README.md", "bank.py", "banking.json", "personas.json", "suite.yaml", "test_banking.py", "tools.json")
    ]
    shipped.append(".env.example")
    shipped += [f"scenarios/bfcl/{name}" for name in ("README.md", "suite.yaml", "test_bfcl.py")]
    suites = ("hle", "openthoughts", "own", "sessions")
    for folder in (*(ROOT / "scenarios" / name for name in suites), ROOT / "backends", ROOT / "docs"):
        shipped += [str(file.relative_to(ROOT)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    package = [str(file.relative_to(ROOT)) for file in (ROOT / "pytest_agentbench").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    info = f"pytest_agentbench-{metadata['Version']}.dist-info"
    described = [f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")]

    assert sorted([*package, *described, *(f"pytest_agentbench/shipped/{name}" for name in shipped)]) == names(wheel)
    assert {".css", ".js", ".py", ".typed"} == {Path(name).suffix for name in package}


def test_metadata(wheel: Path, sdist: Path, metadata: Message) -> None:
    """The metadata name the licence, the addresses and the versions of Python that CI tests. `twine check --strict` finds no mistake."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        entry_points = archive.read(name).decode()
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    source, site = urls.pop("Source"), urls.pop("Documentation")
    tested = (ROOT / ".ci/run").read_text(encoding="utf-8")
    pythons = [line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if "Python :: " in line]
    checked = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, folder=wheel.parent)

    assert ("Apache-2.0", ["LICENSE", "NOTICE"]) == (metadata["License-Expression"], metadata.get_all("License-File"))
    assert {"Issues": f"{source}/issues", "Changelog": f"{source}/blob/main/CHANGELOG.md"} == urls
    assert f"https://pytest-agentbench.github.io/{source.rpartition('/')[2]}/" == site
    assert ["3.11", "3.12", "3.13"] == pythons
    assert all(re.search(rf"first-steps {re.escape(python)} |in [0-9. ]*{re.escape(python)}\b", tested) for python in pythons)
    assert ">=3.11.5" == metadata["Requires-Python"]
    assert "# pytest-agentbench" in metadata.get_payload()
    assert "agentbench = pytest_agentbench.plugin" in entry_points
    assert "agentbench = pytest_agentbench.cli:main" in entry_points
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_notice() -> None:
    """NOTICE names every shipped suite, and every file of backends/ that names the address or the licence of its source."""
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    suites = [f"scenarios/{folder.name}" for folder in (ROOT / "scenarios").iterdir() if (folder / "suite.yaml").exists()]
    files = [file for file in (ROOT / "backends").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    foreign = [str(file.relative_to(ROOT)) for file in files if re.search(r"SPDX-|^source: http", file.read_text("utf-8"), re.MULTILINE)]

    assert [] == [name for name in (*suites, *foreign) if name not in notice]
    assert (6, 3) == (len(suites), len(foreign))


def test_the_sdist_contains_what_is_tracked(sdist: Path) -> None:
    """The sdist contains every file of the repository, and nothing else."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT)
    if listed.returncode:
        pytest.skip("NOT TESTED: the contents of the sdist; this folder is not a repository of git")
    with tarfile.open(sdist) as archive:
        contained = {name.partition("/")[2] for name in archive.getnames()}

    assert {"PKG-INFO", *(name for name in listed.stdout.splitlines() if (ROOT / name).exists())} == contained


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """The unpacked sdist, in a folder without git, builds a wheel with the same files as the checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()

    assert names(wheel) == names(build("wheel", source, tmp_path))


def test_constraints() -> None:
    """constraints.txt has an exact version of each dependency, and of each extra that it is made for, within the bounds of pyproject.toml.

    `make constraints` writes the file again.
    """
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"--extra (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    required = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    versions: dict[str, list[str]] = {}
    for pin in pins:
        ((operator, version),) = [(each.operator, each.version) for each in pin.specifier]
        assert "==" == operator, pin
        versions.setdefault(pin.name.replace("_", "-"), []).append(version)

    assert len(extras) >= 8
    for requirement in map(Requirement, required):
        pinned = versions[requirement.name.replace("_", "-")]
        assert all(map(requirement.specifier.contains, pinned)), f"{requirement}: {pinned}; run `make constraints`"


#: Imported packages that are a part of another one's interface -> the package that requires them.
BROUGHT = {
    "anyio": "mcp",
    "mcp-types": "mcp",
    "multidict": "aiohttp",
    "pydantic-core": "pydantic",
    "urllib3": "requests",
    "yarl": "aiohttp",
}


def test_imports_are_declared() -> None:
    """Every package that a module imports is a dependency or in an extra, or a dependency requires it for sure."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    packages = packages_distributions()
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "pytest_agentbench").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = {module.partition(".")[0] for module in modules} - {*sys.stdlib_module_names, "pytest_agentbench"}
    imported = {canonicalize_name(name) for top in tops for name in packages.get(top, [top])}

    assert {*BROUGHT} == imported - declared
    for name, parent in BROUGHT.items():
        assert name in {canonicalize_name(Requirement(line).name) for line in requires(parent) or []}, f"{parent} does not require {name}"


@pytest.mark.slow
def test_types(newcomer: Newcomer, tmp_path: Path) -> None:
    """With --strict, mypy finds the types of the installed wheel: it accepts a program of a user, and reports a mistake in it."""
    program = "from pytest_agentbench import Rollout\ndef calls(rollout: Rollout) -> int:\n    return len(rollout.calls)\n"
    (tmp_path / "right.py").write_text(program)
    (tmp_path / "wrong.py").write_text(program.replace("-> int", "-> str"))

    right, wrong = (newcomer(tmp_path, "mypy", "--strict", f"{name}.py") for name in ("right", "wrong"))

    assert (0, "Success: no issues found in 1 source file\n") == (right.returncode, right.stdout), right.stdout + right.stderr
    assert 'wrong.py:3: error: Incompatible return value type (got "int", expected "str")' in wrong.stdout


@pytest.mark.slow
def test_the_checkout_is_out_of_reach(newcomer: Newcomer, tmp_path: Path) -> None:
    """In the new environment, the package is imported from the wheel and not from the checkout, so that the tests below test the wheel."""
    (tmp_path / "where.py").write_text("import pytest_agentbench, sys\nprint(pytest_agentbench.__file__)\nprint(*sys.path)\n")

    place, path = newcomer(tmp_path, "where").stdout.splitlines()

    assert place.startswith(str(newcomer.home))
    assert str(ROOT) not in path.split()


@WAYS
def test_the_suite_runs(newcomer: Newcomer, project: Path, way: tuple[str, ...]) -> None:
    """After `agentbench init banking` in an empty directory, `pytest scenarios/banking` works there, with and without workers."""
    done = newcomer(project, "pytest", "scenarios/banking", "--agentbench-limit", "3", *way)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    measured = json.loads((project / "reports/latest/run.json").read_text())
    assert 3 == measured["suites"]["banking"]["rollouts"]["ok"]
    assert "embedded" == measured["backend"]["name"]


def test_the_documentation_is_found(newcomer: Newcomer, tmp_path: Path) -> None:
    """The help of the installed command names the folder with the pages that schemas and messages mention."""
    lines = newcomer(tmp_path, "agentbench", "--help").stdout.splitlines()

    (folder,) = [Path(line.partition(": ")[2]) for line in lines if line.startswith("Documentation")]
    assert folder.is_relative_to(newcomer.home)
    assert (ROOT / "docs/agents/included-agents.md").read_text() == (folder / "agents/included-agents.md").read_text()


def test_the_version(newcomer: Newcomer, tmp_path: Path) -> None:
    """`agentbench version --json` of the wheel has the hash of this checkout's code, the dependencies of pyproject.toml, and its extras."""
    facts = json.loads(newcomer(tmp_path, "agentbench", "version", "--json").stdout)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["version"], package_hash()) == (facts["version"], facts["code"])
    assert sorted(re.split(r"[>=<;]", line)[0].strip() for line in project["dependencies"]) == sorted(facts["dependencies"])
    assert None not in facts["dependencies"].values()
    assert {"hub", "mcp", "optimize"} <= {*facts["extras"]} <= {*project["optional-dependencies"]}


def test_an_own_suite(newcomer: Newcomer, tmp_path: Path) -> None:
    """The template that `agentbench init own` writes runs at once and passes: an agent, a scorer and tests to be changed."""
    made = newcomer(tmp_path, "agentbench", "init", "own")
    done = newcomer(tmp_path, "pytest", "scenarios/own")

    assert 0 == made.returncode, made.stderr
    assert "now run: pytest scenarios/own" == made.stdout.splitlines()[-1]
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    written = {file.name for file in (tmp_path / "scenarios/own").iterdir() if file.is_file()}
    assert {"agent.py", "scorers.py", "suite.yaml", "data.json", "tools.json", "test_own.py"} <= written


def test_init_again(newcomer: Newcomer, project: Path) -> None:
    """A second `init` overwrites nothing and says that all files exist."""
    before = {file: file.stat().st_mtime_ns for file in (project / "scenarios").rglob("*.*")}

    done = newcomer(project, "agentbench", "init", "banking")

    assert 0 == done.returncode
    assert "11 of 11 files existed already" in done.stdout
    assert before == {file: file.stat().st_mtime_ns for file in (project / "scenarios").rglob("*.*")}


@pytest.mark.slow
def test_an_existing_configuration(newcomer: Newcomer, tmp_path: Path) -> None:
    """In a project with a strict pytest configuration `init` does not change it, and the suite runs under it."""
    (tmp_path / "pyproject.toml").write_text(STRICT)

    made = newcomer(tmp_path, "agentbench", "init", "banking")
    done = newcomer(tmp_path, "pytest", "-m", "banking", "--agentbench-limit", "1", "-p", "no:xdist")

    assert 0 == made.returncode
    assert STRICT == (tmp_path / "pyproject.toml").read_text()
    assert not (tmp_path / "pytest.ini").exists()
    assert 0 == done.returncode, done.stdout + done.stderr


def test_an_unknown_suite(newcomer: Newcomer, tmp_path: Path) -> None:
    """The installed `init` lists the suites in the wheel."""
    done = newcomer(tmp_path, "agentbench", "init", "insurance")

    assert 4 == done.returncode
    assert "agentbench: no example suite 'insurance'; known: banking, bfcl, hle, openthoughts, own, sessions\n" == done.stderr
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_link_to_an_installed_wheel(newcomer: Newcomer, tmp_path: Path) -> None:
    """An environment with this package among its pins links to the installed wheel: modules, shipped data and metadata."""
    link = "from pathlib import Path\nfrom pytest_agentbench.backends.machine.virtual_environments import link_into\nlink_into(Path())\n"
    (tmp_path / "link.py").write_text(link)

    done = newcomer(tmp_path, "link")

    assert 0 == done.returncode, done.stderr
    assert (tmp_path / "pytest_agentbench").resolve().is_relative_to(newcomer.home)
    assert (tmp_path / "pytest_agentbench/shipped/backends/environments/harbor.txt").is_file()
    assert ["METADATA"] == [each.name for each in tmp_path.glob("pytest_agentbench-*.dist-info/METADATA")]
