"""What a scenario asks for that is carried out in a sandbox: the facts of a Harbor task directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TASK_FILE = "task.toml"

DOCKER = "docker"  # a sandbox of our own
ALLOW, FAIL = "allow", "fail"  # what a suite says of that for which a reward may be doubted
HARBOR = "harbor:"  # before the name of an environment of Harbor's


@dataclass(frozen=True)
class Task:
    """A task directory as far as it is supported: what it runs in, who may take how long, and how it is verified."""

    folder: str  # absolute; has environment/, tests/ and solution/
    digest: str  # of all files in it with their modes, 16 hexadecimal digits
    image: str = ""  # to run; empty: built from environment/
    image_digest: str = ""  # of environment/ with modes, 16 hexadecimal digits; empty where `image` is given
    build_timeout_s: float = 600.0
    cpus: float = 1.0
    memory_mb: int = 2048
    storage_mb: int = 10240
    network: str = "public"  # public | no-network
    workdir: str | None = None  # None: the image's own
    env: Mapping[str, str] = field(default_factory=dict)
    agent_timeout_s: float | None = None  # None: as long as a rollout may take
    agent_user: str | None = None  # None: the image's own
    verifier_timeout_s: float = 600.0
    verifier_user: str | None = None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    separate_verifier: bool = False  # it is verified in a fresh container over the artefacts
    artifacts: tuple[str, ...] = ()  # paths that a separate verifier is given
    solution_env: Mapping[str, str] = field(default_factory=dict)
    sandbox: str = DOCKER  # what its suite says; or harbor:NAME
    private_addresses: tuple[str, ...] = ()  # ranges that its suite opens to programs in a sandbox with the network `public`
    skipped: str = ALLOW  # what its suite says of checks that the verifier skips: `allow`, or `fail` for a reward of 0
    changed: str = ALLOW  # what its suite says of files that a verifier uses and the agent changed: `allow`, or `fail` for a reward of 0
    broken: str = ""  # what is wrong with its directory, one sentence; such a scenario cannot run, and its tests are errors
    unsupported: str = ""  # what it asks that is not supported, one sentence; such a scenario is skipped with it


def is_task_directory(folder: Path) -> bool:
    """Whether a folder is a task: its tests are those of its verifier, and none of pytest's."""
    return (folder / TASK_FILE).is_file()
