"""A temporary project in which the sessions of reference runs are made. Collects the inputs that are stored from a run directory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.reference.rebuild import inputs_of, write_inputs
from benchmarks.reference.views import rounded
from pytest_agentbench.backends.telemetry.samples import FILE as SAMPLES
from pytest_agentbench.gate.baselines import FOLDER as BASELINES
from pytest_agentbench.lib.json_text import opened, sealed
from pytest_agentbench.lib.kept_values import FILE as MESSAGES
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.records import suite_of
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.run_file import FILE as RUN
from pytest_agentbench.runs.run_file import Run, read_run
from pytest_agentbench.suites.folder import load_suite, suite_file
from pytest_agentbench.suites.suite import question

ROOT = Path(__file__).parents[2]

#: Where this machine has something, and what the stored files say instead; the first that fits is taken.
PLACES = ((sys.prefix, "/environment"), (sys.base_prefix, "/python"), (str(ROOT), "/checkout"))
PROJECT = "/project"


class SessionError(Exception):
    """A session of a reference run ended with an unexpected exit status."""


class Workplace:
    """A project in a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def init(self, suite: str) -> None:
        """Copies an included suite to the project, and writes an embedded engine with shorter delays than the included one."""
        self.run("pytest_agentbench.cli", "init", suite)
        engine = self.root / "backends/embedded.yaml"
        text = engine.read_text(encoding="utf-8").replace("ttft_ms: 40 ", "ttft_ms: 8 ").replace("itl_ms: 10 ", "itl_ms: 1 ")
        engine.write_text(text, encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *words: str, ends: Collection[int] = (0,), **variables: str) -> None:
        """Runs `python -m` with these arguments. Raises SessionError if the exit status is not one of `ends`."""
        own = {"PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider", "TZ": "UTC", "COLUMNS": "80"}
        environment = {**child_environment(), **own, **variables}
        done = subprocess.run([sys.executable, "-m", *words], cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in ends:
            raise SessionError(f"`python -m {' '.join(words)}` ended with {done.returncode}, not {[*ends]}:\n{done.stdout}{done.stderr}")

    @property
    def latest(self) -> Path:
        """The directory of the latest run."""
        return (self.root / "reports" / "latest").resolve()

    def without_places(self, text: str) -> str:
        """Replaces paths of this machine in a text by constants."""
        for place, name in ((str(self.root), PROJECT), *PLACES):
            text = text.replace(place, name)
        return text

    def inputs(self, directory: Path) -> dict[str, bytes]:
        """Returns the files that a run is computed from: its journal, the samples of its sessions, and its RunInputs."""
        run = read_run(directory)
        write_inputs(inputs_of(run, questions_of(run)), directory)
        kept = [directory / "facts.json", *sorted(directory.rglob(SAMPLES))]
        kept += sorted((directory.parent / BASELINES).glob("*.jsonl")) if run.gate and run.gate.baselines else []
        files = {self._stored_name(file, directory): self.without_places(file.read_text(encoding="utf-8")).encode() for file in kept}
        lines = (opened(line).decode() for line in (directory / JOURNAL).read_bytes().splitlines())
        journal = b"".join(sealed(self.without_places(line).encode()) + b"\n" for line in lines)
        messages = directory / MESSAGES  # as it is: the ids of its lines are hashes of their texts
        return {**files, JOURNAL: journal, **({MESSAGES: messages.read_bytes()} if messages.is_file() else {})}

    @staticmethod
    def _stored_name(file: Path, directory: Path) -> str:
        """Returns the path of an input in its archive. Baselines, which are beside the run directory, are in it there."""
        return str(file.relative_to(directory if file.is_relative_to(directory) else directory.parent))

    def run_json(self, directory: Path) -> bytes:
        """Returns run.json as the session wrote it."""
        return rounded(self.without_places((directory / RUN).read_text(encoding="utf-8"))).encode()


def questions_of(run: Run) -> dict[str, dict[str, str]]:
    """Returns the questions of the scenarios of each suite."""
    suites = {suite_of(name, each.variant): Path(each.folder) for name, each in run.suites.items()}
    return {
        name: {each.id: question(each.messages) for each in load_suite(suite_file(folder)).scenarios} for name, folder in suites.items()
    }


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Makes a temporary project for the `with` block."""
    with tempfile.TemporaryDirectory(prefix="agentbench-reference-") as name:
        yield Workplace(Path(name).resolve())
