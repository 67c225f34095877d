"""Every option, once: a field of RunOptions declares it, says how its text is read, and is what run.json keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.lib.foreign import USUAL
from pytest_agentbench.lib.options import LoginUrl, one_of, seconds
from pytest_agentbench.runs.option import (
    READ,
    Option,
    assignment,
    budget,
    finite,
    first_trials,
    folder,
    interval,
    last_of_each,
    most_rounds,
    names,
    number,
    objective,
    option,
    option_group,
    positive_time,
    required,
    run_name,
    same_option,
    size,
    size_text,
    statuses,
    window,
    yaml_value,
)
from pytest_agentbench.suites.arms import CACHE_POLICIES, CARRY, Arm, parse_arms

LOG_LEVELS = ("debug", "info", "warning")
CI = ("auto", "github", "gitlab", "off")
MOST_RETRIES, MOST_TAPS = 100, 64  # more would be a slip of a finger: nobody waits for so many
RERUN = ("infra_error", "cancelled")  # statuses of rollouts that a resumed run runs again unless the user says otherwise

#: Field of lib.sizes.Sizes, which is an option and has the default -> the help of the option.
SIZES = {
    "answer": "an agent's answer may be this large; a larger one is cut and the status is `limit`",
    "tool_result": "a tool's result may be this large; a larger one ends the rollout, with the status `limit`",
    "reason": "a reason, an error of a scorer and an explanation of a score are cut to this size",
    "record": "the record of a rollout may be this large; the texts of a larger one are cut, and the status is `limit`",
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options in force. Where another tool ran the rollouts, only backend and concurrency are known, and nothing else was asked for."""

    backend: str = required(  # as asked for, without the user and password of a URL
        "the stack under test: a name in backends/, a YAML file, or the base URL of a running server",
        "NAME",
        "embedded",
        read=LoginUrl,
    )
    ab: tuple[Arm, ...] = option(  # the [arms](ab.md), two or more, or none
        "compare backends in one session, in interleaved blocks; or agents (agent:KIND), variants (variant:NAME), models (model:NAME), or "
        "the values of a setting (set:concurrency=8|16, set:backend.PATH=A|B, set:agent.PATH=A|B)",
        "[NAME=]A,[NAME=]B[,...]",
        read=parse_arms,
        empty=(),
        absent=(),
    )
    ab_pairs: bool = option("compare all arms with each other, not only each one with the first", read=bool, absent=False)
    cache: str = option(  # `cold`, `primed` or `carry`
        "the prefix cache of the backend when measuring begins: `cold`, `primed`, or `carry` (as it is)",
        "POLICY",
        CARRY,
        read=one_of(CACHE_POLICIES).read,
        empty=CARRY,
        absent=CARRY,
    )
    keep_backend: float | None = option(  # seconds that a stack stays; null: it ends with the session
        "leave a stack running this long after the session (30m), for the next one of the same backend", "TIME", read=seconds
    )
    gpu_wait: float = option(  # seconds that were allowed for waiting for GPUs
        "wait this long for GPUs that others have", "TIME", "0s", read=seconds, empty=0.0, absent=0.0
    )
    concurrency: int | None = required(  # rollouts in flight at most; null where another tool does not say
        "rollouts in flight at once (default: what -n says, or 8)", "N", read=number(1)
    )
    workers: int | None = option(  # xdist workers that were [asked for](running.md#workers)
        "xdist workers that start with -n (default: one, or `xdist_workers` of suite.yaml; what -n says if a path is outside of suites)",
        "N",
        read=number(1),
    )
    sandboxes: int | None = option(  # [sandboxes](sandboxes.md) on the machine at once; null: two for each core, 24 at most
        "sandboxes that run on this machine at once, whoever started them (default: two for each core, 24 at most)", "N", read=number(1)
    )
    limit: int | None = option(  # scenarios per suite
        "take only the first N scenarios of each suite, of those that -k, -m and the like leave: a quick check", "N", read=number(1)
    )
    trials: int | None = option(  # null: as the suite says; 1 with rounds, for tests read the first one
        "run every scenario N times, or with `auto:N` until the gate's verdict stands (default: what suite.yaml says)",
        "N",
        name="trials",
        read=first_trials,
    )
    rounds: int | None = same_option(trials, most_rounds)  # of `--agentbench-trials=auto`: rounds of trials, at most
    variants: tuple[str, ...] = option(
        "variants to run, separated by commas, or `all` (default: the suite's own agent)",
        "NAMES",
        "default",
        read=lambda text: names(text) or ("default",),
        empty=("default",),
        absent=(),
    )
    agent: str | None = option(  # of `--agentbench-agent`; null: the suites' own
        "the agent to run instead of the suite's own: a built-in one, or an import path", "KIND"
    )
    changes: Mapping[str, Any] = option(  # of `--agentbench-set`: path -> value
        "change any value of suite.yaml, or with `backend.` in front of backend.yaml, for this run",
        "PATH=VALUE",
        name="set",
        many=last_of_each,
        read=assignment(yaml_value, "should be PATH=VALUE, for example agent.temperature=0.6"),
        absent={},
    )
    thresholds: Mapping[str, float] = option(  # of `--agentbench-threshold`: name -> value
        "replace a threshold of suite and backend: tsq=0.5 is a floor of each scenario, tsq.mean=0.8 the rule `tsq.mean >= 0.8 of run`",
        "NAME=VALUE",
        name="threshold",
        many=dict,
        read=assignment(finite, "should be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
        absent={},
    )
    slo: Mapping[str, float] = option(  # of `--agentbench-slo`: objective -> milliseconds
        "what a good LLM call is, for goodput: ttft=500ms, itl=200ms, tpot=50ms, e2e=30s",
        "NAME=TIME",
        many=dict,
        read=objective,
        absent={},
    )
    gate: tuple[str, ...] = option(  # of `--agentbench-gate`
        "a rule for the whole run: `tsq.mean >= -0.03 vs baseline`, `ttft.p95 <= 500ms`, `infra_error.rate <= 0.02`",
        "RULE",
        many=tuple,
        absent=(),
    )
    baseline: str | None = option(  # as asked for
        "what rules `vs baseline` compare with: a baseline file, a run, or its directory", "FILE|RUN"
    )
    inconclusive: str = option(  # `pass` or `fail`
        "what a gate that cannot tell does to the exit status: `pass` leaves it, `fail` makes it 7",
        "pass|fail",
        "pass",
        read=one_of(("pass", "fail")).read,
        empty=READ,
        absent="pass",
    )
    verdict: str = option(  # `gate` or `tests`
        "who decides where there is a baseline: the `gate`, or the `tests`, as pytest has it",
        "gate|tests",
        "gate",
        read=one_of(("gate", "tests")).read,
        empty=READ,
        absent="gate",
    )
    time_limit: float | None = option(  # seconds
        "start no rollout after this long (90s, 150m, 2h) and let those that run end", "TIME", read=positive_time
    )
    # seconds for `connect`, `first_token`, `idle`, `call` and `rollout`; null is no limit, and for `rollout` what `suite.yaml` says
    budgets: Mapping[str, float | None] = option_group(
        "budget",
        rollout=Option(
            "a rollout may take this long; then its status is `limit` (default: what suite.yaml says)", "TIME", read=positive_time
        ),
        connect=Option("the backend has to take a connection within this time; `off` for no limit", "TIME", "10s", read=budget),
        first_token=Option("the first token of a stream has to come within this time", "TIME", "5m", read=budget),
        idle=Option("every further token has to come within this time: a stall ends the call", "TIME", "2m", read=budget),
        call=Option("a whole LLM call may take this long", "TIME", "off", read=budget),
    )
    # bytes that an `answer`, a `tool_result`, a `reason` and a `record` may have
    sizes: Mapping[str, int] = option_group(
        "size",
        **{name: Option(words, "SIZE", size_text(getattr(USUAL, name)), read=size) for name, words in SIZES.items()},
    )
    retries: int = option(
        "how often a rollout that ended as infra_error is tried again",
        "N",
        "2",
        read=number(0, MOST_RETRIES),
        empty=READ,
        absent=0,
    )
    resume: str | None = option(  # the run that was to be gone on with
        "go on with a run, and run only what is missing or failed: its name or directory (default: the latest)", "[RUN]"
    )
    resume_rerun: tuple[str, ...] = option(  # statuses of rollouts that run again
        "statuses of rollouts that a resumed run runs again, or `none`",
        "STATUSES",
        ",".join(RERUN),
        read=statuses,
        empty=(),
        absent=(),
    )
    taps: int = option(  # processes that relayed
        "processes that relay and time the LLM calls: more than one when the report says that one is not enough",
        "N",
        "1",
        read=number(1, MOST_TAPS),
        empty=1,
        absent=1,
    )
    name: str | None = option(  # as asked for; null of a run without one, and where a run was gone on with without saying it again
        "what the run is called: its directory is <date>-<time>-NAME, and other commands and --agentbench-resume find it by it",
        "NAME",
        read=run_name,
    )
    sample_interval: float | None = option(  # seconds between two looks at the metrics; null: as the backend says
        "look at the metrics of backend and GPUs this often (default: what the backend says, usually 1s)", "TIME", read=interval
    )
    log_level: str = option(  # `debug`, `info` or `warning`
        "what agents, tools and scorers have to log to be in the log of a rollout: `debug`, `info` or `warning`",
        "LEVEL",
        "info",
        read=one_of(LOG_LEVELS).read,
        empty=READ,
        absent="info",
    )
    window: tuple[float, float | None] | None = option(  # of `--agentbench-window`: seconds after the first call; null: to the end
        "measure in this window too, in times after the first call: 30m:120m, 30m: or :2h", "START:END", read=window
    )
    ci: str = option(  # `auto`, `github`, `gitlab` or `off`
        "what CI reads: `auto` (detected), `github`, `gitlab` or `off`", "WHERE", "auto", read=one_of(CI).read, empty=READ, absent="off"
    )
    reports: str = option(  # last part of the reports directory's name
        "directory that run directories are written to", "DIR", "reports", read=folder, empty=READ, absent=""
    )
    inline: bool = option(
        "run each rollout in the test's own call stack, without budgets; --pdb implies it; not with -n", read=bool, absent=False
    )
