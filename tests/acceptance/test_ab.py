"""A/B sessions on real engines: they find a real difference, claim none between equal arms, and do not count a failed arm as worse."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import Document, Level
from tests.engine_router import session_stack
from tests.engines import engine
from tests.findings import facts, report_of, said
from tests.labelled_router import routing
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.small_stacks import PASSES, own_folder, stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SATURATED = "client-saturated"
AB_BA = ["a", "b", "b", "a"]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Returns the base URL of an embedded engine that is not the backend of the session."""
    with engine(tmp_path, model="m") as url:
        yield f"{url}/v1"


def comparison(project: Project, metric: str) -> Json:
    found: list[Json] = [each for each in project.run_json["ab"]["comparisons"] if each["metric"] == metric]
    return found[0]


def compared_arms(report: Document) -> list[tuple[list[tuple[str, str]], str]]:
    """Returns the arms that a report compares (names and values, the base first) and the order of their blocks."""
    return [([(arm.name, arm.value) for arm in ab.arms], ab.order) for (ab,) in said(report, gate_phrases.arms)]


def shown(project: Project, metric: str, level: Level) -> list[tuple[str, float, float, str]]:
    """Returns the comparisons of a metric at a report level: the arm, the base's value, the arm's value, and the finding."""
    found = [each for _, each in said(report_of(project.directory, level), gate_phrases.comparison) if each.metric == metric]
    return [(each.new_arm, each.base, each.new, each.finding) for each in found]


def arms(project: Project) -> list[str]:
    """Returns the arms of the blocks in the order in which they ran."""
    return [block["arm"] for block in project.run_json["cache"]["blocks"]]


def spans(project: Project, arm: str) -> tuple[tuple[int, int], ...]:
    """Returns the start and end times of an arm's rollouts."""
    return tuple((each.started_ns, each.ended_ns) for each in project.rollouts if each.variant == arm)


def test_a_slower_backend_is_found(project: Project) -> None:
    """Two backends run the same scenarios as AB BA BA AB, never at the same time.

    The slower backend is found, and no difference of scores is claimed.
    """
    project.suite(scenarios=24)
    project.backend(name="quick")
    project.backend(name="slow", ttft_ms=150)

    project.run("--agentbench-ab=a=quick,b=slow", "--agentbench-concurrency=6").assert_outcomes(passed=48)

    run = project.run_json
    assert [*AB_BA, "b", "a", "a", "b"] == arms(project)
    assert not any(one[0] < other[1] and other[0] < one[1] for one in spans(project, "a") for other in spans(project, "b"))
    assert [24, 24] == [arm["rollouts"]["ok"] for arm in run["ab"]["arms"]]
    assert ["shop-a", "shop-b"] == [*run["suites"]]
    ttft, tsq = comparison(project, "ttft.p50"), comparison(project, "tsq")
    assert 1.5 < ttft["low"] < ttft["high"]
    doubtful = run["stopwatch"]["verdict"] == SATURATED or "ttft.p50" in run["stopwatch"]["unusable"]
    assert ("inconclusive" if doubtful else "slower") == ttft["finding"]
    assert ("no difference shown", 24, 1.0, 1.0) == (tsq["finding"], tsq["n"], tsq["base"], tsq["new"])
    assert all(arm["load_s"] > 0 and arm["prefix_cache"]["queried_tokens"] > 0 for arm in run["ab"]["arms"])
    report = report_of(project.directory, Level.FULL)
    assert [([("a", "quick"), ("b", "slow")], "interleaved")] == compared_arms(report)
    assert [("a", 24, 4), ("b", 24, 4)] == [(arm.name, arm.rollouts["ok"], arm.blocks) for (arm,) in said(report, gate_phrases.arm)]


def test_worse_answers_are_found(project: Project) -> None:
    """A backend that calls the wrong tool is worse. Its tests fail, those of the other arm pass, and -k chooses an arm."""
    project.suite(scenarios=12)
    project.backend(name="good")
    wrong: list[Json] = [
        {**FIND_THEN_ANSWER[0], "tool_calls": [{"name": "return_item", "arguments": {"item": "lamp"}}]},
        FIND_THEN_ANSWER[1],
    ]
    project.backend(wrong, name="bad")

    project.run("--agentbench-ab=good,bad").assert_outcomes(passed=12, failed=12)

    tsq = comparison(project, "tsq")
    assert ("worse", 1.0, 0.0) == (tsq["finding"], tsq["base"], tsq["new"])
    assert [("bad", 1.0, 0.0, "worse")] == shown(project, "tsq", Level.FULL)
    project.run("--agentbench-ab=good,bad", "-k", "good").assert_outcomes(passed=12)
    assert "inconclusive" == comparison(project, "tsq")["finding"]


def test_the_same_twice(project: Project) -> None:
    """A backend compared with itself shows no difference of scores.

    The latencies have an interval, and each arm has a backend process of its own.
    """
    project.suite(scenarios=24)
    project.backend(ttft_ms=30)

    project.run("--agentbench-ab=first=embedded,second=embedded", "--agentbench-concurrency=4").assert_outcomes(passed=48)

    assert "no difference shown" == comparison(project, "tsq")["finding"]
    ttft = comparison(project, "ttft.p50")
    assert ttft["low"] < ttft["estimate"] < ttft["high"]
    assert min(ttft["base"], ttft["new"]) >= 30  # ms, what the engine waits
    assert {"first", "second"} == {path.name for path in (project.directory / "backend").iterdir() if path.is_dir()}


def test_two_agents(project: Project) -> None:
    """Agents are compared on one backend, each with the suite's sampling settings. The suite's own variant does not run."""
    project.suite(scenarios=4, test=PASSES, agent={"kind": "tool_calling", "temperature": 0.5})
    project.write("backends/embedded.yaml", json.dumps({"kind": "embedded"}))

    project.run("--agentbench-ab=agent:tool_calling,agent:react").assert_outcomes(passed=8)

    suites = project.run_json["suites"]
    assert ["tool_calling", "react", "react", "tool_calling"] == arms(project)
    assert {"shop-tool_calling": "tool_calling", "shop-react": "react"} == {name: suite["agent"]["kind"] for name, suite in suites.items()}
    assert {0.5} == {suite["agent"]["temperature"] for suite in suites.values()}
    assert "inconclusive" != comparison(project, "tsq")["finding"]


def test_a_stack_and_a_url_are_arms(project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack and a URL can be compared. Each arm requests the model of its own backend."""
    project.suite(scenarios=4, test=PASSES)
    stack(project)
    with own_folder(monkeypatch):
        project.run(f"--agentbench-ab=small,other={endpoint}").assert_outcomes(passed=8)

    assert {"small": "tiny", "other": "m"} == {each.variant: each.settings["model"] for each in project.rollouts}
    assert ["tiny", "m"] == [arm["model"] for arm in project.run_json["ab"]["arms"]]


def test_stacks_that_do_not_fit_together(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only one GPU is available for two stacks, one arm runs completely before the other. Load times and a warning are reported."""
    project.suite(scenarios=4, test=PASSES)
    for name in ("one", "two"):
        stack(project, name=name, service={"gpus": 1})
    monkeypatch.setenv("AGENTBENCH_GPUS", "0")
    with own_folder(monkeypatch):
        project.run("--agentbench-ab=one,two", "--agentbench-trials=2").assert_outcomes(passed=16)

    assert ["one", "one", "two", "two"] == arms(project)
    ab = project.run_json["ab"]
    assert ("in sequence", True) == (ab["order"], all(arm["load_s"] > 0 for arm in ab["arms"]))
    assert ab["warnings"][0].startswith("one ran before two, ")
    told = [fact.content for fact in facts(report_of(project.directory, Level.FIRST_PAGE), "not equal")]
    assert list(ab["warnings"]) == told


@WAYS
@pytest.mark.parametrize("dead", [0, 1], ids=["first", "second"])
def test_an_arm_that_does_not_start(project: Project, way: tuple[str, ...], dead: int) -> None:
    """If an arm does not start, its tests are errors with the reason, and the tests of the other arm run.

    Comparisons are inconclusive, and the run fails.
    """
    project.suite(scenarios=3)
    project.backend(name="good")
    both = ["x=good", "x=good"]
    both[dead] = "gone=http://127.0.0.1:9/v1"

    result = project.run(*way, "-v", f"--agentbench-ab={','.join(both)}")

    assert 3 == result.parseoutcomes()["passed"]
    of_pytest = result.stdout.str().partition("= agentbench =")[0]
    # The other errors refer to the first one.
    assert 1 == of_pytest.count(": infra_error: arm gone: the backend 'url' is not available: ")
    run = project.run_json
    assert "NOT MEASURED" == run["verdict"]
    assert run["ab"]["arms"][dead]["failure"].startswith("arm gone: the backend 'url' is not available: ")
    assert {"inconclusive"} == {each["finding"] for each in run["ab"]["comparisons"]}
    assert all("arm gone: the backend 'url' is not available" in each["reason"] for each in run["ab"]["comparisons"])
    report = report_of(project.directory, Level.FULL)
    assert [["gone"]] == [[arm.name for arm in ab.arms if arm.failure] for (ab,) in said(report, gate_phrases.lost_arms)]
    assert [] == said(report, gate_phrases.comparison)
    result.stdout.fnmatch_lines(["shop[[]shop-?-gone[]]: infra_error: arm gone: the backend 'url' is not available: *"])


def test_an_arm_that_dies(project: Project) -> None:
    """If an arm's backend dies repeatedly, the remaining tests of that arm are errors, and the other arm runs to its end."""
    project.suite(scenarios=6)
    project.backend(name="good")
    deadly = [{"match": {"contains": f"Customer shop-{number}:"}, "exit": True} for number in range(1, 6)]
    project.backend([*deadly, *FIND_THEN_ANSWER], name="mortal")

    project.run("--agentbench-ab=good,mortal", "--agentbench-concurrency=1")

    arm = project.run_json["ab"]["arms"][1]
    assert (1, 3) == (arm["rollouts"]["ok"], arm["rollouts"]["infra_error"])  # The rollouts after these were not attempted.
    assert arm["failure"].startswith("arm mortal: the backend 'mortal' is gone: ")
    assert 6 == project.run_json["ab"]["arms"][0]["rollouts"]["ok"]
    assert "NOT MEASURED" == project.run_json["verdict"]


def test_no_arm_at_all(project: Project) -> None:
    """If neither arm starts, the session reports the reasons of both."""
    project.suite(scenarios=1)

    result = project.run("--agentbench-ab=a=http://127.0.0.1:9/v1,b=http://127.0.0.1:9/v1")

    result.assert_outcomes(errors=1)
    assert all(f"arm {arm}: the backend 'url' is not available" in project.run_json["backend"]["failure"] for arm in "ab")


def test_resuming_an_ab_session(project: Project) -> None:
    """A session that ran a part of an A/B comparison can be resumed, and old and new rollouts are compared together.

    With a different arm it is refused.
    """
    project.suite(scenarios=6)
    project.backend(name="good")
    project.backend(name="late", ttft_ms=1)
    both = "--agentbench-ab=left=good,right=good"
    project.run(both, "-k", "shop-0 or shop-1 or right").assert_outcomes(passed=8)

    project.run(both, "--agentbench-resume").assert_outcomes(passed=12)

    assert ("no difference shown", 6) == (comparison(project, "tsq")["finding"], comparison(project, "tsq")["n"])
    assert ["left"] == [*dict.fromkeys(arms(project))]
    assert 4 == project.run("--agentbench-ab=left=good,right=late", "--agentbench-resume").ret


def test_three_backends(project: Project) -> None:
    """Three backends take turns in a balanced order. Each is compared with the first, and only the slow one is reported as slower."""
    project.suite(scenarios=24)
    for name, waits_ms in (("first", 0), ("alike", 0), ("slow", 200)):
        project.backend(name=name, ttft_ms=waits_ms)

    project.run("--agentbench-ab=first,alike,slow", "--agentbench-concurrency=4").assert_outcomes(passed=72)

    run = project.run_json
    names = {"first": "a", "alike": "b", "slow": "c"}
    assert "abc cba bca acb cab bac".replace(" ", "") == "".join(names[arm] for arm in arms(project))
    assert not any(one[0] < other[1] and other[0] < one[1] for one in spans(project, "first") for other in spans(project, "slow"))
    ttft = {each["new_arm"]: each for each in run["ab"]["comparisons"] if each["metric"] == "ttft.p50"}
    assert [("first", "alike"), ("first", "slow")] == [(each["base_arm"], arm) for arm, each in ttft.items()]
    doubtful = run["stopwatch"]["verdict"] == SATURATED or "ttft.p50" in run["stopwatch"]["unusable"]
    assert ("inconclusive" if doubtful else "slower") == ttft["slow"]["finding"]
    assert [24, 24, 24] == [arm["rollouts"]["ok"] for arm in run["ab"]["arms"]]
    assert [([(name, name) for name in names], "interleaved")] == compared_arms(report_of(project.directory, Level.FULL))
    assert [(arm, 1.0, 1.0, "no difference shown") for arm in ("alike", "slow")] == shown(project, "tsq", Level.FULL)


@WAYS
def test_one_of_three_does_not_start(project: Project, way: tuple[str, ...]) -> None:
    """If one of three arms does not start, the other two are compared as usual. Its tests are errors, and the run fails."""
    project.suite(scenarios=8)
    project.backend(name="good")

    result = project.run(*way, "--agentbench-ab=a=good,gone=http://127.0.0.1:9/v1,b=good", "--agentbench-concurrency=2")

    result.assert_outcomes(passed=16, errors=8)
    run = project.run_json
    tsq = {each["new_arm"]: each for each in run["ab"]["comparisons"] if each["metric"] == "tsq"}
    assert ("inconclusive", "no difference shown") == (tsq["gone"]["finding"], tsq["b"]["finding"])
    assert tsq["gone"]["reason"].startswith("arm gone: the backend 'url' is not available: ")
    assert 0.95 == tsq["b"]["confidence"]
    assert "NOT MEASURED" == run["verdict"]
    assert 1 == len(said(report_of(project.directory, Level.FIRST_PAGE), gate_phrases.lost_arms))
    assert [("b", 1.0, 1.0, "no difference shown")] == shown(project, "tsq", Level.FIRST_PAGE) == shown(project, "tsq", Level.VERBOSE)


def test_one_of_three_dies(project: Project) -> None:
    """If one of three arms dies, its remaining tests are errors and its comparison is inconclusive.

    The other two run to their end and are compared.
    """
    project.suite(scenarios=6)
    project.backend(name="good")
    deadly = [{"match": {"contains": f"Customer shop-{number}:"}, "exit": True} for number in range(1, 6)]
    project.backend([*deadly, *FIND_THEN_ANSWER], name="mortal")

    project.run("--agentbench-ab=good,mortal,other=good", "--agentbench-concurrency=1")

    ab = project.run_json["ab"]
    assert [6, 6] == [arm["rollouts"]["ok"] for arm in ab["arms"] if arm["name"] != "mortal"]
    assert ab["arms"][1]["failure"].startswith("arm mortal: the backend 'mortal' is gone: ")
    tsq = {each["new_arm"]: each["finding"] for each in ab["comparisons"] if each["metric"] == "tsq"}
    assert {"mortal": "inconclusive", "other": "no difference shown"} == tsq


def test_arms_that_cannot_run_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm that this machine cannot run is reported before anything starts.

    The others run without it; if nothing is left to compare, nothing starts.
    """
    project.suite(scenarios=4)
    project.backend(name="good")
    services = {"engine": {"python": "vllm-continuum", "run": ["vllm", "serve", "m"], "ready": {"http": "/health"}}}
    project.write("backends/away.yaml", json.dumps({"model": "m", "services": services}))
    monkeypatch.setenv("AGENTBENCH_ENVS", str(project.root / "envs"))
    lacks = "arm away: the backend 'away' cannot run on this machine: *agentbench env create vllm-continuum*"

    result = project.run("--agentbench-ab=good,away,other=good")

    result.assert_outcomes(passed=8, errors=4)
    result.stdout.fnmatch_lines([f"agentbench: {lacks}; the other arms run without it", "collected 12 items"])
    tsq = {each["new_arm"]: each["finding"] for each in project.run_json["ab"]["comparisons"] if each["metric"] == "tsq"}
    assert {"away": "inconclusive", "other": "no difference shown"} == tsq

    for arms, why in (("good,away", "nothing is left to compare good with"), ("away,good,other=good", "the arms are compared with away")):
        before = {*project.root.glob("reports/2*")}
        refused = project.run(f"--agentbench-ab={arms}")
        assert pytest.ExitCode.USAGE_ERROR == refused.ret
        refused.stderr.fnmatch_lines([f"ERROR: {lacks}; {why}, so nothing was started"])
        assert before == {*project.root.glob("reports/2*")}


def in_flight(project: Project, arm: str) -> int:
    """Returns the greatest number of an arm's rollouts that ran at the same time."""
    ends = [(at, change) for began, ended in spans(project, arm) for at, change in ((began, 1), (ended, -1))]
    return max(itertools.accumulate(change for _, change in sorted(ends)))


def test_arms_of_a_concurrency(project: Project) -> None:
    """Each block runs at the concurrency of its arm, and the run's concurrency is the greatest of them."""
    project.suite(scenarios=24)
    project.backend(ttft_ms=50)

    project.run("--agentbench-ab=set:concurrency=1|2|6").assert_outcomes(passed=72)

    run = project.run_json
    assert {"concurrency_1": 1, "concurrency_2": 2, "concurrency_6": 6} == {arm: in_flight(project, arm) for arm in arms(project)}
    assert 6 == run["settings"]["concurrency"]
    one, _, six = (arm["rollouts_per_hour"] for arm in run["ab"]["arms"])
    assert one < six
    assert [("set", "concurrency=1")] == [(arm["kind"], arm["value"]) for arm in run["settings"]["ab"][:1]]


def test_another_concurrency_is_another_setup(project: Project) -> None:
    """A run can be resumed with the same concurrency of each arm, and not with another one, whatever the arms are called."""
    project.suite(scenarios=2, test=PASSES)
    project.run("--agentbench-ab=low=set:concurrency=1,high=set:concurrency=2", "-k", "shop-0").assert_outcomes(passed=2)

    changed = project.run("--agentbench-ab=low=set:concurrency=1,high=set:concurrency=3", "--agentbench-resume")
    same = project.run("--agentbench-ab=low=set:concurrency=1,high=set:concurrency=2", "--agentbench-resume")

    assert 4 == changed.ret
    changed.stderr.fnmatch_lines(["*the backend has changed: concurrency.high 2 is now 3*"])
    same.assert_outcomes(passed=4)


#: Writes the arguments of each call to a file, and leaves the work to the built-in kinds.
CURIOUS = """
from pathlib import Path


def pytest_agentbench_make_backend(name, changes):
    with Path("asked").open("a") as file:
        print(name, *changes, file=file)
"""


def test_a_hook_gets_what_arms_change(project: Project) -> None:
    """The hook that makes backends gets the changes by --agentbench-set and by the arm."""
    project.suite(scenarios=1, test=PASSES)
    project.write("conftest.py", CURIOUS)

    project.run("--agentbench-ab=set:backend.model=big|small", "--agentbench-set=backend.jitter=0").assert_outcomes(passed=2)

    asked = [f"embedded ('jitter', 0) ('model', '{model}')" for model in ("big", "small")]
    assert asked == (project.root / "asked").read_text().splitlines()


def test_arms_of_a_setting(project: Project) -> None:
    """For a setting of the agent, each value is a variant of the suite.

    For a setting of the backend, each value is a backend with that change. If all arms share a server, its first calls are made before
    the first block, so that the first arm is not slower. Later calls do not find their messages in the prefix cache. With the policy cold,
    they find nothing of them.
    """
    project.suite(scenarios=2, test=PASSES)
    project.backend(model="m")

    project.run("--agentbench-ab=set:agent.temperature=0|0.7|1").assert_outcomes(passed=6)
    heats = {name: suite["agent"]["temperature"] for name, suite in project.run_json["suites"].items()}
    assert {"shop-temperature_0": 0, "shop-temperature_0.7": 0.7, "shop-temperature_1": 1} == heats
    primers = [each for each in project.rollouts if each.kind == "primer"]
    assert {("ok", 1)} == {(each.status, len(each.calls)) for each in primers}
    assert {"shop[shop-0-temperature_0]", "shop[shop-1-temperature_0]"} == {each.scenario.partition(" ")[0] for each in primers}
    assert [1] * 6 == [block["rollouts"] for block in project.run_json["cache"]["blocks"]]
    first = next(each for each in project.rollouts if each.kind == "scenario").calls[0]
    assert first.prompt_tokens is not None
    assert first.cached_tokens is not None
    assert first.prompt_tokens - first.cached_tokens > 2 * 16  # Only the tools, which are before the salt, were in the cache.

    project.run("--agentbench-ab=set:agent.temperature=0|0.7", "--agentbench-cache=cold", "-k", "shop-0").assert_outcomes(passed=2)
    assert {0} == {each.calls[0].cached_tokens for each in project.rollouts}

    project.run("--agentbench-ab=set:backend.model=big|small").assert_outcomes(passed=4)
    assert ["big", "small"] == [arm["model"] for arm in project.run_json["ab"]["arms"]]
    assert {"big": "big", "small": "small"} == {each.variant: each.settings["model"] for each in project.rollouts}
    assert {"scenario"} == {each.kind for each in project.rollouts}


def test_arms_that_are_variants(project: Project) -> None:
    """Each arm runs a variant of the suite under the variant's name.

    If a suite lacks the variant, the error names the variants that it has.
    """
    project.suite(scenarios=2, test=PASSES, variants={"warm": {"agent": {"temperature": 1}}, "odd": {}})
    project.suite("other", scenarios=1, test=PASSES)

    variants = "--agentbench-ab=variant:default,variant:warm,variant:odd"
    result = project.run(variants, "--agentbench-ab-pairs", "--agentbench-slo=e2e=60s", "scenarios/shop")
    result.assert_outcomes(passed=6)
    run = project.run_json
    assert ["shop", "shop-warm", "shop-odd"] == [*run["suites"]]
    assert ["default", "warm", "odd", "odd", "warm", "default"] == arms(project)
    assert ["default", "default", "warm"] == [each["base_arm"] for each in run["ab"]["comparisons"] if each["metric"] == "tsq"]
    assert [1.0] * 3 == [arm["goodput"]["attainment"] for arm in run["ab"]["arms"]]

    result = project.run("--agentbench-ab=variant:default,variant:warm")
    result.stdout.fnmatch_lines(["*suite.yaml: the arm variant:warm: no variant 'warm'; known: default"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--agentbench-ab=a"], "*--agentbench-ab a: must be 2 to 12 arms: BACKEND,BACKEND, agent:KIND,agent:KIND, *"),
        (["--agentbench-ab=a,b", "--agentbench-backend=a"], "*--agentbench-ab names the backends; leave out --agentbench-backend"),
        (
            ["--agentbench-ab=agent:react,agent:x", "--agentbench-agent=x"],
            "*--agentbench-ab names the agents; leave out --agentbench-agent",
        ),
        (
            ["--agentbench-ab=variant:default,variant:x", "--agentbench-variants=all"],
            "*--agentbench-ab names the variants; leave out --agentbench-variants",
        ),
        (
            ["--agentbench-ab=set:concurrency=1|2", "--agentbench-concurrency=4"],
            "*--agentbench-ab names the concurrency; leave out --agentbench-concurrency",
        ),
        (
            ["--agentbench-ab=model:a,model:b", "--agentbench-set=model=c"],
            "*--agentbench-ab has arms for values of agent.model; leave out --agentbench-set agent.model",
        ),
        (
            ["--agentbench-ab=set:backend.ttft_ms=1|2", "--agentbench-set=backend.ttft_ms=3"],
            "*--agentbench-ab has arms for values of backend.ttft_ms; leave out --agentbench-set backend.ttft_ms",
        ),
        (["--agentbench-ab-pairs"], "*--agentbench-ab-pairs compares all arms with each other; add --agentbench-ab, or leave it out"),
        (["--agentbench-ab=set:backend.odd=1|2"], "*embedded.yaml: unknown key 'odd'; known keys: *"),
        (["--agentbench-cache=cold", "--agentbench-inline"], "*--agentbench-inline runs each rollout in its test, *"),
        (
            ["--agentbench-ab=a=embedded,b=embedded", "--agentbench-gate=tsq.mean >= 0.5"],
            "*leave out --agentbench-gate and --agentbench-baseline",
        ),
        (["--agentbench-cache=warm"], "*--agentbench-cache warm: must be cold, primed or carry"),
        (["--agentbench-ab=embedded,nothing"], "*no backend 'nothing'; known: *"),
    ],
)
def test_options_that_exclude_each_other(project: Project, options: list[str], sentence: str) -> None:
    """Options that cannot be combined with an A/B session are a usage error that says what to leave out."""
    project.suite(scenarios=1)

    result = project.run(*options)

    assert 4 == result.ret
    result.stderr.fnmatch_lines([sentence])


def cached(project: Project) -> dict[str, list[int]]:
    """Maps each scenario (and trial) to the cached prompt tokens of its calls."""
    found: dict[str, list[int]] = {}
    for each in project.rollouts:
        if each.kind == "scenario":
            found[each.key.id] = [call.cached_tokens or 0 for call in each.calls]
    return found


def test_cold(project: Project) -> None:
    """With the policy cold, each trial begins with an empty cache, as the engine's counters show.

    Without it, the second trial finds the first one's prefix.
    """
    project.suite(scenarios=1, trials=2)
    options = ("--agentbench-concurrency=1",)

    project.run(*options).assert_outcomes(passed=2)
    # With two workers either trial may be the first.
    first, second = sorted(cached(project).values())
    project.run(*options, "--agentbench-cache=cold").assert_outcomes(passed=2)
    cold = cached(project)

    assert 0 == first[0] < second[0]
    assert first == cold["shop-0"] == cold["shop-0-t2"]
    cache = project.run_json["cache"]
    assert ("cold", {}) == (cache["policy"], cache["salted"])
    assert 1 == len({block["prefix_cache"]["hit_ratio"] for block in cache["blocks"]})
    assert all(block["reset"][0].endswith("/reset_prefix_cache") for block in cache["blocks"])
    assert 1 == len(said(report_of(project.directory, Level.FULL), gate_phrases.cache))


def test_salted(project: Project) -> None:
    """If no cache can be reset, the prompts of each trial begin with its own salt, so that no trial finds another one's prefix."""
    project.suite(scenarios=1, trials=2)
    project.backend(request_log="requests.jsonl")
    project.write("conftest.py", NO_RESET)

    project.run("--agentbench-cache=cold", "--agentbench-concurrency=1").assert_outcomes(passed=2)

    cache = project.run_json["cache"]
    salts = [block["salt"] for block in cache["blocks"]]
    systems = [json.loads(line)["messages"][0] for line in (project.root / "requests.jsonl").read_text().splitlines()]
    assert 2 == len(set(salts))
    assert [("system", salt) for salt in salts for _ in range(2)] == [
        (each["role"], each["content"].partition("\n")[0]) for each in systems
    ]
    assert ("cold", [[], []]) == (cache["policy"], [block["reset"] for block in cache["blocks"]])
    assert " answers neither " in cache["salted"][""]
    assert 1 == len(said(report_of(project.directory, Level.FULL), gate_phrases.cache))


#: Makes the engine appear to have no such path, as is the case for most servers.
NO_RESET = """
from pytest_agentbench.backends import cache_state

cache_state.OF_ENGINES = ("/no_such_path",)
"""


def test_primed(project: Project) -> None:
    """With the policy primed, the first call of every scenario is made before measuring.

    It is in the journal, but in no score, count or timing.
    """
    project.suite(scenarios=4)

    project.run("--agentbench-cache=primed", "--agentbench-concurrency=1").assert_outcomes(passed=4)

    run, primers = project.run_json, [each for each in project.rollouts if each.kind == "primer"]
    assert [("ok", 1)] * 4 == [(each.status, len([call for call in each.calls if not call.error_kind])) for each in primers]
    assert (4, 4, 8) == (run["plan"]["finished"], run["suites"]["shop"]["rollouts"]["ok"], run["performance"]["calls"])
    assert all(calls[0] > 0 for calls in cached(project).values())
    assert [(4, 4)] == [(block["primed"], block["rollouts"]) for block in run["cache"]["blocks"]]
    assert 1 == len(said(report_of(project.directory, Level.FULL), gate_phrases.cache))


#: Lists the models before its first call, as some SDKs do, and returns the first answer.
LOOKING_FIRST = """
async def run(scenario, client, llm):
    await client.models.list()
    answer = await client.chat.completions.create(model=llm.model, messages=scenario.messages)
    return answer.choices[0].message.content
"""


def test_an_agent_that_lists_models_first(project: Project) -> None:
    """A request for the list of models does not count as the call that fills the prefix cache."""
    project.suite(scenarios=2, agent={"kind": "./agent.py:run"}, test="def test_tools(rollout): pass\n")
    project.write("scenarios/shop/agent.py", LOOKING_FIRST)

    project.run("--agentbench-cache=primed").assert_outcomes(passed=2)

    cache = project.run_json["cache"]
    assert ("primed", [(2, 2)]) == (cache["policy"], [(block["primed"], block["rollouts"]) for block in cache["blocks"]])


def test_the_cache_policy_is_part_of_the_setup(project: Project) -> None:
    """A run cannot be resumed under another cache policy."""
    project.suite(scenarios=2)
    project.run("-k", "shop-0").assert_outcomes(passed=1)

    result = project.run("--agentbench-resume", "--agentbench-cache=primed")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(['*the backend has changed: prefix_cache unset is now "primed"; *'])


@pytest.mark.parametrize("loses_after", [1, 8])
def test_an_arm_that_loses_a_worker(project: Project, loses_after: int) -> None:
    """Workers are counted between blocks, and after the last one. A router that lost one still answers, but its arm is compared with none.

    The session says so at once, and its verdict is not green.
    """
    with routing() as good, routing() as losing:
        losing.loses_after = loses_after
        for name, router in (("a", good), ("b", losing)):
            keys = {"kind": "url", "url": router.url, "ready": {"workers": {"decode": 2}}}
            project.write(f"backends/{name}.yaml", json.dumps(keys))
        project.suite(scenarios=4, thresholds={"tsq": 0.5})
        result = project.run("--agentbench-ab=a,b", "--agentbench-concurrency=1")
    run = project.run_json
    lost = "workers that were ready at the boot are missing, for 5 s now: /models/m/ready answered 200 OK; ready workers: 1 of 2 decode"
    (sentence,) = (each["failure"] for each in run["ab"]["arms"] if each["failure"])

    result.assert_outcomes(passed=8)
    assert (CANNOT_MEASURE, "NOT MEASURED") == (result.ret, run["verdict"])
    assert re.fullmatch(rf"arm b: after [1-4] rollouts, {re.escape(lost)}", sentence)
    assert (sentence.startswith("arm b: after 4 "), sentence) == (loses_after == 8, run["backend"]["failure"])
    assert {("INCONCLUSIVE", sentence)} == {(each["verdict"], each["reason"]) for each in run["ab"]["comparisons"]}
    result.stdout.fnmatch_lines(["*1 of 2 decode*"])


def test_arms_that_keep_their_workers(project: Project) -> None:
    """A session whose workers are all there after each block is as good as one whose workers are not counted."""
    with routing() as one, routing() as two:
        for name, router in (("a", one), ("b", two)):
            keys = {"kind": "url", "url": router.url, "ready": {"workers": {"decode": 2}}}
            project.write(f"backends/{name}.yaml", json.dumps(keys))
        project.suite(scenarios=4, thresholds={"tsq": 0.5})
        result = project.run("--agentbench-ab=a,b", "--agentbench-concurrency=1")

    assert (0, "PASS", "") == (result.ret, project.run_json["verdict"], project.run_json["backend"]["failure"])


def test_a_cold_block_behind_a_router(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines behind a router are reset before each block. The router keeps what it knows of prompts, so they get a salt in addition."""
    with own_folder(monkeypatch):
        project.write("backends/router.yaml", json.dumps(session_stack()))
        project.suite(scenarios=2, test=PASSES)
        project.run(
            "--agentbench-backend=router", "--agentbench-ab=set:backend.settings.policy=session|round-robin", "--agentbench-cache=cold"
        )
    cache = project.run_json["cache"]

    assert {"session", "round_robin"} == cache["salted"].keys()
    assert all(" is a router before the engines, and no request empties" in why for why in cache["salted"].values())
    assert [2] * 4 == [len(block["reset"]) for block in cache["blocks"]]
    assert 4 == len({block["salt"] for block in cache["blocks"]})
