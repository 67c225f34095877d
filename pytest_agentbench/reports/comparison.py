"""An A/B session for people, and the state of the prefix cache; the lines of terminal and report.md."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, WORSE, hit_ratio
from pytest_agentbench.records import EVALUABLE
from pytest_agentbench.reports.words import number, percent
from pytest_agentbench.runs.arm_results import ArmResult, ArmsCompared, MetricCompared
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.suites.arms import CARRY, PRIMED

COLOURS = {BETTER: "green", FASTER: "green", WORSE: "red", SLOWER: "red"}


def arms_text(ab: ArmsCompared) -> str:
    base, *others = (f"{arm.name} ({arm.value})" for arm in ab.arms)
    return f"{', '.join(others)} against {base}, {ab.order}"


def losses_text(ab: ArmsCompared) -> str:
    """Which arms are not there, or are gone, and what is not compared for it; empty where all is well."""
    failures = [arm.failure.partition("\n")[0] for arm in ab.arms if arm.failure]
    what = "not in these comparisons" if whole(ab) else "nothing is compared"
    return f"{what}: {'; '.join(failures)}" if failures else ""


def whole(ab: ArmsCompared) -> list[MetricCompared]:
    """The comparisons of arms that ran to their end."""
    lost = {arm.name for arm in ab.arms if arm.failure}
    return [each for each in ab.comparisons if not {each.base_arm, each.new_arm} & lost]


def arm_text(arm: ArmResult) -> str:
    """One arm: what ran, how fast, and how much of its prompts was cached."""
    ratio = hit_ratio(arm)
    evaluable = sum(arm.rollouts[status] for status in EVALUABLE)
    parts = [
        f"{evaluable} of {sum(arm.rollouts.values())} rollouts evaluable in {arm.blocks} blocks",
        f"{number(per_hour)} rollouts/h" if (per_hour := arm.metrics["rollouts_per_hour"]) else "",
        f"{number(per_s)} output tokens/s" if (per_s := arm.metrics["output_tokens_per_s"]) else "",
        f"goodput {number(arm.goodput.goodput_per_s, 2)} calls/s ({percent(arm.goodput.attainment)})" if arm.goodput else "",
        f"prefix cache hits {percent(ratio)}" if ratio is not None else "prefix cache hits unknown",
        f"loaded in {arm.load_s:.1f} s" if arm.load_s is not None else "",
    ]
    return ", ".join(filter(None, parts))


def essentials(ab: ArmsCompared) -> list[MetricCompared]:
    """What is known to differ, and the first score of each suite, whatever is known of it."""
    comparisons = whole(ab)
    firsts = {each.suite: each.metric for each in reversed(comparisons)}
    return [each for each in comparisons if each.finding in COLOURS or firsts[each.suite] == each.metric]


def comparison_text(ab: ArmsCompared, each: MetricCompared) -> str:
    """`tsq 0.900 -> 0.850, -0.050 (-0.090 to -0.010): new is worse`; of more than two arms each value has the name of its own."""
    base, new = (f"{arm} " if len(ab.arms) > 2 else "" for arm in (each.base_arm, each.new_arm))
    values = f"{base}{number(each.base, 3)} -> {new}{number(each.new, 3)}"
    if each.low is None:
        return f"{each.metric:<12} {values}: {each.finding}, {each.reason}"
    interval = each.estimate, each.low, each.high
    change, low, high = (f"{value:.3f}" if _is_ratio(each) else f"{value:+.3f}" for value in interval)
    found = f"{each.new_arm} is {each.finding}" if each.finding in COLOURS else each.finding
    why = f", {each.reason}" if each.reason else ""
    return f"{each.metric:<12} {values}, {'x' if _is_ratio(each) else ''}{change} ({low} to {high}, n {each.n}): {found}{why}"


def _is_ratio(each: MetricCompared) -> bool:
    return "." in each.metric


def is_worth_a_line(each: MetricCompared) -> bool:
    """The terminal has no room for percentiles that nothing can be said of."""
    return not each.metric.endswith(".p90") or each.low is not None


def comparison_lines(run: Run) -> Iterator[tuple[str, str, str]]:
    """(what about, the line, its colour) of a session with arms; nothing of others."""
    ab = run.ab
    if not ab:
        return
    yield "A/B", arms_text(ab), ""
    for arm in ab.arms:
        yield arm.name, arm_text(arm), ""
    if losses := losses_text(ab):
        yield "", losses, "yellow"
    suite = ""
    for each in filter(is_worth_a_line, whole(ab)):
        yield each.suite if each.suite != suite else "", comparison_text(ab, each), COLOURS.get(each.finding, "")
        suite = each.suite
    for warning in ab.warnings:
        yield "not equal", warning, "yellow"


def cache_text(run: Run) -> str:
    """How the cache was made ready; empty where it was left as it is."""
    cache = run.cache
    if cache is None or cache.policy == CARRY:
        return ""
    if cache.policy == PRIMED:
        primed, rollouts = sum(block.primed or 0 for block in cache.blocks), sum(block.rollouts for block in cache.blocks)
        return f"primed: {primed} of {rollouts} first calls were made before measuring"
    resets = sum(not block.salt for block in cache.blocks)
    salted = "".join(f"; prompts {f'of {arm} ' if arm else ''}were salted, because {why}" for arm, why in cache.salted.items())
    return f"cold: {resets} of {len(cache.blocks)} blocks began with a reset{salted}"


def markdown(run: Run) -> Iterator[str]:
    """The section of report.md."""
    from pytest_agentbench.reports.markup import prose, table

    if text := cache_text(run):
        yield f"\nPrefix cache: {prose(text)}."
    ab = run.ab
    if not ab:
        return
    yield f"\n## A/B: {prose(arms_text(ab))}\n"
    for arm in ab.arms:
        failure = prose(arm.failure.partition("\n")[0])
        yield f"- **{prose(arm.name)}**: {arm_text(arm)}{f'. **{failure}**' if failure else ''}"
    if losses := losses_text(ab):
        yield f"\n{prose(losses[0].upper() + losses[1:])}."
    if comparisons := whole(ab):
        yield ""
        yield from table(
            ["suite", "paired by scenario, 95 % interval" if len(ab.arms) == 2 else "paired by scenario"],
            [[prose(each.suite), prose(comparison_text(ab, each))] for each in comparisons],
        )
        yield from _how_to_read(ab)
    yield from (f"\n**Not equal**: {prose(warning)}." for warning in ab.warnings)


def _how_to_read(ab: ArmsCompared) -> Iterator[str]:
    yield "\nScores: difference of means. Latencies (ms): ratio, above 1 is slower. An interval without 0, or without 1, is a difference."
    if len(ab.arms) > 2:
        yield "\nOf each metric all comparisons together are wrong in 5 % of runs at most (Holm); their intervals are of 95 % or more."
