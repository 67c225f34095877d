"""Sessions in which agents, tools and scorers return texts of 30 MB."""

from __future__ import annotations

import pytest

from pytest_agentbench.runs.journal import FILE
from tests.project import Project
from tests.robustness.test_suite_code import by_word, suite_of

CODE = """
from pytest_agentbench import Answer, Score

LARGE = 30_000_000

class Shop:
    def find_item(self, item: str, count: int = 1):
        "Finds an item."
        return "r" * LARGE

    def order_item(self, item: str, count: int = 1):
        "Orders an item."

    def return_item(self, item: str, count: int = 1):
        "Takes an item back."

async def run(scenario, llm, tools):
    word = scenario.id.partition("_")[2]
    if word == "tool":
        await tools.call("find_item", '{"item": "lamp"}', 1)
    if word == "raises":
        raise ValueError("e" * LARGE)
    if word == "talks":
        llm.transcript.append({"role": "user", "content": "m" * LARGE})
    return Answer("a" * LARGE if word == "answers" else "done")

def wordy(scenario, rollout):
    return Score(0.5, {}, "w" * LARGE if scenario.id.endswith("fine") else "")

def broken(scenario, rollout):
    raise KeyError("k" * LARGE if scenario.id.endswith("fine") else "lamp")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "options", "most", "cut"),
    [("none", (), "1,048,576", "28,951,680"), ("process", ("--agentbench-size-answer=2MiB",), "2,097,152", "27,903,104")],
)
def test_large_texts(project: Project, isolation: str, options: tuple[str, ...], most: str, cut: str) -> None:
    """A large text is truncated or refused where it is created. The record stays small and has the original size."""
    words = ["answers", "tool", "raises", "fine"] + ["talks"] * (isolation == "none")  # Records are truncated in the pool.
    scorers = ["tsq", "./code.py:wordy", "./code.py:broken"]
    tools = {"kind": "python", "module": "./code.py:Shop"}
    test = "def test_it(rollout): pass\n"
    suite_of(project, words, agent={"kind": "./code.py:run"}, tools=tools, scorers=scorers, thresholds={}, test=test, isolation=isolation)
    project.write("scenarios/shop/code.py", CODE)

    project.run(*options, "scenarios/shop").assert_outcomes(passed=len(words))

    ended = by_word(project)
    ends = {word: (rollout.status, rollout.reason.partition("; cut")[0]) for word, rollout in ended.items() if word != "raises"}
    if talks := ends.pop("talks", None):
        assert ("limit", True) == (talks[0], talks[1].endswith(" bytes, at most 16,777,216 are kept; raise --agentbench-size-record"))
        assert ended["talks"].reason.endswith("; cut: messages")
    assert {
        "answers": ("limit", f"answer: 30,000,000 bytes, at most {most} are kept; raise --agentbench-size-answer"),
        "tool": ("limit", TOOL),
        "fine": ("ok", ""),
    } == ends
    assert f"[{cut} bytes left out]" in ended["answers"].answer
    assert ("agent_error", True) == (ended["raises"].status, "\n[29,934,720 bytes left out]\ne" in ended["raises"].reason)
    assert "w\n[29,934,720 bytes left out]\nw" in ended["fine"].scores["wordy"].explanation
    assert "k\n[29,934,722 bytes left out]\nk" in ended["fine"].score_errors["broken"]
    assert ended["fine"].score_errors["broken"].endswith(" (code.py:31)")
    assert (project.directory / FILE).stat().st_size < 6_000_000
    assert (project.directory / "run.json").stat().st_size < 1_000_000


TOOL = "result of the tool 'find_item': 30,000,000 bytes, at most 1,048,576 are kept; raise --agentbench-size-tool-result"


@pytest.mark.slow
def test_sizes_of_a_session(project: Project) -> None:
    """Options change the size limits, and larger limits keep the same texts complete. run.json has the options."""
    suite_of(project, ["answers", "tool"], agent={"kind": "./code.py:run"}, thresholds={}, test="def test_it(rollout): pass\n",
             tools={"kind": "python", "module": "./code.py:Shop"})  # fmt: skip
    project.write("scenarios/shop/code.py", CODE.replace("30_000_000", "3_000_000"))

    project.run("--agentbench-size-answer=4MiB", "--agentbench-size-tool-result=4MiB", "scenarios/shop").assert_outcomes(passed=2)

    assert {"answers": ("ok", 3_000_000), "tool": ("ok", 4)} == {
        word: (rollout.status, len(rollout.answer)) for word, rollout in by_word(project).items()
    }
    expected = {"answer": 4_194_304, "tool_result": 4_194_304, "reason": 65_536, "record": 16_777_216}
    assert expected == project.run_json["settings"]["sizes"]
