"""What cannot be asked of a session as a whole, or needs more memory or threads than there are; each is a usage error that says what
would work.
"""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy
import pytest

from pytest_agentbench.lib.error_texts import address_space, shortage
from pytest_agentbench.session.discovery import DiscoveredSuites, unavailable_suite
from pytest_agentbench.suites.suite import SUITE_FILE

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.compile import CompiledSuite


#: Marks that pytest and widespread plugins act upon, and words of `-m`. A plugin that is not here today may be here tomorrow.
MARKS = frozenset(
    [
        *("skip", "skipif", "xfail", "parametrize", "parameterize", "parametrise", "parameterise", "usefixtures", "filterwarnings"),
        *("tryfirst", "trylast", "hookwrapper", "optionalhook", "pytester_example_path", "and", "or", "not"),
        *("asyncio", "anyio", "trio", "timeout", "flaky", "repeat", "xdist_group", "benchmark", "order", "run", "dependency"),
        *("django_db", "urls", "vcr", "freeze_time", "hypothesis", "no_cover", "enable_socket", "disable_socket", "allow_hosts"),
    ]
)

#: The markers that the user's ini file declares: words without a meaning of their own, until somebody gives them one.
DECLARED = pytest.StashKey[tuple[str, ...]]()


def refuse_distant(workers: Sequence[str]) -> None:
    """The pool listens on loopback, so that whoever asks it for rollouts has to be on this machine."""
    for spec in workers:
        if not spec.startswith("popen") or "via=" in spec:
            raise pytest.UsageError(f"agentbench needs workers on this machine, not {spec}; use -n or --tx popen")


def refuse_misspelt_hooks(config: pytest.Config) -> None:
    """Pytest looks for hooks that do not exist when it collects: with xdist in the workers only, whose end need not fail the session."""
    try:
        config.pluginmanager.check_pending()
    except pluggy.PluginValidationError as error:
        raise pytest.UsageError(str(error)) from error


def remember_declared(config: pytest.Config) -> None:
    """Called before plugins and conftest files add their markers to those of the ini file."""
    config.stash[DECLARED] = tuple(config.getini("markers"))


def meant_elsewhere(config: pytest.Config) -> frozenset[str]:
    """Names of markers that mean something: those of pytest, and of every plugin and conftest.py of this session."""
    lines = set(config.getini("markers")) - {*config.stash.get(DECLARED, ())}
    return MARKS | {line.partition(":")[0].partition("(")[0].strip() for line in lines}


def refuse_marks(suites: DiscoveredSuites, marks: Collection[str]) -> DiscoveredSuites:
    """A suite's name marks its tests: with a name like `xfail` they would be expected to fail, and all would be well.

    A suite that cannot run is known by its folder's name, which is no mark if it means something elsewhere.
    """
    unavailable = {
        folder: dataclasses.replace(each, marks=each.name not in marks and not each.name.startswith("_"))
        for folder, each in suites.unavailable.items()
    }
    for each in suites.compiled:
        if each.name in marks:
            where = f"{each.folder / SUITE_FILE}: name: {each.name!r} is a mark that pytest or a plugin acts upon"
            sentence = f"{where}, and a suite's name marks its tests; take another one, such as {each.name}_suite"
            unavailable[each.folder] = dataclasses.replace(unavailable_suite(each.folder, sentence), marks=False)
    return DiscoveredSuites([each for each in suites.compiled if each.name not in marks], unavailable)


def refuse_twins(compiled: Sequence[CompiledSuite]) -> None:
    """A suite's name is its marker and part of every rollout's key, so no two may share it."""
    folders: dict[str, Path] = {}
    for each in compiled:
        if (twin := folders.setdefault(each.name, each.folder)) != each.folder:
            raise pytest.UsageError(f"two suites are named {each.name!r}: {twin / 'suite.yaml'} and {each.folder / 'suite.yaml'}")


#: Bytes of address space that a session takes once its suites are loaded, for its threads and its reports.
HEADROOM = 192 << 20


@contextmanager
def explained() -> Iterator[None]:
    """Turns an error for want of memory, threads or open files into a pytest.UsageError."""
    try:
        yield
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not (lacking := shortage(error)):
            raise
        raise pytest.UsageError(f"agentbench cannot run: {lacking}") from None


def refuse_short_memory() -> None:
    """Raises pytest.UsageError if the limit of address space leaves too little for a session that has loaded its suites."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    needed = address_space() + HEADROOM
    if limit < needed:
        raise pytest.UsageError(
            f"this session needs {needed >> 20} MiB of address space in a process, and {limit >> 20} MiB are allowed; "
            "raise the limit (`ulimit -v`), or load fewer plugins with -p no:NAME"
        )
