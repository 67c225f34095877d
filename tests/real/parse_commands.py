"""Checks commands of engines by the engines' own parsers: `python parse_commands.py PROGRAM < commands.json`.

It runs in the environment of an engine, without a GPU, and starts no engine. Standard input is a JSON object of name -> words after the
program. The last line of standard output is one of name -> error of the parser, empty if the command is valid.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

Parse = Callable[[list[str]], object]

#: Packages that engines import and parsers do not use. Their builds need CUDA, or are not installed here.
NOT_NEEDED = frozenset(os.environ.get("PACKAGES_NOT_NEEDED", "").split())


class AnyClass(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        return _any_class(name)


class AnyModule(types.ModuleType):
    """A module that has every attribute, and every module in it."""

    __path__: list[str] = []
    __version__ = "0.99.0"

    def __getattr__(self, name: str) -> Any:
        return _any_class(name)


def _any_class(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return AnyClass(name, (), {"__init__": _accept})


def _accept(*args: Any, **options: Any) -> None:
    """Stands for the constructor of any class."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that are not needed, after all that are installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in NOT_NEEDED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class ParsedError(Exception):
    """Raised where an engine has parsed all options, and would look at its GPUs next."""


def _without_gpu() -> None:
    """Makes vLLM take this machine for one that it supports. Its defaults depend on the platform; the names of its options do not."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()


def _vllm() -> Parse:
    _without_gpu()
    from vllm.entrypoints.openai.api_server import validate_api_server_args
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())

    def parse(words: list[str]) -> None:
        options = parser.parse_args(words)
        validate_parsed_serve_args(options)
        validate_api_server_args(options)

    return parse


def _sglang() -> Parse:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)  # an abbreviation can become ambiguous in the next version
    ServerArgs.add_cli_args(parser)
    return parser.parse_args


def _dynamo_vllm() -> Parse:
    _without_gpu()
    from dynamo.vllm.args import parse_args

    parse: Parse = parse_args
    return parse


def _dynamo_sglang() -> Parse:
    from dynamo.sglang import args

    def stop(cls: type, parsed: object) -> None:
        raise ParsedError

    args.ServerArgs.from_cli_args = classmethod(stop)
    return lambda words: asyncio.run(args.parse_args(words))


def _frontend() -> Parse:
    from dynamo.frontend.main import parse_args

    return lambda words: _with_arguments(parse_args, words)


def _thunderagent_router() -> Parse:
    from dynamo.thunderagent_router.args import parse_args

    return lambda words: _with_arguments(parse_args, words)


def _sglang_router() -> Parse:
    from sglang_router.launch_router import parse_router_args

    parse: Parse = parse_router_args
    return parse


def _with_arguments(parse: Callable[[], object], words: list[str]) -> object:
    sys.argv = ["program", *words]
    return parse()


PARSERS = {
    "vllm": _vllm,
    "sglang.launch_server": _sglang,
    "dynamo.vllm": _dynamo_vllm,
    "dynamo.sglang": _dynamo_sglang,
    "dynamo.frontend": _frontend,
    "dynamo.thunderagent_router": _thunderagent_router,
    "sglang_router.launch_router": _sglang_router,
}


def _raise(parser: argparse.ArgumentParser, message: str) -> None:
    raise ValueError(message)


def main() -> None:
    commands = json.load(sys.stdin)
    sys.meta_path.append(Finder())
    argparse.ArgumentParser.error = _raise  # type: ignore[assignment, method-assign]  # instead of the end of the process
    parse = PARSERS[sys.argv[1]]()
    errors = {}
    for name, words in commands.items():
        errors[name] = ""
        try:
            parse(words)
        except ParsedError:
            pass
        except (Exception, SystemExit) as error:
            errors[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(errors), flush=True)


if __name__ == "__main__":
    main()
