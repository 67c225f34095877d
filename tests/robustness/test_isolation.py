"""With `isolation: process`, damage that a suite's code does to its process affects one rollout. Without it, all rollouts are affected."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_agentbench.agents.run import work
from pytest_agentbench.lib.process import lives
from pytest_agentbench.lib.standard_streams import capture
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Rollout, RolloutKey
from pytest_agentbench.rollouts.attempt_context import current_attempt
from pytest_agentbench.rollouts.isolation.outside import Template
from pytest_agentbench.rollouts.isolation.outside import isolated as isolated_setup
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite, Tool
from pytest_agentbench.tools.toolbox import Toolbox
from tests.project import FIND_THEN_ANSWER, WAYS, Project
from tests.robustness.processes import Background
from tests.robustness.test_suite_code import by_word, suite_of
from tests.waits import wait_for

pytestmark = pytest.mark.slow

Start = Callable[..., Background]

AGENT = """
import asyncio, ctypes, os, subprocess, sys, time
from pathlib import Path
from pytest_agentbench import Score
from pytest_agentbench.errors import JudgeError

HOME = Path(__file__).parent

async def run(scenario, llm, tools):
    reply = await llm.chat(scenario.messages, tools.schemas)
    for call in reply.tool_calls:
        await tools.call(call.name, call.arguments, 1)
    return await globals()[scenario.id.partition("_")[2]](llm)

async def fine(llm):
    return f"{Path.cwd() == Path('/')} {os.environ.get('SPOILT')}"

async def spoils(llm):
    os.chdir("/")
    os.environ["SPOILT"] = "yes"
    return await fine(llm)

async def crashes(llm):
    print("before the crash")
    ctypes.string_at(0)

async def leaves(llm):
    os._exit(3)

async def spins(llm):
    while True:
        pass

async def sleeps(llm):
    await asyncio.sleep(600)

async def starts(llm):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # pytest-agentbench left this"])
    (HOME / "pids.part").write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
    (HOME / "pids.part").rename(HOME / "pids")
    time.sleep(600)

async def judged(llm):
    judge = await llm.judge()
    return (await judge.chat([{"role": "user", "content": "Was it good?"}])).text

def blocks(llm):
    return asyncio.sleep(0, str(type(llm.openai_sync()).__name__))

def score(scenario, rollout):
    print("scored", scenario.id == rollout.scenario)
    if "spoils" in scenario.id:
        os.kill(os.getpid(), 9)
    if "judged" in scenario.id:
        raise KeyError("lamp")
    return Score(0.5, {"calls": len(rollout.tool_calls)}, "as always")

async def asks(scenario, rollout, judge):
    if "spoils" in scenario.id:
        raise JudgeError("its answer has no number")
    return Score(1.0, {}, (await judge.chat([{"role": "user", "content": "Was it good?"}])).text)
"""

ANY = "def test_it(rollout): pass\n"


def isolated(project: Project, words: list[str], isolation: str = "process", **keys: object) -> None:
    suite_of(project, words, agent={"kind": "./agent.py:run"}, isolation=isolation, thresholds={}, test=ANY, **keys)  # type: ignore[arg-type]  # keys of suite.yaml
    project.write("scenarios/shop/agent.py", AGENT)


def test_without_isolation_rollouts_share_a_process(project: Project) -> None:
    """Without isolation, a rollout's changes of working directory and environment affect the next one. This is why the option exists."""
    isolated(project, ["spoils", "fine"], isolation="none")

    project.run("--agentbench-concurrency=1", "scenarios/shop").assert_outcomes(passed=2)

    assert ["True yes", "True yes"] == [rollout.answer for rollout in project.rollouts]


def test_without_isolation_a_crash_ends_the_pool(project: Project) -> None:
    """Without isolation, an agent that crashes ends the pool each time. It is identified, and the other rollouts are measured."""
    isolated(project, ["fine", "crashes", "sleeps"], isolation="none", timeout=2)

    result = project.run("--agentbench-concurrency=1", "scenarios/shop")

    result.assert_outcomes(passed=3)
    crashed = by_word(project)["crashes"]
    assert ("agent_error", True) == (
        crashed.status,
        crashed.reason.startswith("the rollout ended the pool process (signal 11): the pool died 3 times"),
    )
    assert {"ok", "agent_error", "limit"} == {rollout.status for rollout in project.rollouts}


@WAYS
def test_isolation_keeps_damage_to_one_rollout(project: Project, way: tuple[str, ...]) -> None:
    """With isolation, a crash, an exit, a busy loop, and changes of directory or environment affect only their own rollout, and its calls
    are kept.
    """
    words = ["crashes", "spoils", "leaves", "spins", "sleeps", "fine", "blocks"]
    isolated(project, words, timeout=2)

    result = project.run(*way, "--agentbench-concurrency=2", "scenarios/shop")

    result.assert_outcomes(passed=7)
    ended = {word: (rollout.status, rollout.reason, rollout.answer, rollout.tools) for word, rollout in by_word(project).items()}
    limit = "limit", "time: the rollout took longer than 2 s", "", ["find_item"]
    assert {
        "crashes": ("agent_error", "the agent's process was ended by SIGSEGV", "", ["find_item"]),
        "leaves": ("agent_error", "the agent's process ended with exit code 3", "", ["find_item"]),
        "spins": limit,
        "sleeps": limit,
        "spoils": ("ok", "", "True yes", ["find_item"]),
        "fine": ("ok", "", "False None", ["find_item"]),
        "blocks": ("ok", "", "OpenAI", ["find_item"]),
    } == ended
    log = by_word(project)["crashes"].log
    assert ("before the crash\nFatal Python error: Segmentation fault", True) == (log[:55], "in crashes" in log)
    assert [1] * 7 == [len(rollout.calls) for rollout in project.rollouts]
    # The transcript of a process that was killed is lost; its last call, which the tap has, takes its place.
    assert (2, 2) == (len(by_word(project)["sleeps"].messages), len(by_word(project)["spins"].messages))


def test_scores_of_other_processes(project: Project) -> None:
    """With isolation, scorers run in processes after any kind of agent. If one dies or raises, its score is missing with a reason."""
    scorers = ["tsq", "./agent.py:score", "./agent.py:asks"]
    project.backend([{"match": {"contains": "Was it good?"}, "text": "It was."}, *FIND_THEN_ANSWER])
    isolated(project, ["fine", "spoils", "judged"], scorers=scorers)
    project.suite("built", scenarios=1, scorers=scorers, isolation="process", thresholds={}, test=ANY)
    project.write("scenarios/built/agent.py", AGENT)

    project.run("scenarios").assert_outcomes(passed=4)

    rollouts = by_word(project)
    # The second is the rollout of the built-in agent.
    for rollout in (rollouts["fine"], rollouts[""]):
        assert {"tsq": 1.0, "score": 0.5, "asks": 1.0} == rollout.scores
        assert ({"calls": 1.0}, "as always") == (rollout.score("score").parts, rollout.score("score").explanation)
        assert "scored True" in rollout.log
        assert "It was." == rollout.score("asks").explanation
    # The reasons begin as those of scorers in the pool do.
    spoilt = rollouts["spoils"].score_errors
    assert ("the scorer's process was ended by SIGKILL", {"score", "asks"}) == (spoilt["score"], set(spoilt))
    assert re.fullmatch(r"judge_error: its answer has no number \(\w+\.py:\d+\)", spoilt["asks"])
    assert re.fullmatch(r"KeyError: 'lamp' \(\w+\.py:\d+\)", rollouts["judged"].score_errors["score"])
    judged = rollouts["judged"]
    assert ("It was.", "It was.", 1, 2) == (judged.answer, judged.score("asks").explanation, len(judged.calls), len(judged.other_calls))


UNLOADABLE = {
    "raising": ("raise RuntimeError('no such luck')", "agent './agent.py:run' cannot be loaded: RuntimeError: no such luck (agent.py:1)"),
    "leaving": ("import os; os._exit(3)", "the process that imports the suite's code ended with exit code 3"),
    "crashing": ("import os; os.kill(os.getpid(), 11)", "the process that imports the suite's code was ended by SIGSEGV"),
    "wrong": (
        "def run(model): ...",
        "agent: './agent.py:run' has an unknown parameter: model; known: scenario, tools, llm, client",
    ),
}


def test_code_that_cannot_be_loaded(project: Project) -> None:
    """Code that cannot be imported is a collection error, even if it ends the importing process. Other suites run."""
    for name, (code, _) in UNLOADABLE.items():
        project.suite(name, scenarios=1, agent={"kind": "./agent.py:run"}, isolation="process")
        project.write(f"scenarios/{name}/agent.py", code)
    project.suite("other", scenarios=1)

    result = project.run("--continue-on-collection-errors", "scenarios")

    result.assert_outcomes(passed=1, errors=len(UNLOADABLE))
    for name, (_, reason) in UNLOADABLE.items():
        assert 1 == result.stdout.str().count(f"{project.root}/scenarios/{name}/suite.yaml: {reason}")
    assert ["other"] == [rollout.suite for rollout in project.rollouts]


DATED = """
from datetime import date
from pytest_agentbench import Scenario

def load(file):
    return [Scenario("shop_fine", ({"role": "user", "content": "A lamp?"},), metadata={"since": date(2026, 1, 2)})]
"""

READS_DATES = """
def run(scenario, *, days=frozenset()):
    return f"{scenario.metadata} {days}"
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_dates_of_a_format(project: Project, isolation: str) -> None:
    """Data of a suite's own format, and defaults of an agent's arguments, may have types that JSON lacks."""
    dataset = {"format": "./format.py:load", "file": "data.json"}
    project.suite(scenarios=1, agent={"kind": "./agent.py:run"}, test=ANY, thresholds={}, dataset=dataset, isolation=isolation)
    project.write("scenarios/shop/format.py", DATED)
    project.write("scenarios/shop/agent.py", READS_DATES)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    assert "{'since': '2026-01-02'} frozenset()" == project.rollouts[0].answer
    assert "frozenset()" == project.rollouts[0].settings["days"]


async def test_all_turns_share_a_process(tmp_path: Path) -> None:
    """With isolation, an agent's state is kept between the user's messages of a rollout, but not until the next rollout."""
    (tmp_path / "agent.py").write_text(
        "import os\nseen = []\ndef run(tools):\n    seen.append(os.getpid())\n    tools.call('find', '{}', 1)\n"
        "    return f'{len(seen)} {len(set(seen))} {seen[0] != os.getppid()}'\n"
    )
    scenario = Scenario(
        "s-0", ({"role": "user", "content": "A lamp?"},), (Tool("find", "", {"type": "object"}),), turns=(({"role": "user"},),)
    )
    info = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 1)
    suite = Suite("shop", tmp_path, (scenario,), {"kind": "./agent.py:run"}, dataset=info, isolation="process").for_pool()
    template = await Template.start(suite, "default")
    for _ in range(2):
        tools = Toolbox(scenario.tools)

        with capture() as log, current_attempt(RolloutKey("shop", "s-0", "default", 1), log):
            assert Answer("2 1 True") == await work(isolated_setup(suite, "default", template).agent, scenario, LLM("", ""), tools)
        assert [1, 2] == [call.user_turn for call in tools.calls]
    await template.close()


def started(project: Project, start: Start) -> tuple[Background, list[int]]:
    """Starts a session whose agent blocks and has started a process. Returns the ids of agent, template and that process, too."""
    isolated(project, ["starts"])
    background = start("scenarios/shop")
    file = project.root / "scenarios/shop/pids"
    wait_for(lambda: file.exists() or background.process.poll() is not None, "the agent's start")
    assert background.process.poll() is None, background.output
    pids = [int(pid) for pid in file.read_text().split()]
    background.seen.update(pids)
    assert [True] * 3 == [lives(pid) for pid in pids]
    return background, pids


@pytest.mark.parametrize("module", ["pytest", "pytest_agentbench.rollouts.pool"])
def test_nothing_is_left_after_a_kill(project: Project, start: Start, module: str) -> None:
    """If controller or pool are killed by SIGKILL, the processes of agents end, and the processes that these have started."""
    background, pids = started(project, start)

    os.kill(background.process.pid if module == "pytest" else background.child(module), signal.SIGKILL)

    wait_for(lambda: not any(map(lives, pids)), "the end of all processes of the agent", seconds=15)


def test_nothing_is_left_after_ctrl_c(project: Project, start: Start) -> None:
    """Ctrl-C ends processes of agents, and those that they have started, before pytest ends."""
    background, pids = started(project, start)

    os.kill(background.process.pid, signal.SIGINT)

    assert 2 == background.ended()
    assert [False] * 3 == [lives(pid) for pid in pids]


def test_nothing_is_left_at_the_budget(project: Project) -> None:
    """If a rollout's time is over, neither its process nor one that it has started is left."""
    isolated(project, ["starts"], timeout=2)

    project.run("scenarios/shop").assert_outcomes(passed=1)

    pids = (project.root / "scenarios/shop/pids").read_text().split()
    assert ("limit", [False] * 3) == (project.rollouts[0].status, [lives(int(pid)) for pid in pids])
    rollout: Rollout = project.rollouts[0]
    assert ["find_item"] == rollout.tools
