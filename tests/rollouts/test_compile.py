"""A suite is read once, checked once, and its rules are parsed once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError, MissingData
from pytest_agentbench.rollouts.compile import MOST, CompiledSuite, CompileOptions, compile_all, compile_suite
from pytest_agentbench.suites.arms import Arm, VariantOrigin
from pytest_agentbench.suites.folder import SuiteText
from tests.tasks import write_task

ENTRY = {"id": "s-0", "question": "?", "available_tools": []}


def suite_text(folder: Path, **keys: Any) -> SuiteText:
    """Writes a suite with one scenario and these keys."""
    spec = {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "data.json"}, **keys}
    (folder / "data.json").write_text(json.dumps([ENTRY]))
    (folder / "suite.yaml").write_text(json.dumps(spec))
    return SuiteText.of(folder / "suite.yaml")


def problems(text: SuiteText, options: CompileOptions = CompileOptions()) -> list[str]:  # noqa: B008 - the default is frozen
    """Returns the lines of the error about a suite."""
    with pytest.raises(ConfigError) as caught:
        compile_suite(text, options)
    return str(caught.value).split("\n")


def test_a_suite_is_compiled(tmp_path: Path) -> None:
    """A compiled suite has thresholds, rules, agents, the requested variants and trials, and changed values."""
    text = suite_text(tmp_path, trials=2, thresholds={"tsq": 0.5}, variants={"hot": {}}, gate=["tsq.mean >= 0.4"])

    plain = compile_suite(text)
    changed = compile_suite(text, CompileOptions([("thresholds.tsq", 0.7)], variants=("all",), trials=3))

    assert ("shop", tmp_path, {"tsq": 0.5}, ("default",), 2) == (plain.name, plain.folder, plain.thresholds, plain.variants, plain.trials)
    assert ["tsq.mean >= 0.4"] == [rule.text for rule in plain.rules]
    assert ({"tsq": 0.7}, ("default", "hot"), 3) == (changed.thresholds, changed.variants, changed.trials)
    assert ["default", "hot"] == [*changed.agents]
    assert (0.0, 1.0) == plain.suite.scale("tsq").limits


def test_variants_in_their_order(tmp_path: Path) -> None:
    """`all` is the suite's own agent and every variant. Names keep their requested order."""
    text = suite_text(tmp_path, variants={"hot": {}, "cold": {}})

    assert ("default", "hot", "cold") == compile_suite(text, CompileOptions(variants=("all",))).variants
    assert ("cold", "default") == compile_suite(text, CompileOptions(variants=("cold", "default"))).variants


def test_only_chosen_variants_count(tmp_path: Path) -> None:
    """A fault in a variant is found only if the variant runs."""
    text = suite_text(tmp_path, variants={"hot": {"agent": {"kind": "tool_callin"}}})

    assert ("default",) == compile_suite(text).variants
    assert "no agent 'tool_callin'" in problems(text, CompileOptions(variants=("default", "hot")))[0]


def test_arms(tmp_path: Path) -> None:
    """In an A/B session each variant exists under each arm, and has one agent."""
    arms = (Arm("a", "model", "small"), Arm("b", "model", "large"))

    compiled = compile_suite(suite_text(tmp_path), CompileOptions(arms=arms))

    assert ("a", "b") == compiled.variants
    assert {"a": VariantOrigin("default", "a"), "b": VariantOrigin("default", "b")} == compiled.origins
    assert ("small", "large") == tuple(compiled.suite.agent_of(name)["model"] for name in compiled.variants)
    assert ["a", "b"] == [*compiled.agents]


def test_the_command_line_is_named(tmp_path: Path) -> None:
    """If options have changed the suite, its error names them without their values, because the file alone may be right."""
    messages = problems(suite_text(tmp_path), CompileOptions([("agent.temprature", 0.6)], "tool_callin"))

    assert messages[0].startswith(f"{tmp_path}/suite.yaml: ")
    assert messages[-1].endswith(" (as changed by --agentbench-agent, --agentbench-set agent.temprature)")


def test_all_problems_at_once(tmp_path: Path) -> None:
    """Each problem is a line that names the file. After ten problems only the number of the others is given."""
    five = suite_text(
        tmp_path,
        scorers=["tsq", "tqs"],
        thresholds={"tsq": 1.5, "exact": 0.5},
        gate=["tsq.mean >= 80", "tsq"],
        agent={"kind": "tool_callin"},
    )

    messages = problems(five)

    assert all(line.startswith(f"{tmp_path}/suite.yaml: ") for line in messages)
    assert all(line.removeprefix(f"{tmp_path}/suite.yaml: ").startswith(start) for line, start in zip(messages, STARTS, strict=True))
    many = suite_text(tmp_path, gate=[f"tsq.mean >= {number}" for number in range(2, 16)])
    assert (MOST + 1, f"{tmp_path}/suite.yaml: and 4 more problems") == (len(lines := problems(many)), lines[-1])


STARTS = (
    "no agent 'tool_callin'",
    "no scorer 'tqs'",
    "gate rule 'tsq' must be METRIC",
    "thresholds: 'exact' is not",
    "the threshold tsq: 1.5 is",
    "the rule 'tsq.mean >= 80' ",
)


def test_missing_data(tmp_path: Path) -> None:
    """Data that cannot be shipped and are missing raise their own error."""
    with pytest.raises(MissingData, match=r"hle\.jsonl does not exist"):
        compile_suite(suite_text(tmp_path, dataset={"format": "hle", "file": "hle.jsonl"}))


def test_an_error_in_one_of_several_suites(tmp_path: Path) -> None:
    """Each of several suites is compiled or replaced by its error, in their order."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    texts = [suite_text(folder, name=folder.name, scorers=["tsq" if folder.name != "b" else "tqs"]) for folder in folders]

    first, second, third = compile_all((text, CompileOptions()) for text in texts)

    assert ["a", "c"] == [each.name for each in (first, third) if isinstance(each, CompiledSuite)]
    assert f"{tmp_path}/b/suite.yaml: no scorer 'tqs'" in str(second)


CODE = """
import os
from pytest_agentbench import scorer

assert os.getpid() != {pid}

@scorer(better="lower", range=(0, 9))
def slips(scenario, rollout):
    return 0

class Agent:
    async def run(self, scenario, llm, tools): ...
"""


def test_code_of_the_suite(tmp_path: Path) -> None:
    """A suite's own code is imported in another process. The declarations of its scorers apply to thresholds and rules."""
    (tmp_path / "code.py").write_text(CODE.format(pid=os.getpid()))
    own: dict[str, Any] = {"agent": {"kind": "./code.py:Agent"}, "scorers": ["./code.py:slips"]}

    sound = compile_suite(suite_text(tmp_path, **own, gate=["slips.mean <= 9"]))

    assert ({}, "lower", (0.0, 9.0)) == (sound.agents, sound.suite.scale("slips").better, sound.suite.scale("slips").limits)
    assert ["the rule 'slips.mean <= 10' is out of range: slips is between 0 and 9, so it would decide nothing"] == [
        line.removeprefix(f"{tmp_path}/suite.yaml: ") for line in problems(suite_text(tmp_path, **own, gate=["slips.mean <= 10"]))
    ]
    (tmp_path / "code.py").write_text("raise RuntimeError('imported')")
    assert "RuntimeError: imported" in problems(suite_text(tmp_path, **own))[0]


def test_a_broken_task(tmp_path: Path) -> None:
    """A scenario that cannot run is not a problem of its suite, and the others run."""
    for name in ("sound", "broken"):
        write_task(tmp_path / "tasks", name)
    (tmp_path / "tasks/broken/task.toml").write_text("[")
    keys = {"dataset": {"format": "harbor", "file": "tasks"}, "agent": {"kind": "terminal"}, "scorers": ["reward"]}

    compiled = compile_suite(suite_text(tmp_path, **keys))

    why = {each.id: each.task.broken for each in compiled.suite.scenarios if each.task}
    assert ("", True) == (why["sound"], "task.toml" in why["broken"])


def test_wrong_names_are_reported_together(tmp_path: Path) -> None:
    """A wrong name of an agent, tools or scorer is reported together with other problems, but not with consequences of itself."""
    (tmp_path / "code.py").write_text("from pytest_agentbench import scorer\n@scorer(better='lower')\ndef slips(s, r): return 0\n")
    keys = {
        "scorers": ["./code.py:slips", "tqs"],
        "gate": ["slips.mean <= 7", "pass^1 >= 0.5", "ttft.p50 <= 5 apples"],
        "isolation": "process",
    }

    messages = problems(suite_text(tmp_path, **keys, agent={"kind": "zz"}, tools={"kind": "zz"}, thresholds={"foo": 1}))

    starts = ("tools: no kind of tools 'zz'", "no scorer 'tqs'", "gate rule 'ttft.p50 <= 5 apples'", "thresholds: 'foo' is not measured")
    assert all(line.removeprefix(f"{tmp_path}/suite.yaml: ").startswith(start) for line, start in zip(messages, starts, strict=True))


def test_the_command_line_is_named_once(tmp_path: Path) -> None:
    """Options that have changed the file are named once, after all problems."""
    messages = problems(suite_text(tmp_path, trials="x", timeout=-1), CompileOptions([("agent.temperature", 0.3)]))

    assert [f"{tmp_path}/suite.yaml: {each}: " in line for each, line in zip(("trials", "timeout"), messages, strict=False)] == [True, True]
    assert [f"{tmp_path}/suite.yaml: these problems are about the file (as changed by --agentbench-set agent.temperature)"] == messages[2:]
