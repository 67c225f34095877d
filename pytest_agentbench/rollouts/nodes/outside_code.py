"""Hashes of the code that suites use from outside their folders, such as `my_package.agents:run`, and its comparison on a node.

Such code does not travel to node workers. Each node has to have the same code, or its results would not be comparable. Installed packages
are compared only if a suite names them; all others belong to the environment of a node, as Python itself does. Nothing is imported here.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pytest_agentbench.lib.json_text import texts_in
from pytest_agentbench.suites.suite import PoolSuite

OWN = "pytest_agentbench"  # compared by a hash of its own, when a node worker joins
INSTALLED = ("site-packages", "dist-packages")  # names of folders with installed packages
IMPORT_PATH = re.compile(r"(.*\.py|[^\W\d][\w.]*):[^\W\d]\w*")  # `./agent.py:run` or `my_package.agents:run`


def outside_code(suites: Mapping[str, PoolSuite]) -> dict[str, str]:
    """Returns name -> hash of the code that suites use from outside their folders: modules, and Python files with an absolute path.

    These are what suites name in their settings, and what their files import. Modules are searched in `sys.path`.
    """
    importlib.invalidate_caches()
    folders = [suite.folder.resolve() for suite in suites.values()]
    texts = {text for suite in suites.values() for text in named_code(suite)}
    modules = {name for name in texts if not name.endswith(".py") and not _is_standard(_find(name, sys.path))}
    files = {(suite.folder / name).resolve() for suite in suites.values() for name in named_code(suite) if name.endswith(".py")}
    above = {file for folder in folders for file in packages_above(folder)}
    inside = {place for name in modules if (place := _find(name, sys.path)) and _is_in(place, folders)}
    units = {_unit(name, folders) for name in modules | _imported(files | above | inside, folders)}
    hashes = {
        name: _sha256(place) for name in units if name not in ("", OWN) and (place := _find(name, sys.path)) and not _is_in(place, folders)
    }
    absolute = {name: _sha256(Path(name)) for name in texts if Path(name).is_absolute() and not _is_in(Path(name), folders)}
    return {name: sha256 for name, sha256 in sorted((hashes | absolute).items()) if sha256}


def outside_problem(hashes: Mapping[str, str], path: Sequence[str], node: str) -> str:
    """Returns a sentence if code is missing or different on this host, else an empty text.

    `hashes` are those of `outside_code` on the controller's host, and `path` is `sys.path` for the code of suites on this host.
    """
    importlib.invalidate_caches()  # Files may be new since this process searched for modules last.
    own = {name: _sha256(Path(name) if name.endswith(".py") else _find(name, path)) for name in hashes}
    missing = [name for name in hashes if not own[name]]
    different = [name for name in hashes if own[name] and own[name] != hashes[name]]
    faults = [f"{what} {', '.join(names)}" for what, names in (("lacks", missing), ("has another version of", different)) if names]
    if not faults:
        return ""
    return (
        f"the node {node} {' and '.join(faults)}, which suites of this session use from outside their folders: install the same version "
        "there, start the node worker with PYTHONPATH set to the folder that contains it, or move the code into the suite's folder"
    )


def named_code(suite: PoolSuite) -> list[str]:
    """Returns the modules and Python files in the import paths that a suite names for its agents, tools and scorers."""
    texts = texts_in((suite.agent, suite.variants, suite.tools, suite.scorers))
    return [*dict.fromkeys(text.rpartition(":")[0] for text in texts if IMPORT_PATH.fullmatch(text))]


def packages_above(folder: Path) -> Iterator[Path]:
    """Yields the `__init__.py` files of the packages that contain a folder."""
    for parent in folder.parents:
        if not (file := parent / "__init__.py").is_file():
            return
        yield file


def _find(name: str, path: Sequence[str]) -> Path | None:
    """Returns the folder of a package or the file of a module. None if there is none, or if it has no file."""
    search, place = [*path], None
    for number, part in enumerate(name.split(".")):
        # The last part of the name is enough to find a module. With the full name, Python would look for packages that are not imported.
        spec = PathFinder.find_spec(part, search) or (None if number else _find_otherwise(part))
        if spec is None:
            return None
        search = [*(spec.submodule_search_locations or ())]
        is_file = spec.has_location and spec.origin is not None
        place = Path(spec.origin or "") if is_file and not search else Path(search[0]) if search else None
    return place


def _find_otherwise(name: str) -> ModuleSpec | None:
    """Finds a package that is installed for development, and that not `sys.path` but a finder of the installer leads to."""
    others = (finder for finder in sys.meta_path if finder is not PathFinder)
    return next((spec for finder in others if (spec := finder.find_spec(name, None))), None)


def _unit(name: str, folders: Sequence[Path]) -> str:
    """Returns the outermost package of a module, whose modules import each other: the unit that is compared. Empty if there is none.

    Namespace packages, and packages that contain a suite, are no units, because their parts are independent of each other.
    """
    parts = name.split(".")
    for above in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
        if (place := _find(above, sys.path)) is None:
            break
        if place.is_file() or ((place / "__init__.py").is_file() and not any(folder.is_relative_to(place) for folder in folders)):
            return above
    return ""


def _imported(files: Iterable[Path], folders: Sequence[Path]) -> set[str]:
    """Returns the modules that these files import, directly or by other files in the suites' folders.

    Modules that are not found, modules of the standard library and installed packages are left out.
    """
    found: set[str] = set()
    waiting, known = [*files], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in known:
            continue
        known.add(file)
        for name in _imports(file):
            beside = file.parent / f"{name.partition('.')[0]}.py"
            place = beside if beside.is_file() else _find(name, sys.path)
            if place is None:
                continue
            if place == beside or _is_in(place, folders):
                waiting += [place] if place.is_file() else place.rglob("*.py")
            elif not _is_standard(place) and not any(part in INSTALLED for part in place.parts):
                found.add(name)
    return found


def _imports(file: Path) -> Iterator[str]:
    """Yields the names of modules that a file imports. A name may also be one that a module defines. Skips imports for type checkers."""
    try:
        waiting: list[ast.AST] = [ast.parse(file.read_bytes())]
    except (OSError, SyntaxError, ValueError):  # The check of the suite's code reports errors.
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            if base := ".".join(filter(None, (_package_of(file, node.level), node.module))):
                yield base
                yield from (f"{base}.{each.name}" for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _package_of(file: Path, level: int) -> str:
    """Returns the package that `level` dots before an import in a file mean. Empty for an absolute import."""
    if level == 0:
        return ""
    folder = file.parents[level - 1]
    roots = [Path(each) for each in sys.path if each and folder != Path(each) and folder.is_relative_to(each)]
    return ".".join(folder.relative_to(max(roots, key=lambda root: len(root.parts))).parts) if roots else ""


def _is_standard(place: Path | None) -> bool:
    """Returns whether a module belongs to Python itself."""
    if place is None or any(part in INSTALLED for part in place.parts):
        return place is None
    return any(place.is_relative_to(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib"))


def _is_in(place: Path, folders: Iterable[Path]) -> bool:
    return any(place.resolve().is_relative_to(folder) for folder in folders)


def _sha256(place: Path | None) -> str:
    """Returns the hash of the Python files of a package, or of the file of a module. Empty if there is none."""
    if place is None or not place.exists():
        return ""
    return code_sha256(place.rglob("*.py"), place) if place.is_dir() else code_sha256([place], place.parent)


def code_sha256(files: Iterable[Path], root: Path) -> str:
    """Returns a hash of files and of their paths relative to `root`, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]
