"""Code that a suite brings: whatever its agents and scorers do, the session goes on, and the test says what they did."""

from __future__ import annotations

import json

import pytest

from pytest_agentbench.records import Rollout
from tests.project import FIND_THEN_ANSWER, Project

AGENT = """
from dataclasses import dataclass
import asyncio, logging, os, sys, threading, time
from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.records import Answer

def deep():
    raise ValueError("no idea what to do")

@dataclass(frozen=True)
class Agent:
    async def run(self, scenario, llm, tools):
        return await getattr(self, scenario.id.partition("_")[2])(scenario, llm, tools)

    async def fine(self, scenario, llm, tools):
        reply = await llm.chat(scenario.messages, tools.schemas)
        for call in reply.tool_calls:
            tools.call(call.name, call.arguments, 1)
        return Answer("done")
"""

#: What an agent does in one of its rollouts, by the word in the scenario's id.
MISBEHAVIOUR = {
    "raises": "deep()",
    "gives_up": 'raise AgentError("it is beyond me")',
    "leaves": "sys.exit(3)",
    "cancels": "task = asyncio.create_task(asyncio.sleep(9)); task.cancel(); await task",
    "returns_nothing": "pass",
    "times_out": 'raise TimeoutError("of its own")',
    "prints": 'print("a line on stdout"); print("and on stderr", file=sys.stderr); logging.getLogger("shop").warning("a warning"); deep()',
}

#: Words of the reason, by the same word.
REASONS = {
    "raises": r"ValueError: no idea what to do (agent.py:8)",
    "gives_up": "it is beyond me",
    "leaves": "SystemExit: 3 (agent.py:",
    "cancels": "CancelledError: ",
    "returns_nothing": "the agent returned 'None' (NoneType), not an Answer",
    "times_out": "TimeoutError: of its own (agent.py:",
    "prints": "ValueError: no idea what to do",
}


def suite_of(project: Project, words: list[str], name: str = "shop", **keys: object) -> None:
    """A suite whose scenarios are shop_<word>, so that its agent knows what to do."""
    folder = project.suite(name, **keys).parent  # type: ignore[arg-type]  # keys of suite.yaml
    (folder / "data.json").write_text(json.dumps([Project.entry(f"{name}_{word}") for word in words]))


def methods(behaviour: dict[str, str]) -> str:
    return "".join(f"\n    async def {word}(self, scenario, llm, tools):\n        {code}\n" for word, code in behaviour.items())


def by_word(project: Project) -> dict[str, Rollout]:
    return {rollout.scenario.partition("_")[2]: rollout for rollout in project.rollouts}


@pytest.mark.parametrize("way", [(), ("-n", "2")], ids=["one-process", "n2"])
def test_an_agent_at_fault(project: Project, way: tuple[str, ...]) -> None:
    """Whatever an agent raises, it is an agent_error: a FAILED test with the sentence, and the traceback and output in its section."""
    suite_of(project, ["fine", *MISBEHAVIOUR], agent={"kind": "./agent.py:Agent"})
    project.write("scenarios/shop/agent.py", AGENT + methods(MISBEHAVIOUR))

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=1, failed=len(MISBEHAVIOUR))
    rollouts = by_word(project)
    for word, reason in REASONS.items():
        assert ("agent_error", 1, {}) == (rollouts[word].status, rollouts[word].attempt, rollouts[word].scores)
        assert reason in rollouts[word].reason
        result.stdout.fnmatch_lines([f"*NoScore: shop?shop_{word}?: no tsq, the rollout ended as agent_error: {reason.replace('[', '?')}*"])
    log = rollouts["prints"].log
    assert ["a line on stdout", "and on stderr", "WARNING shop: a warning", "Traceback (most recent call last):"] == log.splitlines()[:4]
    result.stdout.fnmatch_lines(
        [
            "what the rollout logged and printed:",
            "a line on stdout",
            "and on stderr",
            "WARNING shop: a warning",
            "Traceback*",
            "*in deep",
            "ValueError*",
        ]
    )
    mean = project.run_json["suites"]["shop"]["scores"]["tsq"]
    assert (1 / len(rollouts), 1.0) == (mean["mean"]["value"], mean["mean_evaluable"]["value"])


def test_the_backends_fault_is_never_the_agents(project: Project) -> None:
    """An agent on the openai SDK that falls over a broken answer ends as on the built-in client: infra_error, or limit."""
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


def test_code_that_cannot_be_imported(project: Project) -> None:
    """The tests of that suite are ERRORs with the sentence; the other suite of the session is measured."""
    for name, code in (("broken", "import no_such_module"), ("leaving", "import sys\nsys.exit('not today')"), ("empty", "")):
        project.suite(name, scenarios=2, agent={"kind": "./agent.py:Agent"})
        project.write(f"scenarios/{name}/agent.py", code)
    project.suite("missing", scenarios=2, scorers=["./gone.py:score"], thresholds={}, test="def test_it(rollout): pass")
    project.suite("shop", scenarios=2)

    result = project.run("scenarios")

    result.assert_outcomes(passed=2, errors=8)
    reasons = {rollout.suite: rollout.reason for rollout in project.rollouts}
    file = str(project.root / "scenarios" / "{}" / "suite.yaml")
    for name, words in (
        ("broken", "agent './agent.py:Agent' cannot be loaded: ModuleNotFoundError(\"No module named 'no_such_module'\")"),
        ("leaving", "agent './agent.py:Agent' cannot be loaded: SystemExit('not today')"),
        ("empty", "agent './agent.py:Agent' cannot be loaded: AttributeError("),
        ("missing", "scorer './gone.py:score' cannot be loaded: FileNotFoundError("),
    ):
        assert reasons[name].startswith(f"{file.format(name)}: {words}")
        result.stdout.fnmatch_lines([f"{name}?{name}-1?: infra_error: *{words[:30]}*"])


def test_scorers_at_fault(project: Project) -> None:
    """A scorer that raises, or returns what is no score, makes no number, and an ERROR of who asks; the other scores stand."""
    scorers = {
        "raises": "return {}['missing']",
        "none": "return None",
        "text": "return '1.0'",
        "nan": "return Score(float('nan'))",
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
    result.stdout.fnmatch_lines(["*ScorerFailed: raises?raises-0?: no raises, the scorer failed: KeyError: 'missing'"])
    for name in ("raises", "nan"):
        suite = project.run_json["suites"][name]
        assert ({name: 1}, None) == (suite["score_errors"], suite["scores"][name]["mean"])


def test_an_agent_that_floods_and_blocks(project: Project) -> None:
    """Megabytes printed from threads of its own, and at import, stop nothing; what is outside of a rollout goes to the pool's log."""
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
    assert rollouts["prints_much"].log.startswith("[934465 characters left out]\nyyyy")
    assert 3_160_000 <= (project.directory / "backend/pool.log").stat().st_size
