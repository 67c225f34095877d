"""`agentbench retriever`: builds an index of documents and serves it."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

LOADING = 3600.0  # seconds for a model and an index of many GB to be read


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    retriever = commands.add_parser(
        "retriever",
        help="Build the document index of the retriever (the search service of agents), and serve it",
        example="agentbench retriever build corpus.jsonl --model BAAI/bge-small-en-v1.5",
    )
    verbs = retriever.commands()
    build = verbs.add_parser("build", help="Compute the embeddings of a corpus and write its index")
    build.add_argument("corpus", type=Path, metavar="CORPUS.jsonl", help="one document per line: {id, content}")
    build.add_argument("--output", type=Path, default=Path("index"), metavar="DIR", help="where to write (default: index)")
    build.add_argument("--model", required=True, help="the embedding model; the settings of the retriever must name the same one")
    build.add_argument("--url", help="base URL of an OpenAI-compatible server (default: run the model with sentence-transformers)")
    build.add_argument("--api-key", metavar="VARIABLE", help="environment variable with the server's key")
    build.add_argument(
        "--python",
        default="agentbench",
        metavar="NAME",
        help="environment that computes the embeddings, from `agentbench env list` (default: the one of this command)",
    )
    build.set_defaults(run=run_build)
    serve = verbs.add_parser("serve", help="Serve an index until Ctrl-C; the log is written next to the settings")
    serve.add_argument(
        "settings", type=Path, metavar="SETTINGS.yaml", help="settings of the retriever: index, embeddings, port, environment"
    )
    serve.set_defaults(run=run_serve)


def run_build(options: argparse.Namespace) -> None:
    """Builds an index and prints the files. Raises BackendError if it runs in another environment and fails there."""
    from pytest_agentbench.backends.machine.virtual_environments import OWN
    from pytest_agentbench.retriever.build import build_index

    given = {"url": options.url, "model": options.model, "api_key": options.api_key}
    if options.python == OWN:
        build_index(options.corpus, options.output, given)
    else:
        _build_elsewhere(options.python, [str(options.corpus), str(options.output), json.dumps(given)])


def _build_elsewhere(python: str, arguments: list[str]) -> None:
    """Builds an index with the interpreter of another environment."""
    from pytest_agentbench.backends.machine.virtual_environments import package_path, resolve_python
    from pytest_agentbench.errors import BackendError
    from pytest_agentbench.lib.process import foreign_environment

    command = [str(resolve_python(python, Path.cwd())), "-m", "pytest_agentbench.retriever.build", *arguments]
    done = subprocess.run(command, env={**foreign_environment(), "PYTHONPATH": str(package_path())}, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise BackendError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"{python} ended with {done.returncode}")


def run_serve(options: argparse.Namespace) -> None:
    """Serves an index until Ctrl-C. Prints the address and the log file. Raises BackendError if the service ends by itself."""
    from pytest_agentbench.backends.machine.virtual_environments import OWN, package_path, resolve_python
    from pytest_agentbench.cli.sessions import tidy_termination
    from pytest_agentbench.errors import BackendError
    from pytest_agentbench.lib.process import Child
    from pytest_agentbench.lib.wire import Listening
    from pytest_agentbench.retriever.config import read_settings

    file: Path = options.settings
    settings, log = read_settings(file), file.with_suffix(".log")
    with tidy_termination():
        child = Child(
            "pytest_agentbench.retriever",
            settings.config.model_dump(),
            log,
            variables={} if settings.python == OWN else {"PYTHONPATH": str(package_path())},
            python=resolve_python(settings.python, file.parent),
        )
        try:
            print(f"starts; its log: {log}", flush=True)
            print(f"serves at http://127.0.0.1:{child.ready(Listening, LOADING).port}; Ctrl-C ends it", flush=True)
            child.process.wait()
            raise BackendError(child.exit_message("ended"))
        except KeyboardInterrupt:
            print("no longer served")
        finally:
            child.stop()
