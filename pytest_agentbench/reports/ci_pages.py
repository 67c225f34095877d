"""Addresses of pages on GitHub and GitLab: a commit, a scenario in its data file, and the report of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pytest_agentbench.reports.document import NOWHERE, PageAddress
from pytest_agentbench.runs.run_file import Run

LARGEST = 32 << 20  # bytes of a data file that is searched for the lines of scenarios


@dataclass(frozen=True)
class Pages:
    """The pages of the CI job that runs now. Every address is empty outside of CI."""

    repository: str = ""  # address of the repository, before `commit/...` and `blob/...`
    commit: str = ""  # commit of the files
    checkout: Path = Path()  # folder of the files
    report: PageAddress = NOWHERE  # page with the report of the run: on GitHub the page of the workflow run, which lists its artifacts

    def of_commit(self, commit: str) -> PageAddress:
        """Returns the page of a commit."""
        return PageAddress(f"{self.repository}/commit/{quote(commit)}") if self.repository else NOWHERE

    def of_scenarios(self, run: Run, group: str, scenarios: Iterable[str]) -> dict[str, PageAddress]:
        """Returns scenario -> page of its data, at its line if it is found. Empty if the data are not in the repository."""
        suite = run.suites.get(group)
        file = Path(suite.folder, suite.dataset.file) if suite and suite.dataset.file else None
        if file is None or not self.repository or not self.commit or not file.is_relative_to(self.checkout):
            return {}
        place = f"{quote(self.commit)}/{quote(str(file.relative_to(self.checkout)))}"
        if file.is_dir():
            folders = (each for each in scenarios if re.fullmatch(r"[\w.-]*\w", each) and (file / each).is_dir())
            return {each: PageAddress(f"{self.repository}/tree/{place}/{quote(each)}") for each in folders}
        lines = lines_of(file, scenarios)
        return {each: PageAddress(f"{self.repository}/blob/{place}{f'#L{lines[each]}' if each in lines else ''}") for each in scenarios}


def pages_of(run: Run, directory: Path, environment: Mapping[str, str]) -> Pages:
    """Returns the pages of the job with this environment, for a run in this directory."""
    known = run.environment.git.commit if run.environment.git else ""
    if (server := environment.get("GITHUB_SERVER_URL")) and (name := environment.get("GITHUB_REPOSITORY")):
        job = f"{server}/{name}/actions/runs/{environment['GITHUB_RUN_ID']}" if "GITHUB_RUN_ID" in environment else ""
        checkout = Path(environment.get("GITHUB_WORKSPACE", ""))
        return Pages(f"{server}/{name}", known or environment.get("GITHUB_SHA", ""), checkout, PageAddress(job))
    if project := environment.get("CI_PROJECT_URL"):
        checkout, job = Path(environment.get("CI_PROJECT_DIR", "")), environment.get("CI_JOB_URL", "")
        kept = job and directory.is_relative_to(checkout)
        report = f"{job}/artifacts/file/{quote(str(directory.relative_to(checkout)))}/report.html" if kept else job
        return Pages(f"{project}/-", known or environment.get("CI_COMMIT_SHA", ""), checkout, PageAddress(report))
    return Pages()


def lines_of(file: Path, scenarios: Iterable[str]) -> dict[str, int]:
    """Returns scenario -> first line of a data file that contains its id, counted from 1. Leaves out those that are not found."""
    names = "|".join(map(re.escape, sorted(scenarios, key=len, reverse=True)))
    found: dict[str, int] = {}
    if not names or not file.is_file() or file.stat().st_size > LARGEST:
        return found
    pattern = re.compile(rf"(?<![\w.-])(?:{names})(?![\w.-])")
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            for match in pattern.finditer(line):
                found.setdefault(match[0], number)
    return found
