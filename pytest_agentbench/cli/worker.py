"""`agentbench worker`: runs rollouts for a session on another machine."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

SLOTS = 8
MOST_SLOTS = 4096  # larger numbers are taken for typing errors
PATIENCE = 60.0


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    worker = commands.add_parser(
        "worker",
        help="Run rollouts for a session on another machine",
        description=(
            "Joins a session that was started with --agentbench-nodes-listen, and runs rollouts for it until it is over. Ends with the "
            "status 0 if the session is over, 3 if it is gone, and 4 if it does not admit this node worker."
        ),
        example="agentbench worker --join gpu-1:7100 --token-file token --slots 16",
    )
    worker.add_argument("--join", required=True, metavar="HOST:PORT", type=_address, help="where the session listens for node workers")
    worker.add_argument(
        "--token-file", required=True, metavar="FILE", help="file with the session's token for node workers; - reads a line of stdin"
    )
    worker.add_argument("--slots", type=_slots, default=SLOTS, metavar="N", help=f"rollouts at the same time (default: {SLOTS})")
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    worker.add_argument("--node", default=node, metavar="NAME", help="name of this machine in reports (default: its host name)")
    worker.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"time in which a session has to answer, at the start and after the connection was lost (default: {PATIENCE:g})",
    )
    worker.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="use TLS, and accept only a certificate of this authority (PEM file, or `system` for those of the system), or sha256:HEX",
    )
    worker.add_argument("--logs", type=Path, metavar="DIR", help="where to write logs (default: a new temporary folder)")
    worker.add_argument("--with-stdin", action="store_true", help="end when stdin closes, which means that the launcher has ended")
    worker.set_defaults(run=run_worker)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as gpu-1:7100")
    return host.strip("[]"), int(port)


def _slots(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_SLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rollouts from 1 to {MOST_SLOTS}")
    return int(text)


def run_worker(options: argparse.Namespace) -> int:
    """Runs a node worker until its session is over. Returns the exit status."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.lib.connection_security import Trust
    from pytest_agentbench.lib.supervisor.first_process import run_below
    from pytest_agentbench.lib.threads import daemon
    from pytest_agentbench.rollouts.nodes.membership import JoinTerms
    from pytest_agentbench.rollouts.nodes.supervisor import Supervisor

    if os.getpid() == 1 and (status := run_below()) is not None:  # A container may start it without the entry point of our image.
        return status
    try:
        token = sys.stdin.buffer.readline().decode() if options.token_file == "-" else Path(options.token_file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--token-file {options.token_file}: {error.strerror}; the session says where its file is") from error
    if not token.strip():
        raise ConfigError(f"--token-file {options.token_file}: it is empty; the session says where its file is")
    host, port = options.join
    trust = None if options.tls_ca is None else Trust.read(options.tls_ca)
    folder = options.logs or Path(tempfile.mkdtemp(prefix="agentbench-worker-"))
    terms = JoinTerms(host, port, token.strip(), options.node, options.slots, options.patience, folder, trust)
    supervisor = Supervisor(terms, _say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: supervisor.leave(f"{signal.Signals(number).name} came"))
    if options.with_stdin:
        daemon(_leave_with_stdin, supervisor, name="stdin")
    return supervisor.run()


def _leave_with_stdin(supervisor: Any) -> None:
    while os.read(0, 4096):
        pass
    supervisor.leave("stdin was closed, so the launcher has ended")


def _say(sentence: str) -> None:
    with suppress(OSError):  # The disk may be full, or the terminal gone.
        sys.stderr.write(f"agentbench worker: {sentence}\n")
        sys.stderr.flush()
