"""Tests mirror the source, so that the tests of a module can be found without a search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest_agentbench

TESTS = Path(__file__).parent
PACKAGE = Path(pytest_agentbench.__file__).parent

#: The layers that have tests, and the benchmarks, whose source is next to tests/.
LAYERS = {path.name: path for path in PACKAGE.iterdir() if path.name.isidentifier() and (TESTS / path.name).is_dir()}
SOURCES = {**LAYERS, "benchmarks": TESTS.parent / "benchmarks"}

#: Programs in tests/ that write files of one layer. Their tests are in that layer.
PROGRAMS = {"reports": {"example"}, "runs": {"generated"}}


def modules(folder: Path) -> set[str]:
    """Returns the names that test files of a folder may have: its modules, its folders, and itself for `__init__`."""
    files = {path.stem.strip("_") for path in folder.glob("*.py") if path.stem != "__init__" and not path.stem.startswith("test_")}
    return files | {path.name for path in folder.glob("[a-z]*/")} | {folder.name}


def faults(file: Path) -> Iterator[str]:
    """Yields a sentence if no module has the name of a test file. `file` is relative to tests/."""
    layer = file.parts[0]
    folder = SOURCES[layer].joinpath(*file.parts[1:-1])
    known = (modules(folder) | PROGRAMS.get(file.parent.as_posix(), set())) if folder.is_dir() else set()
    name = file.stem.removeprefix("test_")
    if not any(f"{name}_".startswith(f"{module}_") for module in known):
        yield (
            f"tests/{file.as_posix()}: no module of {folder.relative_to(TESTS.parent).as_posix()}/ has this name; call it test_MODULE.py "
            "or test_MODULE_TOPIC.py for the module that it tests, in the folder where that is; whole sessions stand in tests/acceptance"
        )


def test_each_test_file_is_named_after_its_module() -> None:
    """In the layers, a test file is test_MODULE.py or test_MODULE_TOPIC.py, and its folder is that of the module."""
    files = [path.relative_to(TESTS) for layer in SOURCES for path in sorted((TESTS / layer).rglob("test_*.py"))]

    assert len(files) > 200
    assert [] == [fault for file in files for fault in faults(file)]


def test_a_wrong_name_is_a_sentence() -> None:
    """A wrong name yields a sentence about the right one. A module's own file, a topic of it, a folder and `__init__` are valid names."""
    wrong = ("scorers/test_weaknesses.py", "scorers/test_regexes.py", "scorers/nat/test_tsq.py", "tap/test_chat.py")
    right = ("scorers/test_regex.py", "scorers/test_regex_flags.py", "suites/test_datasets.py", "tap/test_tap.py", "tap/test_main.py")

    assert "tests/scorers/test_weaknesses.py: no module of pytest_agentbench/scorers/ has this name; call it test_MODULE.py " in next(
        faults(Path(wrong[0]))
    )
    assert [] == [fault for file in right for fault in faults(Path(file))]
    assert [1] * len(wrong) == [len([*faults(Path(file))]) for file in wrong]
