"""The extension points, implemented in a project's root conftest.py."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.reports.document import Level
from tests.findings import report_of, texts
from tests.project import FIND_THEN_ANSWER, WAYS, Project

CONFTEST = """
import json
import pathlib

HERE = pathlib.Path(__file__).parent

def pytest_agentbench_rollout_finished(rollout):
    with (HERE / "finished.txt").open("a") as told:
        told.write(f"{rollout.key} {rollout.status} {rollout.answer}\\n")

def pytest_agentbench_update_environment(environment):
    environment["gpu"] = "none at all"

def pytest_agentbench_redact(text):
    return text.replace("lamp", "[thing]")

def pytest_agentbench_report(run, directory):
    path = directory / "means.json"
    path.write_text(json.dumps({name: suite.scores["tsq"].mean.value for name, suite in run.suites.items()}))
    return path
"""


@WAYS
def test_hooks_of_the_root_conftest(project: Project, way: tuple[str, ...]) -> None:
    """Hooks get each finished rollout, add to the environment, redact records before they are written or read by tests, and write
    reports.
    """
    project.suite(scenarios=2, test="def test_redacted(rollout):\n    assert 'lamp' not in str(rollout.messages)\n")
    project.write("conftest.py", CONFTEST)

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=2)
    told = sorted((project.root / "finished.txt").read_text().splitlines())
    assert [f"shop[shop-{number}] ok Here is what was found for you." for number in range(2)] == told
    assert "none at all" == project.run_json["environment"]["gpu"]
    assert {"shop": 1.0} == json.loads((project.directory / "means.json").read_text())
    journal, messages = ((project.directory / name).read_text() for name in ("rollouts.jsonl", "messages.jsonl"))
    assert "lamp" not in journal + messages
    assert "is there a [thing]?" in messages


BACKEND = """
from pathlib import Path
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec

class Mine(Embedded):
    def start(self, directory):
        (directory.parent / "started.txt").write_text(self.name)
        return super().start(directory)

def pytest_agentbench_make_backend(config, name):
    if name == "mine":
        script = str(config.rootpath / "backends/embedded.script.yaml")
        limits = {"shop": {"tsq": 0.9}}
        return Mine(EmbeddedSpec(kind="embedded", name="mine", policy="script", script=script, note="made by hand", thresholds=limits))
"""


@pytest.mark.slow
def test_a_backend_of_the_projects_own(project: Project) -> None:
    """A backend made by a hook is started, and its note and thresholds are used."""
    project.suite(scenarios=2, expected=("find_item", "order_item"))
    project.write("conftest.py", BACKEND)

    hooked = project.run("-v", "--agentbench-backend=mine", "scenarios/shop")

    hooked.assert_outcomes(failed=2)
    hooked.stdout.fnmatch_lines(["agentbench: backend mine - made by hand", "*assert 0.667 >= 0.9", "*made by hand"])
    assert "made by hand" in texts(report_of(project.directory, Level.FULL))
    assert "mine" == (project.directory / "started.txt").read_text()
    assert "mine" == project.run_json["backend"]["name"]


@pytest.mark.slow
def test_backends_that_a_hook_does_not_know(project: Project) -> None:
    """A name that the hook does not know is left to the built-in implementation, which knows the names in backends/."""
    project.suite(scenarios=2, expected=("find_item", "order_item"))
    project.write("conftest.py", BACKEND)

    project.run("scenarios/shop").assert_outcomes(passed=2)
    project.run("--agentbench-backend=yours", "scenarios/shop").stderr.fnmatch_lines(["ERROR: no backend 'yours'; known: *embedded*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [(), ("-n", "2"), ("scenarios/shop",), ("-n", "2", "scenarios/shop")], ids=["one-process", "n2", "named", "n2-named"]
)
def test_a_hook_in_a_suites_conftest_is_refused(project: Project, way: tuple[str, ...]) -> None:
    """A hook in a suite's conftest.py is an error that says where it belongs, because the controller may not load that file."""
    project.suite(scenarios=1)
    project.write("scenarios/shop/conftest.py", "def pytest_agentbench_rollout_finished(rollout):\n    raise AssertionError('called')\n")

    result = project.run(*way)

    place = f"move it to {project.root}/conftest.py"
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)
    result.stdout.fnmatch_lines([f"*scenarios/shop/conftest.py: pytest_agentbench_rollout_finished runs in the controller, *; {place}"])
    result.assert_outcomes(errors=1)


@pytest.mark.slow
def test_a_misspelt_hook_is_refused(project: Project) -> None:
    """A hook whose name does not exist is an error."""
    project.suite(scenarios=1)
    project.write("conftest.py", "def pytest_agentbench_rollout_finnished(rollout):\n    pass\n")

    result = project.run("scenarios/shop")

    assert pytest.ExitCode.OK != result.ret
    assert "unknown hook 'pytest_agentbench_rollout_finnished'" in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
@WAYS
def test_a_hook_that_raises_causes_no_hang(project: Project, way: tuple[str, ...]) -> None:
    """If a hook raises, each waiting test is an ERROR that names the place, even if all rollouts have already ended."""
    project.suite(scenarios=2)
    project.backend([{"match": {"contains": "shop-0"}, "text": "No.", "ttft_ms": 400}, *FIND_THEN_ANSWER])
    project.write("conftest.py", "def pytest_agentbench_rollout_finished(rollout):\n    raise ValueError('no space for this')\n")

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*shop[[]shop-?[]]: infra_error: *no space for this* (conftest.py:2)*"])
