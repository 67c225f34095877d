"""`agentbench backend up|status|logs|down|check` and `agentbench cleanup`: start, inspect, check and stop serving stacks."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pytest_agentbench.cli.output import draw
from pytest_agentbench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_agentbench.backends.stack.protocol import StackFacts
    from pytest_agentbench.backends.stack.spec import ReadySpec, StackSpec
    from pytest_agentbench.backends.telemetry.samples import Target
    from pytest_agentbench.records import Endpoint
    from pytest_agentbench.suites.folder import AgentConfig

PATIENCE = 30.0  # seconds for all readiness checks of `check` together
LOOK_PAUSE = 1.0  # seconds between two looks of `status --watch` and `logs --follow`
PROGRESS_PAUSE = 10.0  # seconds between two lines about a boot, if the output is not a terminal


def add(commands: Any) -> None:
    """Adds the parser of `agentbench backend`."""
    backend = commands.add_parser(
        "backend", help="Start, inspect, check and stop a serving stack", example="agentbench backend up vllm --for 2h"
    )
    actions = backend.commands("actions")
    up = _named(actions, "up", "Start a stack and keep it for later sessions", run_up)
    up.add_argument(
        "--for", dest="keep", default="1h", metavar="TIME", help="how long the stack stays unused before it stops (default: 1h)"
    )
    up.add_argument("--gpu-wait", default="0s", metavar="TIME", help="how long to wait for GPUs that are in use (default: 0s)")
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value of the YAML file, for example settings.max_model_len=8192",
    )
    status = actions.add_parser("status", help="List the running stacks")
    status.add_argument("--watch", action="store_true", help="print the list again whenever it changes, until Ctrl-C")
    status.set_defaults(run=run_status)
    logs = _named(actions, "logs", "Print the last log lines of a running stack", run_logs)
    logs.add_argument("service", nargs="?", metavar="SERVICE", help="print only the log of this service")
    logs.add_argument("--follow", action="store_true", help="print new lines as they are written, until Ctrl-C or until the stack stops")
    logs.add_argument("-n", type=int, default=20, dest="lines", metavar="N", help="number of lines of each log (default: 20)")
    _named(actions, "down", "Stop a running stack", run_down)
    check = actions.add_parser("check", help="Run the readiness checks against a server and measure its speed")
    check.add_argument(
        "name",
        nargs="?",
        metavar="NAME|URL",
        help="a running stack, a backend of kind url, or a base URL (default: api_base in the file of --agent)",
    )
    check.add_argument(
        "--agent", type=Path, metavar="FILE", help="an agent_config.json or config.yaml that names the model and the sampling parameters"
    )
    check.set_defaults(run=run_check)


def add_cleanup(commands: Any) -> None:
    """Adds the parser of `agentbench cleanup`."""
    cleanup = commands.add_parser(
        "cleanup", help="Stop processes and remove containers left by crashed sessions", example="agentbench cleanup"
    )
    cleanup.set_defaults(run=run_cleanup)


def _named(actions: Any, name: str, help: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help)
    parser.add_argument("name", metavar="NAME", help="a name in backends/, or a YAML file")
    parser.set_defaults(run=run)
    return parser


def run_up(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.stack import registry
    from pytest_agentbench.runs.directory import keep_out_of_git

    keep, gpu_wait = _seconds("for", options.keep), _seconds("gpu-wait", options.gpu_wait)
    spec = _stack(options.name, options.set)
    if what := registry.clean_up_orphans():
        print(what)
    kept = registry.find_kept(spec)
    if isinstance(kept, registry.HeldStack):
        print(f"{spec.name} is already up at {kept.ready().url}")
        kept.let_go()
        return
    if kept:
        print(kept)
    keep_out_of_git(Path("reports"))
    logs = Path("reports", "backends", spec.name, datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")).absolute()
    held = registry.start(spec, logs, gpu_wait=gpu_wait, warm_up=1)
    try:
        with _Progress() as progress:
            endpoint = held.ready(progress)
    except BaseException:
        held.stop()
        raise
    held.keep(keep)
    held.let_go()
    print(f"{spec.name} is up after {held.boot['boot_s']:.1f} s at {endpoint.url}, model {endpoint.model}")
    print(f"it stops when it has been unused for {options.keep}; logs in {os.path.relpath(logs)}")
    print(f"use it: pytest scenarios/banking --agentbench-backend={options.name}    stop it: agentbench backend down {options.name}")


def run_status(options: argparse.Namespace) -> None:
    """Prints the running stacks. With --watch, prints them again whenever one starts, stops or changes its state."""
    shown: list[str] = []
    while True:
        lines = [*_status_lines()]
        if lines != shown:
            if options.watch:
                print(datetime.now().astimezone().strftime("%H:%M:%S"))
            print("\n".join(lines), flush=True)
            shown = lines
        if not options.watch:
            return
        time.sleep(LOOK_PAUSE)


def _status_lines() -> Iterator[str]:
    from pytest_agentbench.backends.stack import registry

    running = list(registry.running())
    for home, facts in running:
        stays = f", unused, stops in {max(0.0, facts.until - time.time()) / 60:.0f} min" if facts.until else ""
        gpus = ", ".join(gpu for each in facts.boot.get("gpus", {}).values() for gpu in each)
        yield f"{facts.backend:<20} {facts.state:<9} {facts.url or '-'}  since {facts.started_at or '-'}{stays}"
        yield f"{'':<20} stack daemon {facts.pid or '-'}, GPUs {gpus or 'none'}, logs {facts.logs or '-'}, folder {home}"
    if not running:
        yield "no stack is running"


def run_logs(options: argparse.Namespace) -> None:
    from pytest_agentbench.lib.redact import tail

    _, facts = _running(options.name)
    files = sorted(facts.logs.glob(f"{options.service or '*'}.log")) if facts.logs else []
    if not files:
        known = ", ".join(sorted(file.stem for file in facts.logs.glob("*.log"))) if facts.logs else ""
        raise ConfigError(
            f"{facts.logs or 'an unknown folder'} contains no log of {options.service or 'any service'}; "
            f"services with a log: {known or 'none'}"
        )
    assert facts.logs is not None  # It has files.
    places = {file: file.stat().st_size for file in files}
    for file in files:
        print(f"==> {file}")
        for line in tail(file, options.lines):
            print(line, flush=True)
    if options.follow:
        follow(facts.logs, f"{options.service or '*'}.log", places, lambda: _is_running(options.name))


def _is_running(name: str) -> bool:
    try:
        _running(name)
    except ConfigError:
        return False
    return True


def follow(folder: Path, pattern: str, places: dict[Path, int], goes_on: Callable[[], bool]) -> None:
    """Prints the lines that are added to the log files of a folder, redacted, until `goes_on` returns False.

    The name of a file precedes its lines. `places` has the number of bytes of each file that are not printed; files that appear later are
    printed from their beginning.
    """
    last: Path | None = None
    while True:
        is_last_look = not goes_on()
        for file in sorted({*places, *folder.glob(pattern)}):
            lines, places[file] = _new_lines(file, places.get(file, 0))
            if not lines:
                continue
            if file != last:
                print(f"==> {file}")
            last = file
            print(lines, flush=True)
        if is_last_look:
            return
        time.sleep(LOOK_PAUSE)


def _new_lines(file: Path, place: int) -> tuple[str, int]:
    """Returns the complete lines after the first `place` bytes of a log, redacted, and the place of their end."""
    from pytest_agentbench.lib.redact import Redactor

    with file.open("rb") as log:
        log.seek(place)
        lines, end, _incomplete = log.read().rpartition(b"\n")
    return (Redactor().plain(lines.decode("utf-8", "replace")), place + len(lines) + 1) if end else ("", place)


def run_down(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.stack import registry

    home, facts = _running(options.name)
    started = time.monotonic()
    if message := registry.end(home):
        print(message)
    print(f"{facts.backend} is down after {time.monotonic() - started:.1f} s")


def run_check(options: argparse.Namespace) -> None:
    """Checks a server. Prints each readiness check that passes, and the speed. The first check that fails ends the command (status 1)."""
    from pytest_agentbench.backends.api import probe
    from pytest_agentbench.backends.ready import ReadinessChecks
    from pytest_agentbench.records import SAMPLING
    from pytest_agentbench.suites.folder import AgentConfig

    agent = AgentConfig(Path(), {}, "", ()) if options.agent is None else _read_agent(options.agent)
    if not (name := options.name or agent.api_base):
        raise ConfigError(
            "no server is given; pass a running stack, a backend or a URL, or --agent with an agent_config.json that has api_base"
        )
    endpoint, ready, targets = _endpoint(name)
    sampling = {key: value for key, value in agent.settings.items() if key in SAMPLING}
    endpoint = replace(endpoint, model=sampling.pop("model", endpoint.model))
    ready = ready.model_copy(update={"chat": {**ready.chat, **sampling}})
    print(f"checking {endpoint.url}, for at most {PATIENCE:g} s", file=sys.stderr)
    checks = ReadinessChecks(endpoint, ready, time.monotonic() + PATIENCE, targets=targets)
    for check in checks.run_checks():
        print(f"✓ {check.name:<8} {check.detail}  ({check.seconds:.2f} s)")
    speed = probe(checks.answering)
    rate = "" if speed.tokens_per_s is None else f", {speed.tokens_per_s:.0f} tok/s"
    print(
        f"✓ {'speed':<8} TTFT {speed.ttft_ms:.0f} ms, E2E {speed.e2e_ms:.0f} ms{rate}  "
        "(rough, from one chat at a time; run a suite to measure)"
    )


def _read_agent(file: Path) -> AgentConfig:
    """Reads a settings file of the agent `terminal` and prints used and unused settings. Raises ConfigError if one is invalid."""
    from pytest_agentbench.agents.factory import make_agent
    from pytest_agentbench.suites.folder import KIND, read_agent_config

    config = read_agent_config(file)
    try:
        make_agent({"kind": KIND, **config.settings}, file.parent)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    print(f"✓ {'agent':<8} {', '.join(f'{name} {value}' for name, value in config.settings.items())}")
    if config.note:
        print(config.note)
    return config


def run_cleanup(_options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.stack import registry
    from pytest_agentbench.sandbox.containers import clean_up

    ended = registry.clean_up()
    for home, what in ended:
        print(f"{home}: {', '.join(what) or 'removed its folder, which was all that was left'}")
    sandboxes = clean_up()
    for sandbox in sandboxes:
        print(sandbox)
    counts = [f"{len(what)} {name}" for what, name in ((ended, "stacks"), (sandboxes, "sandboxes")) if what]
    print(f"cleaned up {' and '.join(counts)}" if counts else "nothing to clean up")


def _stack(name: str, changes: list[str]) -> StackSpec:
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.backends.stack.spec import StackSpec
    from pytest_agentbench.lib.config import parse_yaml

    pairs = []
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals:
            raise ConfigError(f"--set {change}: must be PATH=VALUE, for example settings.max_model_len=8192")
        pairs.append((path, parse_yaml(value, f"--set {path}")))
    spec = load_backend(name, Path.cwd(), pairs)
    if not isinstance(spec, StackSpec):
        raise ConfigError(f"{name} is a backend of kind {spec.kind}; `agentbench backend up` starts only backends of kind stack")
    return spec


def _running(name: str) -> tuple[Path, StackFacts]:
    from pytest_agentbench.backends.stack import registry

    if (running := _running_stack(name)) is not None:
        return running
    known = ", ".join(facts.backend for _, facts in registry.running())
    raise ConfigError(f"no stack {name!r} is running; running stacks: {known or 'none'}; start one with `agentbench backend up`")


def _running_stack(name: str) -> tuple[Path, StackFacts] | None:
    """Returns the running stack with this backend name, YAML file or folder, preferably a ready one. Returns None if there is none."""
    from pytest_agentbench.backends.stack import registry

    matching = [each for each in registry.running() if name == each[0].name or Path(name).stem == each[1].backend]
    return min(matching, key=lambda each: each[1].state != "ready", default=None)


def _endpoint(name: str) -> tuple[Endpoint, ReadySpec, tuple[Target, ...]]:
    """Returns the endpoint of a running stack, a backend or a URL, the settings of its readiness checks, and its metrics.

    A running stack was checked with its labels and metrics when it booted, so here it has neither.
    """
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.backends.stack.spec import ReadySpec, StackSpec
    from pytest_agentbench.backends.url import UrlSpec
    from pytest_agentbench.records import Endpoint

    if (running := _running_stack(name)) is not None:
        facts = running[1]
        if facts.url is None:
            raise ConfigError(f"{name} is {facts.state}; wait until `agentbench backend status` lists it as ready")
        return Endpoint(facts.url, facts.model or "", facts.backend), ReadySpec(**facts.ready), ()
    spec = load_backend(name, Path.cwd())
    if (known := spec.running_endpoint()) is not None:
        own = (spec.ready.workers if spec.ready else {}, spec.targets) if isinstance(spec, UrlSpec) else ({}, ())
        return known, ReadySpec(in_a_row=1, workers=own[0]), own[1]
    if isinstance(spec, StackSpec):
        raise ConfigError(f"{name} is not running; start it with `agentbench backend up {name}`")
    raise ConfigError(f"{name} is of kind {spec.kind}, which runs only during a session; pass a running stack or a URL instead")


def _seconds(option: str, text: str) -> float:
    from pytest_agentbench.lib.options import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise ConfigError(f"--{option} {text}: must be {error}") from error


class _Progress:
    """Prints what a boot waits for: on a terminal one line that changes, otherwise a line every PROGRESS_PAUSE seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._printed_s = -PROGRESS_PAUSE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            draw("")  # clears the line for the next output

    def __call__(self, text: str) -> None:
        spent = time.monotonic() - self._started
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1  # a longer line would wrap and stay on the screen
            draw(f"{spent:5.0f} s  {text}"[:width])
        elif spent - self._printed_s >= PROGRESS_PAUSE:
            self._printed_s = spent
            sys.stderr.write(f"{spent:5.0f} s  {text}\n")
