"""Loads user code: names in YAML files become Python objects. A name is built-in, an import path, or refers to a file of the suite.

Also limits the time of user code that runs in the main thread, without an event loop.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.error_texts import place_of

INTERRUPTED_AGAIN = 1.0  # seconds between interruptions of code that ignores them


class TimeIsOver(BaseException):
    """Raised in user code when its time limit is reached. A BaseException, so that `except Exception` in that code does not catch it."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises TimeIsOver in the block after `seconds`. Only the main thread can be interrupted; in other threads there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, INTERRUPTED_AGAIN)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # The time may be over while the timer is stopped above.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise TimeIsOver


NAMES = 12  # names of a module that an error message lists


def search_path() -> list[str]:
    """Returns `sys.path` with absolute paths, for a child process with another working directory."""
    return [str(Path(each).absolute()) if each == "" else each for each in sys.path]


def is_import_path(name: str) -> bool:
    """Returns whether a name has the form `package.module:object` or `./file.py:object`."""
    return ":" in name


def load_object(what: str, name: str, known: Mapping[str, str], folder: Path) -> Any:
    """Loads an object by its name. Raises ConfigError with the known names, or with the reason why the import failed."""
    path = known.get(name, name)
    if not is_import_path(path):
        raise ConfigError(f"{unknown_name(what, name, known)}, or an import path such as {_path_like(what, name)}")
    module_name, _, attribute = path.partition(":")
    try:
        module = _file_module(folder / module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
        if (value := getattr(module, attribute, module)) is not module:
            return value
    except (KeyboardInterrupt, TimeIsOver):
        raise
    except BaseException as error:  # An import runs user code, which may raise anything.
        raise ConfigError(f"{what} {name!r} cannot be loaded: {_import_error_text(error)}") from error
    raise ConfigError(f"{what} {name!r} cannot be loaded: the module does not define {attribute!r}; it defines: {_names_in(module)}")


def _path_like(what: str, name: str) -> str:
    """Returns an example of an import path that resembles a name without a colon, such as `./agent.py:NAME` for `agent.py`."""
    if name.endswith(".py"):
        return f"{'' if name.startswith(('.', '/')) else './'}{name}:NAME, where NAME is defined in that file"
    module, dot, attribute = name.rpartition(".")
    return f"{module}:{attribute}" if dot and module.strip("./") else f"my_package.{what.rsplit(maxsplit=1)[-1]}s:{name}"


def _names_in(module: ModuleType) -> str:
    """Returns a list of the first few names that a module defines itself, as a text for an error message."""
    names = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return f"{', '.join(names[:NAMES]) or 'nothing'}{', ...' * (len(names) > NAMES)}"


def _import_error_text(error: BaseException) -> str:
    """Describes an exception of an import in one line, with the line of user code that raised it."""
    if isinstance(error, SyntaxError):
        text, place = error.msg, f" ({Path(error.filename or '').name}:{error.lineno})"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if not each.filename.startswith("<frozen ") and each.filename not in (__file__, importlib.__file__)]
        text, place = str(error), f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(text.split())}{place}"


def check_takes(what: str, function: Any, arguments: Sequence[str]) -> None:
    """Raises ConfigError unless a function can be called with arguments of these names by position.

    If its parameters have the same names, they must be in the same order, so that no two are exchanged by mistake.
    """
    parameters = _signature(what, function).parameters
    named = [name for name in parameters if name in arguments]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{what} should take ({', '.join(arguments)}), not {inspect.signature(function)}: {error}{place_of(function)}"
        ) from error
    if named != [name for name in arguments if name in named]:
        raise ConfigError(
            f"{what} should take ({', '.join(arguments)}) in this order, not {inspect.signature(function)}{place_of(function)}"
        )


def _signature(what: str, function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:  # Some functions written in C have no signature.
        raise ConfigError(f"{what}: {error}; write a function of your own that calls it") from error


def options_of(function: Any) -> dict[str, Any]:
    """Returns the options of a function (its keyword-only parameters) and their defaults, or `inspect.Parameter.empty`."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def with_options(what: str, name: str, function: Any, options: Mapping[str, Any]) -> Any:
    """Binds options to a function. Raises ConfigError if an option is unknown or missing."""
    _signature(f"{what} {name!r}", function)
    known = options_of(function)
    for option in options:
        if option not in known:
            raise ConfigError(f"{what} {name!r}: {unknown_name('option', option, known)}")
    for option, default in known.items():
        if default is inspect.Parameter.empty and option not in options:
            raise ConfigError(f"{what} {name!r}: the option {option!r} is missing")
    return functools.partial(function, **options) if options else function


def _file_module(file: Path) -> ModuleType:
    """Imports a file of a suite under a unique module name, so that several suites may each have an agent.py."""
    file = file.resolve()
    name = f"agentbench_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
