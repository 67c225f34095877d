"""Which suites the command line leads to, and what becomes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.session.discovery import (
    DiscoveredSuite,
    SuiteHead,
    choose_variants,
    find,
    is_left_out,
    merged_thresholds,
    suite_folders,
    with_sound_code,
)
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from tests.made_runs import SCALES

SKIPPED = (".*", "node_modules", "venv")


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def shop(**keys: Any) -> Suite:
    scenarios = tuple(Scenario(f"s-{number}", ()) for number in range(3))
    return Suite(
        "shop", Path("scenarios/shop"), scenarios, dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3), scales=SCALES, **keys
    )


def found(**keys: Any) -> DiscoveredSuite:
    suite = shop(**keys)
    return DiscoveredSuite(suite.folder, suite, dict(suite.thresholds), ("default",), 1)


@pytest.mark.parametrize(
    ("marks", "answer"),
    [("shop", False), ("bank", True), ("bank or inn", True), ("bank or shop", False), ("slow", False), ("not shop", False)],
)
def test_suites_that_marks_leave_out(marks: str, answer: bool) -> None:
    """Only an expression of other suites' names leaves a suite out for certain: any other mark may be on one of its tests."""
    assert answer == is_left_out("shop", marks, ("shop", "bank", "inn"))


def folders(root: Path, *args: str) -> list[str]:
    """Suite folders, relative to the root, that arguments lead to; arguments are relative to it too."""
    paths = suite_folders([str(root / arg) for arg in args], root, SKIPPED)
    return [str(path.relative_to(root)) for path in paths]


def test_suites_below(tmp_path: Path) -> None:
    """A folder leads to all suites in and below it, in the order of their names, nested ones too."""
    touch(tmp_path, *(f"scenarios/{name}/suite.yaml" for name in ("b", "a", "a/inner")), "scenarios/c/other.yaml")

    assert ["scenarios/a", "scenarios/a/inner", "scenarios/b"] == folders(tmp_path, ".")
    assert ["scenarios/a", "scenarios/a/inner", "scenarios/b"] == folders(tmp_path, "scenarios")
    assert ["scenarios/b"] == folders(tmp_path, "scenarios/b")


def test_a_large_suite_has_to_be_named(tmp_path: Path) -> None:
    """With `only_when_named` a path to or into the folder runs it, and its name in -m; a path above it and other names do not."""
    folder = tmp_path / "scenarios/big"
    touch(tmp_path, "scenarios/big/suite.yaml", "scenarios/big/test_big.py")
    (folder / "suite.yaml").write_text("name: big\nonly_when_named: true\n")

    for args, marks in ((folder, ""), (folder / "test_big.py::test_a[x]", ""), (tmp_path, "big and not slow"), (tmp_path, "not big")):
        assert "" == SuiteHead.of(folder).not_named([str(args)], marks)
    for args, marks in ((tmp_path, ""), (tmp_path / "scenarios", "bigger"), (tmp_path / "scenarios/small", "small")):
        why = SuiteHead.of(folder).not_named([str(args)], marks)
        assert why.startswith(f"{folder}/suite.yaml: this suite runs only when it is named: pytest ")
        assert why.endswith("/big, or pytest -m big")
    (folder / "suite.yaml").write_text("name: big\n")
    assert "" == SuiteHead.of(folder).not_named([str(tmp_path)], "")


def test_suites_above(tmp_path: Path) -> None:
    """A test file, and a test in it, lead to the suites whose folders it lies in, nearest first, up to the root and no further."""
    touch(tmp_path, "suite.yaml", "root/suite.yaml", "root/a/suite.yaml", "root/a/deep/er/test_a.py", "root/b/suite.yaml")
    root = tmp_path / "root"

    assert ["a", "."] == folders(root, "a/deep/er/test_a.py")
    assert ["a", "."] == folders(root, "a/deep/er/test_a.py::TestCart::test_lamp[x::y]")
    assert ["a", "."] == folders(root, "a/deep")


def test_several_arguments(tmp_path: Path) -> None:
    """A suite that several arguments lead to is there once; the arguments' order is kept."""
    touch(tmp_path, "b/suite.yaml", "b/test_b.py", "a/suite.yaml")

    assert ["b", "a"] == folders(tmp_path, "b/test_b.py", "a", "b", ".")


def test_folders_that_pytest_skips(tmp_path: Path) -> None:
    """Folders of the given names and virtual environments of any name are passed over, unless they are asked for."""
    touch(tmp_path, *(f"{name}/suite.yaml" for name in (".hidden", "node_modules/x", "venv", "my-env/lib", "a")), "my-env/pyvenv.cfg")

    assert ["a"] == folders(tmp_path, ".")
    assert ["venv"] == folders(tmp_path, "venv")


def test_nothing_there(tmp_path: Path) -> None:
    """Paths that do not exist, and folders without a suite, lead to none; a folder named suite.yaml is none."""
    touch(tmp_path, "a/suite.yaml/file")

    assert [] == folders(tmp_path, "missing", "missing/test_a.py::test", "a")
    assert [] == suite_folders([], tmp_path, SKIPPED)


def test_arguments_are_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are as the user typed them in the current directory."""
    touch(tmp_path, "a/suite.yaml", "b/suite.yaml")
    monkeypatch.chdir(tmp_path / "a")

    assert [tmp_path / "a"] == suite_folders(["."], tmp_path, SKIPPED)
    assert [tmp_path / "b"] == suite_folders(["../b"], tmp_path, SKIPPED)


def suite_file(folder: Path, **keys: Any) -> Path:
    entry = {"id": "s-0", "question": "?", "available_tools": []}
    spec = {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "data.json"}, **keys}
    (folder / "data.json").write_text(json.dumps([entry]))
    (folder / "suite.yaml").write_text(json.dumps(spec))
    return folder


def test_a_suite_is_found(tmp_path: Path) -> None:
    """A suite comes with its thresholds, the variants and trials asked for, and with changed values."""
    suite_file(tmp_path, trials=2, thresholds={"tsq": 0.5}, variants={"hot": {}})

    as_it_is = find(tmp_path, [], ("default",), None)
    changed = find(tmp_path, [("thresholds.tsq", 0.7)], ("all",), 3)

    assert ("shop", "", {"tsq": 0.5}, ("default",), 2) == (
        as_it_is.name,
        as_it_is.error,
        as_it_is.thresholds,
        as_it_is.variants,
        as_it_is.trials,
    )
    assert ({"tsq": 0.7}, ("default", "hot"), 3) == (changed.thresholds, changed.variants, changed.trials)


@pytest.mark.parametrize(
    ("keys", "variants", "sentence"),
    [
        ({"nme": "x"}, ("default",), "suite.yaml: unknown key 'nme'; known keys: "),
        ({"dataset": {"format": "agent-leaderboard", "file": "no.json"}}, ("default",), "suite.yaml: the data file "),
        ({"scorers": ["tqs"]}, ("default",), "suite.yaml: no scorer 'tqs'; known: "),
        ({"agent": {"kind": "tool_callin"}}, ("default",), "suite.yaml: no agent 'tool_callin'; known: "),
        ({"thresholds": {"tsq": 1.5}}, ("default",), "suite.yaml: the threshold tsq: 1.5 is out of range: tsq is between 0 and 1, so"),
        ({"thresholds": {"tsq.mean": 80}}, ("default",), "suite.yaml: the threshold tsq.mean: 80 is out of range: tsq is between 0 "),
        ({"thresholds": {"tsq": -0.1}}, ("default",), "suite.yaml: the threshold tsq: -0.1 is out of range: tsq is between 0 and 1"),
        (
            {"scorers": ["repeated"], "thresholds": {"repeated.mean": -1}},
            ("default",),
            "suite.yaml: the threshold repeated.mean: -1 is out of range: repeated is 0 or more, so it would decide nothing",
        ),
        (
            {"gate": ["tsq.mean >= 80"]},
            ("default",),
            "suite.yaml: the rule 'tsq.mean >= 80' is out of range: tsq is between 0 and 1, so it would ",
        ),
        (
            {"gate": ["tsq.mean >= -3 vs baseline"]},
            ("default",),
            "suite.yaml: the margin 'tsq.mean >= -3 vs baseline' is out of range: tsq is between 0 and 1, so it would decide nothing",
        ),
        ({"agent": {"temperature": -1}}, ("default",), "suite.yaml: agent: temperature should be a number from 0 up, not -1"),
        (
            {"variants": {"hot": {"agent": {"top_p": "0.9"}}}},
            ("hot",),
            "suite.yaml: agent: top_p should be a number from 0 to 1, not '0.9'",
        ),
        ({"variants": {"hot": {}}}, ("default", "cold"), "suite.yaml: no variant 'cold'; known: default, hot, or `all`"),
    ],
)
def test_a_fault_is_kept(tmp_path: Path, keys: dict[str, Any], variants: tuple[str, ...], sentence: str) -> None:
    """What is wrong with a suite becomes its error, under its folder's name; the others are not concerned."""
    [result] = with_sound_code([find(suite_file(tmp_path, **keys), [], variants, None)])

    assert result.error.startswith(f"{tmp_path}/{sentence}")
    assert (None, tmp_path.name, {}, ()) == (result.suite, result.name, result.thresholds, result.variants)
    assert {"name": tmp_path.name, "error": result.error, "skip": False, "marks": True} == result.for_worker()


def test_a_fault_of_the_command_line(tmp_path: Path) -> None:
    """Where options have changed the suite its error names them, without their values: the file alone may be right."""
    result = find(suite_file(tmp_path), [("agent.temprature", 0.6)], ("default",), None, "tool_callin")

    assert result.error.startswith(f"{tmp_path}/suite.yaml: ")
    assert result.error.endswith(" (as changed by --agentbench-agent, --agentbench-set agent.temprature)")


def test_choosing_variants() -> None:
    """`all` is the suite's own agent and every variant; names keep the order in which they were asked for."""
    suite = shop(variants={"hot": {}, "cold": {}})

    assert ("default", "hot", "cold") == choose_variants(suite, ("all",))
    assert ("cold", "default") == choose_variants(suite, ("cold", "default"))


def test_what_a_worker_gets() -> None:
    """Test processes get names and numbers, as JSON; no data and no labels."""
    whole = replace(found(description="A shop."), trials=2)

    assert {
        "name": "shop",
        "error": "",
        "skip": False,
        "marks": True,
        "description": "A shop.",
        "ids": ["s-0", "s-1", "s-2"],
        "variants": ["default"],
        "sizes": {},
        "trials": 2,
        "thresholds": {},
        "scorers": ["tsq"],
        "scales": {"tsq": "higher is better, between 0 and 1"},
        "label_source": "hand",
        "quarantined": {},
        "unsupported": {},
    } == json.loads(json.dumps(whole.for_worker()))


def test_thresholds_override_each_other() -> None:
    """The command line beats backend.yaml, which beats suite.yaml, each name for itself; other suites' limits do not matter."""
    suite = found(thresholds={"tsq": 0.5, "tsq.mean": 0.8}, scorers=("tsq", "calls"))
    backend = {"shop": {"tsq": 0.1, "tsq.mean": 0.2, "calls": 0.3}, "bank": {"tsq": 0.9, "unknown": 1.0}}

    assert {"tsq": 0.5, "tsq.mean": 0.8} == merged_thresholds(suite, {}, {})
    assert {"tsq": 0.1, "tsq.mean": 0.2, "calls": 0.3} == merged_thresholds(suite, backend, {})
    assert {"tsq": 0.1, "tsq.mean": 0.7, "calls": 0.3, "calls.mean": 2.0} == merged_thresholds(
        suite, backend, {"tsq.mean": 0.7, "calls.mean": 2.0}
    )


def test_limits_at_the_ends_of_a_range(tmp_path: Path) -> None:
    """A limit may be at either end of what a score can be; of a scorer of one's own nobody knows the ends."""
    thresholds = {"tsq": 1, "tsq.mean": 0, "repeated.mean": 7, "polite": -50}
    gate = ["tsq.mean >= 1", "tsq.mean >= -1 vs baseline", "repeated.mean <= 9", "repeated.mean <= 5 vs baseline", "polite.mean >= 80"]

    (tmp_path / "x.py").write_text("def polite(scenario, rollout):\n    return 1.0\n")
    file = suite_file(tmp_path, scorers=["tsq", "repeated", "./x.py:polite"], thresholds=thresholds, gate=gate)
    [ended] = with_sound_code([find(file, [], ("default",), None)])

    assert "" == ended.error


@pytest.mark.parametrize(("backend", "chosen"), [({"shop": {"tsq": 2}}, {}), ({}, {"tsq": 2})])
def test_thresholds_nobody_reaches(backend: dict[str, dict[str, float]], chosen: dict[str, float]) -> None:
    """A threshold that no score can reach is refused, wherever it was given."""
    with pytest.raises(ConfigError) as caught:
        merged_thresholds(found(scorers={"tsq": {}}), backend, chosen)

    assert "suite 'shop': the threshold tsq: 2 is out of range: tsq is between 0 and 1, so it would decide nothing" == str(caught.value)


@pytest.mark.parametrize(("backend", "chosen"), [({"shop": {"tqs.mean": 0.5}}, {}), ({}, {"tqs.mean": 0.5})])
def test_thresholds_nobody_measures(backend: dict[str, dict[str, float]], chosen: dict[str, float]) -> None:
    """A threshold for a score that the suite does not measure is refused, wherever it was given."""
    with pytest.raises(ConfigError) as caught:
        merged_thresholds(found(scorers=("tsq", "calls")), backend, chosen)

    assert "threshold 'tqs.mean': suite 'shop' does not measure it; it measures: tsq, calls (and <score>.mean)" == str(caught.value)
