"""Selection of tests and rollouts by pytest's own options, with and without workers."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports.document import Level, Measure
from tests.findings import facts, reasons, report_of, rules, under
from tests.project import BOTH_WAYS, FIND_THEN_ANSWER, WAYS, Project, family


def ran(project: Project) -> list[str]:
    """Returns the rollouts in the journal, sorted. A rollout that ran twice is listed twice."""
    return sorted(str(rollout.key) for rollout in project.rollouts)


@pytest.mark.parametrize(
    "way",
    [
        ("-p", "no:xdist"),
        *(pytest.param(way, marks=pytest.mark.slow) for way in [(), ("-n", "0"), ("-n", "2")]),
    ],
    ids=["no-xdist", "plain", "n0", "n2"],
)
def test_a_marker_selects_a_suite_from_the_project_root(project: Project, way: tuple[str, ...]) -> None:
    """`-m shop` without a path runs only the tests of that suite, and its marker is registered."""
    project.suite("shop", scenarios=2)
    project.suite("bank", scenarios=2)

    result = project.run(*way, "-m", "shop", "--strict-markers", "-W", "error::pytest.PytestUnknownMarkWarning")

    result.assert_outcomes(passed=2, deselected=0 if "2" in way else 2)
    assert ["shop[shop-0]", "shop[shop-1]"] == ran(project)
    assert ["shop"] == [*project.run_json["suites"]]


@pytest.mark.slow
@WAYS
def test_a_misspelt_suite(project: Project, way: tuple[str, ...]) -> None:
    """If -m selects nothing, the empty run directory is removed, and the unknown words are named."""
    project.suite("shop", scenarios=1)
    project.suite("bank", scenarios=1)

    result = project.run(*way, "-m", "shpo or slow(level=2)")
    quiet = project.run(*way, "-q", "-m", "not (shop or bank)")

    assert (5, 5) == (result.ret, quiet.ret)
    assert [] == [*(project.root / "reports").glob("2*")]
    lines = result.stdout.get_lines_after("*run directory reports/*")
    result.stdout.fnmatch_lines(["agentbench: no rollout was requested, so the run directory reports/2* was removed"])
    told = [line for line in lines if "agentbench: -m" in line]
    why = "is neither a suite of this session nor a registered marker; suites: bank, shop"
    assert [f"agentbench: -m: 'shpo' {why}", f"agentbench: -m: 'slow' {why}"] == told
    assert "agentbench: " not in quiet.stdout.str()


@pytest.mark.slow
@WAYS
def test_keywords_ids_and_deselection(project: Project, way: tuple[str, ...]) -> None:
    """-k, test ids and --deselect choose rollouts. Other rollouts do not run, and a rule about the mean is inconclusive."""
    project.suite(scenarios=5, thresholds={"tsq": 0.5, "tsq.mean": 0.9})
    ids = [f"scenarios/shop/test_shop.py::test_tools[shop-{number}]" for number in range(5)]

    result = project.run(*way, "-k", "not shop-1", "--deselect", ids[0], *ids[:4])

    result.assert_outcomes(passed=2, deselected=0 if way else 2)
    assert ["shop[shop-2]", "shop[shop-3]"] == ran(project)
    report = report_of(project.directory, Level.SUMMARY)
    assert [("shop", "tsq.mean >= 0.9 of run", "INCONCLUSIVE", 1.0)] == rules(report)
    [reason] = reasons(report)
    assert reason.startswith("only 2 of 5 scenarios were measured, and a verdict needs 80 %; to judge only this part, ")
    assert (0, "INCONCLUSIVE") == (result.ret, project.run_json["verdict"])


@pytest.mark.slow
@WAYS
def test_several_suites_in_one_run(project: Project, way: tuple[str, ...]) -> None:
    """Several suites can share a session. Each has its marker, its thresholds and its part of run.json."""
    project.suite("shop", scenarios=2, thresholds={"tsq": 0.5, "tsq.mean": 0.6})
    project.suite("bank", scenarios=1, expected=("find_item", "order_item"), thresholds={"tsq": 0.1, "tsq.mean": 0.2})

    result = project.run(*way, "scenarios/shop", "scenarios/bank")

    result.assert_outcomes(passed=3)
    suites = project.run_json["suites"]
    assert {"shop": 2, "bank": 1} == {name: suite["rollouts"]["ok"] for name, suite in suites.items()}
    assert {"shop": 0.6, "bank": 0.2} == {name: suite["thresholds"]["tsq.mean"] for name, suite in suites.items()}
    assert [("shop", "PASS"), ("bank", "PASS")] == [(rule["suite"], rule["verdict"]) for rule in project.run_json["gate"]["rules"]]
    result.stdout.fnmatch_lines(["agentbench: suites shop (2 scenarios), bank (1 scenario)"])
    report = report_of(project.directory, Level.SUMMARY)
    assert [[2], [1]] == [[suite.rollouts["ok"] for (suite,) in under(report, name)] for name in ("shop", "bank")]
    means = [fact.content for name in ("shop", "bank") for fact in facts(report, f"{name} tsq")]
    assert ["1.000", "0.667"] == [f"{mean.value:.3f}" for mean in means if isinstance(mean, Measure)]


@pytest.mark.slow
def test_two_suites_of_one_name_are_refused(project: Project) -> None:
    """The name is the marker and part of every key, so a second suite with the same name is a usage error that names both files."""
    project.suite("shop", scenarios=1)
    project.suite("kiosk", scenarios=1)
    (project.root / "scenarios/kiosk/suite.yaml").write_text((project.root / "scenarios/shop/suite.yaml").read_text())

    result = project.run("scenarios")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: two suites are named 'shop': *kiosk/suite.yaml and *shop/suite.yaml; rename one of them"])
    assert not (project.root / "reports").exists()


#: Each test records which worker ran it.
TWO_TESTS = """
import pathlib

def note(name, worker):
    pathlib.Path(__file__).with_name(f"{name}.{worker}").touch()

def test_tools(rollout, worker_id):
    assert rollout.tools == ["find_item"]
    note("tools", worker_id)

def test_answer(rollout, worker_id):
    assert rollout.answer
    note("answer", worker_id)
"""


@pytest.mark.slow
@BOTH_WAYS
def test_two_tests_on_one_rollout_run_it_once(project: Project, way: tuple[str, ...]) -> None:
    """Tests share their scenario's rollout, also on different workers. --dist load gives each worker one of two tests."""
    project.suite(scenarios=1, test=TWO_TESTS)

    result = project.run(*way, *(("--dist", "load") if way else ()), "scenarios/shop")

    result.assert_outcomes(passed=2)
    assert ["shop[shop-0]"] == ran(project)
    workers = ["gw0", "gw1"] if way else ["master", "master"]
    assert workers == sorted(
        path.suffix.removeprefix(".") for name in ("tools", "answer") for path in (project.root / "scenarios/shop").glob(f"{name}.*")
    )


@pytest.mark.slow
@WAYS
def test_tests_without_a_rollout(project: Project, way: tuple[str, ...]) -> None:
    """A test with `scenario` but without `rollout` is parametrized and runs no rollout.

    A test with neither is an ordinary test of the suite.
    """
    test = """
def test_scenario(scenario):
    assert scenario.id in scenario.messages[0]["content"]
    assert [tool.name for tool in scenario.tools] == ["find_item", "order_item", "return_item"]
    assert scenario.expected[0]["tool"] == "find_item"

def test_ordinary(request):
    assert request.node.get_closest_marker("shop")
"""
    project.suite(scenarios=2, test=test)

    result = project.run(*way, "-m", "shop", "scenarios/shop")

    result.assert_outcomes(passed=3)
    assert not (project.root / "reports/latest").exists()


SKIPS = """
import pytest

@pytest.mark.skip
def test_skip(rollout):
    raise AssertionError

@pytest.mark.skipif(condition=True, reason="always")
def test_skipif(rollout):
    raise AssertionError

@pytest.mark.skipif(False, True, reason="one of them")
def test_one_of_two(rollout):
    raise AssertionError

@pytest.mark.skipif(reason="without a condition")
def test_no_condition(rollout):
    raise AssertionError

@pytest.mark.xfail(run=False)
def test_not_run(rollout):
    raise AssertionError

def test_without(suite):
    pass
"""


@pytest.mark.slow
def test_skipped_tests_are_not_in_the_plan(project: Project) -> None:
    """No rollout runs for tests that are skipped by marks or expected to fail without being run. Without a threshold the session passes."""
    project.suite(scenarios=2, test=SKIPS, thresholds={})

    result = project.run("scenarios/shop")

    result.assert_outcomes(skipped=8, xfailed=2, passed=1)
    assert pytest.ExitCode.OK == result.ret
    assert [] == project.rollouts
    assert {"rollouts": 0, "finished": 0, "not_run": 0} == project.run_json["plan"]


@pytest.mark.slow
def test_limit_and_trials(project: Project) -> None:
    """--agentbench-limit takes the first scenarios, and --agentbench-trials repeats each. Means are over scenarios, not rollouts."""
    project.suite(scenarios=5)
    project.backend([{"match": {"contains": "shop-1", "call": 1}, "text": "No."}, *FIND_THEN_ANSWER], max_concurrency=1)

    result = project.run("--agentbench-limit=3", "--agentbench-trials=3", "-v", "scenarios/shop")

    result.assert_outcomes(passed=8, failed=1)
    assert sorted(f"shop[shop-{number}{trial}]" for number in range(3) for trial in ("", "-t2", "-t3")) == ran(project)
    for id in ("shop-0", "shop-0-t2", "shop-0-t3"):
        result.stdout.fnmatch_lines([f"*test_tools[[]{id}[]]*"])
    mean = project.run_json["suites"]["shop"]["scores"]["tsq"]["mean"]
    assert 3 == mean["scenarios"]
    assert (1 + 2 / 3 + 1) / 3 == pytest.approx(mean["value"])


TESTS = "scenarios/shop/test_shop.py::test_tools"

#: Options that select tests -> the first two scenarios that they leave.
SELECTIONS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "k": (("-k", "not shop-0"), ["1", "2"]),
    "k-or": (("-k", "shop-4 or shop-2 or shop-3"), ["2", "3"]),
    "deselect": (("--deselect", f"{TESTS}[shop-1]"), ["0", "2"]),
    "mark": (("-m", "shop"), ["0", "1"]),
    "shuffled": (("-p", "randomly"), ["0", "1"]),
    "node-ids": (tuple(f"{TESTS}[shop-{number}]" for number in (4, 3, 2)), ["2", "3"]),
}


@pytest.mark.slow
@family("selection,expected", SELECTIONS, "shuffled")
def test_the_limit_counts_what_is_selected(project: Project, way: tuple[str, ...], selection: tuple[str, ...], expected: list[str]) -> None:
    """--agentbench-limit takes the first of the scenarios that other options have selected, in the order of the data set."""
    project.suite(scenarios=5)
    paths = () if "::" in selection[0] else ("scenarios/shop",)

    result = project.run(*way, "--agentbench-limit=2", *selection, *paths)

    result.assert_outcomes(passed=2, **({} if way else {"deselected": 3 if paths else 1}))
    assert [f"shop[shop-{number}]" for number in expected] == ran(project)
    assert {"rollouts": 2, "finished": 2, "not_run": 0} == project.run_json["plan"]


@pytest.mark.slow
@WAYS
def test_the_limit_counts_what_failed_last(project: Project, way: tuple[str, ...]) -> None:
    """`--lf` runs only the rollouts of failed tests. --agentbench-limit counts them for each variant, and takes all their trials."""
    project.suite(scenarios=5, variants={"warm": {"agent": {"temperature": 1.0}}})
    project.backend([{"match": {"contains": f"shop-{number}:"}, "text": "No."} for number in (1, 2, 3, 4)] + FIND_THEN_ANSWER)
    both = ("--agentbench-variants=default,warm", "scenarios/shop")
    project.run(*way, *both).assert_outcomes(passed=2, failed=8)

    result = project.run(*way, "--lf", "--agentbench-limit=2", "--agentbench-trials=2", "-k", "not shop-1", *both)

    result.assert_outcomes(failed=4)
    assert ["shop[shop-2-warm]", "shop[shop-2]", "shop[shop-3-warm]", "shop[shop-3]"] == ran(project)


@pytest.mark.slow
def test_from_another_directory(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session may be started below the project's root: the backend is found, and paths are relative to the current directory."""
    project.suite(scenarios=1)
    monkeypatch.chdir(project.root / "scenarios")

    result = project.run("shop")

    result.assert_outcomes(passed=1)
    shown = f"../reports/{project.directory.name}"
    result.stdout.fnmatch_lines([f"agentbench: 8 rollouts in flight, run directory {shown}", f"open        {shown}/report.html"])


@pytest.mark.slow
def test_a_test_outside_a_suite(project: Project) -> None:
    """Outside of suite folders `rollout` is an unknown fixture, which is an ERROR of pytest. The suite's tests run."""
    project.suite(scenarios=1)
    project.write("scenarios/lost/test_lost.py", "def test_tools(rollout):\n    pass\n")

    result = project.run("scenarios")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'rollout' not found"])
    assert "site-packages" not in result.stdout.str()


@pytest.mark.slow
def test_named_scenarios(project: Project) -> None:
    """--agentbench-scenarios runs only the scenarios with these ids, in a session with arms of several settings, too."""
    project.suite("shop", scenarios=4)

    result = project.run(
        "scenarios/shop",
        "--agentbench-scenarios=shop-3,shop-1",
        '--agentbench-ab=a=settings:{},b=settings:{"agent.max_turns": 1, "backend.ttft_ms": 1}',
    )

    result.assert_outcomes(passed=4, deselected=4)
    assert [f"shop[shop-{number}-{arm}]" for number in (1, 3) for arm in "ab"] == ran(project)
    assert {1: 2, 2: 2} == {calls: sum(calls == len(each.calls) for each in project.rollouts) for calls in (1, 2)}
