"""Every report of a session has the verdict that belongs to the exit status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.exit_status import EXITS
from pytest_agentbench.records import Json
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.runs.run_file import read_run
from tests.openmetrics import parsed
from tests.project import FIND_THEN_ANSWER, TEST_FILE, TWO_WORKERS, Project, page

CRASHING = "class Crashing:\n    async def run(self, scenario, llm, tools):\n        raise LookupError('no such shelf')\n"
RAISING = "def fussy(scenario, rollout):\n    raise LookupError('no such shelf')\n"
ASKS_FUSSY = "def test_tools(rollout):\n    assert rollout.score('fussy') >= 0\n"
DIES: list[Json] = [{"exit": True}]
SPEAKS: list[Json] = [{"text": "No."}]
NO_TURN_LEFT: Json = {"kind": "tool_calling", "max_turns": 1}
ASSERTS_NOTHING = "def test_it(rollout):\n    assert rollout.status\n"
FINDS_AND_ORDERS: list[Json] = [  # TSQ 0.67: no test is below its threshold
    {"match": {"turn": 0}, "tool_calls": [{"name": name, "arguments": {"item": "lamp"}} for name in ("find_item", "order_item")]},
    {"text": "Done."},
]
LATE = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    yield
    session.exitstatus = {status}
"""


def headlines(project: Project, result: pytest.RunResult) -> dict[str, str]:
    """Maps each report to its headline."""
    directory = project.directory
    states = next(family for family in parsed((directory / "metrics.txt").read_text()) if family.name == "agentbench_verdict")
    annotation = next(line for line in result.outlines if line.startswith("::"))
    # For status 3, the terminal has no such line.
    terminal = [line.split(maxsplit=1)[1] for line in result.outlines if line.startswith("verdict ")]
    return {
        "run.json": project.run_json["verdict"],
        "report.md": (directory / "report.md").read_text().splitlines()[0].partition(": ")[2],
        "comment.md": (directory / "comment.md").read_text().splitlines()[1].removeprefix("## agentbench: "),
        "summary.md": (directory / "summary.md").read_text().splitlines()[1].removeprefix("## agentbench: "),
        "metrics.txt": next(sample.labels["agentbench_verdict"] for sample in states.samples if sample.value),
        "annotation": annotation.partition("::")[2].partition("::")[2],
        "title": re.sub(r".*title=agentbench%3A (.*?)::.*", r"\1", annotation),
        **dict.fromkeys(("terminal",) if terminal else (), "".join(terminal)),
    }


def golden() -> dict[str, str]:
    """Maps each session to its headline, as in headlines.txt: a line with the session's name, then an indented line."""
    lines = Path(__file__).with_name("headlines.txt").read_text(encoding="utf-8").splitlines()
    return {name: line.strip() for name, line in zip(lines[::2], lines[1::2], strict=True)}


def assert_ends(project: Project, result: pytest.RunResult, status: int, verdict: str) -> None:
    """Asserts that every report has this verdict, and the exit status unless it is 0."""
    assert status == result.ret, result.stdout.str()
    assert status == project.run_json["exit_status"]
    for report, line in headlines(project, result).items():
        assert re.match(rf"{verdict}($|[:;,] )", line), f"{report}: {line}"
        if report in ("report.md", "comment.md", "summary.md", "annotation", "terminal"):
            assert ([str(status)] if status else []) == re.findall(r"^[A-Z ]+, exit status (\d+)", line), f"{report}: {line}"


#: Session -> files beside its suite, keys of the suite, the engine's script, options, exit status and verdict.
SESSIONS: dict[str, tuple[dict[str, str], Json, list[Json], tuple[str, ...], int, str]] = {
    "all is well": ({}, {}, FIND_THEN_ANSWER, (), 0, "PASS"),
    "no rule": ({}, {"thresholds": {}, "test": ASSERTS_NOTHING}, FIND_THEN_ANSWER, (), 0, "NO GATE"),
    "no test reads the threshold": ({}, {"test": ASSERTS_NOTHING}, FIND_THEN_ANSWER, (), 0, "NO GATE"),
    "no rule, all at a limit": (
        {},
        {"thresholds": {}, "test": ASSERTS_NOTHING, "agent": NO_TURN_LEFT, "expected": ("order_item",), "scenarios": 12},
        FIND_THEN_ANSWER,
        (),
        0,
        "NO GATE",
    ),
    "no rule, all are errors": (
        {"scenarios/shop/agent.py": CRASHING},
        {"thresholds": {}, "test": ASSERTS_NOTHING, "agent": {"kind": "./agent.py:Crashing"}},
        FIND_THEN_ANSWER,
        (),
        0,
        "NO GATE",
    ),
    "no rule, none is measured": (
        {},
        {"thresholds": {}, "test": ASSERTS_NOTHING},
        [{"match": {"contains": "shop-"}, "status": 500}],
        (),
        6,
        "NOT MEASURED",
    ),
    "all at a limit": ({}, {"agent": NO_TURN_LEFT, "expected": ("order_item",)}, FIND_THEN_ANSWER, (), 1, "FAIL"),
    "rules that are only shown": (
        {},
        {"thresholds": {}, "test": ASSERTS_NOTHING},
        FIND_THEN_ANSWER,
        ("--agentbench-gate=tsq.mean >= 0.9", "--agentbench-verdict=tests"),
        0,
        "NO GATE",
    ),
    "every agent crashes": (
        {"scenarios/shop/agent.py": CRASHING},
        {"agent": {"kind": "./agent.py:Crashing"}},
        FIND_THEN_ANSWER,
        (),
        1,
        "FAIL",
    ),
    "a scorer raises": (
        {"scenarios/shop/scorer.py": RAISING},
        {"scorers": ["./scorer.py:fussy"], "thresholds": {}, "test": ASKS_FUSSY},
        FIND_THEN_ANSWER,
        (),
        6,
        "NOT MEASURED",
    ),
    "below its floor": ({}, {}, SPEAKS, (), 1, "FAIL"),
    "below its mean": ({}, {"thresholds": {"tsq.mean": 0.9}, "test": "def test_it(rollout): pass\n"}, SPEAKS, (), 1, "FAIL"),
    "a dead backend": ({}, {}, DIES, (), 6, "NOT MEASURED"),
    "a dead backend, thresholds of means": ({}, {"thresholds": {"tsq": 0.5, "tsq.mean": 0.5}}, DIES, (), 6, "NOT MEASURED"),
    "some fail, some are not measured": (
        {},
        {},
        [{"match": {"contains": "shop-0:"}, "text": "No."}, {"match": {"contains": "shop-1:"}, "status": 500}, *FIND_THEN_ANSWER],
        (),
        1,
        "FAIL",
    ),
    "some are not measured": ({}, {}, [{"match": {"contains": "shop-1:"}, "status": 500}, *FIND_THEN_ANSWER], (), 6, "NOT MEASURED"),
    "the gate fails": ({}, {"scenarios": 12}, FINDS_AND_ORDERS, ("--agentbench-gate=tsq.mean >= 0.95",), 1, "FAIL"),
    "the gate fails, and the tests decide": (
        {},
        {"scenarios": 12},
        FINDS_AND_ORDERS,
        ("--agentbench-gate=tsq.mean >= 0.95", "--agentbench-verdict=tests"),
        0,
        "PASS",
    ),
    "the gate cannot tell": ({}, {}, FIND_THEN_ANSWER, ("--agentbench-gate=tsq.mean >= 0.9",), 0, "INCONCLUSIVE"),
    "the gate cannot tell, and has to": (
        {},
        {},
        FIND_THEN_ANSWER,
        ("--agentbench-gate=tsq.mean >= 0.9", "--agentbench-inconclusive=fail"),
        7,
        "INCONCLUSIVE",
    ),
    "another test fails": ({"scenarios/shop/test_more.py": "def test_more(): assert 1 == 2\n"}, {}, FIND_THEN_ANSWER, (), 1, "FAIL"),
    "a file cannot be collected": (
        {"scenarios/shop/test_more.py": "1 / 0\n"},
        {},
        FIND_THEN_ANSWER,
        ("--continue-on-collection-errors",),
        1,
        "FAIL",
    ),
    "another plugin has the last word": ({"conftest.py": LATE.format(status=1)}, {}, FIND_THEN_ANSWER, (), 1, "FAIL"),
    "another plugin has a word of its own": ({"conftest.py": LATE.format(status=77)}, {}, FIND_THEN_ANSWER, (), 77, "FAIL"),
    "another plugin forgives": ({"conftest.py": LATE.format(status=0)}, {}, SPEAKS, (), 0, "PASS"),
    "too little is covered": (
        {"shop.py": "def unused():\n    return 1\n", "scenarios/shop/test_more.py": "def test_more(): import shop\n"},
        {},
        FIND_THEN_ANSWER,
        ("-p", "pytest_cov", "--cov=shop", "--cov-fail-under=99", "-o", "pythonpath=."),
        1,
        "FAIL",
    ),
}


#: Includes one session for each verdict except plain PASS and FAIL, and those in which two verdicts compete. The others are slow.
QUICK = {
    "no rule, all at a limit",
    "some fail, some are not measured",
    "some are not measured",
    "the gate fails",
    "the gate cannot tell, and has to",
    "another plugin has a word of its own",
}


@pytest.mark.slow
@pytest.mark.parametrize("session", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in SESSIONS])
def test_every_headline_is_the_exit_status(project: Project, session: str) -> None:
    """The verdict in run.json, report, comment, summary, metrics, annotation and terminal belongs to the exit status.

    The complete headlines are in headlines.txt.
    """
    files, keys, script, options, status, verdict = SESSIONS[session]
    project.suite(**keys)
    project.backend(script)
    for name, text in files.items():
        project.write(name, text)

    result = project.run("--agentbench-ci=github", "--agentbench-retries=0", *options, "scenarios/shop")

    if "another plugin" not in session:
        assert_ends(project, result, status, verdict)
        assert golden()[session] == headlines(project, result)["report.md"]
        return
    assert (status, verdict) == (result.ret, project.run_json["verdict"])
    said = headlines(project, result)
    assert {verdict} == {re.split("[:;,] ", said[report])[0] for report in said if report != "terminal"}


FAILING = "def test_it(rollout): assert rollout.score('tsq') > 1\n"
INTERRUPTED = "def test_it(rollout): raise KeyboardInterrupt\n"
EXITING = "import pytest\n\ndef test_it(rollout): pytest.exit('enough', 3)\n"  # with xdist it ends a worker alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "test", "status", "verdict"),
    [
        (TWO_WORKERS, TEST_FILE, 0, "PASS"),
        (TWO_WORKERS, FAILING, 1, "FAIL"),
        pytest.param(TWO_WORKERS, INTERRUPTED, 2, "INTERRUPTED", marks=pytest.mark.slow),
        ((), INTERRUPTED, 2, "INTERRUPTED"),
        ((), EXITING, 3, "INTERNAL ERROR"),
    ],
    ids=["passed-n2", "failed-n2", "interrupted-n2", "interrupted", "exit"],
)
def test_with_workers(project: Project, way: tuple[str, ...], test: str, status: int, verdict: str) -> None:
    """The verdict is the same with and without workers, and an interrupted session is not a PASS."""
    project.suite(test=test)

    result = project.run(*way, "--agentbench-ci=github", "scenarios/shop")

    assert_ends(project, result, status, verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "options", "status"), [(True, (), 2), (False, ("-k", "nothing_of_that_name"), 5)], ids=["a file that is wrong", "nothing"]
)
def test_sessions_without_rollouts(project: Project, broken: bool, options: tuple[str, ...], status: int) -> None:
    """If no test ran, there is no run directory, so that it cannot be mistaken for a good run."""
    project.suite()
    if broken:
        project.write("scenarios/shop/test_more.py", "1 / 0\n")

    result = project.run("--agentbench-ci=github", *options, "scenarios/shop")

    assert status == result.ret
    assert [] == [*(project.root / "reports").glob("*/run.json")]
    assert not [line for line in result.outlines if line.startswith("::")]


def test_the_gates_verdict_has_its_own_name(project: Project) -> None:
    """If the gate passes and a test fails for another reason, the report has both verdicts, and the session fails."""
    project.suite(test="def test_it(rollout): assert rollout.answer == 'another'\n")

    result = project.run("--agentbench-gate=infra_error.rate <= 2%", "scenarios/shop")

    assert (1, "FAIL", "PASS") == (result.ret, project.run_json["verdict"], project.run_json["gate"]["verdict"])
    assert ["FAIL", "PASS"] == re.findall("FAIL|PASS", "".join(page(result)[:3]))[:2]
    assert ["FAIL", "PASS"] == re.findall("FAIL|PASS", headline(read_run(project.directory)))


@pytest.mark.slow
def test_the_headline_under_q(project: Project) -> None:
    """With -q, the line of the session begins with its verdict."""
    project.suite()
    project.backend(SPEAKS)

    result = project.run("-q", "scenarios/shop")

    first = next(line for line in result.outlines if line.startswith("agentbench: "))
    assert re.match("agentbench: FAIL[;,] .*shop tsq ", first)


@pytest.mark.slow
def test_the_headline_of_a_rescored_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of a rescored run belongs to the exit status that a session with the new scores would have had."""
    project.suite()
    project.backend(SPEAKS)
    project.run("scenarios/shop")

    monkeypatch.chdir(project.root)
    assert 0 == main(["rescore"])

    (file,) = project.root.glob("reports/*-rescored/run.json")
    run = read_run(file.parent)
    assert run.exit_status is not None
    assert EXITS[run.exit_status].verdict == run.verdict
    assert f": {headline(run)}" in (file.parent / "report.md").read_text().splitlines()[0]
