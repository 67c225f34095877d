"""What a sandbox is to those who use one: commands, files in, files out, and its end; and where a model's own programs run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_agentbench.suites.suite import Task

TESTS, LOGS = "/tests", "/logs/verifier"  # what a verifier is given, and where it writes
SCRIPT = f"{TESTS}/test.sh"
LARGEST_FILE = 2**20  # bytes that are read of a file inside


@dataclass(frozen=True)
class CommandResult:
    """What became of a command."""

    exit_code: int | None  # None: it took longer than it may and was killed; below 0 never
    output: str  # stdout and stderr as they came, decoded with replacement characters
    omitted: int = 0  # bytes that were cut out of the middle of `output`, whose place a line there says
    seconds: float = 0.0


@dataclass(frozen=True)
class File:
    """A regular file that was inside."""

    content: bytes
    owner: int  # user id


class CommandRunner(Protocol):
    """Where commands are carried out, and nothing else is asked of it. All raise InfraError where the sandbox itself fails, or is gone."""

    kind: str  # docker, bubblewrap, harbor:daytona; and which of its limits could not be kept

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Runs `bash -c command` for so many seconds at most, after which all that it started is killed inside."""

    async def end(self) -> None:
        """Removes it, and all that runs in it. A second call does nothing."""


class Sandbox(CommandRunner, Protocol):
    """One container, or what takes its place, in which a task is carried out and verified."""

    async def put(self, source: Path, target: str) -> None:
        """Copies a file, or a folder with all that is in it, to an absolute path; it belongs to root there, modes stay."""

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:
        """A regular file, read from outside: nothing inside is asked. Raises FileNotFoundError where there is none,
        and OSError, with what it is, for a link, a folder, a pipe, and for a file of more than `most` bytes, which is not read.
        """

    async def end_processes(self) -> None:
        """Kills everything that runs inside, but for what keeps the sandbox up; it takes commands afterwards."""

    async def halt(self) -> None:
        """Kills everything that runs inside. Files can be read afterwards; it may take no more commands."""

    async def changed(self, tests: Path) -> tuple[str, ...] | None:
        """Returns the files these tests may use that an agent had changed at `end_processes`; None where that cannot be told."""

    async def bring_tests(self, tests: Path, user: str | None) -> int:
        """Puts `tests` to TESTS and makes LOGS, in place of all that is there, and returns the number of the user, who owns LOGS.

        None is the image's own user. To be called after `end_processes`.
        """

    def interpreter(self, name: str) -> str:
        """Returns the words that start `bash` or `sh` here, which after `end_processes` are not the agent's where that is possible."""

    async def fresh(self) -> Sandbox:
        """Another one for the same task, as this one was before anybody used it; to be ended by whoever asked for it."""


DOCKER, BUBBLEWRAP = "docker", "bubblewrap"
KINDS = (DOCKER, BUBBLEWRAP)


@dataclass(frozen=True)
class CodePlace:
    """A sandbox without a network and without files of anybody, in which nothing is verified."""

    kind: str  # one of KINDS
    image: str = ""  # of a container; a bubblewrap has the programs of this machine
    memory_mb: int = 2048  # of a container, and in a bubblewrap of each process
    storage_mb: int = 256  # of a file in a container, and in a bubblewrap of all files

    @property
    def container(self) -> Task:
        """What a container of it is made from."""
        about = {"image": self.image, "memory_mb": self.memory_mb, "storage_mb": self.storage_mb}
        return Task(folder="", digest="", network="no-network", **about)  # type: ignore[arg-type]  # mypy joins the values' types
