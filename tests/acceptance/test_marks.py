"""A suite's name marks its tests, so it must not be a mark that has a meaning already."""

from __future__ import annotations

import pytest

from tests.project import WAYS, Project

LOSING = "def test_it(rollout): assert False\n"


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("name", ["xfail", "skip"])
def test_no_false_green(project: Project, way: tuple[str, ...], name: str) -> None:
    """A suite named `skip` or `xfail` is a collection error, because otherwise its failing tests would pass."""
    project.suite(name, test=LOSING + "def test_without_rollouts(): assert False\n", thresholds={})

    result = project.run(*way, f"scenarios/{name}")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*scenarios/{name}/suite.yaml: name: '{name}' is a mark that *; take another name, such as {name}_suite"])
    assert not (project.root / "reports").exists()


@WAYS
def test_a_folder_named_like_a_mark(project: Project, way: tuple[str, ...]) -> None:
    """A suite that cannot run is named after its folder. That name does not mark its other tests if the mark has a meaning."""
    project.suite("xfail", test="def test_without_rollouts(): assert False\n", only_when_named=True)

    result = project.run(*way, "scenarios")

    result.assert_outcomes(failed=1)


@pytest.mark.slow
def test_marks_of_plugins(project: Project) -> None:
    """A marker that a plugin or conftest.py registers cannot be a suite's name. One that only the ini file declares can."""
    for name in ("slow", "declared"):
        project.suite(name, scenarios=1)
    project.write("conftest.py", "def pytest_configure(config):\n    config.addinivalue_line('markers', 'slow(why): left out today')\n")
    ini = project.root / "tox.ini"
    ini.write_text(ini.read_text() + "\nmarkers =\n    declared: the suite of that name\n")

    result = project.run("--strict-markers", "--continue-on-collection-errors", "scenarios")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*scenarios/slow/suite.yaml: name: 'slow' is a mark that pytest or a plugin acts upon, *"])
    result = project.run("--agentbench-set=name=timeout", "scenarios/declared")
    result.stdout.fnmatch_lines(["*scenarios/declared/suite.yaml: name: 'timeout' is a mark that *"])


@pytest.mark.slow
def test_a_name_that_no_mark_can_have(project: Project) -> None:
    """Marks of pytest cannot begin with `_`, so such a name is an error in one sentence, also if the suite is broken otherwise."""
    project.suite("_shop")
    project.suite("_other", scorers=["tqs"], thresholds={})

    result = project.run("scenarios")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*scenarios/_shop/suite.yaml: name: must be letters, digits and `_`, with a letter first, not '_shop'"])
