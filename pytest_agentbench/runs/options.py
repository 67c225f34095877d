"""All options of a session. Each field of RunOptions declares an option, and run.json stores its value in `settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_agentbench.launchers import checked_launcher
from pytest_agentbench.lib.foreign import USUAL
from pytest_agentbench.lib.kept_values import ALL, CALLS, NONE
from pytest_agentbench.lib.options import LoginUrl, one_of, seconds
from pytest_agentbench.runs.node_options import address, certificate, listening_address
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
MOST_RETRIES, MOST_TAPS = 100, 64  # larger numbers are taken for typing errors
RERUN = ("infra_error", "cancelled")  # default statuses of rollouts that a resumed run runs again

#: Field of `lib.foreign.Sizes`, which defines the default -> help of its option.
SIZES = {
    "answer": "largest answer of an agent; a larger one is truncated, and the status is `limit`",
    "tool_result": "largest result of a tool; a larger one ends the rollout with the status `limit`",
    "reason": "largest reason, scorer error and explanation of a score; larger ones are truncated",
    "record": "largest record of a rollout; the texts of a larger one are truncated, and the status is `limit`",
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options in force. For imported results only `backend` and `concurrency` are known, and all others have their empty values."""

    backend: str = required(  # backend as given in the option, without user and password of a URL
        "backend under test: a name in backends/, a YAML file, the base URL of a running server, or `recorded:RUN` to play an earlier run",
        "NAME",
        "embedded",
        read=LoginUrl,
    )
    ab: tuple[Arm, ...] = option(  # [arms](ab.md), two or more; empty without a comparison
        "compare up to twelve backends, or agents (agent:KIND), variants (variant:NAME), models (model:NAME), or values of a setting "
        "(set:concurrency=8|16, set:backend.PATH=A|B, set:agent.PATH=A|B), in interleaved blocks of one session; "
        "NAME= before an arm names it",
        "A,B[,...]",
        read=parse_arms,
        empty=(),
        absent=(),
    )
    ab_pairs: bool = option(  # whether all pairs of arms are compared, not only each arm with the first
        "compare all arms of --agentbench-ab with each other, not only each one with the first", read=bool, absent=False
    )
    cache: str = option(  # prefix cache when measuring begins: `cold`, `primed` or `carry`
        "state of the backend's prefix cache when measuring begins: `cold`, `primed`, or `carry` (unchanged)",
        "POLICY",
        CARRY,
        read=one_of(CACHE_POLICIES).read,
        empty=CARRY,
        absent=CARRY,
    )
    keep_backend: float | None = option(  # seconds that a stack keeps running after the session; null if it ends with the session
        "keep a stack running this long after the session, such as 30m, so that the next session with this backend can use it",
        "TIME",
        read=seconds,
    )
    gpu_wait: float = option(  # longest wait for GPUs in seconds
        "wait at most this long for GPUs that are in use", "TIME", "0s", read=seconds, empty=0.0, absent=0.0
    )
    concurrency: int | None = required(  # maximum number of rollouts in flight; null if another tool ran them and did not report it
        "maximum number of rollouts in flight (default: the value of -n, or 8)", "N", read=number(1)
    )
    workers: int | None = option(  # number of [xdist workers](running.md#workers) from this option; null if it was not given
        "number of xdist workers to start if -n is given (default: one, or `xdist_workers` of suite.yaml; "
        "the value of -n if a path on the command line is outside of suites)",
        "N",
        read=number(1),
    )
    sandboxes: int | None = option(  # maximum number of [sandboxes](sandboxes.md) on the machine; null: two per core, at most 24
        "maximum number of sandboxes on this machine, including those of other sessions (default: two per core, at most 24)",
        "N",
        read=number(1),
    )
    limit: int | None = option(  # maximum number of scenarios per suite; null if there is none
        "run only the first N scenarios of each suite that -k, -m and similar options select, as a quick check (default: all)",
        "N",
        read=number(1),
    )
    scenarios: tuple[str, ...] = option(  # ids of the only scenarios that run; empty if all do
        "run only the scenarios with these ids (default: all)", "ID,ID", read=names, empty=(), absent=()
    )
    # trials per scenario; 1 with `rounds`, because tests read only the first trial; null for the number in `suite.yaml`
    trials: int | None = option(
        "run each scenario N times, at most 1000; or with `auto:N` up to N times (at most 20; `auto` is `auto:5`), until the gate has its "
        "verdict (default: the number in suite.yaml)",
        "N|auto[:N]",
        name="trials",
        read=first_trials,
    )
    rounds: int | None = same_option(trials, most_rounds)  # maximum number of rounds, from `--agentbench-trials=auto`; null without it
    variants: tuple[str, ...] = option(  # names of the variants; empty for imported results
        "variants to run, separated by commas, or `all`",
        "NAMES",
        "default",
        read=lambda text: names(text) or ("default",),
        empty=("default",),
        absent=(),
    )
    agent: str | None = option(  # agent from `--agentbench-agent`; null for the agents of the suites
        "agent to run instead of the suite's, with the suite's sampling parameters: a built-in one, or an import path "
        "(default: the suite's own)",
        "KIND",
    )
    changes: Mapping[str, Any] = option(  # values from `--agentbench-set`: path -> value
        "change a value of suite.yaml, or of backend.yaml if the path begins with `backend.`, for this run",
        "PATH=VALUE",
        name="set",
        many=last_of_each,
        read=assignment(yaml_value, "must be PATH=VALUE, for example agent.temperature=0.6"),
        absent={},
    )
    thresholds: Mapping[str, float] = option(  # thresholds from `--agentbench-threshold`: name -> value
        "set a threshold, in place of suite and backend: tsq=0.5 is for each scenario, tsq.mean=0.8 is the rule `tsq.mean >= 0.8 of run`",
        "NAME=VALUE",
        name="threshold",
        many=dict,
        read=assignment(finite, "must be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7"),
        absent={},
    )
    slo: Mapping[str, float] = option(  # objectives from `--agentbench-slo`: objective -> milliseconds
        "latency objective of LLM calls, for goodput: ttft=500ms, itl=200ms, tpot=50ms, e2e=30s; the unit is ms or s",
        "NAME=TIME",
        many=dict,
        read=objective,
        absent={},
    )
    gate: tuple[str, ...] = option(  # rules from `--agentbench-gate`
        "rule for the whole run: `tsq.mean >= -0.03 vs baseline`, `ttft.p95 <= 500ms`, `infra_error.rate <= 0.02`",
        "RULE",
        many=tuple,
        absent=(),
    )
    baseline: str | None = option(  # baseline as given in the option; null if it was not given
        "baseline of rules `vs baseline`: a baseline file, a run, or its directory "
        "(default: baselines/<suite>.jsonl in the reports directory, for rules that need one)",
        "FILE|RUN",
    )
    inconclusive: str = option(  # effect of an inconclusive gate: `pass` or `fail`
        "effect of an inconclusive gate on the exit status: `pass` does not change it, `fail` makes it 7",
        "pass|fail",
        "pass",
        read=one_of(("pass", "fail")).read,
        empty=READ,
        absent="pass",
    )
    verdict: str = option(  # source of the exit status: `gate` or `tests`
        "source of the exit status if there is a baseline: the `gate`, or the `tests` as in any pytest session",
        "gate|tests",
        "gate",
        read=one_of(("gate", "tests")).read,
        empty=READ,
        absent="gate",
    )
    time_limit: float | None = option(  # seconds after which no rollout starts; null if there is no limit
        "start no rollouts after this long; running ones finish (default: no limit)", "TIME", read=positive_time
    )
    # time limits in seconds for `connect`, `first_token`, `idle`, `call` and `rollout`; null: no limit, or for `rollout` the one of
    # `suite.yaml`
    budgets: Mapping[str, float | None] = option_group(
        "budget",
        rollout=Option(
            "time limit of a rollout, after which its status is `limit` (default: the value in suite.yaml)", "TIME", read=positive_time
        ),
        connect=Option("time limit for connecting to the backend; `off` for no limit", "TIME", "10s", read=budget),
        first_token=Option("time limit for the first token of a stream", "TIME", "5m", read=budget),
        idle=Option("time limit for each further token; a stall ends the call", "TIME", "2m", read=budget),
        call=Option("time limit of a whole LLM call, without a delay by a rate limit", "TIME", "off", read=budget),
    )
    # largest sizes in bytes of an `answer`, a `tool_result`, a `reason` and a `record`
    sizes: Mapping[str, int] = option_group(
        "size",
        **{name: Option(words, "SIZE", size_text(getattr(USUAL, name)), read=size) for name, words in SIZES.items()},
    )
    nodes: str | None = option(  # where node workers are started; null if the session starts none
        "run the rollouts on node workers, which a launcher starts: `local:N` starts N of them on this machine, `ray`, `slurm` and "
        "`kubernetes` start them on others, with the settings of the key `nodes` of the backend's YAML",
        "WHERE",
        read=checked_launcher,
    )
    # the socket for node workers: `listen` and `advertise` are host and port, `wait` seconds, `tls` files of certificate and key
    node_socket: Mapping[str, Any] = option_group(
        "nodes",
        listen=Option(
            "address at which the session listens for `agentbench worker --join`, on machines that it does not start (default: none)",
            "HOST:PORT",
            read=listening_address,
        ),
        advertise=Option(
            "address that node workers use, if it is another one (default: the one of --agentbench-nodes-listen)",
            "HOST[:PORT]",
            read=address,
        ),
        wait=Option("how long rollouts wait while no node worker is there; then the session ends", "TIME", "60s", read=positive_time),
        tls=Option("certificate and key, with which connections of node workers are encrypted", "CERT:KEY", read=certificate),
    )
    retries: int = option(  # maximum number of retries of a rollout
        "how often a rollout that ended as infra_error is retried, at most 100",
        "N",
        "2",
        read=number(0, MOST_RETRIES),
        empty=READ,
        absent=0,
    )
    resume: str | None = option(  # run to resume as given in the option, a name or a directory; null for a new run
        "resume the run with this name or directory, or the latest if none is named; only rollouts that are missing or failed run. In "
        "the ini file it is `latest`, and `--agentbench-resume=` turns it off",
        "[RUN]",
    )
    resume_rerun: tuple[str, ...] = option(  # statuses of rollouts that run again
        "statuses of rollouts that a resumed run runs again, or `none`",
        "STATUSES",
        ",".join(RERUN),
        read=statuses,
        empty=(),
        absent=(),
    )
    taps: int = option(  # number of tap processes
        "processes of the tap, which forwards and times LLM calls; use more than one if the report says that one is not enough",
        "N",
        "1",
        read=number(1, MOST_TAPS),
        empty=1,
        absent=1,
    )
    name: str | None = option(  # name of the run as given in the option; null if this session did not give one
        "name of the run: its directory is <date>-<time>-NAME, and other commands and --agentbench-resume accept NAME",
        "NAME",
        read=run_name,
    )
    sample_interval: float | None = option(  # seconds between two samples of the metrics; null for the value of the backend
        "time between two samples of the metrics of backend and GPUs, 100ms to 1h (default: the value of the backend, usually 1s)",
        "TIME",
        read=interval,
    )
    # port of 127.0.0.1 at which [the metrics of the run](monitoring.md#the-metrics-of-a-run) were served while it ran, 0 for any free one;
    # null if they were not served
    metrics_port: int | None = option(
        "serve the metrics of the run at http://127.0.0.1:PORT/metrics while it runs, for Prometheus; 0 takes a free port and prints it",
        "PORT",
        read=number(0, 65535),
    )
    log_level: str = option(  # lowest level in logs of rollouts: `debug`, `info` or `warning`
        "lowest level of messages of agents, tools and scorers in the log of a rollout: `debug`, `info` or `warning`",
        "LEVEL",
        "info",
        read=one_of(LOG_LEVELS).read,
        empty=READ,
        absent="info",
    )
    # start and end from `--agentbench-window`, seconds after the first call; the end is null if the window is open; null without a window
    window: tuple[float, float | None] | None = option(
        "also compute metrics for this window, in times after the first call: 30m:120m, 30m: or :2h", "START:END", read=window
    )
    ci: str = option(  # CI system: `auto`, `github`, `gitlab` or `off`
        "CI system that gets results: `auto` (detected), `github`, `gitlab` or `off`",
        "WHERE",
        "auto",
        read=one_of(CI).read,
        empty=READ,
        absent="off",
    )
    reports: str = option(  # name of the reports directory, without its parents
        "directory for run directories, relative to pytest's rootdir", "DIR", "reports", read=folder, empty=READ, absent=""
    )
    keep: str = option(  # requests and replies that messages.jsonl contains: `all`, `calls` or `none`
        "requests and replies in messages.jsonl: `all`, `calls` (those of the agent itself, without tools), or `none`",
        "WHAT",
        ALL,
        read=one_of((ALL, CALLS, NONE)).read,
        empty=READ,
        absent=NONE,
    )
    inline: bool = option(  # whether rollouts ran in the process of their tests
        "run each rollout in the test's own call stack, without time limits and retries; --pdb implies it; not with -n",
        read=bool,
        absent=False,
    )
