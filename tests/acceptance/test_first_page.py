"""The section at the end of a session, as somebody reads it who sees it for the first time."""

from __future__ import annotations

import pytest

from tests.project import FIND_THEN_ANSWER, Project

#: What needs an explanation that the first page has no room for.
JARGON = ("stamps", "adjusted", "4 times out of 5", "steady", "sha256", "TPOT", "in flight", "median, 95", "KV cache", "0.0 %")
WHOLE = ("report ", "go on with ")  # what is to be copied


def page(result: pytest.RunResult) -> list[str]:
    """The lines of the section."""
    first = next(number for number, line in enumerate(result.outlines) if line.strip("=") == " agentbench ")
    return [*result.outlines[first + 1 : next(n for n in range(first + 1, len(result.outlines)) if result.outlines[n].startswith("=="))]]


def test_the_first_page(project: Project) -> None:
    """The verdict first, then a number a line, without words that need another page; the worst by id, each with its question."""
    project.suite(
        scenarios=12, expected=("find_item", "order_item"), scorers=["tsq", "hallucinated"], thresholds={"tsq": 0.5, "tsq.mean": 0.5}
    )

    result = project.run("scenarios/shop")

    lines = [line for line in page(result) if not line.startswith("timings ")]  # on a busy machine
    mean = project.run_json["suites"]["shop"]["scores"]["tsq"]["mean"]
    assert f"verdict     PASS; shop tsq 0.667 [{mean['low']:.3f}, {mean['high']:.3f}]" == lines[0]
    assert [
        "gate        PASS",
        "rule        shop tsq.mean >= 0.5 of run: PASS, 0.667",
        "shop        12 rollouts, all ok",
        f"tsq         0.667 (95 % interval {mean['low']:.3f} to {mean['high']:.3f})",
        "mistakes    missing call 12",
        'worst       shop-0 0.667 "Customer shop-0: is there a lamp?"',
        'worst       shop-1 0.667 "Customer shop-1: is there a lamp?"',
        'worst       shop-10 0.667 "Customer shop-10: is there a lamp?"',
    ] == lines[1:9]
    assert ["first token", "speed"] == [line[:11].rstrip() for line in lines[9:11]]
    assert ["report      reports/", "more        agentbench show, or -v; "] == [lines[-2][:20], lines[-1][:36]]
    assert len(lines) <= 14
    assert [] == [word for word in JARGON if word in "\n".join(lines)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.slow), pytest.param(120, marks=pytest.mark.slow)])
def test_it_fits_the_terminal(project: Project, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """No line but a path and a command is wider than the terminal, whatever went wrong."""
    monkeypatch.setenv("COLUMNS", str(width))
    project.suite(scenarios=4)
    project.backend([{"match": {"contains": "shop-1"}, "status": 500}, {"match": {"contains": "shop-2"}, "text": "No."}, *FIND_THEN_ANSWER])

    result = project.run(
        "scenarios/shop", "--agentbench-gate=tsq.mean >= 0.9", "--agentbench-retries=0", "--agentbench-threshold=tsq.mean=0.9"
    )

    lines = page(result)
    assert lines[0].startswith("verdict     FAIL, exit status 1")
    assert "tests       1 failed, 1 could not be measured, 2 passed" in lines
    assert [] == [line for line in lines if len(line) > width and not line.startswith(WHOLE)]
    assert any(line.startswith("rule        shop tsq.mean >= 0.9: ") for line in lines)


@pytest.mark.slow
def test_two_arms(project: Project) -> None:
    """Of an A/B session: what is known to differ, the first score whatever is known of it, and how many figures are left."""
    project.suite(scenarios=12, scorers=["tsq", "hallucinated"])
    project.backend(name="good")
    project.backend([{"text": "No."}], name="bad")

    lines = page(project.run("--agentbench-ab=good,bad"))

    assert lines[0].startswith("verdict     FAIL, ")
    assert any(line.startswith("A/B         bad (bad) against good (good), ") for line in lines)
    assert any(line.startswith("shop        tsq          1.000 -> 0.000, -1.000 ") for line in lines)
    assert any(line.endswith(" other figures no difference is shown") for line in lines)
    assert {"shop-good   12 rollouts, all ok", "shop-bad    12 rollouts, all ok"} <= set(lines)
    assert [] == [line for line in lines if line.startswith(("tsq ", "worst ", "speed "))]
