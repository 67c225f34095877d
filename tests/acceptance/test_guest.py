"""The installed plugin is invisible to projects without suites: pytest's output is the same with and without it, also with other
plugins.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project import OTHER_PLUGINS, TEST_FILE, WAYS, Project

STRICT = """[pytest]
addopts = --import-mode=importlib --strict-markers -p their_plugin -p no:cacheprovider
pythonpath = .
filterwarnings =
    error
    default::UserWarning
markers =
    rollout: a mark of theirs
asyncio_mode = auto
"""
SCOPE = "asyncio_default_fixture_loop_scope = function\n"
ENVIRONMENT = "env =\n    OF_THEIRS = a value of theirs\n"

#: This project uses our names for its own things: in a plugin, in conftest.py, in marks and in classes.
THEIRS = {
    "their_plugin.py": """
import pytest

@pytest.fixture
def backend():
    return "a backend of their plugin"

@pytest.fixture(scope="session")
def suite():
    return {"name": "a suite of their plugin"}
""",
    "tests/conftest.py": """
import pytest

def pytest_generate_tests(metafunc):
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", ["calm", "storm"])
    if "_rollout_key" in metafunc.fixturenames:
        metafunc.parametrize("_rollout_key", [1, 2])

@pytest.fixture
def rollout():
    return "a rollout of theirs"

@pytest.fixture(autouse=True)
def thresholds():
    return 0.5
""",
    "tests/test_theirs.py": '''
import gc
import os
import unittest
import warnings

import pytest
from hypothesis import given, strategies

def test_scenario(scenario, rollout, thresholds):
    assert (scenario in ("calm", "storm"), rollout, thresholds) == (True, "a rollout of theirs", 0.5)

def test_key(_rollout_key):
    assert _rollout_key in (1, 2)

@pytest.mark.rollout
def test_plugin(backend, suite):
    assert (backend, suite["name"]) == ("a backend of their plugin", "a suite of their plugin")

def test_absent(llm):
    """No fixture of theirs has this name."""

def test_fails():
    score = 0.25
    print("of what was loaded, kept from collections of garbage:", gc.get_freeze_count())
    assert score >= 0.5, "\\x1b[31mred"

async def test_async(tmp_path):
    assert tmp_path

@pytest.mark.anyio
async def test_anyio(anyio_backend):
    assert anyio_backend

def test_others(mocker, record_property):
    record_property("of", "theirs")
    assert mocker.patch("os.getcwd", return_value="theirs") and os.getcwd() == "theirs"
    assert os.environ["OF_THEIRS"] == "a value of theirs"

@given(strategies.integers())
def test_given(number):
    assert number == number

@pytest.mark.flaky(reruns=1)
def test_flaky(pytestconfig, request):
    assert getattr(pytestconfig, "again", setattr(pytestconfig, "again", True))

@pytest.mark.timeout(60)
def test_benchmark(benchmark):
    benchmark(lambda: None)

def test_warns():
    warnings.warn("theirs")

@pytest.mark.xfail(reason="theirs")
def test_xfails():
    raise RuntimeError

@pytest.mark.skip(reason="theirs")
def test_skipped():
    pass

class Theirs(unittest.TestCase):
    def test_one(self):
        for number in range(2):
            with self.subTest(number=number):
                assert number == 0
''',
}

EVERY_PLUGIN = [word for name in OTHER_PLUGINS for word in ("-p", name)]
SEED = ("--randomly-seed=7",)

#: Command lines that users of such a project might use.
DOINGS = [
    pytest.param(("--benchmark-disable", "--cov=tests", "--html=theirs.html", "-rA"), id="everything"),
    pytest.param(("-n", "2", "--dist=loadfile", "--benchmark-disable", "-v"), id="workers", marks=pytest.mark.slow),
    pytest.param(("--co", "-q"), id="collect", marks=pytest.mark.slow),
    pytest.param(("--fixtures",), id="fixtures"),
    pytest.param(("--markers",), id="markers"),
]


@pytest.fixture
def theirs(project: Project) -> Project:
    (project.root / "tox.ini").unlink()
    project.write("pytest.ini", STRICT + SCOPE + ENVIRONMENT)
    for name, text in THEIRS.items():
        project.write(name, text)
    return project


@pytest.mark.slow
@pytest.mark.parametrize("arguments", DOINGS)
def test_nothing_changes(theirs: Project, arguments: tuple[str, ...]) -> None:
    """Output, errors and exit status are the same with and without the plugin, except for its name in the list of plugins."""
    without = theirs.run(*EVERY_PLUGIN, "-p", "no:agentbench", *SEED, *arguments)
    beside = theirs.run(*EVERY_PLUGIN, *SEED, *arguments)

    assert [*map(stable, without.outlines)] == [*map(stable, beside.outlines)]
    assert (without.ret, without.errlines) == (beside.ret, beside.errlines)
    assert "agentbench-" in beside.stdout.str() or not any(line.startswith("plugins: ") for line in beside.outlines)
    assert not (theirs.root / "reports").exists()


def stable(line: str) -> str:
    """Returns a line of pytest without our name, times, and whatever differs between processes."""
    line = re.sub(r"(, )?agentbench-[\w.]+|(?<=plugins: ), |(, )?'agentbench': '[\w.]+'", "", line)
    line = re.sub(r"\d+\.\d+ ?m?s\b|0x[0-9a-f]+|runpytest-\d+|pytest-\d+/|using -?-?p.*", "~", line)
    line = re.sub(r"^\[gw\d\] (\[ *\d+%\]|(?=linux))", "[gw] ", line)
    return line.strip("=_ ")


@WAYS
def test_strict_projects_live(theirs: Project, way: tuple[str, ...]) -> None:
    """The deprecation warning of pytest-asyncio, which is installed with us, does not end a session, and its option remains unset."""
    theirs.write("pytest.ini", STRICT)
    theirs.write(
        "tests/test_theirs.py", "def test_scope(pytestconfig): assert not pytestconfig.getini('asyncio_default_fixture_loop_scope')\n"
    )

    result = theirs.run(*way[:2], "-W", "error")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*PytestDeprecationWarning*")
    result.stderr.no_fnmatch_line("*PytestDeprecationWarning*")


@pytest.mark.slow
@WAYS
def test_suites_beside_their_tests(theirs: Project, way: tuple[str, ...]) -> None:
    """In a session with suites, our fixtures apply only to tests of suites, and a suite's conftest.py can override them."""
    (theirs.root / "tests" / "test_theirs.py").write_text("def test_scenario(scenario, rollout, backend): assert 'theirs' in rollout\n")
    theirs.suite("shop", scenarios=1, test=TEST_FILE + "\ndef test_backend(backend): assert backend.model\n")
    theirs.suite("bank", scenarios=1, test="def test_own(rollout): assert rollout == 'bank-0!'\n")
    conftest = "import pytest\n@pytest.fixture\ndef rollout(rollout): return rollout.scenario + '!'\n"
    assert Path(theirs.write("scenarios/bank/conftest.py", conftest)).is_file()

    theirs.run(*way).assert_outcomes(passed=5)


@pytest.mark.slow
def test_a_suite_that_is_the_whole_project(project: Project) -> None:
    """A suite in pytest's root directory has our fixtures, and its conftest.py can override them."""
    project.suite(scenarios=2, test=f"{TEST_FILE}\ndef test_suite(suite): assert suite == 'ours'\n")
    for file in (project.root / "scenarios" / "shop").iterdir():
        file.rename(project.root / file.name)
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef suite(suite): return 'ours' if suite.name == 'shop' else ''\n")

    project.run("test_shop.py").assert_outcomes(passed=3)
