"""Sessions with other plugins (asyncio, timeout, randomly, cov, rerunfailures), without xdist, and without this plugin."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.project import FIND_THEN_ANSWER, TEST_FILE, WAYS, Project


@WAYS
def test_a_timeout_does_not_fire_on_the_wait(project: Project, way: tuple[str, ...]) -> None:
    """pytest-timeout measures the test without the rollout that it waited for. A test that is slow itself still times out."""
    slow = "def test_slow(rollout):\n    import time\n    time.sleep(30 if rollout.scenario == 'shop-1' else 0)\n"
    project.suite(scenarios=2, test=TEST_FILE + slow)
    project.backend([{"ttft_ms": 900, **rule} for rule in FIND_THEN_ANSWER])

    result = project.run(*way, "-p", "timeout", "--timeout=1", "scenarios/shop")

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*1.0s*", "*FAILED *test_slow[[]shop-1[]]*"])
    assert all(rollout.duration_s > 1 for rollout in project.rollouts)


@pytest.mark.slow
@WAYS
def test_randomly(project: Project, way: tuple[str, ...]) -> None:
    """pytest-randomly changes the order of tests and nothing else."""
    project.suite("shop", scenarios=6)
    project.suite("bank", scenarios=2)

    result = project.run(*way, "-p", "randomly", "scenarios")

    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["Using --randomly-seed=*"])
    assert {1} == {*Counter(rollout.key for rollout in project.rollouts).values()}
    assert 8 == len(project.rollouts)


@pytest.mark.slow
@WAYS
def test_coverage(project: Project, way: tuple[str, ...]) -> None:
    """pytest-cov measures the tests. The processes of the session are neither measured nor disturbed."""
    project.suite(scenarios=2)

    result = project.run(*way, "-p", "pytest_cov", "--cov=scenarios", "--cov-report=json", "scenarios/shop")

    result.assert_outcomes(passed=2)
    files = json.loads((project.root / "coverage.json").read_text())["files"]
    assert 100 == files["scenarios/shop/test_shop.py"]["summary"]["percent_covered"]
    assert [] == [*project.root.glob(".coverage.*")]


STRICT_INI = """[pytest]
addopts = --import-mode=importlib
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
"""

ADVICE = "*PytestAgentbenchWarning: --reruns: a test that is run again reads the same rollout, *"


@pytest.mark.slow
@WAYS
def test_reruns(project: Project, way: tuple[str, ...]) -> None:
    """pytest-rerunfailures runs a failed test again on the same rollout, and one warning says so."""
    project.suite(scenarios=2)
    project.backend([{"match": {"contains": "shop-1"}, "text": "No."}, *FIND_THEN_ANSWER])

    result = project.run(*way, "-p", "rerunfailures", "--reruns=1", "scenarios/shop")

    assert {"passed": 1, "failed": 1, "rerun": 1, "warnings": 1} == result.parseoutcomes()
    result.stdout.fnmatch_lines([ADVICE])
    assert {"shop[shop-0]": 1, "shop[shop-1]": 1} == Counter(str(rollout.key) for rollout in project.rollouts)

    assert "PytestAgentbenchWarning" not in project.run(*way, "-p", "rerunfailures", "--reruns=0", "scenarios/shop").stdout.str()


@pytest.mark.slow
@WAYS
def test_the_warning_about_reruns_and_filters(project: Project, way: tuple[str, ...]) -> None:
    """If warnings are errors, the warning about reruns is still printed and the session continues. `ignore` silences it."""
    project.suite(scenarios=1)
    (project.root / "tox.ini").unlink()
    project.write("pytest.ini", STRICT_INI)

    strict = project.run(*way, "-p", "rerunfailures", "--reruns=1", "scenarios/shop")
    assert {"passed": 1, "warnings": 1} == strict.parseoutcomes()
    strict.stdout.fnmatch_lines([ADVICE])

    project.write("pytest.ini", STRICT_INI + "    ignore::pytest_agentbench.session.settings.PytestAgentbenchWarning\n")
    silenced = project.run(*way, "-p", "rerunfailures", "--reruns=1", "scenarios/shop")
    assert {"passed": 1} == silenced.parseoutcomes()


@pytest.mark.slow
@WAYS
def test_no_warnings_of_our_own(project: Project, way: tuple[str, ...]) -> None:
    """A session raises no warning, so that projects can turn warnings into errors."""
    project.suite(scenarios=2, test=f"{TEST_FILE}\ndef test_backend(backend, suite, scenario):\n    pass\n")
    (project.root / "tox.ini").unlink()
    project.write("pytest.ini", STRICT_INI)

    result = project.run(*way, "-W", "error", "scenarios/shop")

    assert {"passed": 4} == result.parseoutcomes()


@pytest.mark.slow
def test_without_the_plugin(project: Project) -> None:
    """`-p no:agentbench` removes all fixtures, options, header lines and files."""
    project.suite(scenarios=1)

    result = project.run("-p", "no:agentbench", "scenarios/shop")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E       fixture 'rollout' not found"])
    assert "agentbench:" not in result.stdout.str()
    assert not (project.root / "reports").exists()

    unknown = project.run("-p", "no:agentbench", "--agentbench-limit=1", "scenarios/shop")
    assert pytest.ExitCode.USAGE_ERROR == unknown.ret
    unknown.stderr.fnmatch_lines(["*unrecognized arguments: --agentbench-limit=1"])


ASYNC = """
import pytest

@pytest.mark.asyncio
async def test_chat(llm):
    reply = await llm.chat([{"role": "user", "content": "Is anybody there?"}], temperature=0.5)
    assert reply.text == "Yes, I am here."

@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_openai(llm, stream):
    messages = [{"role": "user", "content": "Is anybody there?"}]
    async with llm.openai() as client:
        answer = await client.chat.completions.create(model=llm.model, messages=messages, stream=stream)
        if stream:
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]) == "Yes, I am here."
        else:
            assert answer.choices[0].message.content == "Yes, I am here."

@pytest.mark.asyncio
async def test_beside_a_rollout(llm, rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
    assert (await llm.chat([{"role": "user", "content": "Is anybody there?"}])).text
"""


@pytest.mark.slow
@WAYS
def test_async_tests_call_the_model_by_hand(project: Project, way: tuple[str, ...]) -> None:
    """Under pytest-asyncio, `llm` calls the backend by its own client and by the openai SDK.

    The calls are in the journal with timings, but in no mean.
    """
    project.suite(scenarios=1, test=ASYNC, thresholds={"tsq": 0.5, "tsq.mean": 0.9})
    project.backend([{"match": {"contains": "anybody"}, "text": "Yes, I am here."}, *FIND_THEN_ANSWER])
    (project.root / "tox.ini").unlink()
    project.write("pytest.ini", STRICT_INI)

    result = project.run(*way, "scenarios/shop")

    result.assert_outcomes(passed=4)
    adhoc = [rollout for rollout in project.rollouts if rollout.kind == "adhoc"]
    names = {"test_chat", "test_openai[False]", "test_openai[True]", "test_beside_a_rollout[shop-0]"}
    assert names == {rollout.scenario.rpartition("::")[2] for rollout in adhoc}
    for rollout in adhoc:
        (call,) = rollout.calls
        assert (None, 200) == (call.error_kind, call.http_status)
        assert any(chunk.kind == "content" for chunk in call.chunks) or "[False]" in rollout.scenario
    run = project.run_json
    assert {"rollouts": 1, "finished": 1, "not_run": 0} == run["plan"]
    assert {"ok": 1, "limit": 0, "agent_error": 0, "infra_error": 0, "cancelled": 0} == run["suites"]["shop"]["rollouts"]
    assert 2 == run["performance"]["calls"]
