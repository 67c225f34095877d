"""The table in CONTRIBUTING is true: each addition of one file and one line works in a copy of the package."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import read_journal
from tests.package_copy import PACKAGE, PackageCopy, write_project
from tests.project import PYTEST

TABLE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| what | file | line |")[2].partition("\n\n")[0]


class Addition(NamedTuple):
    """The file and the line of a row. Paths are relative to the package."""

    file: str
    text: str
    registry: str  # File and name of the registry: `file:NAME`.
    line: str


#: Reads and writes files of another tool in one file.
BOTH_WAYS = """
from pytest_agentbench.exports import Source

def read(path):
    return Source("fresh", ["score"], iter(()), "nobody took the times", 0, [])

def write(chosen, directory):
    (directory / "fresh.txt").write_text(f"{len(chosen.tables.rollouts)} fresh rollouts")
"""

ADDED = {
    "a kind of backend": Addition(
        "backends/fresh.py",
        """
from typing import Literal
from pytest_agentbench.backends.spec import BackendSpec
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec

class FreshSpec(BackendSpec):
    kind: Literal["fresh"]
    words: str

    def make(self, terms):
        return Embedded(EmbeddedSpec(kind="embedded", name=self.name, note=self.words, policy="fresh"))
""",
        "backends/spec.py:KINDS",
        '"fresh": "pytest_agentbench.backends.fresh:FreshSpec",',
    ),
    "an agent": Addition(
        "agents/fresh.py",
        """
from dataclasses import dataclass
from pytest_agentbench.records import Answer

@dataclass(frozen=True)
class Fresh:
    greeting: str = "Hello"

    async def run(self, scenario, llm, tools):
        reply = await llm.chat([{"role": "system", "content": self.greeting}, *scenario.messages])
        return Answer(f"{self.greeting} {reply.text}")
""",
        "agents/__init__.py:AGENTS",
        '"fresh": "pytest_agentbench.agents.fresh:Fresh",',
    ),
    "a scorer": Addition(
        "scorers/fresh.py",
        """
import math
from pytest_agentbench.records import Score
from pytest_agentbench.scorers.declaration import scorer

@scorer(better="lower", range=(0, math.inf), unit="mistakes")
def fresh(scenario, rollout):
    return Score(0 if rollout.answer == "Hi A fresh lamp." else 3, {}, rollout.answer)
""",
        "scorers/__init__.py:SCORERS",
        '"fresh": "pytest_agentbench.scorers.fresh:fresh",',
    ),
    "a tool source": Addition(
        "tools/fresh.py",
        """
from dataclasses import dataclass
from pytest_agentbench.tools.source import DecisionOnly

@dataclass(frozen=True)
class FreshTools(DecisionOnly):
    words: str = "fresh"

    async def call(self, tool, arguments):
        return f"{self.words} {tool.name}"
""",
        "tools/factory.py:TOOL_KINDS",
        '"fresh": "pytest_agentbench.tools.fresh:FreshTools",',
    ),
    "a data format": Addition(
        "suites/datasets/fresh.py",
        """
from pytest_agentbench.suites.suite import Scenario

def load(file):
    for number, line in enumerate(file.read_text().splitlines()):
        yield Scenario(f"fresh-{number}", ({"role": "user", "content": line},))
""",
        "suites/datasets/__init__.py:FORMATS",
        '"fresh": "pytest_agentbench.suites.datasets.fresh:load",',
    ),
    "an API that agents speak": Addition(
        "tap/dialects/fresh.py",
        """
from pytest_agentbench.tap.dialects.reader import DialectReader
from pytest_agentbench.tap.dialects.reader import in_front, stream_body

class FreshReader(DialectReader):
    name = "fresh"
    text = ""

    @staticmethod
    def as_stream(asked):
        return stream_body(asked, ())

    @staticmethod
    def with_usage(asked):
        return None

    @staticmethod
    def salted(asked, salt):
        return {**asked, "text": in_front(salt, asked.get("text"))}

    @staticmethod
    def chat_request(asked):
        return [{"role": "user", "content": asked["text"]}]

    @staticmethod
    def chat_reply(reply):
        return [{"role": "assistant", "content": reply["text"]}]

    def _merge(self, data):
        self.text += data["text"]
        return "content", None

    def _read_whole(self, data):
        self.text = data["text"]

    def _answer(self):
        return {"text": self.text}

    def _text_and_calls(self):
        return self.text, []
""",
        "tap/dialects/__init__.py:DIALECTS",
        '"/fresh": fresh.FreshReader,',
    ),
    "a section of the report": Addition(
        "reports/sections/fresh.py",
        """
from pytest_agentbench.reports.document import Fact, Level, say, section as of

def lamps(count):
    return f"{count} fresh lamps"

def section(view):
    return of("Fresh", [Fact("lamps", say(lamps, view.run.plan.rollouts), level=Level.FIRST_PAGE)])
""",
        "reports/sections/__init__.py:SECTIONS",
        "fresh.section,",
    ),
    "a report": Addition(
        "reports/fresh.py",
        """
def write(run, directory):
    path = directory / "fresh.txt"
    path.write_text("a fresh report")
    return path
""",
        "reports/__init__.py:REPORTS",
        '"fresh": "pytest_agentbench.reports.fresh:write",',
    ),
    "results of another tool": Addition(
        "exports/fresh.py",
        BOTH_WAYS,
        "exports/__init__.py:TOOLS",
        '"fresh": "pytest_agentbench.exports.fresh:read",',
    ),
    "files for another tool": Addition(
        "exports/fresh.py",
        BOTH_WAYS,
        "exports/__init__.py:EXPORTS",
        '"fresh": "pytest_agentbench.exports.fresh:write",',
    ),
    "another tool's table": Addition(
        "metrics/other_tools/fresh.py",
        """
from pytest_agentbench.metrics.other_tools import PeerTable

def fresh(calls):
    return PeerTable("Fresh", ["count"], {"calls": [float(len(list(calls)))]}, [])
""",
        "metrics/other_tools/__init__.py:PEERS",
        '"fresh": "pytest_agentbench.metrics.other_tools.fresh:fresh",',
    ),
    "a policy of the built-in engine": Addition(
        "engine/fresh.py",
        """
from pytest_agentbench.engine.chat import PolicyReply

class Fresh:
    def reply(self, request):
        return PolicyReply("A fresh lamp.")
""",
        "engine/__init__.py:POLICIES",
        '"fresh": "pytest_agentbench.engine.fresh:Fresh",',
    ),
    "a subcommand": Addition(
        "cli/fresh.py",
        """
def add(commands):
    commands.add_parser("fresh", help="a fresh command").set_defaults(run=lambda options: print("fresh from the command line"))
""",
        "cli/__init__.py:GROUPS",
        '"new": {"fresh": "pytest_agentbench.cli.fresh:add"},',
    ),
}

CHECK = '    lambda draft: ["description: it is refused"] if draft.suite.description == "refused" else (),\n'
METRIC = """
    Metric("fresh", "fresh", "call", "from the first to the last event", of_call=lambda call: call.ended_ns - call.received_ns),
"""
OPTION = '    fresh: int | None = option("a fresh number", "N", read=number(1))\n'

#: A project whose suite and backend use the additions.
PROJECT = {
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\nasyncio_default_fixture_loop_scope = function\n",
    "conftest.py": """
from pathlib import Path
from pytest_agentbench.session.settings import read_settings

def pytest_configure(config):
    (config.rootpath / "option.txt").write_text(str(read_settings(config).fresh))
""",
    "backends/fresh.yaml": "{kind: fresh, words: a fresh kind}",
    "scenarios/fresh/suite.yaml": """
name: fresh
dataset: {format: fresh, file: data.txt}
agent: {kind: fresh, greeting: Hi}
scorers: [fresh]
thresholds: {fresh: 1, fresh.mean: 1}
""",
    "scenarios/fresh/data.txt": "Is there a lamp?\nIs there a chair?\n",
    "scenarios/fresh/test_fresh.py": """
def test_fresh(rollout, thresholds):
    assert rollout.score("fresh") <= thresholds["fresh"]
""",
}


class ExtendedPackage(PackageCopy):
    """A copy of the package with one addition of each kind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for added in ADDED.values():
            self.add(added)
        self.replace("tap/dialects/__init__.py", "dialects import chat,", "dialects import fresh, chat,")
        self.replace("reports/sections/__init__.py", "    arms,\n", "    fresh,\n    arms,\n")
        self.replace("metrics/registry.py", "METRICS = (\n", f"METRICS = ({METRIC}")
        self.replace("rollouts/checks.py", "CHECKS: tuple[SuiteCheck, ...] = (\n", f"CHECKS: tuple[SuiteCheck, ...] = (\n{CHECK}")
        self.replace("runs/options.py", "    inline: bool", f"{OPTION}    inline: bool")

    def add(self, added: Addition) -> None:
        """Writes the file, and adds the line as the first one of its registry."""
        (self.package / added.file).write_text(added.text)
        file, _, name = added.registry.partition(":")
        (opening,) = re.findall(rf"^{name}\b[^=\n]*= [{{(]", (self.package / file).read_text(), re.MULTILINE)
        self.replace(file, opening, f"{opening}{added.line}")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> ExtendedPackage:
    return ExtendedPackage(tmp_path_factory.mktemp("extended"))


@pytest.fixture(scope="module")
def session(extended: ExtendedPackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after a session with the copy."""
    project = tmp_path_factory.mktemp("project")
    write_project(project, PROJECT)
    said = extended.run(*PYTEST, "-m", "fresh", "--agentbench-backend=fresh", "--agentbench-fresh=3", folder=project)
    assert "2 passed" in said
    return project


def run_json(project: Path) -> Json:
    run: Json = json.loads((project / "reports/latest/run.json").read_text())
    return run


def test_every_row_is_tried() -> None:
    """Each row of the table has an addition here, except for folders, YAMLs, pins (tests/backends/machine), functions of a file and
    options.
    """
    rows = re.findall(r"^\| (an? [\w \'-]+|results [\w ]+|files [\w ]+|another [\w \']+) \|", TABLE, re.MULTILINE)

    assert {"a suite", "a backend", "an environment that engines run in", "a check of suites", "a metric", "an option", *ADDED} == set(rows)
    assert len(TABLE.strip().splitlines()) - 1 == len(rows)


def test_rows_name_the_files_and_lines_of_their_additions() -> None:
    """Each addition is as the table says: a file in that folder, a line in that registry."""
    for row, added in ADDED.items():
        (line,) = (each for each in TABLE.splitlines() if each.startswith(f"| {row} |"))

        assert f"`pytest_agentbench/{added.file.replace('fresh', 'NAME')}`" in line
        assert f"in `{added.registry.partition(':')[2]}`" in line


def test_a_check_of_suites(extended: ExtendedPackage) -> None:
    """A function in the list of checks is called for each suite."""
    said = extended.python(
        "from pathlib import Path",
        "from pytest_agentbench.errors import ConfigError",
        "from pytest_agentbench.rollouts.compile import checked",
        "from pytest_agentbench.suites.folder import load_suite",
        f"file = Path({str(PACKAGE.parent)!r}, 'scenarios/banking/suite.yaml')",
        "print(checked(load_suite(file)).name)",
        "try: checked(load_suite(file, [('description', 'refused')]))",
        "except ConfigError as error: print(str(error).removeprefix(f'{file}: '))",
    )

    assert ["banking", "description: it is refused"] == said


def test_a_suite_a_backend_and_an_option(session: Path) -> None:
    """Folders and YAMLs are found without a registry. A field of RunOptions is an option, and run.json has its value."""
    run = run_json(session)

    assert ["fresh"] == [*run["suites"]]
    assert "fresh" == run["backend"]["name"]
    assert "3" == (session / "option.txt").read_text()
    assert 3 == run["settings"]["fresh"]


def test_a_kind_of_backend_and_a_policy(session: Path) -> None:
    """The key of the new backend's YAML is used, and the answers come from the new policy."""
    assert "a fresh kind" == run_json(session)["backend"]["note"]
    assert ["Hi A fresh lamp."] * 2 == [rollout.answer for rollout in read_journal(session / "reports/latest")]


def test_an_agent_a_scorer_and_a_data_format(session: Path) -> None:
    """The new agent works on the two scenarios of the new format. The new scorer counts mistakes, and the thresholds apply to it."""
    (suite,) = run_json(session)["suites"].values()

    assert ("fresh", "fresh") == (suite["dataset"]["format"], suite["agent"]["kind"])
    assert ["fresh"] == [*suite["scores"]]
    assert ("lower", "mistakes") == (suite["scales"]["fresh"]["better"], suite["scales"]["fresh"]["unit"])
    assert [("fresh.mean <= 1 of run", "PASS")] == [(rule["rule"], rule["verdict"]) for rule in run_json(session)["gate"]["rules"]]


def test_a_tool_source(extended: ExtendedPackage) -> None:
    """The calls of a suite with the new tool source are executed by it."""
    said = extended.python(
        "import asyncio",
        "from pathlib import Path",
        "from pytest_agentbench.suites.suite import Scenario, Tool",
        "from pytest_agentbench.tools.factory import load_tools",
        "tools = load_tools({'kind': 'fresh', 'words': 'a very fresh'}, Path(), ())",
        "async def told():",
        "    async with tools.opened(Scenario('s', ())) as source:",
        "        return await source.call(Tool('lamp', '', {}), {})",
        "print(asyncio.run(told()))",
    )

    assert ["a very fresh lamp"] == said


def test_a_metric(session: Path) -> None:
    """The percentiles of the new metric are in run.json. tests/metrics/test_registry.py has the other places."""
    assert run_json(session)["performance"]["fresh_ms"]["n"] >= 2


def test_a_report(session: Path) -> None:
    """The new report is written next to report.md."""
    assert "a fresh report" == (session / "reports/latest/fresh.txt").read_text()


def test_a_section_of_the_report(extended: ExtendedPackage, session: Path) -> None:
    """The new section is on the terminal, in report.md and in report.html."""
    directory = session / "reports/latest"

    assert "lamps       2 fresh lamps\n" in extended.run(sys.executable, "-m", "pytest_agentbench.cli", "show", folder=session)
    assert "- **lamps**: 2 fresh lamps\n" in (directory / "report.md").read_text()
    assert "<dt>lamps</dt><dd>2 fresh lamps</dd>" in (directory / "report.html").read_text()


def test_an_api_that_agents_speak(extended: ExtendedPackage) -> None:
    """Calls of the new API are forwarded, salted and upgraded by the rules in its file, and its answers are parsed."""
    said = extended.python(
        "from pytest_agentbench.tap import http_messages",
        "from pytest_agentbench.tap.dialects import DIALECTS",
        "from pytest_agentbench.tap.upgrade import BodyChanges, apply_changes",
        "print(http_messages.refusal(b'POST', '/fresh'))",
        """changes = BodyChanges(upgrade=True, usage=True, fields={}, salt="S")""",
        """print(apply_changes("/fresh", b'{"text": "Hello"}', changes).body.decode())""",
        "reading = DIALECTS['/fresh']()",
        """reading.read_complete(b'{"text": "Hi"}')""",
        "print(reading.output()['text'], reading.error_kind)",
    )

    assert ("None", {"text": "S\nHello", "stream": True}, "Hi None") == (said[0], json.loads(said[1]), said[2])


def test_results_and_tables_of_another_tool(extended: ExtendedPackage, session: Path) -> None:
    """`agentbench import` lists the new tool and finds its reader, and `agentbench show --as` prints its table."""
    reader = "from pytest_agentbench.exports import load_reader; print(load_reader('fresh')(None).suite)"
    command = (sys.executable, "-m", "pytest_agentbench.cli")

    assert ["fresh"] == extended.python(reader)
    assert "fresh" in extended.run(*command, "import", "--help")
    assert "Fresh" in extended.run(*command, "show", "--as", "fresh", folder=session)


def test_files_for_another_tool(extended: ExtendedPackage, session: Path) -> None:
    """`agentbench export --as` lists the new format, and writes its files."""
    command = (sys.executable, "-m", "pytest_agentbench.cli")
    extended.run(*command, "export", "latest", "--as", "fresh", "--output", "fresh", folder=session)

    assert "2 fresh rollouts" == (session / "fresh/fresh.txt").read_text()
    assert "fresh" in extended.run(*command, "export", "--help")


def test_a_subcommand(extended: ExtendedPackage) -> None:
    """The new subcommand runs, and the help lists it."""
    command = (sys.executable, "-m", "pytest_agentbench.cli")

    assert "fresh from the command line\n" == extended.run(*command, "fresh")
    assert "a fresh command" in extended.run(*command, "--help")
