"""Code of a suite: whatever its agents and scorers do, the session continues, and the test says what went wrong."""

from __future__ import annotations

import json
import re

import pytest

from pytest_agentbench.records import Rollout
from tests.project import FIND_THEN_ANSWER, WAYS, Project

pytestmark = pytest.mark.slow

AGENT = """
from dataclasses import dataclass
import asyncio, logging, os, sys, threading, time
from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.records import Answer

def deep(kind=ValueError):
    raise kind("no idea what to do")

@dataclass(frozen=True)
class Agent:
    async def run(self, scenario, llm, tools):
        return await getattr(self, scenario.id.partition("_")[2])(scenario, llm, tools)

    async def fine(self, scenario, llm, tools):
        reply = await llm.chat(scenario.messages, tools.schemas)
        for call in reply.tool_calls:
            await tools.call(call.name, call.arguments, 1)
        return Answer("done")
"""

#: Maps the word in a scenario's id to the agent's code.
MISBEHAVIOUR = {
    "raises": "deep()",
    "gives_up": 'raise AgentError("it is beyond me")',
    "leaves": "sys.exit(3)",
    "cancels": "task = asyncio.create_task(asyncio.sleep(9)); task.cancel(); await task",
    "returns_nothing": "pass",
    "times_out": 'raise TimeoutError("of its own")',
    "prints": (
        'print("a line on stdout"); print("and on stderr", file=sys.stderr); logging.getLogger("shop").warning("a warning"); deep(OSError)'
    ),
}

#: Maps the word in a scenario's id to words of the reason.
REASONS = {
    "raises": r"ValueError: no idea what to do (agent.py:8)",
    "gives_up": "it is beyond me",
    "leaves": "SystemExit: 3 (agent.py:",
    "cancels": "CancelledError: ",
    "returns_nothing": "the agent returned 'None' (NoneType), not an Answer",
    "times_out": "TimeoutError: of its own (agent.py:",
    "prints": "OSError: no idea what to do",
}


def suite_of(project: Project, words: list[str], name: str = "shop", **keys: object) -> None:
    """Creates a suite whose scenarios are named shop_<word>. The word decides what the agent does."""
    folder = project.suite(name, **keys).parent  # type: ignore[arg-type]  # keys of suite.yaml
    (folder / "data.json").write_text(json.dumps([Project.entry(f"{name}_{word}") for word in words]))


def methods(behaviour: dict[str, str]) -> str:
    return "".join(f"\n    async def {word}(self, scenario, llm, tools):\n        {code}\n" for word, code in behaviour.items())


def by_word(project: Project) -> dict[str, Rollout]:
    return {rollout.scenario.partition("_")[2]: rollout for rollout in project.rollouts}


def test_an_agent_at_fault(project: Project) -> None:
    """Whatever an agent raises, it is an agent_error: a FAILED test with the reason, and traceback and output in its section."""
    suite_of(project, ["fine", *MISBEHAVIOUR], agent={"kind": "./agent.py:Agent"})
    project.write("scenarios/shop/agent.py", AGENT + methods(MISBEHAVIOUR))

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=1, failed=len(MISBEHAVIOUR))
    rollouts = by_word(project)
    for word, reason in REASONS.items():
        assert ("agent_error", 1, {}) == (rollouts[word].status, rollouts[word].attempt, rollouts[word].scores)
        assert reason in rollouts[word].reason
        line = f"*RolloutFailed: shop?shop_{word}?: no score 'tsq', because the rollout ended as agent_error: {reason.replace('[', '?')}*"
        result.stdout.fnmatch_lines([line])
    log = rollouts["prints"].log
    assert ["a line on stdout", "and on stderr", "WARNING shop: a warning", "Traceback (most recent call last):"] == log.splitlines()[:4]
    result.stdout.fnmatch_lines(
        [
            "log and output of the rollout:",
            "a line on stdout",
            "and on stderr",
            "WARNING shop: a warning",
            "Traceback*",
            "*in deep",
            "OSError*",
        ]
    )
    mean = project.run_json["suites"]["shop"]["scores"]["tsq"]
    assert (1 / len(rollouts), 1.0) == (mean["mean"]["value"], mean["mean_evaluable"]["value"])


def test_faults_of_the_backend_are_not_the_agents(project: Project) -> None:
    """If an agent on the openai SDK raises because of a backend's error, the rollout is an infra_error or a limit, as with the built-in
    client.
    """
    calls = {
        "server": 'await llm.openai().chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "break"}])',
        "context": 'await llm.openai().chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "long"}])',
        "own": 'await llm.chat([{"role": "user", "content": "break"}])',
    }
    project.backend(
        [
            {"match": {"contains": "break"}, "status": 500, "message": "boom"},
            {"match": {"contains": "long"}, "status": 400, "message": "maximum context length is 10 tokens"},
            *FIND_THEN_ANSWER,
        ]
    )
    suite_of(project, [*calls], agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", AGENT + methods(calls))

    result = project.run("--agentbench-retries=0", "scenarios/shop")

    result.assert_outcomes(passed=1, errors=2)
    rollouts = by_word(project)
    assert {"server": "infra_error", "context": "limit", "own": "infra_error"} == {
        word: rollout.status for word, rollout in rollouts.items()
    }
    assert "boom" in rollouts["server"].reason
    assert "maximum context length is 10 tokens" in rollouts["context"].reason


#: Maps the name of a suite to its agent.py and the sentence about it.
UNUSABLE = {
    "broken": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (agent.py:1)"),
    "syntax": ("x = 1\ndef f(:\n", "agent './agent.py:Agent' cannot be loaded: SyntaxError: invalid syntax (agent.py:2)"),
    "leaving": ("import sys\nsys.exit('not today')", "agent './agent.py:Agent' cannot be loaded: SystemExit: not today (agent.py:2)"),
    "gone": (
        "import os\nos._exit(3)",
        "the process that imports the suite's code ended with exit code 3; importing it must only define things",
    ),
    "crashing": ("import os\nos.abort()", "the process that imports the suite's code was ended by SIGABRT"),
    "empty": ("class Agnet: ...", "agent './agent.py:Agent' cannot be loaded: the module does not define 'Agent'; it defines: Agnet"),
    "narrow": (
        "class Agent:\n    async def run(self, scenario): ...",
        "its method `run` should take (scenario, llm, tools), not (scenario): ",
    ),
    "mixed": (
        "class Agent:\n    def run(self, llm, scenario, tools): ...",
        "its method `run` should take (scenario, llm, tools) in this order",
    ),
    "idle": ("class Agent: ...", "agent: './agent.py:Agent' needs a method `run(self, scenario, llm, tools)`; it is of type Agent"),
    "function": ("def Agent(scenario, model): ...", "has an unknown parameter: model; known: scenario, tools, llm, client;"),
    "keyword": ("def Agent(scenario, *, colour): ...", "agent './agent.py:Agent': the option 'colour' is missing"),
    "refusing": (
        "class Agent:\n    def __init__(self, colour): ...",
        "'./agent.py:Agent' cannot be made from its settings: Agent.__init__() mi",
    ),
}

TWO_TESTS = "def test_one(rollout): ...\ndef test_two(rollout): ...\n"


def unusable_suites(project: Project) -> None:
    """Creates suites with two test files of two tests each."""
    for name, (code, _) in UNUSABLE.items():
        project.suite(name, scenarios=2, agent={"kind": "./agent.py:Agent"}, thresholds={}, test=TWO_TESTS)
        project.write(f"scenarios/{name}/agent.py", code)
        project.write(f"scenarios/{name}/test_{name}_again.py", TWO_TESTS)


@WAYS
def test_code_that_cannot_be_used(project: Project, way: tuple[str, ...]) -> None:
    """A suite whose agent cannot be loaded or has a wrong signature is one collection error in one sentence, and nothing starts."""
    unusable_suites(project)

    result = project.run(*way, "scenarios")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.assert_outcomes(errors=len(UNUSABLE), skipped=2 * len(UNUSABLE) if way else 0)
    output = result.stdout.str()
    for name, (_, sentence) in UNUSABLE.items():
        lines = [line for line in output.splitlines() if line.startswith(f"{project.root}/scenarios/{name}/suite.yaml: ")]
        assert [name, 1] == [name, len(lines)]
        assert sentence in lines[0]
    assert "infra_error" not in output
    assert not (project.root / "reports").exists()


@WAYS
def test_other_suites_run_besides_unusable_code(project: Project, way: tuple[str, ...]) -> None:
    """With --continue-on-collection-errors valid suites are measured.

    Tests in further files of invalid suites are skipped with the reason.
    """
    unusable_suites(project)
    project.suite("shop", scenarios=2, agent={"kind": "./agent.py:run"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", "def run(scenario): return 'done'")

    result = project.run(*way, "-rs", "--continue-on-collection-errors", "scenarios")

    result.assert_outcomes(passed=2, errors=len(UNUSABLE), skipped=2 * len(UNUSABLE))
    result.stdout.fnmatch_lines(["SKIPPED * the suite broken cannot run: see the error of test_broken*.py"])
    assert {("shop", "ok", 1)} == {(rollout.suite, rollout.status, rollout.attempt) for rollout in project.rollouts}


def test_a_scorer_that_cannot_be_used(project: Project) -> None:
    """Scorers that cannot be used are collection errors: a missing file, one that raises, and a function with a wrong signature."""
    faults = {
        "./gone.py:score": "scorer './gone.py:score' cannot be loaded: FileNotFoundError: there is no file ",
        "./scorer.py:narrow": "scorer './scorer.py:narrow' should take (scenario, rollout), not (rollout): too many positional arguments",
        "./scorer.py:word": "scorer './scorer.py:word' is a str, must be a function (scenario, rollout) -> Score",
        "no_such_package:score": "scorer 'no_such_package:score' cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'",
    }
    for number, scorer in enumerate(faults):
        project.suite(f"shop{number}", scenarios=1, scorers=["tsq", scorer])
        project.write(f"scenarios/shop{number}/scorer.py", "word = 'x'\ndef narrow(rollout): return 1.0\n")

    result = project.run("scenarios")

    result.assert_outcomes(errors=len(faults))
    for number, sentence in enumerate(faults.values()):
        assert 1 == result.stdout.str().count(f"{project.root}/scenarios/shop{number}/suite.yaml: {sentence}")
    assert not (project.root / "reports").exists()


def test_code_of_an_option_and_of_a_variant(project: Project) -> None:
    """Agents of --agentbench-agent, --agentbench-ab and selected variants are checked, too, but not those of other variants."""
    project.suite(scenarios=1, variants={"own": {"agent": {"kind": "./agent.py:Agent"}}})
    project.write("scenarios/shop/agent.py", "raise RuntimeError('no such luck')\n")
    sentence = "*scenarios/shop/suite.yaml: agent './agent.py:Agent' cannot be loaded: RuntimeError: no such luck (agent.py:1)*"

    project.run("scenarios/shop").assert_outcomes(passed=1)
    runs = len([*project.root.glob("reports/2*")])
    options = (
        ("agent=./agent.py:Agent", "inline"),
        ("variants=default,own", "retries=0"),
        ("ab=agent:tool_calling,agent:./agent.py:Agent", "retries=0"),
    )
    for pair in options:
        result = project.run(*(f"--agentbench-{option}" for option in pair), "scenarios/shop")

        assert pytest.ExitCode.USAGE_ERROR == result.ret
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([sentence])
    assert runs == len([*project.root.glob("reports/2*")])


def test_failing_scorers(project: Project) -> None:
    """If a scorer raises or returns an invalid score, tests that read the score are ERRORs. Other scores are not affected."""
    scorers = {
        "raises": "return {}['missing']",
        "none": "return None",
        "text": "return '1.0'",
        "nan": "return Score(float('nan'))",
        "infinite": "return float('inf')",
        "huge": "return -10**400",
        "absurd": "return 1e200",
        "leaves": "raise SystemExit(1)",
        "plain": "return 0.5",
    }
    code = "from pytest_agentbench.records import Score\n" + "".join(
        f"def {name}(scenario, rollout):\n    {body}\n" for name, body in scorers.items()
    )
    for name in scorers:
        test = f"def test_it(rollout): rollout.score('{name}')\ndef test_other(rollout): rollout.score('tsq')\n"
        project.suite(name, scenarios=1, scorers=["tsq", f"./scorer.py:{name}"], thresholds={}, test=test)
        project.write(f"scenarios/{name}/scorer.py", code)

    result = project.run("scenarios")

    result.assert_outcomes(passed=len(scorers) + 1, errors=len(scorers) - 1)
    for rollout in project.rollouts:
        own = rollout.suite
        assert ("ok", 1.0) == (rollout.status, rollout.score("tsq"))
        if rollout.suite == "plain":
            assert 0.5 == rollout.score(own)
        else:
            assert [own] == [*rollout.score_errors]
            assert own not in rollout.scores
    line = "*ScorerFailed: raises?raises-0?: no score 'raises', because the scorer failed: KeyError: 'missing' (*.py:*)"
    result.stdout.fnmatch_lines([line])
    for name in ("raises", "nan"):
        suite = project.run_json["suites"][name]
        assert ({name: 1}, None) == (suite["score_errors"], suite["scores"][name]["mean"])


def test_an_agent_that_floods_and_blocks(project: Project) -> None:
    """Megabytes of output from threads and at import do not stop a rollout. Output outside of rollouts goes to the pool's log."""
    thread = "t = threading.Thread(target=print, args=('x' * 3_000_000,)); t.start(); await asyncio.to_thread(t.join)"
    flood = {
        "floods": f"{thread}; return Answer('dry')",
        "prints_much": "print('y' * 1_000_000); return Answer('much')",
        "blocks": "time.sleep(0.5); return Answer('awake')",
    }
    suite_of(project, [*flood], agent={"kind": "./agent.py:Agent"}, thresholds={"tsq": 0.0})
    project.write("scenarios/shop/agent.py", AGENT + methods(flood) + "\nprint('imported' * 20_000)\n")

    result = project.run("scenarios/shop")

    result.assert_outcomes(passed=3)
    rollouts = by_word(project)
    assert {"floods": "dry", "prints_much": "much", "blocks": "awake"} == {word: rollout.answer for word, rollout in rollouts.items()}
    assert re.search(r"^y+\n\[[\d,]+ characters left out\]\ny+", rollouts["prints_much"].log)
    assert 3_160_000 <= (project.directory / "backend/pool.log").stat().st_size
