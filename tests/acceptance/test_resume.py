"""Going on with a run: only what is missing or failed runs, tests judge what is stored, and the numbers are those of one session."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json
from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import Level
from tests.findings import report_of, said, under
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.small_stacks import PASSES, own_folder, stack

pytestmark = pytest.mark.slow

#: What a run has, whoever ran it when: everything but times.
SAME = ("verdict", "plan", "gate")


def without_times(run: Json) -> Json:
    """The part of run.json that two runs of the same have in common."""
    performance = run["performance"]
    counts = {name: performance[name] for name in ("calls", "failed_calls", "output_tokens", "prompt_tokens", "token_sources")}
    return {**{name: run[name] for name in SAME}, **counts, "suites": [*map(_untimed, run["suites"].values())]}


def _untimed(suite: Json) -> Json:
    efficiency = {name: value for name, value in suite["efficiency"].items() if "second" not in name}
    return {**suite, "efficiency": efficiency}


def sessions(project: Project) -> list[int]:
    """How many rollouts of the newest run are of each session."""
    return [each["rollouts"] for each in project.run_json["sessions"]]


def test_only_what_is_missing_runs(project: Project) -> None:
    """A run of a part goes on as a run of all: the rollouts that are there are read, with workers and without, and nothing is double."""
    project.suite(scenarios=6, thresholds={"tsq": 0.5, "tsq.mean": 0.5})
    project.run("scenarios/shop", "-k", "shop-0 or shop-1").assert_outcomes(passed=2)
    first = project.directory

    project.run("--agentbench-resume", "scenarios/shop", "-k", "shop-1 or shop-2").assert_outcomes(passed=2)
    result = project.run("-v", "-n", "2", "--agentbench-resume=latest", "scenarios/shop")

    result.assert_outcomes(passed=6)
    assert [first] == [path for path in project.root.glob("reports/2*") if path.is_dir()]
    assert [2, 1, 3] == sessions(project)
    result.stdout.fnmatch_lines(
        [
            "agentbench: session 3 of this run: reusing 3 rollouts; 0 failed ones will run again if a test needs them",
        ]
    )
    for level in (Level.FIRST_PAGE, Level.VERBOSE):
        [(told,)] = said(report_of(project.directory, level), phrases.sessions)
        assert [(1, 2), (2, 1), (3, 3)] == [(each.session, each.rollouts) for each in told.sessions]
        assert {2, 8} == {each.concurrency for each in told.sessions}
    resumed = without_times(project.run_json)
    assert sorted(f"shop-{number}" for number in range(6)) == sorted(rollout.scenario for rollout in project.rollouts)
    assert project.run_json["resume"] is None
    project.run("scenarios/shop").assert_outcomes(passed=6)
    assert without_times(project.run_json) == resumed


@WAYS
def test_a_stored_failure_fails_again(project: Project, way: tuple[str, ...]) -> None:
    """Tests judge stored rollouts as usual: scores that are too low fail, agents' errors fail, with the same sections."""
    project.suite(scenarios=2, expected=("find_item", "order_item"), thresholds={"tsq": 0.9})
    project.run("scenarios/shop").assert_outcomes(failed=2)

    result = project.run(*way, "--agentbench-resume", "scenarios/shop")

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E       assert 0.667 >= 0.9", "-* agentbench shop[[]shop-?[]] -*"])
    assert [2, 0] == sessions(project)


@WAYS
def test_what_failed_runs_again(project: Project, way: tuple[str, ...]) -> None:
    """An infra_error is tried again with all attempts kept, the mean is that of a run without it, and the retried ones are compared."""
    project.suite(scenarios=3, agent={"kind": "./agent.py:Agent"})
    project.write("scenarios/shop/agent.py", FLAKY)
    flag = project.write("broken", "")
    first = project.run("--agentbench-retries=1", "scenarios/shop")
    first.assert_outcomes(passed=2, errors=1)
    first.stdout.fnmatch_lines([f"*pytest --agentbench-resume={project.directory.name} * --agentbench-retries=1 scenarios/shop"])
    flag.unlink()

    project.run(*way, "--agentbench-resume", "scenarios/shop").assert_outcomes(passed=3)

    (again,) = [rollout for rollout in project.rollouts if rollout.scenario == "shop-1"]
    assert ("ok", 3, 2, ["infra_error"] * 2) == (
        again.status,
        again.attempt,
        again.session,
        [each.status for each in again.earlier_attempts],
    )
    assert 4 == (project.directory / "rollouts.jsonl").read_bytes().count(b"\n")
    assert (1, [2, 1]) == (project.run_json["repeated"], sessions(project))
    report = report_of(project.directory, Level.FULL)
    assert [1] == [run.repeated for (run,) in said(report, phrases.sessions)]
    [(suite,)] = said(report, suite_phrases.retried)
    means = suite.retried_scores["tsq"]
    assert (1, 1.0, 1.0) == (suite.retried, means.retried.value, means.others.value)


FLAKY = """
from dataclasses import dataclass
from pathlib import Path
from pytest_agentbench.agents.tool_calling import ToolCalling
from pytest_agentbench.errors import InfraError

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        if scenario.id == "shop-1" and Path("broken").exists():
            raise InfraError("the network is down")
        return await super().run(scenario, llm, tools)
"""


def test_the_policy_can_be_chosen(project: Project) -> None:
    """`agent_error` may run again, `none` runs only what is missing."""
    project.suite(scenarios=2, agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", FLAKY.replace("InfraError(", "LookupError("))
    flag = project.write("broken", "")
    project.run("scenarios/shop").assert_outcomes(passed=1, failed=1)
    flag.unlink()

    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1, failed=1)
    project.run("--agentbench-resume", "--agentbench-resume-rerun=none", "scenarios/shop").assert_outcomes(passed=1, failed=1)
    project.run("--agentbench-resume", "--agentbench-resume-rerun=agent_error", "scenarios/shop").assert_outcomes(passed=2)

    assert [1, 0, 0, 1] == sessions(project)


def test_the_time_limit_leaves_a_run_to_go_on_with(project: Project) -> None:
    """What the limit kept from starting is missing, the session says which command runs it, and that command does."""
    project.suite(scenarios=4)
    project.backend([{"ttft_ms": 300, **rule} for rule in FIND_THEN_ANSWER])
    limited = project.run("--agentbench-time-limit=100ms", "--agentbench-concurrency=1", "scenarios/shop", "-q")
    limited.assert_outcomes(passed=1, errors=1)
    (line,) = [line for line in limited.stdout.lines if line.startswith("agentbench: ") and " pytest --" in line]
    words = shlex.split(line.partition(" pytest ")[2])
    assert [f"--agentbench-resume={project.directory.name}"] == [word for word in words if "resume" in word]

    project.run(*(word for word in words if "time-limit" not in word)).assert_outcomes(passed=4)

    assert [1, 3] == sessions(project)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("--agentbench-set=agent.temperature=0.6",), "  - the agent of shop has changed: temperature * is now 0.6; hash * is now *"),
        (("--agentbench-set=backend.ttft_ms=20",), "  - the backend has changed: ttft_ms 0 is now 20.0; hash * is now *"),
        (("--agentbench-set=scorers=[tsq, nat_compat]",), "  - the scorers of shop have changed: nat_compat unset is now {}; hash *"),
        (("scenarios/other",), "  - 2 of its rollouts belong to the suite shop, which the command line does not select or *"),
    ],
)
def test_a_changed_setup_is_refused(project: Project, change: tuple[str, ...], sentence: str) -> None:
    """What is stored would not be what runs now: a usage error that says what, and nothing is written or booted."""
    project.suite(scenarios=2)
    project.suite("other", scenarios=1)
    project.run_once("scenarios/shop")
    before = sorted(path.name for path in project.directory.rglob("*"))
    paths = [] if change[0].startswith("scenarios") else ["scenarios/shop"]

    result = project.run("--agentbench-resume", *change, *paths)

    assert 4 == result.ret
    last = "undo these changes, or leave out *"
    result.stderr.fnmatch_lines([f"ERROR: the run {project.directory.name} cannot be resumed:", sentence, last])
    assert before == sorted(path.name for path in project.directory.rglob("*"))


def test_a_changed_scenario_is_refused(project: Project) -> None:
    """The scenario is named; another one that was not run yet may change."""
    file = project.suite(scenarios=2).parent / "data.json"
    project.run("scenarios/shop", "-k", "shop-0")
    changed = [{**entry, "question": "Is there a chair?"} for entry in json.loads(file.read_text())]
    file.write_text(json.dumps([json.loads(file.read_text())[0], changed[1]]))
    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=2)
    file.write_text(json.dumps(changed))

    result = project.run("--agentbench-resume", "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["  - the scenario shop-0 of shop has changed (hash * is now *)"])
    result.stderr.no_fnmatch_line("*shop-1*")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--agentbench-resume",), "there is no run in * to resume; leave out --agentbench-resume to start one"),
        (("--agentbench-resume=monday",), "no run 'monday'; known: * (in *); a run that can be resumed contains *"),
        (("--agentbench-resume-rerun=none",), "--agentbench-resume-rerun sets what a resumed run runs again; add --agentbench-resume*"),
        (("--agentbench-resume", "--agentbench-resume-rerun=failed"), "--agentbench-resume-rerun failed: must be statuses separated by*"),
    ],
)
def test_what_cannot_be_gone_on_with(project: Project, arguments: tuple[str, ...], sentence: str) -> None:
    """A run that is not there, and options that make no sense, are usage errors that say what would work."""
    project.suite(scenarios=1)

    result = project.run(*arguments, "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


def test_the_option_takes_no_path_for_a_run(project: Project) -> None:
    """`--agentbench-resume scenarios/shop` goes on with the latest run of these tests, wherever the option stands; so does the ini file."""
    project.suite(scenarios=1)
    project.suite("other", scenarios=1)
    project.run_once("scenarios/shop")

    for arguments in (("--agentbench-resume", "scenarios/shop"), ("scenarios/shop", "--agentbench-resume")):
        project.run(*arguments).assert_outcomes(passed=1)
    project.run("-o", "agentbench_resume=latest", "scenarios/shop").assert_outcomes(passed=1)

    assert [1, 0, 0, 0] == sessions(project)


def test_calls_by_hand_are_made_again(project: Project) -> None:
    """What a test calls by hand belongs to the test, which runs again; its record has hashes too, and only the last one counts."""
    project.suite(scenarios=1, test="async def test_hand(llm):\n    await llm.chat([{'role': 'user', 'content': 'hello'}])\n")
    project.pytester.makeini(
        "[pytest]\naddopts = --import-mode=importlib\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )

    project.run("scenarios/shop").assert_outcomes(passed=1)
    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1)

    (record,) = project.rollouts
    assert ("adhoc", 2) == (record.kind, record.session)
    assert {"scenario", "agent", "prompts", "scorers", "backend"} == record.content.keys()
    assert record.content["backend"]


def test_inline_reads_what_is_stored(project: Project) -> None:
    """A debugger that is started on a resumed run walks only through what is missing."""
    project.suite(scenarios=2)
    project.run("scenarios/shop", "-k", "shop-0").assert_outcomes(passed=1)

    project.run("--agentbench-resume", "--agentbench-inline", "scenarios/shop").assert_outcomes(passed=2)

    assert [1, 1] == sessions(project)


def test_other_variants_stay_in_the_report(project: Project) -> None:
    """A run that had several variants has them all in its report, also when it goes on with one of them."""
    project.suite(scenarios=1, variants={"warm": {"agent": {"temperature": 1.0}}})
    project.run("--agentbench-variants=all", "scenarios/shop").assert_outcomes(passed=2)

    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1)

    assert {"shop": 1, "shop-warm": 1} == {name: suite["rollouts"]["ok"] for name, suite in project.run_json["suites"].items()}


def test_damage_is_reported(project: Project) -> None:
    """A line that is no record is named in the report, its rollout runs again, and a record torn by a kill is cut off."""
    project.suite(scenarios=3)
    project.run_once("scenarios/shop")
    journal = project.directory / "rollouts.jsonl"
    first, second, third = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + b"\0" * 100 + b"\n" + third + second[:500])

    result = project.run("--agentbench-resume", "scenarios/shop")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "agentbench: session 2 of this run: reusing 2 rollouts; 0 failed *; an incomplete last record of 500 bytes was removed",
            "agentbench: line 2 of */rollouts.jsonl is damaged: it contains no record and is ignored: *",
        ]
    )
    [damage] = project.run_json["damaged"]
    assert re.match("line 2 of .*/rollouts.jsonl is damaged: it contains no record and is ignored: ", damage)
    assert [(damage,)] == under(report_of(project.directory, Level.FIRST_PAGE), "damaged")
    assert [2, 1] == sessions(project)


def flip(project: Project, key: bytes) -> str:
    """Changes the first digit behind a key of the second record, which is valid JSON afterwards; the sentence on it."""
    journal = project.directory / "rollouts.jsonl"
    first, second, third = journal.read_bytes().splitlines(keepends=True)
    place = second.index(key) + len(key)
    spoilt = second[:place] + (b"2" if second[place : place + 1] != b"2" else b"1") + second[place + 1 :]
    journal.write_bytes(first + spoilt + third)
    record = json.loads(second)
    return f"line 2 of {journal} is damaged: the record of shop[{record['scenario']}] does not match its checksum"


@pytest.mark.parametrize("key", [b'"started_ns":', b'"crc":"', b'"content":{"scenario":"'], ids=["body", "checksum", "head"])
def test_a_flipped_byte(project: Project, key: bytes) -> None:
    """A record of which one digit has changed is named by its line and runs again, the others are kept, and all tests are judged."""
    project.suite(scenarios=3)
    project.run_once("scenarios/shop")
    sentence = flip(project, key)

    result = project.run("--agentbench-resume", "scenarios/shop")

    result.assert_outcomes(passed=3)
    assert f"agentbench: {sentence} and is ignored" in result.stdout.str()
    assert [2, 1] == sessions(project)
    assert [f"{sentence} and is ignored"] == project.run_json["damaged"]


COMMANDS = {
    "gate": ("gate", "latest", "--gate", "tsq.mean >= 0.5"),
    "rescore": ("rescore", "latest"),
    "show": ("show", "latest", "--as", "aiperf"),
    "baseline": ("baseline", "promote", "latest"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_name_damage(project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whoever reads a run is told which line of it is damaged, and gets what the others say."""
    project.suite(scenarios=3)
    project.run_once("scenarios/shop")
    sentence = flip(project, b'"started_ns":')
    monkeypatch.chdir(project.root)

    assert 0 == main([*COMMANDS[name]])

    output = capsys.readouterr()
    assert sentence.partition(" of ")[0] in output.err
    assert sentence.partition(" is damaged: ")[2] in output.err
    assert output.out


def test_a_stack_is_not_booted_for_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """When every rollout is there nothing that takes minutes or GPUs starts; when one is missing it does."""
    project.suite(scenarios=2, test=PASSES)
    stack(project)
    with own_folder(monkeypatch):
        for expression in ("shop-0", "shop-0", "shop"):
            resume = ("--agentbench-resume",) if expression != "shop-0" or project.root.joinpath("reports").exists() else ()
            project.run(*resume, "--agentbench-backend=small", "scenarios/shop", "-k", expression)

    booted = [
        (folder / "backend" / "stack_daemon.log").exists() for folder in (project.directory, *sorted(project.directory.glob("session-*")))
    ]
    assert [True, False, True] == booted
    assert [1, 0, 1] == sessions(project)
    assert "tiny" == project.run_json["backend"]["served_model"]


def test_other_tools_know_no_pause(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of a tool that measures one session is not made of several."""
    project.suite(scenarios=2)
    project.run("scenarios/shop", "-k", "shop-0")
    project.run("--agentbench-resume", "scenarios/shop")

    capsys.readouterr()
    assert [0, 4] == [main(["show"]), main(["show", "--as", "aiperf"])]
    out, err = capsys.readouterr()
    assert 1 == len([line for line in out.splitlines() if line.startswith("resumed ")])
    assert err.endswith(
        " has 2 sessions with pauses between them, so rates of aiperf would be wrong; leave out --as, or choose another run\n"
    )
