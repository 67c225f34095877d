"""What a sandbox is to those who use one: commands, files on their way in, out and from one to another, and its end; and where a
model's own programs run.
"""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.lib.cut_marks import ending
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

    async def changed_files(self, tests: Path) -> tuple[str, ...] | None:
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


_FRAME = 1 << 16  # bytes of a tar that are not its file's
_IN_MEMORY = 8 << 20  # bytes of a tar; a larger one is a file

_KINDS = {tarfile.DIRTYPE: "a folder", tarfile.SYMTYPE: "a link", tarfile.FIFOTYPE: "a pipe"}


def tar_of(source: Path, target: str) -> IO[bytes]:
    """A file, or a folder with all that is in it, as it is to be in a sandbox: it belongs to root, modes and links stay."""
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is the caller's
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(source, target.strip("/"), filter=_of_root)
    tar.seek(0)
    return tar


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def tar_of_tests(tests: Path, user: int) -> IO[bytes]:
    """Returns a tar that makes LOGS, for this user and root alone, and TESTS, which all users may read, in place of what is there.

    Where a folder may be, a file comes first: an engine removes a folder for a file, with all that is in it.
    """
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is the caller's
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(_folder("logs", 0o755))
        archive.addfile(tarfile.TarInfo(LOGS.strip("/")))
        archive.addfile(_folder(LOGS, 0o700, user))
        archive.addfile(tarfile.TarInfo(TESTS.strip("/")))
        archive.add(tests, TESTS.strip("/"), filter=_readable)
    tar.seek(0)
    return tar


def _folder(path: str, mode: int, user: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.strip("/"))
    entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, mode, user
    return entry


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry = _of_root(entry)
    runs = entry.isdir() or entry.mode & 0o111 or f"/{entry.name}" == SCRIPT
    entry.mode |= 0o555 if runs else 0o444
    return entry


def first_file(pieces: Iterable[bytes], most: int) -> File | str:
    """The one regular file that an engine sends, or why it is not read: what it is, or that it has more than `most` bytes."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as tar:
        for piece in pieces:  # to the end: the connection is used again
            if tar.tell() <= most + _FRAME:
                tar.write(piece)
        tar.seek(0)
        with tarfile.open(fileobj=tar) as archive:
            entry = archive.next()
            if entry is None or not entry.isreg():
                return f"it is {_KINDS.get(entry.type, 'no file') if entry else 'nothing'}"
            if entry.size > most:
                return f"it has {entry.size} bytes, and {most} is the most that is read"
            file = archive.extractfile(entry)
            assert file is not None
            return File(file.read(), entry.uid)


ARTIFACTS = "/logs/artifacts"  # Harbor's own place for them
LARGEST = 256 << 20  # bytes of all of it
PACK = 120.0  # seconds
PACKED = "/agentbench-artifacts.tar"
_NO_PROGRAM = 127  # what a shell exits with for a program that it does not find


async def copy_artifacts(source: Sandbox, target: Sandbox, paths: Sequence[str]) -> None:
    """Copies regular files and folders to the same paths, in place of what is there; symbolic links, pipes and devices are left out.

    A symbolic link would show a verifier its own tests as if an agent had made them. Raises AgentError for what cannot be copied.
    """
    names = [path.strip("/") for path in dict.fromkeys((*paths, ARTIFACTS))]
    done = await source.exec(_pack(names), seconds=PACK, user="root", workdir="/")
    if done.exit_code == _NO_PROGRAM:
        raise InfraError("artifacts are copied with tar, which this image does not have")
    if done.exit_code != 0:
        raise AgentError(f"the agent left artifacts that cannot be copied: {ending(done.output.strip(), 300) or 'it takes too long'}")
    try:
        tar = await source.get(PACKED, most=LARGEST)
    except FileNotFoundError:
        return  # there are none
    except OSError as error:
        raise AgentError(f"the agent left artifacts that cannot be copied: {error}") from error
    with tempfile.TemporaryDirectory(prefix="agentbench-") as folder:
        unpack(tar.content, Path(folder))
        for name in names:
            if (copy := Path(folder, name)).exists():
                await _remove(target, name)
                await target.put(copy, f"/{name}")


async def _remove(sandbox: Sandbox, name: str) -> None:
    """What the image has at that path, of which the agent may have deleted something."""
    done = await sandbox.exec(f"rm -rf -- {shlex.quote(name)}", seconds=PACK, user="root", workdir="/")
    if done.exit_code != 0:
        raise InfraError(f"/{name} cannot be replaced by the agent's: {ending(done.output.strip(), 300) or 'it takes too long'}")


def _pack(names: Sequence[str]) -> str:
    listed = " ".join(map(shlex.quote, names))
    existing = f'names=(); for name in {listed}; do if [ -e "$name" ]; then names+=("$name"); fi; done'
    return f'rm -rf {PACKED}; {existing}; [ ${{#names[@]}} = 0 ] || tar -cf {PACKED} -- "${{names[@]}}"'


def unpack(tar: bytes, folder: Path) -> None:
    """The regular files, under all names that they have, and the folders of a tar.

    Raises AgentError for one that is none, or would be too large.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            members = [*_files_and_folders(archive)]
            if sum(each.size for each in members) > LARGEST:  # a file with holes is larger than its tar
                raise AgentError(f"the agent's artifacts have more than {LARGEST >> 20} MiB")
            archive.extractall(folder, members=members, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise AgentError(f"the agent's artifacts cannot be unpacked: {error}") from error


def _files_and_folders(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """A second name of a file (a hard link) is as good as its first, which a tar has before it; one of anything else is left out."""
    files: set[str] = set()
    for each in archive:
        if each.isreg() or (each.islnk() and each.linkname in files):
            files.add(each.name)
            yield each
        elif each.isdir():
            yield each


READY = 60.0  # seconds for what is done before the tests

#: Runs as root, with nothing of the agent running. A link or a file where a folder should be is replaced.
_PREPARE = f"""set -e
rm -rf {TESTS} {LOGS}
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; mkdir /logs; fi
chown 0:0 /logs
chmod 755 /logs
mkdir -m 700 {LOGS}"""

#: Runs as root, when the tests have arrived. {user} is the number of the user as whom they run.
_READY = f"chmod -R a+rX {TESTS} && chmod a+x {SCRIPT} && chown {{user}} {LOGS}"


async def bring_tests(sandbox: Sandbox, tests: Path, user: str | None) -> int:
    """Puts the tests where nothing of the agent's is, and returns the number of the user as whom they run."""
    await _run_as_root(sandbox, _PREPARE)
    await sandbox.put(tests, TESTS)
    answer = await sandbox.exec("id -u", seconds=READY, user=user, workdir="/")
    if not answer.output.strip().isdecimal():
        raise _not_ready(answer)
    number = int(answer.output)
    await _run_as_root(sandbox, _READY.format(user=number))
    return number


async def _run_as_root(sandbox: Sandbox, command: str) -> None:
    done = await sandbox.exec(command, seconds=READY, user="root", workdir="/")
    if done.exit_code != 0:
        raise _not_ready(done)


def _not_ready(command: CommandResult) -> InfraError:
    why = ending(command.output.strip(), 300) or f"exit code {command.exit_code}"
    return InfraError(f"the sandbox is left in a state in which the verifier cannot be started: {why}")
