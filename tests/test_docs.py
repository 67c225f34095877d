"""The documentation is tested: every snippet in README.md and docs/ runs, and every key and option is on its page.

A page is worked through from top to bottom in a new project, made by `agentbench init banking`.

- A block of code is written to the file that the line before it, or its first comment, names. YAML and JSON are then loaded. Python is
  type-checked, and run by the commands below it.
- Commands (`console`, and indented ones) run one by one and have to succeed, unless `<!-- exit: 1 -->` above them says otherwise.
  To save time, runs take three scenarios, two workers and an engine that does not wait, and a command that already ran in the same state
  of a project does not run again. `<!-- collect: only -->` is for commands that only select tests.
- A block of `text` below commands is the output of the last of them: these lines in this order, with `...` for any text.
- `<!-- needs: ... -->` above commands says what they need and a test lacks. They are skipped with that reason.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import fastjsonschema
import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel

from pytest_agentbench.agents.run import TruncationRetry
from pytest_agentbench.backends.embedded import EmbeddedSpec
from pytest_agentbench.backends.machine.virtual_environments import environments, resolve_python
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.cli import main, parser
from pytest_agentbench.cli.nat_config import OPTIONS as NAT_OPTIONS
from pytest_agentbench.clusters.manifests import read_manifests
from pytest_agentbench.engine.script import Match, ScriptEntry, load_rules
from pytest_agentbench.errors import MissingError
from pytest_agentbench.exports import TOOLS
from pytest_agentbench.exports.nat_config.reading import NatReading
from pytest_agentbench.gate.rules import LATENCY_STATISTICS, SHARES
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.suite_metrics import RoleUse
from pytest_agentbench.optimize.confirmation import CONFIRMED, OPEN, REFUTED
from pytest_agentbench.optimize.space import read_space
from pytest_agentbench.optimize.study import STUDY_FILE, TRIALS_FILE
from pytest_agentbench.records import SAMPLING, STATUSES, Json
from pytest_agentbench.reports.sweep import LEVELS, PAGE, PICTURE
from pytest_agentbench.reproduction.experiment import COLUMNS
from pytest_agentbench.retriever.config import is_retriever, read_settings
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.schemas import schema
from pytest_agentbench.suites.datasets.agent_leaderboard_hub import DOMAINS
from pytest_agentbench.suites.folder import API_BASE, WITHOUT_USE, load_suite
from pytest_agentbench.suites.folder import OPTIONS as OPTIONS_OF_CONFIG
from pytest_agentbench.suites.spec import DatasetSpec, SuiteSpec
from pytest_agentbench.tools.factory import TOOL_KINDS
from tests.engines import engine
from tests.labelled_router import routing
from tests.project import FIND_THEN_ANSWER, OTHER_PLUGINS, Project, without_waits

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])]

#: Programs whose commands change the machine or need a network. They are run by .ci/run and by people.
OTHERS = {"make": "what `.ci/run` runs", "pip": "the package index"}
PROGRAMS = ("pytest", "agentbench", "python", "cat", "grep", *OTHERS)

#: Disables plugins of this environment that no page uses.
UNUSED = " ".join(f"-p no:{name}" for name in OTHER_PLUGINS if name not in ("benchmark", "pytest_cov", "timeout"))

#: The address of a server in the documentation. Tests use another one.
SERVER = "127.0.0.1:8000"


class Block(NamedTuple):
    """A block of code or of commands."""

    page: Path
    line: int  # Line number of its first line, counted from 1.
    language: str
    text: str
    file: str | None  # Name of the file to which the block is written.
    needs: str
    exit: int
    collect: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        return [line.partition("  #")[0].strip() for line in self.text.splitlines() if line.strip()] if self.language == "console" else []


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced and indented blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if fence := re.fullmatch(r"```(\w+)", lines[at]):
            end = lines.index("```", at + 1)
            yield block(page, lines, at, lines[at + 1 : end], fence[1])
        elif lines[at].startswith("    ") and not lines[at - 1].strip():
            end = next((i for i in range(at, len(lines)) if lines[i].strip() and not lines[i].startswith("    ")), len(lines))
            content = [line.removeprefix("    ") for line in lines[at:end]]
            yield block(page, lines, at, content, language_of(content))
        else:
            end = at
        at = end + 1


def block(page: Path, lines: list[str], at: int, content: list[str], language: str) -> Block:
    above = "\n".join(lines[max(0, at - 4) : at])
    notes = dict(re.findall(r"<!-- (\w+): (.+?) -->\n*\Z", above))
    named = re.search(r"`([\w./-]+\.\w+)`[^`\n]*:\n*\Z", above)
    comment = re.fullmatch(r"# ([\w./-]+\.\w+)", content[0])
    file = comment or named
    text = "\n".join(content) + "\n"
    return Block(page, at + 1, language, text, file and file[1], notes.get("needs", ""), int(notes.get("exit", 0)), "collect" in notes)


def language_of(content: list[str]) -> str:
    if all(line.split()[0] in PROGRAMS for line in content if line.strip()):
        return "console"
    try:
        return "python" if any(isinstance(each, ast.FunctionDef) for each in ast.parse("\n".join(content)).body) else "text"
    except SyntaxError:
        return "text"


BLOCKS = [each for page in PAGES for each in blocks(page)]


#: (code written so far, command) -> output, for successful commands of pages that only run tests.
KNOWN: dict[tuple[str, str], str] = {}


class Reader:
    """Works through a page like a user."""

    def __init__(self, project: Path, site: Path, server: str, has: str = "") -> None:
        """Creates a reader in a project. `has` is a need that this machine meets: commands that need it run, too."""
        self.project, self.site, self.server, self.has = project, site, server, has
        self.written = ""  # All code so far, which is the state of the project.
        self.output: str | None = None  # Output of the previous command, or None after anything else.
        self.reads_runs = False  # Whether the page has commands that may read the results of a run.

    def work_through(self, page: Path) -> None:
        blocks = [each for each in BLOCKS if each.page == page]
        words = {shlex.split(command)[0] for each in blocks for command in each.commands}
        self.reads_runs = not words <= {"pytest", "pip"}
        for each in blocks:
            self.do(each)

    def do(self, block: Block) -> None:
        if block.commands:
            for command in block.commands:
                if why_not(block, command) in ("", self.has):
                    self.run(block, command)
                else:
                    self.output = None  # A text below is not the output of an earlier command.
        elif block.language not in ("text", "mermaid"):
            self.output = None
            self.write(block)
        elif self.output is not None:
            compare(block, self.output)

    def write(self, block: Block) -> None:
        """Writes code to its file. Code without a file is run as a test of the suite banking."""
        assert block.file or block.language == "python", f"{block.place}: no line above it and no comment in it names the file"
        path = self.project / (block.file or f"scenarios/banking/test_line_{block.line}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text.replace(SERVER, self.server), encoding="utf-8")
        load(path)
        self.written += f"{path}\n{block.text}"
        if not block.file:
            self.run(block, f"pytest {path.relative_to(self.project)}")

    def run(self, block: Block, command: str) -> None:
        words = shlex.split(shortened(block, command).replace(SERVER, self.server))
        state = self.written, shlex.join(words)
        if words[:2] == ["pip", "install"]:
            install(self.project / words[2], self.site)
        elif state not in KNOWN or self.reads_runs:
            KNOWN[state] = self.printed(block, words)
        self.output = KNOWN.get(state)

    def printed(self, block: Block, words: list[str]) -> str:
        """Runs a command. Returns its output."""
        folder = self.project
        # The project already has the suite.
        if words[:2] == ["agentbench", "init"] and words[2:] in ([], ["banking"]):
            folder = self.project / "empty"
            folder.mkdir()
        done = subprocess.run(words, cwd=folder, env=self.environment(), capture_output=True, text=True, timeout=120, check=False)

        assert block.exit == done.returncode, f"{block.place}: {shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Returns the environment of the tests, with the programs of their environment, the installed plugin, and a key."""
        here = child_environment()
        return {
            **here,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{here['PATH']}",
            "PYTHONPATH": str(self.site),
            "MY_API_KEY": "0123456789",
            "PYTEST_ADDOPTS": UNUSED,
        }


def compare(block: Block, output: str) -> None:
    """Asserts that a command printed the lines of a block in their order, possibly with others between them."""
    lines = iter(output.splitlines())
    for line in block.text.splitlines():
        pattern = re.escape(line.strip()).replace(r"\.\.\.", ".*")

        assert any(re.fullmatch(pattern, each.strip()) for each in lines), f"{block.place}: {line!r} is not in\n{output}"


def load_yaml(path: Path, text: str) -> None:
    """Reads a YAML file like the program that uses it. Manifests of Kubernetes are checked with its schemas."""
    if path.name == "suite.yaml":
        load_suite(path)
    elif path.name.endswith(".script.yaml"):
        load_rules(path)
    elif "\napiVersion: " in text:
        for each in read_manifests(text, str(path)):
            with suppress(kubernetes_validate.SchemaNotFoundError):  # Kinds that operators add have no schema there.
                kubernetes_validate.validate(each, "1.37", strict=True)
    elif is_retriever(path):
        read_settings(path)
    elif "\nparameters:" in text:
        read_space(path)
    elif "\nworkflow:" in text:
        NatReading(path)
    else:
        load_backend(str(path), path.parent)


def load(path: Path) -> None:
    """Reads a file like the program that uses it."""
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".yaml":
            load_yaml(path, text)
        case ".yml":
            yaml.safe_load(text)  # `promtool` checks it in tests/backends/test_backend_monitoring.py.
        case ".json":
            json.loads(text)
        case ".jsonl":
            assert all(json.loads(line) for line in text.splitlines())
        case ".toml":
            tomllib.loads(text)
        case ".ini":
            configparser.ConfigParser(interpolation=None).read_string(text)
        case ".py":
            compile(text, path, "exec")
        case ".sh":
            subprocess.run(["sh", "-n", path], check=True)
        case ".txt":
            assert environments(path.parent.parent)[path.stem].pins
        case other:
            pytest.fail(f"{path.name}: a test cannot read {other} files")


def shortened(block: Block, command: str) -> str:
    """Returns the command with three scenarios and two workers, or with --collect-only."""
    if not command.startswith("pytest"):
        return command
    short = command if "--agentbench-limit" in command else f"{command} --agentbench-limit 3"
    return short.replace("-n 48", "-n 2") + " --co" * block.collect


def why_not(block: Block, command: str) -> str:
    """Returns what a command needs that a test lacks."""
    words = command.split()
    return block.needs or ("" if words[:3] == ["pip", "install", "./teamkit"] else OTHERS.get(words[0], ""))


def install(source: Path, site: Path) -> None:
    """Installs a project with one module like pip: the module and its entry points, without downloading a build backend."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    shutil.copy(source / f"{project['name']}.py", site)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a server whose model makes no mistake on the first three customers."""
    entries = json.loads((ROOT / "scenarios/banking/banking.json").read_text(encoding="utf-8"))[:3]
    rules: list[Json] = [
        {
            "match": {"contains": entry["question"], "turn": 0},
            "tool_calls": [{"name": call["tool"], "arguments": call["parameters"]} for call in entry["expected_tool_calls"]],
        }
        for entry in entries
    ]
    with engine(tmp_path_factory.mktemp("server"), [*rules, {"text": "All of it is done."}], model="my-model") as url:
        yield url.removeprefix("http://")


@pytest.fixture
def reader(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader with a project whose engine does not wait."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    main(["init", "banking"])
    without_waits(folder / "backends" / "embedded.yaml")
    return Reader(folder, tmp_path / "site", server)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_snippets(reader: Reader, page: Path) -> None:
    """Every snippet of a page works, in the order of the page."""
    reader.work_through(page)


def test_slower_is_slower(reader: Reader) -> None:
    """The backend `slower` of docs/compare/ab.md waits at least as long as the shipped one at every point, and longer at one of them."""
    (yaml,) = (each for each in BLOCKS if each.file == "backends/slower.yaml")
    reader.write(yaml)
    slower, shipped = (load_backend(str(file), ROOT) for file in (reader.project / "backends/slower.yaml", ROOT / "backends/embedded.yaml"))

    assert isinstance(slower, EmbeddedSpec)
    assert isinstance(shipped, EmbeddedSpec)
    assert (slower.ttft_ms, slower.itl_ms) > (shipped.ttft_ms, shipped.itl_ms)
    assert slower.itl_ms >= shipped.itl_ms


NOT_RUN = [(each, command, why) for each in BLOCKS for command in each.commands if (why := why_not(each, command))]


@pytest.mark.parametrize(("block", "command", "why"), NOT_RUN, ids=[f"{each.place}-{command.split()[0]}" for each, command, _ in NOT_RUN])
def test_not_run(block: Block, command: str, why: str) -> None:
    """Commands that need something that a test lacks are counted as skipped."""
    pytest.skip(f"NOT RUN: {block.place}: `{command}` needs {why}")


#: Those commands that are ours. Commands that need the package `harbor` cannot be parsed without it.
TAKEN = [(each, command) for each, command, _ in NOT_RUN if command.startswith(("pytest ", "agentbench ")) and "`harbor`" not in each.needs]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({each.page for each, _ in TAKEN}), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_are_not_run_are_valid(reader: Reader, page: Path) -> None:
    """A pytest command collects tests, and the arguments of an agentbench command can be parsed, in a project that has all suites."""
    for suite in ("bfcl", "hle", "openthoughts", "sessions"):
        main(["init", suite])
    shutil.copytree("scenarios/openthoughts/tasks", "scenarios/openthoughts/tb-dev")  # a download
    for each in BLOCKS:
        if each.page == page and each.file:
            reader.write(each)
    for each, command in TAKEN:
        if each.page == page:
            skip_without_environment(each, command)
            understand(reader, each, command)


def skip_without_environment(block: Block, command: str) -> None:
    """Skips the test if a command's agent needs an environment that is not installed, because its suite cannot be collected then."""
    if (named := re.search(r"agent\.python=(\w+)", command)) and named[1] in environments():
        try:
            resolve_python(named[1], ROOT)
        except MissingError as error:
            pytest.skip(f"NOT RUN: {block.place}: {error}")


def understand(reader: Reader, block: Block, command: str) -> None:
    words = shlex.split(command)
    if words[0] == "pytest":
        reader.printed(block, [*words, "--collect-only", "-q"])
        return
    try:
        parser().parse_args(words[1:])
    except SystemExit as end:
        assert not end.code, f"{block.place}: {command}"  # noqa: PT017 - who asks for help gets it this way


@pytest.mark.slow
def test_python_is_typed(tmp_path: Path) -> None:
    """Python code that the documentation puts into files passes the type checker with this project's settings."""
    for each in BLOCKS:
        if each.language == "python" and each.file:
            (tmp_path / f"{each.page.stem.replace('-', '_')}_{each.line}.py".lower()).write_text(each.text)

    done = subprocess.run([sys.executable, "-m", "mypy", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout
    assert "Success" in done.stdout


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")),
        *sorted((ROOT / "scenarios").glob("*/README.md")),
        *(ROOT / "reports" / name for name in ("README.md", "baselines/README.md", "example/banking/report.md")),
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links(page: Path) -> None:
    """Links within the documentation lead to an existing file and, if they have an anchor, to a heading."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http") and not leads_somewhere(page, link)]

    assert [] == dead


def test_pages_that_code_names_exist() -> None:
    """Each page of the documentation that code mentions exists, and has the heading that is named with it."""
    code = [file for folder in ("pytest_agentbench", "tests", "scenarios", "backends") for file in (ROOT / folder).rglob("*")]
    files = [file for file in code if file.suffix in {".py", ".yaml"} and "shipped" not in file.parts]
    name = re.compile(r"(?<!/)\bdocs/[\w/-]+\.md\b(?:#[\w-]+)?")
    named = {(page, file.name) for file in files for page in name.findall(file.read_text(encoding="utf-8"))}

    assert ("docs/terminal/terminal-agent.md", "verifier.py") in named
    assert [] == sorted(each for each in named if not leads_somewhere(ROOT / "README.md", each[0]))


def leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    if not target.exists():
        return False
    return not anchor or anchor in [
        slug(heading) for heading in re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]


def slug(heading: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    return [f"{prefix}{name}" for name in model.model_fields]


#: Maps a page to words that have to be on it as code. Pages whose tables are generated from the same names need no check.
WORDS: Mapping[str, list[str]] = {
    "start/suites.md": [
        *SAMPLING,
        *["rollout", "scenario", "thresholds", "suite", "backend", "llm"],
        *["id", "question", "expected_tool_calls", "available_tools", "user_goals", "metadata", "ground_truth"],
        *["title", "description", "properties", "required", "type", "response_schema"],
    ],
    "reference/suite-yaml.md": [*keys(SuiteSpec), *keys(DatasetSpec, "dataset.")],
    "reference/agent-options.md": [f"truncation_retry.{field.name}" for field in fields(TruncationRetry)],
    "terminal/terminal-agent.md": ["config", "oracle", "nothing", API_BASE, *WITHOUT_USE, *OPTIONS_OF_CONFIG],
    "backends/built-in-engine.md": [*(name for name in keys(ScriptEntry) if name != "match"), *keys(Match, "match.")],
    "agents/tools.md": [*TOOL_KINDS],
    "agents/roles.md": [*(field.name for field in fields(RoleUse))],
    "compare/gates.md": [
        *LATENCY_STATISTICS,
        *SHARES,
        "goodput",
    ],
    "reference/metrics.md": [*STATUSES, *registry.objectives()],
    "compare/sweep.md": [LEVELS, PAGE, PICTURE],
    "compare/optimize.md": [STUDY_FILE, TRIALS_FILE, CONFIRMED, REFUTED, OPEN],
    "benchmarks/reproduce.md": [*COLUMNS],
    "coming-from/import.md": [*TOOLS],
    "coming-from/nat-config.md": ["nat-config", *(f"--{name}" for name in NAT_OPTIONS)],
}


@pytest.mark.parametrize("name", WORDS)
def test_page_is_complete(name: str) -> None:
    """Every option, key, scorer, status, fixture and hook is on its page, as code."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    code = {word for span in re.findall(r"`([^`\n]+)`", text) for word in [span, *re.split(r"[\s,=]+", span)]}

    assert [] == [word for word in WORDS[name] if word not in code]


def test_promises_have_tests() -> None:
    """Every promise of the page on security names tests, and these tests exist."""
    promises = (ROOT / "docs" / "why/security.md").read_text(encoding="utf-8").partition("## What is promised")[2].partition("\n## ")[0]
    rows = [row for row in promises.splitlines() if row.startswith("| ")][2:]
    named = [re.findall(r"`(tests/[^`]+)::(test_\w+)`", row) for row in rows]

    assert len(rows) > 10
    assert [] == [row for row, tests in zip(rows, named, strict=True) if not tests]
    assert [] == [f"{file}::{test}" for tests in named for file, test in tests if test not in functions(ROOT / file)]


def functions(file: Path) -> set[str]:
    """Returns the names of the functions at the top of a Python file, or none if there is no file."""
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_domains_are_listed() -> None:
    """The page on suites names every domain of the public data set."""
    text = (ROOT / "docs" / "start/suites.md").read_text(encoding="utf-8")

    assert [] == [domain for domain in DOMAINS if domain not in text]


BROKEN_AGENT = """
from dataclasses import dataclass

@dataclass
class Broken:
    max_turns: int

    async def run(self, scenario, llm, tools):
        raise OSError
"""


VERDICT: Json = {"reasoning": "", "missing_steps": ["wait"], "suggestions": "", "is_sufficient": True, "confidence": 1}


def eventful_run(project: Project) -> None:
    """Makes a run that contains everything that leaves a trace in its files."""
    project.backend(
        [
            {"match": {"contains": "Then give your verdict"}, "text": json.dumps(VERDICT)},
            {"match": {"contains": "shop-1"}, "status": 500},
            {"match": {"contains": "shop-7"}, "exit": True},
            {
                "match": {"contains": "shop-2", "turn": 0},
                "tool_calls": [{"name": "nothing", "arguments": {}}, {"name": "find_item", "arguments": "{"}],
            },
            {"match": {"contains": "shop-3"}, "tool_calls": [{"name": "find_item", "arguments": {"item": "lamp"}}]},
            *FIND_THEN_ANSWER,
        ]
    )
    project.suite(
        scenarios=8,
        test="def test_tools(rollout): pass\n\nasync def test_by_hand(llm): await llm.chat([{'role': 'user', 'content': 'Hello'}])\n",
        agent={"kind": "tool_calling", "max_turns": 2},
        variants={
            "broken": {"agent": {"kind": "./agent.py:Broken", "max_turns": 3}},
            "program": {"agent": {"kind": "command", "program": ["true"]}},
        },
        scorers=["tsq", "./scorers.py:moody"],
        thresholds={"tsq.mean": 0.0},
    )
    disputed = {"scenario": "judged-0", "owner": "ada", "reason": "disputed", "expires": "2999-12-31"}
    project.suite("judged", scenarios=1, agent={"kind": "self_evaluating"}, quarantine=[disputed])
    project.write("scenarios/shop/agent.py", BROKEN_AGENT)
    project.write("scenarios/shop/scorers.py", "def moody(scenario, rollout):\n    assert scenario.id != 'shop-4'\n    return 1.0\n")
    project.write("conftest.py", "def pytest_agentbench_update_environment(environment): environment['driver'] = '1.2'\n")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "init", "--quiet"], cwd=project.root, check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "--message", "Start"], cwd=project.root, check=True)
    changes = ["--agentbench-set", "agent.temperature=0.5", "--agentbench-threshold", "tsq.mean=0.1", "--agentbench-retries", "1"]
    changes += ["--agentbench-slo", "ttft=500ms", "--agentbench-concurrency", "1", "--agentbench-gate", "infra_error.rate <= 1%"]
    project.run("scenarios/shop", "scenarios/judged", "--agentbench-variants", "all", "-o", "asyncio_mode=auto", *changes)


def labelled_run(project: Project) -> None:
    """Makes a run on a backend that is told about rollouts and reports about calls."""
    with routing() as router:
        project.write("backends/router.yaml", json.dumps({"kind": "url", "url": router.url, "labels": "dynamo"}))
        project.run("scenarios/shop", "--agentbench-backend=router", "--agentbench-limit=1")


def gated_run(project: Project) -> None:
    """Makes a run that is worse than its baseline."""
    project.backend()
    project.suite(scenarios=3)
    project.run("scenarios/shop", "--agentbench-trials=4")
    project.backend([{"text": "No."}])
    rules = ["--agentbench-gate=tsq.mean >= -0.1 vs baseline", "--agentbench-gate=tsq.mean >= 0.5", "--agentbench-gate=limit.rate <= 5%"]
    project.run("scenarios/shop", "--agentbench-trials=4", "--agentbench-baseline=latest", *rules)


def compared_run(project: Project) -> None:
    """Makes an A/B run whose arms have different cache states, one of them without a reset."""
    with routing() as router:
        project.run(f"--agentbench-ab=embedded,other={router.url}", "--agentbench-cache=cold", "--agentbench-limit=2", "scenarios/judged")


def primed_run(project: Project) -> None:
    project.run("--agentbench-cache=primed", "--agentbench-limit=1", "scenarios/judged")


def repeated_run(project: Project) -> None:
    """Makes two runs of a setup that is not better than before, with as many trial rounds as its rule needs."""
    for _ in range(2):
        project.run("scenarios/shop", "--agentbench-trials=auto", "--agentbench-gate=tsq.mean >= 0.5")


@pytest.mark.slow
def test_files_match_their_schemas(project: Project) -> None:
    """All keys of run.json, rollouts.jsonl and samples.jsonl are in the schemas with these types, and no others. run.json can be read as a
    Run.
    """
    records = checked_files(project, eventful_run, labelled_run, gated_run, compared_run, primed_run, repeated_run)

    assert {"ok", "limit", "agent_error", "infra_error"} == {record["status"] for record in records}
    assert {"scenario", "adhoc", "primer"} == {record["kind"] for record in records}


def checked_files(project: Project, *runs: Callable[[Project], None]) -> list[Json]:
    """Validates all files of these runs against the schemas. Returns their rollouts."""
    valid = {name: fastjsonschema.compile(schema(name)) for name in ("run", "rollout", "sample")}
    records: list[Json] = []
    for run in runs:
        run(project)
        valid["run"](project.run_json)
        assert project.run_json == json.loads(json.dumps(plain(read_run(project.directory))))
        for name, file in (("rollout", "rollouts.jsonl"), ("sample", "samples.jsonl")):
            text = (project.directory / file).read_text(encoding="utf-8") if (project.directory / file).exists() else ""
            lines = [valid[name](json.loads(line)) for line in text.splitlines()]
            records += lines if name == "rollout" else []
    return records
