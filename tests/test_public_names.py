"""The public names of the package, and the cost of importing it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_agentbench
from pytest_agentbench.reports.sections import ENTRY_POINTS as SECTIONS
from pytest_agentbench.rollouts.checks import ENTRY_POINTS as CHECKS
from tests.project import ALONE

#: Libraries, and the records of a whole run, that no session may load before it needs them.
HEAVY = "httpx aiohttp pydantic pandas matplotlib docker openai yaml asyncio psutil numpy mcp pytest_agentbench.runs.run_file"

DOCS = [*Path(__file__).parents[1].glob("docs/**/*.md"), Path(__file__).parents[1] / "README.md"]


def loaded(*statements: str) -> set[str]:
    """Returns the heavy libraries that are loaded after these statements in a new process."""
    code = "; ".join(["import sys", *statements, f"print(*sys.modules.keys() & set({HEAVY.split()}))"])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_public_names_exist() -> None:
    """Each public name exists."""
    for name in pytest_agentbench.__all__:
        assert getattr(pytest_agentbench, name) is not None


def test_names_on_pages_are_public() -> None:
    """Pages import only public names from the package itself, so that everything else may move."""
    lines = [line.strip() for page in DOCS for line in page.read_text(encoding="utf-8").splitlines()]
    imports = [line for line in lines if re.match(r"(from|import) pytest_agentbench\b", line)]
    shown = {name.strip() for line in imports for name in line.removeprefix("from pytest_agentbench import ").split(",")}
    named = {name for line in lines for name in re.findall(r"`pytest_agentbench\.(\w+)", line)}

    assert len(imports) > 10
    assert set() == shown - set(pytest_agentbench.__all__)
    groups = {each.removeprefix("pytest_agentbench.") for each in (CHECKS, SECTIONS)}  # groups of entry points
    assert groups == named - set(pytest_agentbench.__all__)


@pytest.mark.parametrize("module", ["plugin", "session.worker", "session.fixtures", "session.hookspecs", "session.settings"])
def test_imports_are_light(module: str) -> None:
    """The plugin and the modules of a worker import no heavy library that pytest itself does not import."""
    assert set() == loaded("import pytest", f"import pytest_agentbench.{module}") - loaded("import pytest")


@pytest.mark.parametrize(
    ("module", "libraries"),
    [
        ("rollouts.pool", {"aiohttp", "asyncio"}),
        ("rollouts.isolation", {"aiohttp", "asyncio"}),
        ("tap", {"asyncio"}),
        ("engine", {"aiohttp", "asyncio", "pydantic"}),
    ],
)
def test_processes_are_light(module: str, libraries: set[str]) -> None:
    """Each process that a session starts imports only the libraries that it needs."""
    assert libraries == loaded(f"import pytest_agentbench.{module}.__main__")


def test_a_node_worker_is_light() -> None:
    """`agentbench worker` loads no module of another command, and its two processes only the libraries that they need."""
    joining = "main(['worker', '--join', '127.0.0.1:1', '--token-file', 'missing'])"

    assert set() == loaded("from pytest_agentbench.cli import main", joining)
    assert {"aiohttp", "asyncio"} == loaded("import pytest_agentbench.rollouts.nodes.runner")


def test_a_project_without_suites_is_light(tmp_path: Path) -> None:
    """In a project without suites, a session loads no heavy library and no module of a run."""
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")

    def session(*words: str) -> set[str]:
        return loaded("import pytest", f"pytest.main({[str(tmp_path), *ALONE, *words]!r})")

    assert set() == session() - session("-p", "no:agentbench")


def test_the_package_is_light() -> None:
    """Names of heavier modules are imported on first use, and then without a heavy library."""
    assert set() == loaded("import pytest_agentbench")
    assert set() == loaded("from pytest_agentbench import LLM, Scenario, Toolbox")
    with pytest.raises(AttributeError, match="module 'pytest_agentbench' has no attribute 'Tolbox'"):
        pytest_agentbench.Tolbox  # noqa: B018


def test_the_package_needs_no_pytest() -> None:
    """The public names can be imported without pytest."""
    run = [sys.executable, "-c", "import pytest_agentbench, sys; sys.exit('pytest' in sys.modules)"]

    assert 0 == subprocess.run(run, check=False).returncode


def test_pandas_is_imported_in_one_place() -> None:
    """Data frames are made by `load`. All other code uses numpy's arrays."""
    package = Path(pytest_agentbench.__file__).parent
    users = [
        str(file.relative_to(package))
        for file in sorted(package.rglob("*.py"))
        if re.search(r"^ *(import|from) pandas\b", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert ["tables/__init__.py"] == users
    assert set() == loaded("from pytest_agentbench import load; load.__name__") & {"pandas", "matplotlib"}
    imports = "from pytest_agentbench.metrics import columns", "from pytest_agentbench import tables"
    assert "pandas" in loaded(*imports, "tables._frame(columns.Growth('t', ()).table())")


def test_heavy_libraries_are_detected() -> None:
    """The measurement above detects a loaded library."""
    assert {"pydantic", "yaml"} <= loaded("import pydantic, yaml")
