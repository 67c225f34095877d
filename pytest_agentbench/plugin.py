"""The entry point of the pytest plugin. Start reading here.

The process that the user started is the controller (session/controller.py). It boots the backend, the tap (a proxy that records LLM
calls) and the pool (a process that runs the rollouts), writes the journal and decides the exit status. A process that runs tests is a
worker (session/worker.py). It gets rollouts from the pool. Without xdist one process has both roles.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.questions_of_tests import WorkerInput
    from pytest_agentbench.session.controller import Controller


def pytest_addoption(parser: pytest.Parser) -> None:
    from pytest_agentbench.session.settings import add_options

    add_options(parser)


def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    from pytest_agentbench.session.settings import complete_resume_option, set_asyncio_scope, suggest_options
    from pytest_agentbench.session.setup import remember_declared_markers

    set_asyncio_scope(early_config)
    complete_resume_option(args)
    suggest_options(parser, args)
    remember_declared_markers(early_config)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_agentbench.session import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(trylast=True)  # Progress needs the terminal reporter, which is registered by then.
def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugins for the roles of this process: controller, worker or both."""
    from pytest_agentbench.session.settings import restore_asyncio_scope
    from pytest_agentbench.session.setup import shortage_as_usage_error

    restore_asyncio_scope(config)
    with shortage_as_usage_error():
        if hasattr(config, "workerinput"):
            register_worker(config, worker_input(config.workerinput.get("agentbench")))
        else:
            register_controller(config)


def register_controller(config: pytest.Config) -> None:
    from pytest_agentbench.session.controller import Controller, Mistakes
    from pytest_agentbench.session.interrupts import Interrupts
    from pytest_agentbench.session.progress import add_progress
    from pytest_agentbench.session.settings import read_settings, refuse_conflicts
    from pytest_agentbench.session.setup import find_suites

    settings = read_settings(config)
    workers = xdist_workers(config)
    refuse_conflicts(config, settings, workers)
    controller = Controller(config, settings, workers)
    interrupts = Interrupts(controller)
    config.add_cleanup(interrupts.restore)  # Cleanups run in reverse order, so this one runs after the controller's.
    config.pluginmanager.register(interrupts, "agentbench-interrupts")
    config.pluginmanager.register(controller, "agentbench-controller")
    config.pluginmanager.register(Mistakes(controller), "agentbench-mistakes")
    config.pluginmanager.register(controller.commands, "agentbench-commands")
    add_progress(config, controller)
    if config.getoption("markers", False):  # pytest lists markers without starting a session.
        find_suites(config, settings)
    if not workers:
        register_worker(config, controller)


def worker_input(text: str | None) -> WorkerInput:
    """Returns the controller's input for this worker, parsed. None stands for a controller without this plugin and gives an empty input."""
    from pytest_agentbench.lib import codec
    from pytest_agentbench.rollouts.questions_of_tests import WorkerInput

    return WorkerInput() if text is None else codec.received(WorkerInput, json.loads(text))


def register_worker(config: pytest.Config, source: Controller | WorkerInput) -> None:
    from pytest_agentbench.session.debugger import Debugger
    from pytest_agentbench.session.fixtures import SuiteFixtures
    from pytest_agentbench.session.worker import Worker

    worker = Worker(config, source)
    config.pluginmanager.register(worker, "agentbench-worker")
    config.pluginmanager.register(SuiteFixtures(worker), "agentbench-homes")
    config.pluginmanager.register(Debugger(), "agentbench-debugger")


def xdist_workers(config: pytest.Config) -> list[str]:
    """Returns the --tx spec of each xdist worker of this session, or an empty list if tests run in this process."""
    if config.getoption("dist", "no") == "no" or config.getoption("collectonly", False):
        return []
    workers: list[str] = []
    for spec in config.getoption("tx", None) or ():
        count, star, repeated = spec.partition("*")
        workers += [repeated] * int(count) if star and count.isdigit() else [spec]
    return workers
