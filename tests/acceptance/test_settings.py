"""Options, their ini settings and --agentbench-set: their effects, where they are recorded, and errors for wrong values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pytest_agentbench.records import Json
from tests.project import FIND_THEN_ANSWER, WAYS, Project, family


def requests(project: Project) -> list[Json]:
    """Returns the bodies of all requests to the engine."""
    return [json.loads(line) for line in (project.root / "requests.jsonl").read_text().splitlines()]


def logged(project: Project, **keys: Any) -> None:
    project.backend(request_log=str(project.root / "requests.jsonl"), **keys)


def test_sampling_reaches_the_model_and_the_record(project: Project) -> None:
    """temperature, top_p, max_tokens, seed and model are in every request, in every rollout and in run.json.

    A path that begins with `backend.` changes the backend's YAML, here its speed, which the measured TTFT shows.
    """
    project.suite(scenarios=2, agent={"kind": "tool_calling", "temperature": 0.1})
    logged(project, ttft_ms=0)
    wanted: Json = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 77, "seed": 5}
    changes = [f"--agentbench-set=agent.{name}={value}" for name, value in wanted.items()]

    changes += ["--agentbench-set=model=small", "--agentbench-set", "backend.model=small", "--agentbench-set=backend.ttft_ms=150"]
    result = project.run(*changes, "scenarios/shop")

    result.assert_outcomes(passed=2)
    wanted["model"] = "small"
    assert 4 == len(requests(project))
    for body in requests(project):
        assert wanted == {name: body[name] for name in wanted}
    for rollout in project.rollouts:
        assert wanted == {name: rollout.settings[name] for name in wanted}
    changed = project.run_json["settings"]["changes"]
    assert {"agent.temperature": 0.6, "model": "small", "backend.model": "small"}.items() <= changed.items()
    assert {"temperature": 0.6, "model": "small"}.items() <= project.run_json["suites"]["shop"]["agent"].items()
    assert 150 == project.run_json["backend"]["ttft_ms"]
    assert 150 <= project.run_json["performance"]["ttft_ms"]["p50"]


#: Invalid changes of a suite -> the message after the path of its suite.yaml.
REFUSED_CHANGES = {
    "agent": (
        "agent.temprature=0.6",
        "agent: unknown key 'temprature' (did you mean 'temperature'?); known keys of tool_calling: kind, temperature, *",
    ),
    "suite": ("colour=red", "unknown key 'colour'; known keys: name, description, dataset, agent, *"),
    "path": (
        "name.first=x",
        "--agentbench-set name.first: 'first' cannot be set inside 'shop', which is not a mapping; correct the path (as changed by *)",
    ),
    "kind": ("agent.kind=clever", "no agent 'clever'; known: *tool_calling* (as changed by --agentbench-set agent.kind)"),
}


@pytest.mark.slow
@family("change,sentence", REFUSED_CHANGES, "agent")
def test_an_unknown_key_of_a_suite(project: Project, change: str, sentence: str, way: tuple[str, ...]) -> None:
    """An invalid change is a collection error of the suite's tests: one sentence with the file and the known keys."""
    project.suite()

    result = project.run(*way, f"--agentbench-set={change}", "scenarios/shop")

    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)
    result.stdout.fnmatch_lines([f"*scenarios/shop/suite.yaml: {sentence}"])
    assert "pytest_agentbench/" not in result.stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("set=backend.ttft=3", "ERROR: */backends/embedded.yaml: unknown key 'ttft' (did you mean 'ttft_ms'?); known keys: *ttft_ms, *"),
        ("set=backend.policy=magic", "ERROR: *magic*lexical, script*"),
        ("backend=turbo", "ERROR: no backend 'turbo'; known: *embedded* (or give a YAML file, or a URL that starts with http)"),
        ("limit=0", "ERROR: --agentbench-limit 0: must be a whole number from 1 up"),
    ],
)
def test_a_wrong_option(project: Project, option: str, sentence: str) -> None:
    """A wrong option ends the session with one sentence before anything starts. tests/session/test_settings.py has all of them."""
    project.suite()

    result = project.run(f"--agentbench-{option}", "scenarios/shop")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([sentence])
    assert "Traceback" not in result.stderr.str()
    assert not (project.root / "reports").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--agentbench-bakend=embedded", "scenarios/shop"),
            "*--agentbench-bakend: there is no such option (did you mean '--agentbench-backend'?)",
        ),
        (("scenarios/shpo",), "ERROR: file or directory not found: scenarios/shpo (did you mean 'scenarios/shop'?)"),
        (("scenarios/other",), "ERROR: file or directory not found: scenarios/other"),
    ],
    ids=["option", "suite", "nothing similar"],
)
def test_a_misspelt_word(project: Project, words: tuple[str, ...], sentence: str) -> None:
    """For a misspelt option of this plugin or folder of a suite, the error suggests the right one."""
    project.suite()

    result = project.run(*words)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([sentence])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            ("keep-backend=30m", "gpu-wait=1m", "inconclusive=fail", "verdict=tests"),
            ("keep-backend", "gpu-wait", "inconclusive", "verdict"),
        ),
        (("inline", "retries=1", "budget-call=1m", "concurrency=3"), ("retries", "budget-call", "concurrency")),
        (("gate=tsq.mean >= 0", "inconclusive=pass", "retries=1", "concurrency=3"), ()),
    ],
    ids=["no-stack-no-gate", "inline", "all-mean-something"],
)
def test_options_without_effect(project: Project, options: tuple[str, ...], named: tuple[str, ...]) -> None:
    """A valid option without effect in this session is a warning that says why. The session is otherwise unchanged."""
    project.suite(scenarios=1)

    result = project.run(*(f"--agentbench-{option}" for option in options), "scenarios/shop")

    result.assert_outcomes(passed=1, warnings=len(named))
    assert sorted(named) == sorted(re.findall(r"--agentbench-(\S+) has no effect: it applies to ", result.stdout.str()))


@pytest.mark.slow
def test_variables_that_nothing_reads(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt environment variable is a warning that lists the known ones. A variable that a YAML names for a key is not."""
    for name in ("AGENTBENCH_BAKEND", "AGENTBENCH_KEY", "AGENTBENCH_SCENARIO"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/v1")
    project.suite(scenarios=1, roles={"expert": {"url": "http://127.0.0.1:1/v1", "model": "m", "api_key": "AGENTBENCH_KEY"}})

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*the environment variable AGENTBENCH_BAKEND is set, but agentbench does not read it; known variables: *_ENVS, *"]
    )


@pytest.mark.slow
@WAYS
def test_variants(project: Project, way: tuple[str, ...]) -> None:
    """Variants run in addition to the suite's own agent, each with its settings, and their ids contain the variant."""
    project.suite(scenarios=2, variants={"hot": {"agent": {"temperature": 1.5}}, "cold": {"agent": {"temperature": 0.0}}})

    result = project.run(*way, "--agentbench-variants=default,hot", "--agentbench-trials=2", "-k", "shop-1", "scenarios/shop")

    result.assert_outcomes(passed=4, deselected=0 if way else 4)
    temperatures = {rollout.key.id: rollout.settings.get("temperature") for rollout in project.rollouts}
    assert {"shop-1": None, "shop-1-t2": None, "shop-1-hot": 1.5, "shop-1-hot-t2": 1.5} == temperatures


@pytest.mark.slow
def test_all_variants(project: Project) -> None:
    """`all` selects the suite's own agent and all of its variants."""
    project.suite(scenarios=1, variants={"hot": {"agent": {"temperature": 1.5}}, "cold": {"agent": {"temperature": 0.0}}})

    result = project.run("--agentbench-variants=all", "--collect-only", "-q", "scenarios/shop")

    tests = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert ["test_tools[shop-0]", "test_tools[shop-0-hot]", "test_tools[shop-0-cold]"] == tests


@pytest.mark.slow
def test_an_unknown_variant(project: Project) -> None:
    """A variant that a suite does not have is a collection error of its tests."""
    project.suite(variants={"hot": {"agent": {"temperature": 1.5}}, "cold": {"agent": {"temperature": 0.0}}})

    result = project.run("--agentbench-variants=warm", "scenarios/shop")

    result.stdout.fnmatch_lines(["*scenarios/shop/suite.yaml: no variant 'warm'; known: cold, default, hot, or `all`"])
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)


INI = """[pytest]
addopts = --import-mode=importlib
asyncio_default_fixture_loop_scope = function
agentbench_limit = 1
agentbench_trials = 2
agentbench_reports = measured
agentbench_set =
    agent.temperature=0.6
    agent.seed=3
agentbench_threshold = tsq=0.9
"""


@pytest.mark.slow
def test_ini_settings(project: Project) -> None:
    """Every option has an ini setting, which the command line overrides. tests/session/test_settings.py has all of them."""
    project.suite(expected=("find_item", "order_item"))
    project.write("pytest.ini", INI)
    (project.root / "tox.ini").unlink()

    over = ("--agentbench-trials=1", "--agentbench-set=agent.seed=4", "--agentbench-threshold=tsq=0.5")
    project.run(*over, "scenarios/shop").assert_outcomes(passed=1)

    settings = json.loads((project.root / "measured/latest/run.json").read_text())["settings"]
    assert (1, 1, {"tsq": 0.5}) == (settings["limit"], settings["trials"], settings["thresholds"])
    assert {"agent.seed": 4} == settings["changes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "asked", "peak"),
    [
        pytest.param((), None, 6, id="one-process"),
        pytest.param((), 2, 2, id="one-process-2", marks=pytest.mark.slow),
        pytest.param(("-n", "2"), None, 2, id="n2", marks=pytest.mark.slow),
        pytest.param(("-n", "2"), 5, 5, id="n2-5"),
    ],
)
def test_concurrency(project: Project, way: tuple[str, ...], asked: int | None, peak: int) -> None:
    """As many rollouts are in flight as there are workers, or 8 in one process, or as --agentbench-concurrency says. run.json has both
    numbers.
    """
    project.suite(scenarios=6)
    project.backend([{"ttft_ms": 400, **rule} for rule in FIND_THEN_ANSWER])
    chosen = () if asked is None else (f"--agentbench-concurrency={asked}",)

    result = project.run(*way, *chosen, "scenarios/shop")

    result.assert_outcomes(passed=6)
    assert peak == project.run_json["performance"]["rollouts_in_flight"]["peak"]
    assert (asked or (2 if way else 8)) == project.run_json["settings"]["concurrency"]
    result.stdout.fnmatch_lines([f"agentbench: {asked or (2 if way else 8)} rollouts in flight, *"])
