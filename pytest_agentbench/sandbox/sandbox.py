"""The interfaces of sandboxes, and functions that copy files into, out of and between them."""

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

TESTS, LOGS = "/tests", "/logs/verifier"  # folders with the files of a verifier, and for its output
SCRIPT = f"{TESTS}/test.sh"
LARGEST_FILE = 2**20  # bytes of the largest file that is read from a sandbox


@dataclass(frozen=True)
class CommandResult:
    """The result of a command."""

    exit_code: int | None  # None if it exceeded its time limit and was killed; never negative
    output: str  # stdout and stderr in order, decoded with replacement characters
    omitted: int = 0  # bytes left out of the middle of `output`, where a line marks their place
    seconds: float = 0.0


@dataclass(frozen=True)
class File:
    """A regular file from a sandbox."""

    content: bytes
    owner: int  # user id


class CommandRunner(Protocol):
    """A sandbox that only runs commands. Methods raise InfraError if the sandbox itself fails, or has ended."""

    kind: str  # docker, bubblewrap or harbor:daytona, and which of its limits could not be enforced

    async def exec(
        self,
        command: str,
        *,
        seconds: float,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Runs `bash -c command` for at most `seconds`, then kills all processes that it started."""

    async def end(self) -> None:
        """Removes the sandbox and ends all its processes. A second call does nothing."""


class Sandbox(CommandRunner, Protocol):
    """A container or similar environment in which a task is carried out and verified.

    The agent runs commands first. Then `end_processes` ends all its processes, `bring_tests` copies the verifier's files, and the verifier
    runs. `halt` ends all processes before its output is read. `end` removes the sandbox.
    """

    async def put(self, source: Path, target: str) -> None:
        """Copies a file, or a folder with everything in it, to an absolute path. It belongs to root there; modes stay."""

    async def get(self, source: str, *, most: int = LARGEST_FILE) -> File:
        """Reads a regular file.

        Raises FileNotFoundError if it does not exist, and OSError with the reason if it is a link, folder or pipe, or has more than `most`
        bytes.
        """

    async def end_processes(self) -> None:
        """Kills all processes inside, except those that keep the sandbox running. It accepts commands afterwards."""

    async def halt(self) -> None:
        """Kills all processes inside. Files can be read afterwards, but commands may fail."""

    async def changed_files(self, tests: Path) -> tuple[str, ...] | None:
        """Returns the files that an agent changed before `end_processes` and that the verifier (`tests`) may use. None if unknown."""

    async def bring_tests(self, tests: Path, user: str | None) -> int:
        """Replaces /tests by a copy of `tests`, and /logs/verifier by an empty folder that belongs to `user`. Returns the user's id.

        `user` is None for the default user of the image. Call it after `end_processes`.
        """

    def interpreter(self, name: str) -> str:
        """Returns the words that start `bash` or `sh`. After `end_processes`, that is a copy from before the agent, if there is one."""

    async def fresh(self) -> Sandbox:
        """Opens an unused sandbox for the same task. The caller must end it."""


DOCKER, BUBBLEWRAP = "docker", "bubblewrap"
KINDS = (DOCKER, BUBBLEWRAP)


@dataclass(frozen=True)
class CodePlace:
    """The settings of a sandbox for programs that a model writes. It has no network and no user files, and nothing is verified in it."""

    kind: str  # one of KINDS
    image: str = ""  # image of a container; bubblewrap uses the programs of this machine
    memory_mb: int = 2048  # limit for a container, or for each process in bubblewrap
    storage_mb: int = 256  # limit for a file in a container, or for all files in bubblewrap

    @property
    def container(self) -> Task:
        """A task with these settings, because containers are created from tasks."""
        about = {"image": self.image, "memory_mb": self.memory_mb, "storage_mb": self.storage_mb}
        return Task(folder="", digest="", network="no-network", **about)  # type: ignore[arg-type]  # mypy joins the values' types


_FRAME = 1 << 16  # bytes of a tar that do not belong to its file
_IN_MEMORY = 8 << 20  # bytes of a tar that is kept in memory; larger ones are stored on disk

_KINDS = {tarfile.DIRTYPE: "a folder", tarfile.SYMTYPE: "a link", tarfile.FIFOTYPE: "a pipe"}


def tar_of(source: Path, target: str) -> IO[bytes]:
    """Returns a tar of a file, or of a folder with everything in it. All entries belong to root; modes and links stay."""
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(source, target.strip("/"), filter=_of_root)
    tar.seek(0)
    return tar


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def tar_of_tests(tests: Path, user: int) -> IO[bytes]:
    """Returns a tar with the folder `tests` as /tests, which all users may read, and an empty /logs/verifier only for `user` and root.

    Before each of these folders, the tar contains a file with the same path: the Docker Engine removes an existing folder, with everything
    in it, to create that file.
    """
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller closes it
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
    """Returns the regular file in a tar of the Docker Engine, or why it is not read: it is not a file, or has more than `most` bytes."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as tar:
        for piece in pieces:  # Read to the end, because the connection is reused.
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


ARTIFACTS = "/logs/artifacts"  # Harbor's folder for artifacts
LARGEST = 256 << 20  # bytes of all artifacts together at most
PACK = 120.0  # seconds for packing the artifacts
PACKED = "/agentbench-artifacts.tar"
_NO_PROGRAM = 127  # exit code of a shell if it does not find a program


async def copy_artifacts(source: Sandbox, target: Sandbox, paths: Sequence[str]) -> None:
    """Copies `paths` and /logs/artifacts from the agent's sandbox to the same paths in the verifier's, replacing what exists there.

    Leaves out symbolic links, pipes and devices: with a link, an agent could present the verifier's own tests as its artifacts.

    Raises AgentError if the agent's artifacts cannot be copied. Raises InfraError if the image has no tar, or if what exists cannot be
    replaced.
    """
    names = [path.strip("/") for path in dict.fromkeys((*paths, ARTIFACTS))]
    done = await source.exec(_pack(names), seconds=PACK, user="root", workdir="/")
    if done.exit_code == _NO_PROGRAM:
        raise InfraError("artifacts are copied with tar, which this image does not have; install tar in it")
    if done.exit_code != 0:
        raise AgentError(f"the agent left artifacts that cannot be copied: {ending(done.output.strip(), 300) or 'it takes too long'}")
    try:
        tar = await source.get(PACKED, most=LARGEST)
    except FileNotFoundError:
        return  # There are no artifacts.
    except OSError as error:
        raise AgentError(f"the agent left artifacts that cannot be copied: {error}") from error
    with tempfile.TemporaryDirectory(prefix="agentbench-") as folder:
        unpack(tar.content, Path(folder))
        for name in names:
            if (copy := Path(folder, name)).exists():
                await _remove(target, name)
                await target.put(copy, f"/{name}")


async def _remove(sandbox: Sandbox, name: str) -> None:
    """Removes a path from the verifier's sandbox before the agent's copy replaces it. Otherwise files that the agent deleted would stay."""
    done = await sandbox.exec(f"rm -rf -- {shlex.quote(name)}", seconds=PACK, user="root", workdir="/")
    if done.exit_code != 0:
        raise InfraError(f"/{name} cannot be replaced by the agent's artifact: {ending(done.output.strip(), 300) or 'it takes too long'}")


def _pack(names: Sequence[str]) -> str:
    listed = " ".join(map(shlex.quote, names))
    existing = f'names=(); for name in {listed}; do if [ -e "$name" ]; then names+=("$name"); fi; done'
    return f'rm -rf {PACKED}; {existing}; [ ${{#names[@]}} = 0 ] || tar -cf {PACKED} -- "${{names[@]}}"'


def unpack(tar: bytes, folder: Path) -> None:
    """Extracts the regular files (under all their names) and the folders of a tar.

    Raises AgentError if it is not a tar, or its files are too large.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            members = [*_files_and_folders(archive)]
            if sum(each.size for each in members) > LARGEST:  # Sparse files can be larger than the tar.
                raise AgentError(f"the agent's artifacts have more than {LARGEST >> 20} MiB")
            archive.extractall(folder, members=members, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise AgentError(f"the agent's artifacts cannot be unpacked: {error}") from error


def _files_and_folders(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the files and folders of a tar, including hard links to files before them. Other hard links are left out."""
    files: set[str] = set()
    for each in archive:
        if each.isreg() or (each.islnk() and each.linkname in files):
            files.add(each.name)
            yield each
        elif each.isdir():
            yield each


READY = 60.0  # seconds for each preparation before the tests

#: Runs as root after the agent's processes have ended. A link or a file in the place of a folder is replaced.
_PREPARE = f"""set -e
rm -rf {TESTS} {LOGS}
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; mkdir /logs; fi
chown 0:0 /logs
chmod 755 /logs
mkdir -m 700 {LOGS}"""

#: Runs as root after the tests were copied. {user} is the id of the user that runs them.
_READY = f"chmod -R a+rX {TESTS} && chmod a+x {SCRIPT} && chown {{user}} {LOGS}"


async def bring_tests(sandbox: Sandbox, tests: Path, user: str | None) -> int:
    """Implements `Sandbox.bring_tests` with commands inside the sandbox."""
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
    return InfraError(f"the verifier cannot be started in the sandbox: {why}")
