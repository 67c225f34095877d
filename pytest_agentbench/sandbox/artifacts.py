"""What an agent made, handed over to a sandbox in which nothing else is the agent's."""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.sandbox.sandbox import Sandbox

ALWAYS = "/logs/artifacts"  # Harbor's own place for them
LARGEST = 256 << 20  # bytes of all of it
PACK = 120.0  # seconds
PACKED = "/agentbench-artifacts.tar"
_NO_PROGRAM = 127  # what a shell exits with for a program that it does not find


async def handed_over(source: Sandbox, target: Sandbox, paths: Sequence[str]) -> None:
    """Copies regular files and folders to the same paths, in place of what is there; symbolic links, pipes and devices are left out.

    A symbolic link would show a verifier its own tests as if an agent had made them. Raises AgentError for what cannot be copied.
    """
    names = [path.strip("/") for path in dict.fromkeys((*paths, ALWAYS))]
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
                await _removed(target, name)
                await target.put(copy, f"/{name}")


async def _removed(sandbox: Sandbox, name: str) -> None:
    """What the image has at that path, of which the agent may have deleted something."""
    done = await sandbox.exec(f"rm -rf -- {shlex.quote(name)}", seconds=PACK, user="root", workdir="/")
    if done.exit_code != 0:
        raise InfraError(f"/{name} cannot be replaced by the agent's: {ending(done.output.strip(), 300) or 'it takes too long'}")


def _pack(names: Sequence[str]) -> str:
    listed = " ".join(map(shlex.quote, names))
    there = f'names=(); for name in {listed}; do if [ -e "$name" ]; then names+=("$name"); fi; done'
    return f'rm -rf {PACKED}; {there}; [ ${{#names[@]}} = 0 ] || tar -cf {PACKED} -- "${{names[@]}}"'


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
