"""Each check finds its fault in a suite on disk, and describes it in a sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.rollouts import checks
from pytest_agentbench.rollouts.compile import CompileOptions, compile_suite
from pytest_agentbench.suites.folder import SuiteText
from tests.tasks import write_task

TOOL = {"title": "find", "description": "Finds.", "properties": {"item": {"type": "string"}}, "required": ["item"]}
DATA = {"format": "agent-leaderboard", "file": "data.json"}
TASKS = {"format": "harbor", "file": "tasks"}
HELD = {"scenario": "s-0", "owner": "ada", "reason": "the label is disputed", "expires": "2999-12-31"}
CODE = """
class Mine:
    async def run(self, scenario, llm, tools): ...

class Bank:
    def __init__(self, state): ...
    def find(self, item: str) -> str:
        "Finds."
        return item
"""

#: Keys of a suite.yaml -> the sentence about the fault or its beginning, without the file's name.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"nme": "x"}, "unknown key 'nme' (did you mean 'name'?); known keys: name, description, dataset"),
    "a key that is missing": ({"dataset": {"file": "data.json"}}, "the key 'dataset.format' is missing"),
    "a name": ({"name": "a shop"}, "name: must be letters, digits and `_`, with a letter first"),
    "trials": ({"trials": 0}, "trials: must be greater than or equal to 1, not 0"),
    "timeout": ({"timeout": -1}, "timeout: must be greater than 0, not -1"),
    "isolation": ({"isolation": "container"}, "isolation: must be 'none' or 'process', not 'container'"),
    "scorers": ({"scorers": []}, "scorers: a suite needs at least one scorer; add one, for example tsq"),
    "a scorer twice": (
        {"scorers": ["tsq", "./x.py:tsq"]},
        "scorers: two scores would be called 'tsq'; remove or rename one of the scorers",
    ),
    "a variant": ({"variants": {"default": {}}}, "variants: 'default' is the name of the suite's own agent; give the variant another name"),
    "an answer": ({"answers": {"find": {}}}, "answers.find: must have at least one of `text`, `delay` and `error_rate`"),
    "an error rate": ({"answers": {"find": {"error_rate": 2}}}, "answers.find.error_rate: must be less than or equal to 1"),
    "an expiry": ({"quarantine": [{**HELD, "expires": "soon"}]}, "quarantine.0.expires: must be a valid date"),
    "data that are not there": ({"dataset": {**DATA, "file": "no.json"}}, "the data file "),
    "a format": ({"dataset": {**DATA, "format": "xml"}}, "no dataset format 'xml'; known: "),
    "a mode of an unknown tool": ({"arguments": {"buy": {"item": "exact"}}}, "arguments: no tool 'buy'; known: find"),
    "a mode of an unknown argument": ({"arguments": {"find": {"colour": "exact"}}}, "arguments.find: no argument 'colour'; known: item"),
    "no variant": ({"variants": {"hot": {}}}, "no variant 'cold'; known: default, hot, or `all`"),
    "no agent": ({"agent": {"kind": "tool_callin"}}, "no agent 'tool_callin' (did you mean 'tool_calling'?); known: "),
    "an agent's key": (
        {"agent": {"max_turn": 5}},
        "agent: unknown key 'max_turn' (did you mean 'max_turns'?); known keys of tool_calling: ",
    ),
    "an agent's value": ({"agent": {"max_turns": 0}}, "agent: 'tool_calling' cannot be made from its settings: max_turns must be "),
    "sampling": ({"agent": {"temperature": -1}}, "agent: temperature must be a number from 0 up, not -1"),
    "no scorer": ({"scorers": ["tqs"]}, "no scorer 'tqs' (did you mean 'tsq'?); known: "),
    "an option of a scorer": ({"scorers": [{"tsq": {"colour": 1}}]}, "scorer 'tsq': "),
    "code that raises": ({"scorers": ["./raises.py:mine"]}, "scorer './raises.py:mine' cannot be loaded: RuntimeError: no"),
    "code that is not there": ({"agent": {"kind": "./lost.py:Mine"}}, "agent './lost.py:Mine' cannot be loaded: FileNotFoundError"),
    "code that leaves": ({"scorers": ["./leaves.py:mine"]}, "the process that imports the suite's code ended with exit code 3"),
    "a sandbox": ({"dataset": TASKS, "agent": {"kind": "terminal"}, "sandbox": "harbor:nowhere"}, "sandbox: harbor:nowhere "),
    "an isolated agent": (
        {"dataset": TASKS, "agent": {"kind": "./code.py:Mine"}, "isolation": "process"},
        "isolation: the agent './code.py:Mine' runs in a process for each rollout, which has no sandbox, and scenario 'hello' is a task",
    ),
    "isolated tools": (
        {"dataset": TASKS, "tools": {"kind": "python", "module": "./code.py:Bank"}, "isolation": "process"},
        "isolation: the agent runs with the suite's tools in a process for each rollout",
    ),
    "an answer of an unknown tool": ({"answers": {"buy": {"text": "sold"}}}, "answers: no tool 'buy'; known: find"),
    "no task": ({"agent": {"kind": "terminal"}}, "agent: 'terminal' works in a sandbox, and scenario 's-0' is not a task; "),
    "a second sandbox": (
        {"dataset": TASKS, "agent": {"kind": "orchestrator", "code_sandbox": "bubblewrap"}},
        "agent: scenario 'hello' is a task and brings a sandbox; leave `code_sandbox` out, or set it to `task`",
    ),
    "no kind of tools": ({"tools": {"kind": "nonsense"}}, "tools: no kind of tools 'nonsense'; known: "),
    "tools without a module": ({"tools": {"kind": "python"}}, "tools: "),
    "tools that nobody calls": (
        {"dataset": TASKS, "agent": {"kind": "terminal"}, "tools": {"kind": "python", "module": "./code.py:Bank"}},
        "tools: the agent 'terminal' calls none of the suite's tools; leave `tools` out",
    ),
    "answers that nobody asks for": (
        {"agent": {"kind": "command", "program": ["true"]}, "answers": {"find": {"text": "a lamp"}}},
        "answers: the agent 'command' calls none of the suite's tools; leave `answers` out",
    ),
    "a threshold that nobody measures": (
        {"thresholds": {"exact": 0.5}},
        "thresholds: 'exact' is not measured; scores of this suite: tsq (and <score>.mean)",
    ),
    "a threshold": ({"thresholds": {"tsq.mean": 80}}, "the threshold tsq.mean: 80 is out of range: tsq is between 0 and 1, so it would"),
    "a threshold of a count": (
        {"scorers": ["repeated"], "thresholds": {"repeated.mean": -1}},
        "the threshold repeated.mean: -1 is out of range: repeated is 0 or more, so it would decide nothing",
    ),
    "an entry of nothing": ({"quarantine": [{**HELD, "scenario": "s-9"}]}, "quarantine: the data set has no scenario 's-9'; remove "),
    "an entry that is over": ({"quarantine": [{**HELD, "expires": "2020-01-31"}]}, "quarantine: the entry of 's-0' expired on 2020-01-31"),
    "a rule": ({"gate": ["tsq"]}, "gate rule 'tsq' must be METRIC >= LIMIT or METRIC <= LIMIT"),
    "a rule about nothing": ({"gate": ["exact.mean >= 0.5"]}, "gate rule 'exact.mean >= 0.5': no metric 'exact.mean'"),
    "a rule without a floor": (
        {"gate": ["pass@3 >= 0.9"]},
        "gate rule 'pass@3 >= 0.9': pass rates need a threshold for tsq",
    ),
    "a rule out of range": ({"gate": ["tsq.mean >= 80"]}, "the rule 'tsq.mean >= 80' is out of range: tsq is between 0 and 1, so it would"),
    "a margin": ({"gate": ["tsq.mean >= -3 vs baseline"]}, "the margin 'tsq.mean >= -3 vs baseline' is out of range: tsq is between "),
}


def suite_text(folder: Path, keys: dict[str, Any]) -> SuiteText:
    """Writes a suite with one scenario, a task and code of its own."""
    entry = {"id": "s-0", "question": "?", "available_tools": [TOOL]}
    (folder / "data.json").write_text(json.dumps([entry]))
    (folder / "suite.yaml").write_text(json.dumps({"name": "shop", "dataset": DATA, **keys}))
    (folder / "code.py").write_text(CODE)
    (folder / "raises.py").write_text("raise RuntimeError('no')")
    (folder / "leaves.py").write_text("import os\nos._exit(3)")
    write_task(folder / "tasks")
    return SuiteText.of(folder / "suite.yaml")


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_suite(tmp_path: Path, case: str) -> None:
    """Each fault is one line with the file's name, and the suite has no other fault."""
    keys, sentence = BROKEN[case]
    chosen = ("default", "cold") if case == "no variant" else ("default",)

    with pytest.raises(ConfigError) as caught:
        compile_suite(suite_text(tmp_path, keys), CompileOptions(variants=chosen))

    assert str(caught.value).startswith(f"{tmp_path}/suite.yaml: {sentence}")
    assert "\n" not in str(caught.value)


def test_limits_at_the_ends_of_a_range(tmp_path: Path) -> None:
    """A threshold may be at either end of a score's range. A scorer without a declaration accepts every threshold."""
    (tmp_path / "x.py").write_text("def polite(scenario, rollout):\n    return 1.0\n")
    thresholds = {"tsq": 1, "tsq.mean": 0, "repeated.mean": 7, "polite": -50}
    gate = ["tsq.mean >= 1", "tsq.mean >= -1 vs baseline", "repeated.mean <= 9", "repeated.mean <= 5 vs baseline", "polite.mean >= 80"]

    keys = {"scorers": ["tsq", "repeated", "./x.py:polite"], "thresholds": thresholds, "gate": gate}

    assert gate == [rule.text for rule in compile_suite(suite_text(tmp_path, keys)).rules]


def test_an_agent_that_stays(tmp_path: Path) -> None:
    """`isolation: process` is accepted with a task if the agent runs in the pool, where it can reach its sandbox."""
    keys = {"dataset": TASKS, "agent": {"kind": "terminal"}, "isolation": "process", "scorers": ["reward"]}

    assert "shop" == compile_suite(suite_text(tmp_path, keys)).name


PLUGIN = """
def short_names(draft):
    if len(draft.suite.name) > 3:
        yield f"name: {draft.suite.name!r} is longer than 3 characters"

def fails(draft):
    return 1 / 0
"""


@pytest.mark.parametrize("entry", ["ours_of_a_test:short_names", "ours_of_a_test:fails", "ours_of_a_test:lost"])
def test_a_check_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """A check that an installed plugin declares is run. If it fails or cannot be loaded, that is a problem with its name."""
    installed = tmp_path / "site"
    (installed / "ours-1.dist-info").mkdir(parents=True)
    (installed / "ours-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1\n")
    (installed / "ours-1.dist-info/entry_points.txt").write_text(f"[{checks.ENTRY_POINTS}]\nshort = {entry}\n")
    (installed / "ours_of_a_test.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(installed)

    with pytest.raises(ConfigError) as caught:
        compile_suite(suite_text(tmp_path, {}))

    sys.modules.pop("ours_of_a_test", None)
    failed = "the check 'short', an entry point of pytest_agentbench.checks, failed: "
    sentence = {
        "ours_of_a_test:short_names": "name: 'shop' is longer than 3 characters",
        "ours_of_a_test:fails": f"{failed}ZeroDivisionError: division by zero",
        "ours_of_a_test:lost": f"{failed}AttributeError: module 'ours_of_a_test' has no attribute 'lost'",
    }[entry]
    assert f"{tmp_path}/suite.yaml: {sentence}" == str(caught.value)
