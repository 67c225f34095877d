"""`agentbench init`: copies an example suite into a project."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

PYTEST_INI = """\
[pytest]
testpaths = scenarios
addopts = --import-mode=importlib
asyncio_default_fixture_loop_scope = function
"""

ENVIRONMENT = ".env.example"  # lists the environment variables that agentbench reads

#: An editor with a YAML language server finds the keys of a suite.yaml by this line, which is its first, and this file beside it.
SCHEMA_LINE, SCHEMA_FILE = b"# yaml-language-server: $schema=./suite.schema.json\n", "suite.schema.json"

#: A directory with one of these has a pytest configuration of its own.
PYTEST_FILES = ("pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")

FileOutcome = Literal["wrote", "there", "kept"]


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    init = commands.add_parser(
        "init", help="Copy an example suite, its backend and a pytest.ini into this directory", example="agentbench init banking"
    )
    init.add_argument("suite", nargs="?", metavar="SUITE", help="name of an example suite, for example banking (default: list them)")
    init.set_defaults(run=run_init)


def run_init(options: argparse.Namespace) -> None:
    """Copies an example suite into the current directory, or prints the names of all. Existing files stay unchanged."""
    from pytest_agentbench.errors import ConfigError, unknown_name
    from pytest_agentbench.lib.file_system import shipped

    suites = shipped("scenarios")
    known = sorted(file.parent.name for file in suites.glob("*/suite.yaml"))
    if options.suite is None:
        print_suites(suites, known)
        return
    if options.suite not in known:
        raise ConfigError(unknown_name("example suite", options.suite, known))
    write_suite(options.suite)
    print(f"now run: pytest scenarios/{options.suite}")


def write_suite(name: str) -> None:
    """Copies an example suite with its backend and a pytest.ini. Files that exist stay unchanged. Prints what was done."""
    from pytest_agentbench.cli.schema import schema_text
    from pytest_agentbench.lib.file_system import shipped
    from pytest_agentbench.suites.suite import SUITE_FILE

    shipped_folder, folder = shipped("scenarios") / name, Path("scenarios", name)
    sources = [(file, folder / file.relative_to(shipped_folder)) for file in data_files(shipped_folder)]
    sources.append((shipped("backends") / "embedded.yaml", Path("backends/embedded.yaml")))
    sources.append((shipped(ENVIRONMENT), Path(ENVIRONMENT)))
    outcomes: list[tuple[FileOutcome, Path]] = []
    for source, target in sources:
        content = source.read_bytes()
        is_older = target.is_file() and target.read_bytes() == content  # An older version wrote suite.yaml without its first line.
        if target == folder / SUITE_FILE and not is_older:
            content = SCHEMA_LINE + content
        outcomes.append((add_file(target, content, source.stat().st_mode), target))
    outcomes.append((add_file(folder / SCHEMA_FILE, schema_text("suite").encode()), folder / SCHEMA_FILE))
    report([*outcomes, *configuration()])


def configuration() -> list[tuple[FileOutcome, Path]]:
    """Writes pytest.ini, unless the directory has a configuration of pytest.

    Returns [(what was done, file)] as `add_file` does, or an empty list if the configuration is the user's own.
    """
    own = next((file for file in map(Path, PYTEST_FILES) if file.exists()), None)
    if own is None:
        Path("pytest.ini").write_text(PYTEST_INI)
        return [("wrote", Path("pytest.ini"))]
    if own.read_bytes() == PYTEST_INI.encode():
        return [("there", own)]
    print(f"left {own} unchanged; the suite needs no setting in it")
    return []


def print_suites(folder: Path, names: Sequence[str]) -> None:
    """Prints the name and description of each example suite."""
    from pytest_agentbench.lib.config import load_yaml

    for name in names:
        print(f"{name:<12} {load_yaml(folder / name / 'suite.yaml')['description']}")
    print(f"to copy one of them into this directory: agentbench init {names[0]}")


def data_files(folder: Path) -> Iterator[Path]:
    """Yields the files of an example suite."""
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)


def add_file(target: Path, content: bytes, mode: int = 0o644) -> FileOutcome:
    """Writes `target` with these permissions if it does not exist. Raises ConfigError if it cannot be written.

    Returns `wrote`, `there` if the file existed with this content, or `kept` if it existed with another content.
    """
    from pytest_agentbench.errors import ConfigError

    try:
        if target.exists():
            return "there" if target.is_file() and target.read_bytes() == content else "kept"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return "wrote"


def report(outcomes: Sequence[tuple[FileOutcome, Path]]) -> None:
    """Prints a line for each file that was written or that differs from the original, and the number of files that existed already."""
    for outcome, target in outcomes:
        if outcome == "wrote":
            print(f"wrote {target}")
        elif outcome == "kept":
            print(f"kept {target}, which differs from the original in agentbench")
    if existing := sum(outcome == "there" for outcome, _ in outcomes):
        print(f"{existing} of {len(outcomes)} files existed already")
