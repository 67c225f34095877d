"""Describes errors for users: which system limit was reached, which steps at the end of a session failed, which line raised."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import resource
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pytest_agentbench.lib.cut_marks import cuts

STACK = 8 << 20  # bytes of address space for a thread's stack, if the system sets no limit
PIDS = Path("/sys/fs/cgroup/pids.max")

#: Messages of the dynamic linker if a library does not fit into the address space.
UNMAPPED = ("failed to map segment", "cannot allocate memory")


def shortage(error: BaseException) -> str:
    """Describes the exhausted resource (threads, memory, files) that caused an error. Returns an empty text for other errors."""
    code = error.errno if isinstance(error, OSError) else None
    words = str(error).lower()
    if "can't start new thread" in words or code == errno.EAGAIN:
        return f"there are too few threads or processes: {_memory_limit() if _is_address_space_full() else _thread_limit()}"
    unmapped = isinstance(error, ImportError) and any(each in words for each in UNMAPPED)
    if unmapped or isinstance(error, MemoryError) or code == errno.ENOMEM:
        return f"there is too little memory: {_memory_limit()}"
    if code == errno.EMFILE:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"there are too few open files: {files} are allowed to a process; raise the limit (`ulimit -n`)"
    return ""


def address_space() -> int:
    """Returns the size of this process's address space in bytes, or 0 if it cannot be read."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except (OSError, MemoryError):
        return 0
    return int(pages) * resource.getpagesize()


def _is_address_space_full() -> bool:
    """Returns whether the limit of the address space leaves no space for two more thread stacks."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return limit != resource.RLIM_INFINITY and limit - address_space() < 2 * (STACK if stack == resource.RLIM_INFINITY else stack)


def _memory_limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return "no limit is set for a process, so the machine or its control group has none left; end other processes"
    taken = address_space() >> 20
    known = f", and {taken} are taken" if taken else ""
    return f"{limit >> 20} MiB of address space are allowed to a process{known}; raise the limit (`ulimit -v`)"


def _thread_limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [] if limit == resource.RLIM_INFINITY else [f"{limit} are allowed to this user (`ulimit -u`)"]
    try:
        if (pids := PIDS.read_text(encoding="ascii").strip()) != "max":
            allowed.append(f"{pids} to this control group (pids.max; --pids-limit of Docker)")
    except OSError:
        pass  # The system has no control groups, or only version 1.
    return f"{' and '.join(allowed) or 'no limit is set, so the machine has no more'}; raise the limit, or end other processes"


T = TypeVar("T")


class Losses:
    """Collects the errors at the end of a session, a sentence for each, while the other steps go on. Safe to use from threads."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self.sentences: list[str] = []
        self._redact = redact

    @contextmanager
    def step(self, consequence: str) -> Iterator[None]:
        """Runs a step in a `with` block and catches its errors. `consequence` says what follows, such as `report.md is not written`."""
        try:
            yield
        except Exception as error:
            self.add(consequence, error)

    def value(self, consequence: str, compute: Callable[[], T], otherwise: T) -> T:
        """Returns the result of `compute`. If that raises, adds a sentence about the error to the list and returns `otherwise`."""
        with self.step(consequence):
            return compute()
        return otherwise

    def add(self, consequence: str, error: BaseException) -> None:
        """Adds the sentence `consequence: cause of the error`, unless it is already in the list."""
        sentence = self._redact(f"{consequence}: {cause(error)}")
        if sentence not in self.sentences:
            self.sentences.append(sentence)


def cause(error: BaseException) -> str:
    """Describes an error in a few words: the exhausted resource, the text of an OSError, or the error with the line that raised it."""
    if resource_shortage := shortage(error):
        return resource_shortage
    if isinstance(error, OSError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    return f"{error!r} ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else repr(error)


#: Folders whose code is not the user's: this package, the standard library and installed packages.
FOREIGN_FOLDERS = (str(Path(__file__).parents[1]), *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_users(frame: FrameType) -> bool:
    """Returns whether a frame runs code in a file of the user."""
    return is_users_file(frame.f_code.co_filename)


def is_users_file(name: str) -> bool:
    """Returns whether a file belongs to the user: not to this package, to the standard library or to an installed package."""
    return name.endswith(".py") and not name.startswith(FOREIGN_FOLDERS)


def user_place(frame: FrameType) -> str:
    """Returns the line of the user that a stack executes, such as ` (agent.py:12)`. Empty if no frame is in a file of the user."""
    own = next((each for each, _ in traceback.walk_stack(frame) if is_users(each)), None)
    return f" ({Path(own.f_code.co_filename).name}:{own.f_lineno})" if own else ""


def place_of(function: Any) -> str:
    """Returns the line where a function or a method was defined, such as ` (agent.py:12)`. Empty if it is not in a file of the user."""
    while isinstance(function := inspect.unwrap(function), functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None and is_users_file(code.co_filename) else ""


_PLACE = re.compile(r" \(([^()]+\.py:\d+)\)$")


def with_place(text: str, error: BaseException) -> str:
    """Returns the text of an exception with its place at the end of the first line: `KeyError: 'x' (scorers.py:12)`.

    The place is the last frame in a file of the user. The text is unchanged if no frame is in such a file, or if it has a place already.
    If the first line was truncated, the place is at the end of the text, because the redaction looks for a truncated key directly before
    the truncation mark.
    """
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    if not own or _place_in(text):
        return text
    first, newline, rest = text.partition("\n")
    if any(cut.start() <= len(first) for cut in cuts(text)):
        first, newline, rest = text, "", ""
    return f"{first} ({Path(own[-1].filename).name}:{own[-1].lineno}){newline}{rest}"


def _place_in(text: str) -> re.Match[str] | None:
    return _PLACE.search(text.partition("\n")[0]) or _PLACE.search(text)


def cause_of(text: str) -> str:
    """Returns the part of an error text that groups equal errors: the words before the first colon, and the place.

    The rest may differ, for example if the exception names its scenario. Returns the whole text if it contains no place.
    """
    if (place := _place_in(text)) is None:
        return text
    return f"{text.partition(': ')[0]} ({place[1]})"
