"""`agentbench version`: facts about the installation, as JSON and for readers."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from pytest_agentbench.cli import main
from pytest_agentbench.cli.version import _applies, _are_installed
from pytest_agentbench.rollouts.nodes.suite_files import package_hash

FITTING, TOO_NEW, MISSING = "pytest>=9", "pytest>=9999", "agentbench-nobody-has-this"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the version, the hash that node workers compare, the platform, and the dependencies that no extra brings."""
    status = main(["version", "--json"])
    facts = json.loads(capsys.readouterr().out)

    assert 0 == status
    assert ["version", "code", "python", "platform", "extras", "dependencies"] == [*facts]
    assert (metadata.version("pytest-agentbench"), package_hash()) == (facts["version"], facts["code"])
    assert platform.python_version() in facts["python"]
    assert {"system", "machine", "libc"} == facts["platform"].keys()
    assert metadata.version("pytest") == facts["dependencies"]["pytest"]
    assert "hub" in facts["extras"]
    assert "huggingface_hub" not in facts["dependencies"]


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The readable form has the same facts."""
    main(["version", "--json"])
    facts = json.loads(capsys.readouterr().out)
    main(["version"])
    text = capsys.readouterr().out

    shown = [facts["version"], facts["code"], facts["python"], *facts["extras"], *(value for value in facts["platform"].values() if value)]
    shown += [f"{name} {version}" for name, version in facts["dependencies"].items()]
    assert [] == [each for each in shown if each not in text]


@pytest.mark.parametrize(
    ("lines", "installed"),
    [([FITTING], True), ([FITTING, TOO_NEW], False), ([FITTING, MISSING], False), ([], False)],
    ids=["fits", "too old", "missing", "not for this Python"],
)
def test_extras(lines: list[str], installed: bool) -> None:
    """An extra is installed if it has requirements for this Python, and each is installed in a fitting version."""
    assert installed == _are_installed([Requirement(line) for line in lines])


def test_markers() -> None:
    """A requirement of an extra applies only with that extra, and one for another Python never."""
    hub, old = Requirement("pyarrow; extra == 'hub'"), Requirement("pyarrow; python_version < '3' and extra == 'hub'")

    assert [False, True, False] == [_applies(hub), _applies(hub, "hub"), _applies(hub, "mcp")]
    assert not _applies(old, "hub")
