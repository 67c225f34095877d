"""The code check loads a suite's own code in a separate process before anything boots."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_agentbench.records import UNDECLARED, Json, Scale
from pytest_agentbench.rollouts.isolation.codecheck import brings_any, check_code
from pytest_agentbench.rollouts.isolation.protocol import Declarations, FromCodeCheck, NotLoaded
from pytest_agentbench.suites.suite import DatasetInfo, Suite


def suite(folder: Path, code: str, **keys: Any) -> Suite:
    """Returns a suite whose agent is `run` of an agent.py with this code."""
    folder.mkdir(exist_ok=True)
    (folder / "agent.py").write_text(code)
    data = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 0)
    return Suite("shop", folder, (), dataset=data, **{"agent": {"kind": "./agent.py:run"}, **keys})


def scales_of(answer: FromCodeCheck) -> Mapping[str, Scale]:
    """Returns the declarations of code that can be loaded."""
    assert isinstance(answer, Declarations), answer
    return answer.scales


def test_sound_code(tmp_path: Path) -> None:
    """Code that can be loaded has no fault, whatever it prints. It is not imported in this process, but has this process's import path."""
    code = f"import sys, threading, tests.project\nassert {sys.path!r} == sys.path\nprint('x' * 100_000)\n"
    code += "threading.Thread(target=threading.Event().wait).start()\ndef run(scenario): ...\n"

    loaded = {*sys.modules}  # Other tests may have loaded code of agents.
    assert {"tsq"} == {*scales_of(check_code(suite(tmp_path, code), ["default"]))}
    assert not [name for name in sys.modules.keys() - loaded if name.startswith("agentbench_agent_")]


def test_code_that_never_ends(tmp_path: Path) -> None:
    """An import that hangs is ended after its time limit, and the fault says so."""
    hanging = suite(tmp_path, "import threading\nthreading.Event().wait()\n")

    sentence = (
        f"{tmp_path}/suite.yaml: the process that imports the suite's code did not end within 0.5 s; importing it must only define things"
    )
    assert NotLoaded(sentence) == check_code(hanging, ["default"], seconds=0.5)


def test_several_suites(tmp_path: Path) -> None:
    """Each suite gets only its own fault. A fault in a variant counts if the variant runs."""
    sound = suite(tmp_path / "sound", "def run(scenario): ...", variants={"odd": {"kind": "./agent.py:walk"}})
    broken = suite(tmp_path / "broken", "1 / 0")

    first, second, third = check_code(sound, ["default"]), check_code(broken, ["default"]), check_code(sound, ["default", "odd"])

    assert {"tsq"} == {*scales_of(first)}
    division = "agent './agent.py:run' cannot be loaded: ZeroDivisionError: division by zero (agent.py:1)"
    assert NotLoaded(f"{tmp_path}/broken/suite.yaml: {division}") == second
    walk = "agent './agent.py:walk' cannot be loaded: the module does not define 'walk'; it defines: run"
    assert NotLoaded(f"{tmp_path}/sound/suite.yaml: {walk}") == third


def test_which_suites_are_checked(tmp_path: Path) -> None:
    """A process is started only for a suite with its own agent or scorer, and for an agent only if its variant runs."""
    plain = suite(tmp_path, "", agent={"kind": "tool_calling"}, variants={"own": {"kind": "./agent.py:run"}})

    assert not brings_any(plain, ["default"])
    assert brings_any(plain, ["default", "own"])
    assert brings_any(suite(tmp_path, "", agent={"kind": "tool_calling"}, scorers={"./agent.py:score": {}}), ["default"])
    assert brings_any(suite(tmp_path, "", agent={"kind": "self_evaluating", "wraps": "./agent.py:run"}), ["default"])


def test_declarations(tmp_path: Path) -> None:
    """The process returns the declarations of the suite's own scorers and of built-in ones."""
    code = "from pytest_agentbench import scorer\ndef run(scenario): ...\ndef plain(scenario, rollout): return 1\n"
    code += "@scorer(better='lower', range=(0, float('inf')), unit='mistakes')\ndef counted(scenario, rollout): return 1\n"
    scorers: Json = {"./agent.py:counted": {}, "./agent.py:plain": {}, "hallucinated": {}}

    assert {
        "counted": Scale("lower", 0.0, None, "mistakes", declared=True),
        "plain": UNDECLARED,
        "hallucinated": Scale("lower", 0.0, None, "calls", declared=True),
    } == scales_of(check_code(suite(tmp_path, code, scorers=scorers), ["default"]))
