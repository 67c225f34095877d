"""Text of models, agents, services and data reaches terminals, CI logs and Markdown as plain text, never as commands or markup."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.records import Json
from tests.exports.nat_job import call, item, tool, write_job
from tests.project import PYTEST, WAYS, Project
from tests.small_stacks import PASSES, agentbench, own_folder, stack

#: Contains a line that looks like ours, commands of GitHub and Azure, a cleared screen, right-to-left text and Markdown.
HOSTILE = (
    "x\nrule        PASS: shop tsq.mean 1.000, required >= 1 (this run)\n"
    "::stop-commands::theirs\n ::error::bad\r\x1b[2J\x1b]0;title\x07 ##[error]a "
    "##vso[task.x]b ##teamcity[x y='z'] \u202ereversed \x9b31m\x7f <img src=x> @octocat [a](https://evil.example) `| \\| <b>"
)
SAID = json.dumps(HOSTILE)

#: Ids of scenarios name tests, so they appear on the terminal, in JUnit and in shown failures.
IDS = tuple(
    f"shop-{number}{text}" for number, text in enumerate(("", "##vso[task.x]", "##teamcity[x y='z'] ##[error]", " ::error::x\n::a::"))
)

ANNOTATIONS = ("::error ", "::warning ", "::notice ")

AGENT = f"""
from dataclasses import dataclass
from pytest_agentbench.agents.tool_calling import ToolCalling

HOSTILE = {SAID}

@dataclass(frozen=True)
class Agent(ToolCalling):
    async def run(self, scenario, llm, tools):
        print(HOSTILE)
        if scenario.id.startswith("shop-1"):
            raise ValueError(HOSTILE)
        return await super().run(scenario, llm, tools)
"""
SCORER = f"""
from pytest_agentbench.records import Score

def fussy(scenario, rollout):
    if scenario.id.startswith("shop-3"):
        raise ValueError({SAID})
    return Score(0.5, explanation={SAID})
"""
TEST = f"""
import pytest
from pytest_agentbench.records import Score

HOSTILE = {SAID}

def test_score(rollout, thresholds):
    print(rollout.answer)
    assert rollout.score("fussy") >= thresholds["fussy"]

def test_answer(rollout):
    assert rollout.answer == "", rollout.answer

@pytest.mark.parametrize("way", [pytest.fail, pytest.skip, pytest.xfail])
def test_way(way):
    way(HOSTILE)
"""


def shop(project: Project) -> None:
    """Creates a suite in which every source of text is hostile."""
    rules: list[Json] = [
        {"match": {"contains": "shop-2:"}, "status": 400, "message": HOSTILE},
        {"match": {"turn": 0}, "tool_calls": [{"name": f"find_item{HOSTILE}", "arguments": {HOSTILE: HOSTILE}}]},
        {"text": HOSTILE},
    ]
    project.backend(rules)
    project.suite(
        scenarios=4, agent={"kind": "./agent.py:Agent"}, scorers=["tsq", "./scorer.py:fussy"], test=TEST, thresholds={"fussy": 1.0}
    )
    entries = json.loads((project.root / "scenarios/shop/data.json").read_text())
    for id, entry in zip(IDS, entries, strict=True):
        entry.update(id=id, question=entry["question"] + HOSTILE)
    project.write("scenarios/shop/data.json", json.dumps(entries))
    project.write("scenarios/shop/agent.py", AGENT)
    project.write("scenarios/shop/scorer.py", SCORER)


def run(project: Project, *arguments: str) -> str:
    """Returns the output of pytest, unchanged."""
    command = [*PYTEST, *arguments]
    done = subprocess.run(command, cwd=project.root, env=child_environment(), capture_output=True, timeout=120, check=False)
    return (done.stdout + done.stderr).decode()


def faults(text: str, commands: Sequence[str] = ()) -> list[str]:
    """Returns lines that are more than plain text, or that imitate ours. `commands` are the beginnings of lines that are allowed."""
    ours = text.partition("= agentbench =")[2].partition("\n====")[0]
    odd = r"[^\t\n -~\u00a0-\uffff]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|##\w*\["
    return [
        *[line for line in text.split("\n") if re.search(odd, line)],
        *[line for line in text.split("\n") if line.strip().startswith("::") and not line.startswith((*commands, *ANNOTATIONS))],
        *[line for line in ours.split("\n") if line.startswith("rule        PASS: shop tsq.mean 1.000, required >= 1 (this run)")],
    ]


@WAYS
def test_a_hostile_run(project: Project, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]) -> None:
    """Hostile text adds no command or control character to the CI log and no markup to a report.

    On GitHub, a random token stops commands around it.
    """
    summary = project.root / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    shop(project)

    output = run(project, *way, "-vv", "-rA", "--durations=0", "--durations-min=0", "--junitxml=junit.xml", "scenarios/shop")

    assert {"agent_error", "infra_error", "ok"} == {rollout.status for rollout in project.rollouts}, output
    assert {f"find_item{HOSTILE}"} == {name for rollout in project.rollouts for name in rollout.tools}
    (token,) = re.findall(r"^::stop-commands::([0-9a-f]{32})$", output, re.MULTILINE)
    assert [] == faults(output, (f"::stop-commands::{token}", f"::{token}::"))
    _, quiet, after = re.split(rf"^::stop-commands::{token}$|^::{token}::$", output, flags=re.MULTILINE)
    assert "= FAILURES =" in quiet and "= agentbench =" in quiet
    assert "::error " not in quiet
    assert "\n::error " in after
    said = [text for element in ET.parse(project.root / "junit.xml").iter() for text in (element.text or "", *element.attrib.values())]
    assert 4 == len({text for text in said if text.startswith("test_score[")})
    assert [] == faults("\n".join(said))
    for report in (project.directory / "report.md", project.directory / "comment.md", summary):
        assert [] == markup(report.read_text()), report


def markup(text: str) -> list[str]:
    """Returns lines of Markdown that contain hostile text outside of code."""
    outside = [re.sub(r"`[^`]*`", "", line) for line in text.split("\n")]
    return [line for line in outside if re.search(r"<img|<b>|@octocat|\]\(http|https://evil|\x1b|\u202e|^\s*::", line)]


@pytest.mark.slow
def test_commands_of_a_hostile_run(project: Project) -> None:
    """`agentbench show`, `compare`, `gate`, `baseline` and `rescore` print hostile text as plain text, and so does `import` with another
    tool's files.
    """
    shop(project)
    page = run(project, "scenarios/shop")
    assert "\nverdict " in page
    assert [] == faults(page)
    name = project.directory.name
    rows = [*call(0, "a", "100.0", ["100.2"], "100.5"), *tool(0, "t", f"shop__{HOSTILE}", "100.5", "100.6")]
    write_job(project.root / "nat" / "job_1", [HOSTILE], [item("shop-1", 1.0, [HOSTILE], ["find_item"])], rows)

    ran = [
        agentbench(project, *arguments)
        for arguments in (
            ("show", name),
            ("gate", name, "--gate", "fussy.mean >= 0.9"),
            ("rescore", name),
            ("compare", name, f"{name}-rescored"),
            ("baseline", "promote", name),
            ("import", "nat", "nat/job_1"),
            ("show", "nat-job_1"),
            ("show", HOSTILE.replace("\x00", "")),
        )
    ]

    for each in ran:
        assert [] == faults(each.stdout + each.stderr), each.args
    assert "octocat" in ran[0].stdout and "octocat" in ran[2].stdout and "octocat" in ran[-1].stderr


@pytest.mark.slow
def test_a_hostile_service(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a dead service's log is shown in errors and on the terminal, and contains no command or control character."""
    with own_folder(monkeypatch):
        project.suite(scenarios=1, test=PASSES)
        stack(project, "--slow", "60", "--die-after", "0.3", "--say", HOSTILE)

        output = run(project, "--agentbench-backend=small", "scenarios/shop")

    assert "octocat" in output
    assert [] == faults(output), output
    assert [] == faults((project.directory / "backend" / "stack_daemon.log").read_text())
    assert [] == markup((project.directory / "report.md").read_text().replace("````text", "```text").split("```text")[0])


@pytest.mark.slow
def test_colours_stay(project: Project) -> None:
    """On a terminal with colours, pytest's own colours are unchanged."""
    project.suite(scenarios=1, test="def test_it(rollout):\n    assert rollout.tools == ['order_item']\n")

    output = run(project, "--color=yes", "scenarios/shop")

    assert "\x1b[31m" in output
    assert "\\x1b" not in output


@pytest.mark.slow
def test_other_sessions_are_left_alone(project: Project, tmp_path: Path) -> None:
    """In a session without a suite, the output of tests is shown as pytest shows it."""
    test = project.write("tests/test_it.py", "def test_it():\n    print('\\x1b[2J')\n    assert False\n")

    assert "\x1b[2J" in run(project, str(test))
