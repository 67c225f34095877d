"""The fixtures of the plugin, for tests in suite folders. None of them is autouse, and none uses the network unless a test requests it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts.questions_of_tests import GetBackend, GetScenario, PoolAnswer_co, PoolQuestion, SuiteInfo, UnavailableSuite
from pytest_agentbench.session.rollout_tests import NotedThresholds, refuse
from pytest_agentbench.session.worker import Worker

if TYPE_CHECKING:
    from pytest_agentbench.llm.client import LLM
    from pytest_agentbench.suites.suite import Scenario


def _rollout_key(request: pytest.FixtureRequest) -> RolloutKey:
    """The key of the rollout that this test reads. The worker parametrizes this fixture with the rollouts of the suite."""
    if not hasattr(request, "param"):
        sentence = "`rollout` and `scenario` have to be arguments of the test or of a fixture that it uses"
        pytest.fail(f"{request.node.name}: {sentence}, so that the test runs once per scenario", pytrace=False)
    key: RolloutKey = request.param
    return key


def rollout(request: pytest.FixtureRequest, _rollout_key: RolloutKey) -> Rollout:
    """The finished rollout of this test's scenario: tool calls, answer, scores, timings (`rollout.score("tsq")`).

    The test runs once per scenario, variant and trial of its suite. A rollout runs only once, even if several tests read it.
    """
    return _worker(request).rollout(request.node)


def scenario(request: pytest.FixtureRequest, _rollout_key: RolloutKey) -> Scenario:
    """The scenario of this test: id, messages, tools, expected calls, metadata, task. The test runs once per scenario."""
    from pytest_agentbench.lib import codec
    from pytest_agentbench.suites.suite import Scenario

    return codec.received(Scenario, _ask_pool(request, GetScenario(_rollout_key)).scenario)


def thresholds(request: pytest.FixtureRequest) -> dict[str, float]:
    """The thresholds in force, by score. --agentbench-threshold overrides the backend's thresholds, which override those of suite.yaml."""
    return NotedThresholds(_suite(request).thresholds)


def suite(request: pytest.FixtureRequest) -> SuiteInfo:
    """Facts about this test's suite: name, description, ids, variants, trials, thresholds, scorers, label_source, quarantined."""
    known = _suite(request)
    return dataclasses.replace(known, thresholds=dict(known.thresholds), quarantined=dict(known.quarantined))


def backend(request: pytest.FixtureRequest) -> Endpoint:
    """The endpoint of the stack under test: `backend.url` (ends in /v1) and `backend.model`. Waits until the stack is ready.

    Calls made to this URL are not timed and not recorded; use `llm` for calls that are.
    """
    return _ask_pool(request, GetBackend()).endpoint


def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A client for calling the stack under test by hand: `await llm.chat(messages)`, or `llm.openai()`.

    Its calls are timed and recorded in the journal as a rollout of their own, which counts in no mean.
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
    return worker  # type: ignore[no-any-return]  # The plugin manager is untyped.


def _suite(request: pytest.FixtureRequest) -> SuiteInfo:
    suite = _worker(request).suite_of(request.node.path)
    assert suite is not None  # The fixtures exist only in suite folders.
    if not isinstance(suite, UnavailableSuite):
        return suite.info
    if suite.skip:
        pytest.skip(suite.reason)
    pytest.fail(suite.reason, pytrace=False)


def _ask_pool(request: pytest.FixtureRequest, question: PoolQuestion[PoolAnswer_co]) -> PoolAnswer_co:
    """Returns the pool's answer to a question. If the pool has no answer, ends the test as an ERROR or a SKIP."""
    try:
        return _worker(request).pool.ask(question)[0]
    except (InfraError, MissingError) as error:
        _refuse(error)


def _refuse(error: InfraError | MissingError) -> NoReturn:
    refuse(str(error), "missing" if isinstance(error, MissingError) else "infra_error")


FIXTURES = (_rollout_key, rollout, scenario, thresholds, suite, backend, llm)


class SuiteFixtures:
    """A pytest plugin in each test process. It registers the fixtures in suite folders only."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._suite_nodes: set[pytest.Collector] = set()  # Nodes that the fixtures are registered for

    def pytest_sessionstart(self) -> None:
        """Registers the fixtures for all tests if the rootdir is a suite's folder.

        They are registered before those of the rootdir's conftest.py, so that a conftest.py can override them.
        """
        if self._root_is_in_suite:
            self._worker.config.pluginmanager.register(fixture_plugin(), "agentbench-fixtures")

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Registers the fixtures once for each suite's folder, before its conftest.py is read, so that a conftest.py can override them."""
        if self._root_is_in_suite or not isinstance(collector, (pytest.Directory, pytest.File)):
            return
        inside = str(collector.path) in self._worker.suites or self._worker.suite_of(collector.path) is not None
        if inside and self._suite_nodes.isdisjoint(collector.listchain()):
            self._suite_nodes.add(collector)
            register_fixtures(collector)

    @property
    def _root_is_in_suite(self) -> bool:
        """Whether the rootdir is a suite's folder, so that the whole project is in it."""
        return str(self._worker.config.rootpath) in self._worker.suites


def fixture_plugin() -> ModuleType:
    """Returns a pytest plugin that defines the fixtures for all tests."""
    plugin = ModuleType("agentbench_fixtures")
    vars(plugin).update({function.__name__: pytest.fixture(function) for function in FIXTURES})
    return plugin


def register_fixtures(node: pytest.Collector) -> None:
    """Registers the fixtures for the tests below a node. A conftest.py there is read later and can override them."""
    for function in FIXTURES:
        pytest.register_fixture(name=function.__name__, func=function, node=node)
