"""Discovery of suites from the paths and marks on the command line, and loading them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.rollouts.compile import AS_IT_IS, CompiledSuite
from pytest_agentbench.rollouts.questions_of_tests import SuiteInfo, WorkerSuite
from pytest_agentbench.session.discovery import (
    DiscoveredSuites,
    SuiteHead,
    discover,
    is_left_out,
    merged_thresholds,
    suite_folders,
    worker_suite,
)
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from tests.made_runs import SCALES

SKIPPED = (".*", "node_modules", "venv")


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def shop(**keys: Any) -> CompiledSuite:
    scenarios = tuple(Scenario(f"s-{number}", ()) for number in range(3))
    data = DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3)
    suite = Suite("shop", Path("scenarios/shop"), scenarios, dataset=data, scales=SCALES, **keys)
    return CompiledSuite(suite, ("default",), 1, dict(suite.thresholds))


@pytest.mark.parametrize(
    ("marks", "answer"),
    [("shop", False), ("bank", True), ("bank or inn", True), ("bank or shop", False), ("slow", False), ("not shop", False)],
)
def test_suites_that_marks_leave_out(marks: str, answer: bool) -> None:
    """A -m expression excludes a suite only if it consists of other suites' names, because any other mark may be on one of its tests."""
    assert answer == is_left_out("shop", marks, ("shop", "bank", "inn"))


def folders(root: Path, *args: str) -> list[str]:
    """Returns the suite folders for some arguments. Folders and arguments are relative to the root."""
    paths = suite_folders([str(root / arg) for arg in args], root, SKIPPED)
    return [str(path.relative_to(root)) for path in paths]


def test_suites_below(tmp_path: Path) -> None:
    """A folder selects all suites in and below it, in the order of their names, nested ones included."""
    touch(tmp_path, *(f"scenarios/{name}/suite.yaml" for name in ("b", "a", "a/inner")), "scenarios/c/other.yaml")

    assert ["scenarios/a", "scenarios/a/inner", "scenarios/b"] == folders(tmp_path, ".")
    assert ["scenarios/a", "scenarios/a/inner", "scenarios/b"] == folders(tmp_path, "scenarios")
    assert ["scenarios/b"] == folders(tmp_path, "scenarios/b")


def test_a_large_suite_has_to_be_named(tmp_path: Path) -> None:
    """A suite with `only_when_named` runs if a path to or into its folder is given, or its name in -m. A path above it is not enough."""
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
    """A test file, or a test in it, selects the suites whose folders contain it, nearest first, up to the root."""
    touch(tmp_path, "suite.yaml", "root/suite.yaml", "root/a/suite.yaml", "root/a/deep/er/test_a.py", "root/b/suite.yaml")
    root = tmp_path / "root"

    assert ["a", "."] == folders(root, "a/deep/er/test_a.py")
    assert ["a", "."] == folders(root, "a/deep/er/test_a.py::TestCart::test_lamp[x::y]")
    assert ["a", "."] == folders(root, "a/deep")


def test_several_arguments(tmp_path: Path) -> None:
    """A suite that several arguments select is returned once. The order of the arguments is kept."""
    touch(tmp_path, "b/suite.yaml", "b/test_b.py", "a/suite.yaml")

    assert ["b", "a"] == folders(tmp_path, "b/test_b.py", "a", "b", ".")


def test_folders_that_pytest_skips(tmp_path: Path) -> None:
    """Folders with the given names and virtual environments are not searched, unless an argument names them."""
    touch(tmp_path, *(f"{name}/suite.yaml" for name in (".hidden", "node_modules/x", "venv", "my-env/lib", "a")), "my-env/pyvenv.cfg")

    assert ["a"] == folders(tmp_path, ".")
    assert ["venv"] == folders(tmp_path, "venv")


def test_nothing_there(tmp_path: Path) -> None:
    """Paths that do not exist and folders without a suite select nothing. A folder named suite.yaml is not a suite."""
    touch(tmp_path, "a/suite.yaml/file")

    assert [] == folders(tmp_path, "missing", "missing/test_a.py::test", "a")
    assert [] == suite_folders([], tmp_path, SKIPPED)


def test_arguments_are_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are relative to the current directory."""
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


def discovered(folder: Path, *, insists: bool = False) -> DiscoveredSuites:
    head = SuiteHead.of(folder)
    return discover([head], {head.name: AS_IT_IS}, insists=insists)


def test_a_fault_is_kept(tmp_path: Path) -> None:
    """An invalid suite is unavailable under its folder's name, with the reason. Other suites are not affected."""
    for name, keys in (("a", {"scorers": ["tqs"]}), ("b", {}), ("c", {"nme": "x"})):
        (tmp_path / name).mkdir()
        suite_file(tmp_path / name, **{"name": name, **keys})
    (tmp_path / "d").mkdir()
    (tmp_path / "d/suite.yaml").write_text("name: [")
    heads = [SuiteHead.of(tmp_path / name) for name in "abcd"]

    found = discover(heads, dict.fromkeys("abcd", AS_IT_IS), insists=False)

    assert ["b"] == [each.name for each in found.compiled]
    assert {"a": False, "c": False, "d": False} == {each.name: each.skip for each in found.unavailable.values()}
    assert all(each.reason.startswith(f"{folder}/suite.yaml:") for folder, each in found.unavailable.items())
    assert [tmp_path / name for name in "bdac"] == found.folders


def test_missing_data_are_no_fault(tmp_path: Path) -> None:
    """A suite whose data are not on this machine is skipped, unless `insists` is set."""
    suite_file(tmp_path, dataset={"format": "hle", "file": "hle.jsonl"})

    assert [True] == [each.skip for each in discovered(tmp_path).unavailable.values()]
    assert [False] == [each.skip for each in discovered(tmp_path, insists=True).unavailable.values()]
    assert [] == discovered(tmp_path).broken


def test_data_of_workers() -> None:
    """Workers get names and numbers of a suite, but no data and no labels."""
    whole = replace(shop(description="A shop."), trials=2)
    info = SuiteInfo(
        name="shop",
        description="A shop.",
        ids=("s-0", "s-1", "s-2"),
        variants=("default",),
        trials=2,
        thresholds={},
        scorers=("tsq",),
        label_source="hand",
        quarantined={},
    )

    assert WorkerSuite(info, sizes={}, scales={"tsq": SCALES["tsq"]}, unsupported={}) == worker_suite(whole)


def test_thresholds_override_each_other() -> None:
    """For each name the command line overrides backend.yaml, which overrides suite.yaml. Thresholds of other suites are ignored."""
    suite = shop(thresholds={"tsq": 0.5, "tsq.mean": 0.8}, scorers=("tsq", "calls"))
    backend = {"shop": {"tsq": 0.1, "tsq.mean": 0.2, "calls": 0.3}, "bank": {"tsq": 0.9, "unknown": 1.0}}

    assert {"tsq": 0.5, "tsq.mean": 0.8} == merged_thresholds(suite, {}, {})
    assert {"tsq": 0.1, "tsq.mean": 0.2, "calls": 0.3} == merged_thresholds(suite, backend, {})
    assert {"tsq": 0.1, "tsq.mean": 0.7, "calls": 0.3, "calls.mean": 2.0} == merged_thresholds(
        suite, backend, {"tsq.mean": 0.7, "calls.mean": 2.0}
    )


@pytest.mark.parametrize(("backend", "chosen"), [({"shop": {"tsq": 2}}, {}), ({}, {"tsq": 2})])
def test_thresholds_that_cannot_be_reached(backend: dict[str, dict[str, float]], chosen: dict[str, float]) -> None:
    """A threshold that no score can reach is refused, wherever it comes from."""
    with pytest.raises(ConfigError) as caught:
        merged_thresholds(shop(scorers={"tsq": {}}), backend, chosen)

    assert "suite 'shop': the threshold tsq: 2 is out of range: tsq is between 0 and 1, so it would decide nothing" == str(caught.value)


@pytest.mark.parametrize(("backend", "chosen"), [({"shop": {"tqs.mean": 0.5}}, {}), ({}, {"tqs.mean": 0.5})])
def test_thresholds_of_unknown_scores(backend: dict[str, dict[str, float]], chosen: dict[str, float]) -> None:
    """A threshold for a score that the suite does not measure is refused, wherever it comes from."""
    with pytest.raises(ConfigError) as caught:
        merged_thresholds(shop(scorers=("tsq", "calls")), backend, chosen)

    assert "threshold 'tqs.mean': suite 'shop' does not measure this score; name one of tsq, calls (or <score>.mean)" == str(caught.value)
