"""Resuming a run: only missing or failed rollouts run, tests judge the stored ones, and the numbers are those of a single session."""

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

#: Everything in run.json except for times is the same, however many sessions the run had.
SAME = ("verdict", "plan", "gate")


def without_times(run: Json) -> Json:
    """Returns the part of run.json that is equal for two equal runs."""
    performance = run["performance"]
    counts = {name: performance[name] for name in ("calls", "failed_calls", "output_tokens", "prompt_tokens", "token_sources")}
    return {**{name: run[name] for name in SAME}, **counts, "suites": [*map(_untimed, run["suites"].values())]}


def _untimed(suite: Json) -> Json:
    efficiency = {name: value for name, value in suite["efficiency"].items() if "second" not in name}
    return {**suite, "efficiency": efficiency}


def sessions(project: Project) -> list[int]:
    """Returns the number of rollouts of each session of the newest run."""
    return [each["rollouts"] for each in project.run_json["sessions"]]


def test_only_what_is_missing_runs(project: Project) -> None:
    """A run of a part of a suite can be resumed for the whole suite.

    Stored rollouts are read, with and without workers, and none is stored twice.
    """
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
    """Tests judge stored rollouts as usual: low scores and agents' errors fail with the same sections."""
    project.suite(scenarios=2, expected=("find_item", "order_item"), thresholds={"tsq": 0.9})
    project.run("scenarios/shop").assert_outcomes(failed=2)

    result = project.run(*way, "--agentbench-resume", "scenarios/shop")

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E       assert 0.667 >= 0.9", "-* agentbench shop[[]shop-?[]] -*"])
    assert [2, 0] == sessions(project)


@WAYS
def test_failed_rollouts_run_again(project: Project, way: tuple[str, ...]) -> None:
    """An infra_error is attempted again, and all attempts are kept.

    The mean is that of a run without the error, and repeated rollouts are compared.
    """
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
    """--agentbench-resume-rerun=agent_error runs such rollouts again, and `none` runs only missing ones."""
    project.suite(scenarios=2, agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", FLAKY.replace("InfraError(", "LookupError("))
    flag = project.write("broken", "")
    project.run("scenarios/shop").assert_outcomes(passed=1, failed=1)
    flag.unlink()

    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1, failed=1)
    project.run("--agentbench-resume", "--agentbench-resume-rerun=none", "scenarios/shop").assert_outcomes(passed=1, failed=1)
    project.run("--agentbench-resume", "--agentbench-resume-rerun=agent_error", "scenarios/shop").assert_outcomes(passed=2)

    assert [1, 0, 0, 1] == sessions(project)


def test_a_run_with_a_time_limit_can_be_resumed(project: Project) -> None:
    """After the time limit, the session prints the command that runs the missing rollouts, and that command works."""
    project.suite(scenarios=4)
    project.backend([{"ttft_ms": 300, **rule} for rule in FIND_THEN_ANSWER])
    limited = project.run("--agentbench-time-limit=100ms", "--agentbench-concurrency=1", "scenarios/shop", "-q")
    limited.assert_outcomes(passed=1, errors=1)
    (line,) = [line for line in limited.stdout.lines if line.startswith("agentbench: ") and " pytest --" in line]
    words = shlex.split(line.partition(" pytest ")[2])
    assert [f"--agentbench-resume={project.directory.name}"] == [word for word in words if word.startswith("--agentbench-resume")]

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
    """If the setup has changed, resuming is a usage error that says what differs, and nothing is written or started."""
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
    """A changed scenario that already ran is refused by name. A scenario that has not run yet may change."""
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
def test_wrong_options_for_resuming(project: Project, arguments: tuple[str, ...], sentence: str) -> None:
    """A run that does not exist, and options that cannot be combined, are usage errors that say what would work."""
    project.suite(scenarios=1)

    result = project.run(*arguments, "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


def test_the_option_takes_no_path_for_a_run(project: Project) -> None:
    """`--agentbench-resume scenarios/shop` resumes the latest run of these tests, wherever the option is placed.

    The ini file works, too.
    """
    project.suite(scenarios=1)
    project.suite("other", scenarios=1)
    project.run_once("scenarios/shop")

    for arguments in (("--agentbench-resume", "scenarios/shop"), ("scenarios/shop", "--agentbench-resume")):
        project.run(*arguments).assert_outcomes(passed=1)
    project.run("-o", "agentbench_resume=latest", "scenarios/shop").assert_outcomes(passed=1)

    assert [1, 0, 0, 0] == sessions(project)


def test_manual_calls_are_made_again(project: Project) -> None:
    """A test that calls the model itself runs again when a run is resumed. Its record has hashes, and only the last one counts."""
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
    """With a debugger on a resumed run, only the missing rollouts run."""
    project.suite(scenarios=2)
    project.run("scenarios/shop", "-k", "shop-0").assert_outcomes(passed=1)

    project.run("--agentbench-resume", "--agentbench-inline", "scenarios/shop").assert_outcomes(passed=2)

    assert [1, 1] == sessions(project)


def test_other_variants_stay_in_the_report(project: Project) -> None:
    """A run with several variants has all of them in its report, even if only one of them is selected when it is resumed."""
    project.suite(scenarios=1, variants={"warm": {"agent": {"temperature": 1.0}}})
    project.run("--agentbench-variants=all", "scenarios/shop").assert_outcomes(passed=2)

    project.run("--agentbench-resume", "scenarios/shop").assert_outcomes(passed=1)

    assert {"shop": 1, "shop-warm": 1} == {name: suite["rollouts"]["ok"] for name, suite in project.run_json["suites"].items()}


def test_damage_is_reported(project: Project) -> None:
    """A damaged line is named in the report and its rollout runs again. An incomplete last record is removed."""
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
    """Changes a digit after a key of the second record, so that it stays valid JSON. Returns the message about it."""
    journal = project.directory / "rollouts.jsonl"
    first, second, third = journal.read_bytes().splitlines(keepends=True)
    place = second.index(key) + len(key)
    spoilt = second[:place] + (b"2" if second[place : place + 1] != b"2" else b"1") + second[place + 1 :]
    journal.write_bytes(first + spoilt + third)
    record = json.loads(second)
    return f"line 2 of {journal} is damaged: the record of shop[{record['scenario']}] does not match its checksum"


@pytest.mark.parametrize("key", [b'"started_ns":', b'"crc":"', b'"content":{"scenario":"'], ids=["body", "checksum", "head"])
def test_a_flipped_byte(project: Project, key: bytes) -> None:
    """A record in which one digit has changed is named by its line and runs again. The others are kept, and all tests are judged."""
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
    """Each command that reads a run names a damaged line, and uses the other lines."""
    project.suite(scenarios=3)
    project.run_once("scenarios/shop")
    sentence = flip(project, b'"started_ns":')
    monkeypatch.chdir(project.root)

    assert 0 == main([*COMMANDS[name]])

    output = capsys.readouterr()
    assert sentence.partition(" of ")[0] in output.err
    assert sentence.partition(" is damaged: ")[2] in output.err
    assert output.out


def test_a_stack_starts_only_if_rollouts_are_missing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all rollouts are stored, no stack is started. If one is missing, the stack is started."""
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


def test_tables_of_other_tools_need_one_session(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`show --as` refuses a run of several sessions, because the other tool measures only one."""
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
