"""The fixtures of the plugin, for tests in suite folders. None of them is autouse, none touches the network unless a test asks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts.worker_protocol import GetBackend, GetScenario, PoolAnswer_co, PoolQuestion, UnavailableSuite
from pytest_agentbench.session.worker import Worker, refuse
from pytest_agentbench.suites.suite_info import SuiteInfo

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario


def _rollout_key(request: pytest.FixtureRequest) -> RolloutKey:
    """Parametrizes a test with the rollouts of its suite."""
    if not hasattr(request, "param"):
        sentence = "`rollout` and `scenario` have to be arguments of the test or of a fixture that it uses"
        pytest.fail(f"{request.node.name}: {sentence}, so that the test runs once per scenario", pytrace=False)
    key: RolloutKey = request.param
    return key


def rollout(request: pytest.FixtureRequest, _rollout_key: RolloutKey) -> Rollout:
    """The finished rollout of this test's scenario: tool calls, answer, scores, timings (`rollout.score("tsq")`).

    The test runs once per scenario of its suite. Tests that share a rollout read the same one; it ran once.
    """
    return _worker(request).rollout(request.node)


def scenario(request: pytest.FixtureRequest, _rollout_key: RolloutKey) -> Scenario:
    """The scenario of this test: id, messages, tools, expected calls, metadata, task. The test runs once per scenario."""
    from pytest_agentbench.lib import codec
    from pytest_agentbench.suites.suite import Scenario

    return codec.received(Scenario, _ask_pool(request, GetScenario(_rollout_key)).scenario)


def thresholds(request: pytest.FixtureRequest) -> dict[str, float]:
    """The thresholds in force here, by score: suite.yaml, then the backend's own, then --agentbench-threshold."""
    return dict(_suite(request).thresholds)


def suite(request: pytest.FixtureRequest) -> SuiteInfo:
    """What is known of this test's suite: name, description, ids, variants, trials, thresholds, scorers, label_source, quarantined."""
    known = _suite(request)
    return dataclasses.replace(known, thresholds=dict(known.thresholds), quarantined=dict(known.quarantined))


def backend(request: pytest.FixtureRequest) -> Endpoint:
    """Where the stack under test answers: `backend.url` (ends in /v1) and `backend.model`. Waits until it is ready.

    Calls made to this URL are not timed and not recorded; use `llm` for calls that are.
    """
    return _ask_pool(request, GetBackend()).endpoint


def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A client of the stack under test for a test to call by hand: `await llm.chat(messages)`, or `llm.openai()`.

    Its calls are timed and journaled as a rollout of their own, which no mean counts.
    """
    from pytest_agentbench.session.inline import adhoc

    client = adhoc(_worker(request).pool, request.node.nodeid)
    try:
        opened = client.__enter__()
    except (InfraError, MissingError) as error:
        _refuse(error)
    yield opened
    try:
        client.__exit__(None, None, None)
    except InfraError as error:
        refuse(str(error), "infra_error")


def _worker(request: pytest.FixtureRequest) -> Worker:
    worker: Any = request.config.pluginmanager.get_plugin("agentbench-worker")
    return worker  # type: ignore[no-any-return]  # the plugin manager knows no types


def _suite(request: pytest.FixtureRequest) -> SuiteInfo:
    suite = _worker(request).suite_of(request.node.path)
    assert suite is not None  # elsewhere there is no such fixture
    if not isinstance(suite, UnavailableSuite):
        return suite.info
    if suite.skip:
        pytest.skip(suite.reason)
    pytest.fail(suite.reason, pytrace=False)


def _ask_pool(request: pytest.FixtureRequest, question: PoolQuestion[PoolAnswer_co]) -> PoolAnswer_co:
    """Returns the pool's answer; ends the test if there is none."""
    try:
        return _worker(request).pool.ask(question)[0]
    except (InfraError, MissingError) as error:
        _refuse(error)


def _refuse(error: InfraError | MissingError) -> NoReturn:
    refuse(str(error), "missing" if isinstance(error, MissingError) else "infra_error")


FIXTURES = (_rollout_key, rollout, scenario, thresholds, suite, backend, llm)


class SuiteFixtures:
    """A pytest plugin beside the worker: it makes the fixtures known in suite folders, and nowhere else."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._suite_nodes: set[pytest.Collector] = set()  # whose tests know the fixtures

    def pytest_sessionstart(self) -> None:
        """Pytest gives fixtures of the rootdir's conftest.py to all tests, now; ours have to be there before, for it to override them."""
        if self._root_is_in_suite:
            self._worker.config.pluginmanager.register(fixture_plugin(), "agentbench-fixtures")

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Once, where a suite's folder begins, and before its conftest.py is looked at: what that defines wins."""
        if self._root_is_in_suite or not isinstance(collector, (pytest.Directory, pytest.File)):
            return
        inside = str(collector.path) in self._worker.suites or self._worker.suite_of(collector.path) is not None
        if inside and self._suite_nodes.isdisjoint(collector.listchain()):
            self._suite_nodes.add(collector)
            register_fixtures(collector)

    @property
    def _root_is_in_suite(self) -> bool:
        """Whether all of the project is in a suite's folder."""
        return str(self._worker.config.rootpath) in self._worker.suites


def fixture_plugin() -> ModuleType:
    """A plugin with the fixtures."""
    plugin = ModuleType("agentbench_fixtures")
    vars(plugin).update({function.__name__: pytest.fixture(function) for function in FIXTURES})
    return plugin


def register_fixtures(node: pytest.Collector) -> None:
    """Makes the fixtures known to the tests below a node. What a conftest.py there defines comes later, and wins."""
    for function in FIXTURES:
        pytest.register_fixture(name=function.__name__, func=function, node=node)
