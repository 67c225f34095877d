"""Options, their ini keys, and errors about invalid ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml  # noqa: F401  # pytester unloads modules that tests import, and yaml breaks if it is partly unloaded.

from pytest_agentbench.runs.option import Option
from pytest_agentbench.session.settings import OPTIONS, Settings, read_settings
from pytest_agentbench.suites.arms import parse_arms

FILE = Path(pytest.__file__)

#: For each option: a value for the command line, another one for the ini file, and what they are read as.
VALUES: dict[str, tuple[str, str, Any, Any]] = {
    "backend": ("vllm", "http://127.0.0.1:8000/v1", "vllm", "http://127.0.0.1:8000/v1"),
    "ab": ("a=x,b=y", "agent:react,agent:tool_calling", parse_arms("a=x,b=y"), parse_arms("agent:react,agent:tool_calling")),
    "ab-pairs": ("", "true", True, True),
    "cache": ("cold", "primed", "cold", "primed"),
    "keep-backend": ("30m", "1h", 1800.0, 3600.0),
    "gpu-wait": ("5m", "10s", 300.0, 10.0),
    "concurrency": ("48", "4", 48, 4),
    "workers": ("5", "6", 5, 6),
    "sandboxes": ("5", "6", 5, 6),
    "limit": ("3", "5", 3, 5),
    "scenarios": ("a,b", "c", ("a", "b"), ("c",)),
    "agent": ("tool_calling", "./agent.py:Mine", "tool_calling", "./agent.py:Mine"),
    "trials": ("2", "3", 2, 3),
    "variants": ("hot, cold,hot", "all", ("hot", "cold"), ("all",)),
    "set": ("agent.t=0.6", "model=big", {"agent.t": 0.6}, {"model": "big"}),
    "threshold": ("tsq=0.8", "tsq.mean=0.7", {"tsq": 0.8}, {"tsq.mean": 0.7}),
    "slo": ("ttft=500ms", "e2e=30s", {"ttft": 500.0}, {"e2e": 30_000.0}),
    "gate": ("tsq.mean >= 0.8", "ttft.p95 <= 1s", ("tsq.mean >= 0.8",), ("ttft.p95 <= 1s",)),
    "baseline": ("base.jsonl", "latest", "base.jsonl", "latest"),
    "inconclusive": ("fail", "fail", "fail", "fail"),
    "verdict": ("tests", "tests", "tests", "tests"),
    "time-limit": ("90s", "2h", 90.0, 7200.0),
    "budget-rollout": ("15m", "2h", 900.0, 7200.0),
    "budget-connect": ("off", "2", None, 2.0),
    "budget-first-token": ("500ms", "10m", 0.5, 600.0),
    "budget-idle": ("20s", "off", 20.0, None),
    "budget-call": ("90", "1h", 90.0, 3600.0),
    "size-answer": ("4MiB", "2048", 4_194_304, 2048),
    "size-tool-result": ("512 KiB", "1KiB", 524_288, 1024),
    "size-reason": ("1KiB", "512MiB", 1024, 536_870_912),
    "size-record": ("1MiB", "4096KiB", 1_048_576, 4_194_304),
    "taps": ("2", "3", 2, 3),
    "nodes": ("local:2", "local:3", "local:2", "local:3"),
    "nodes-listen": ("127.0.0.1:7100", "gpu-1", ("127.0.0.1", 7100), ("gpu-1", 0)),
    "nodes-advertise": ("gpu-1", "gpu-1:7100", ("gpu-1", None), ("gpu-1", 7100)),
    "nodes-tls": (f"{__file__}:{FILE}", f"{FILE}:{__file__}", (__file__, str(FILE)), (str(FILE), __file__)),
    "nodes-wait": ("90s", "5m", 90, 300),
    "retries": ("0", "5", 0, 5),
    "name": ("banking-kv", "b2", "banking-kv", "b2"),
    "sample-interval": ("5s", "100ms", 5.0, 0.1),
    "log-level": ("debug", "warning", "debug", "warning"),
    "metrics-port": ("9464", "0", 9464, 0),
    "window": ("30m:120m", ":90", (1800.0, 7200.0), (0.0, 90.0)),
    "ci": ("github", "off", "github", "off"),
    "resume": ("20260304-050607", "latest", "20260304-050607", "latest"),
    "resume-rerun": ("infra_error, limit", "none", ("infra_error", "limit"), ()),
    "reports": ("out", "/tmp/reports", Path("out"), Path("/tmp/reports")),
    "keep": ("calls", "none", "calls", "none"),
    "inline": ("", "true", True, True),
}
FIELDS = (
    dict.fromkeys((f"nodes-{name}" for name in ("listen", "advertise", "wait", "tls")), "node_socket")
    | {"set": "changes", "threshold": "thresholds", "reports": "reports_directory"}
    | {name: "budgets" for name in VALUES if name.startswith("budget-")}
    | {name: "sizes" for name in VALUES if name.startswith("size-")}
)


def read(pytester: pytest.Pytester, *arguments: str, **ini: str) -> Settings:
    """Returns the settings of a command line and an ini file."""
    pytester.makeini("\n".join(["[pytest]", *(f"agentbench_{name} = {value}" for name, value in ini.items())]))
    return read_settings(pytester.parseconfig(*arguments))


def value_of(settings: Settings, option: str, root: Path) -> Any:
    if option.startswith("budget-"):
        return settings.budgets[option.removeprefix("budget-").replace("-", "_")]
    if option.startswith("nodes-"):
        return settings.node_socket[option.removeprefix("nodes-")]
    if option.startswith("size-"):
        return settings.sizes[option.removeprefix("size-").replace("-", "_")]
    value = getattr(settings, FIELDS.get(option, option.replace("-", "_")))
    return value.relative_to(root) if isinstance(value, Path) and value.is_relative_to(root) else value


def flag(option: str, value: str) -> str:
    return f"--agentbench-{option}={value}" if value else f"--agentbench-{option}"


def test_every_option_is_tried_here() -> None:
    """The table above contains every option, and every setting comes from an option."""
    assert {option.name for option in OPTIONS} == set(VALUES)
    known = {"rounds", *(FIELDS.get(name, name.replace("-", "_")) for name in VALUES)}  # `rounds` comes from --agentbench-trials, too.
    assert {*known, "reports"} == {field.name for field in dataclasses.fields(Settings)}


def test_defaults(pytester: pytest.Pytester) -> None:
    """The defaults: the embedded backend, the suite's own agent, two retries, reports in the rootdir."""
    expected = Settings(
        backend="embedded",
        ab=(),
        ab_pairs=False,
        cache="carry",
        keep_backend=None,
        gpu_wait=0.0,
        agent=None,
        concurrency=None,
        workers=None,
        limit=None,
        scenarios=(),
        trials=None,
        rounds=None,
        variants=("default",),
        changes={},
        thresholds={},
        slo={},
        gate=(),
        baseline=None,
        inconclusive="pass",
        verdict="gate",
        time_limit=None,
        budgets={"rollout": None, "connect": 10, "first_token": 300, "idle": 120, "call": None},
        sizes={"answer": 1_048_576, "tool_result": 1_048_576, "reason": 65_536, "record": 16_777_216},
        taps=1,
        node_socket={"listen": None, "advertise": None, "wait": 60, "tls": None},
        retries=2,
        name=None,
        sample_interval=None,
        log_level="info",
        window=None,
        ci="auto",
        resume=None,
        resume_rerun=("infra_error", "cancelled"),
        reports="reports",
        reports_directory=pytester.path / "reports",
        keep="all",
        inline=False,
    )

    assert expected == read(pytester)


def test_rounds_of_trials(pytester: pytest.Pytester) -> None:
    """`auto` means up to five trial rounds, `auto:N` up to N, and tests read the first one. A number of trials means no rounds."""
    assert (1, 5) == _trials(read(pytester, "--agentbench-trials=auto"))
    assert (1, 7) == _trials(read(pytester, trials="auto:7"))
    assert (3, None) == _trials(read(pytester, "--agentbench-trials=3", trials="auto"))


def _trials(settings: Settings) -> tuple[int | None, int | None]:
    return settings.trials, settings.rounds


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_an_ini_key(pytester: pytest.Pytester, option: Option) -> None:
    """Each option can be set in the ini file. The command line overrides it."""
    given, in_ini, from_command_line, from_ini = VALUES[option.name]
    key = option.name.replace("-", "_")

    assert from_ini == value_of(read(pytester, **{key: in_ini}), option.name, pytester.path)
    assert from_command_line == value_of(read(pytester, flag(option.name, given)), option.name, pytester.path)
    assert from_command_line == value_of(read(pytester, flag(option.name, given), **{key: in_ini}), option.name, pytester.path)


@pytest.mark.parametrize("name", ["concurrency", "limit", "trials", "variants", "set", "threshold", "slo", "time-limit"])
def test_an_empty_ini_value_is_none(pytester: pytest.Pytester, name: str) -> None:
    """An ini key without a value has no effect."""
    key = name.replace("-", "_")

    assert value_of(read(pytester), name, pytester.path) == value_of(read(pytester, **{key: ""}), name, pytester.path)


def test_several_values(pytester: pytest.Pytester) -> None:
    """--agentbench-set and --agentbench-threshold can be repeated, in the ini file one per line. The last value of a name counts."""
    given = read(
        pytester, "--agentbench-set=a.b=1", "--agentbench-set=a.c=[1, x]", "--agentbench-threshold=tsq=0.1", "--agentbench-threshold=tsq=.5"
    )
    lines = read(pytester, set="\n  a.b=1\n  a.c=true\n", threshold="\n  tsq=1\n  tsq.mean=0.5\n")

    assert ({"a.b": 1, "a.c": [1, "x"]}, {"tsq": 0.5}) == (given.changes, given.thresholds)
    assert ({"a.b": 1, "a.c": True}, {"tsq": 1.0, "tsq.mean": 0.5}) == (lines.changes, lines.thresholds)


def test_a_later_change_is_made_later(pytester: pytest.Pytester) -> None:
    """A repeated path is changed at its last position, so that changes in between do not undo it."""
    again = read(pytester, "--agentbench-set=agent.seed=1", "--agentbench-set=agent={kind: react}", "--agentbench-set=agent.seed=2")

    assert [("agent", {"kind": "react"}), ("agent.seed", 2)] == again.suite_changes


def test_changes_know_where_they_belong(pytester: pytest.Pytester) -> None:
    """Paths with `backend.` change the backend's YAML, all others suite.yaml. `model` means `agent.model`."""
    values = ("model=big", "backend.model=small", "agent.seed=1", "thresholds.tsq=0.5", "description=a=b")
    settings = read(pytester, *(f"--agentbench-set={value}" for value in values))

    assert [("agent.model", "big"), ("agent.seed", 1), ("thresholds.tsq", 0.5), ("description", "a=b")] == settings.suite_changes
    assert [("model", "small")] == settings.backend_changes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("150m", 9000.0), ("2h", 7200.0), ("1.5h", 5400.0), ("30", 30.0), (" 5 m ", 300.0)]
)
def test_times(pytester: pytest.Pytester, text: str, seconds: float) -> None:
    """A time has a unit. Without one it is in seconds."""
    assert seconds == read(pytester, f"--agentbench-time-limit={text}").time_limit


@pytest.mark.parametrize("name", ["concurrency", "limit", "trials"])
def test_one_is_enough(pytester: pytest.Pytester, name: str) -> None:
    """The smallest allowed count is one."""
    assert 1 == value_of(read(pytester, flag(name, "1")), name, pytester.path)


def test_pdb_runs_inline(pytester: pytest.Pytester) -> None:
    """--pdb runs rollouts inline, so that the debugger sees the agent."""
    assert read(pytester, "--pdb").inline


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *(
            (f"{name}={value}", f"{name} {value}: must be a whole number from 1 up")
            for name in ("limit", "concurrency")
            for value in ("0", "-1", "x")
        ),
        *(
            (f"{name}={value}", f"{name} {value}: must be a whole number from 1 to {most}")
            for name, most in (("trials", "1000, or `auto`, or `auto:N` with at most N rounds of them"), ("taps", 64))
            for value in ("0", "-1", "x", "1000000")
        ),
        ("retries=1000000", "retries 1000000: must be a whole number from 0 to 100"),
        ("concurrency=1.5", "concurrency 1.5: must be a whole number from 1 up"),
        (f"concurrency={'9' * 5000}", f"concurrency {'9' * 5000}: must be a whole number from 1 up"),
        ("cache=warm", "cache warm: must be cold, primed or carry"),
        ("verdict=me", "verdict me: must be gate or tests"),
        ("concurrency=²", "concurrency ²: must be a whole number from 1 up"),
        ("slo=ttft=500", "slo ttft=500: a latency objective must be NAME=TIME (ms or s), for example ttft=500ms or e2e=30s"),
        ("slo=ttft=5m", "slo ttft=5m: a latency objective must be NAME=TIME (ms or s), for example ttft=500ms or e2e=30s"),
        ("slo=ttfb=5ms", "slo ttfb=5ms: no objective 'ttfb' (did you mean 'ttft'?); known: e2e, itl, tpot, ttft"),
        ("retries=-1", "retries -1: must be a whole number from 0 to 100"),
        ("retries=²", "retries ²: must be a whole number from 0 to 100"),
        ("retries=", "retries : must be a whole number from 0 to 100"),
        ("time-limit=2d", "time-limit 2d: must be a time such as 90s, 10m or 2h"),
        ("time-limit=-5s", "time-limit -5s: must be a time such as 90s, 10m or 2h"),
        *(
            (f"{name}={value}", f"{name} {value}: must be a time above 0, such as 90s, 150m or 2h")
            for name in ("time-limit", "budget-rollout")
            for value in ("0", "0s", "0.0h")
        ),
        *(
            (f"budget-{name}={value}", f"budget-{name} {value}: must be a time such as 500ms, 90s or 10m, or `off`")
            for name in ("connect", "first-token", "idle", "call")
            for value in ("0", "-1", "nan")
        ),
        *(
            (f"size-{name}={value}", f"size-{name} {value}: must be a size from 1KiB to 512MiB, such as 65536, 256KiB or 4MiB")
            for name in ("answer", "tool-result", "reason", "record")
            for value in ("0", "-1", "1MB", "1023", "1GiB", "off", "1.5MiB", "\u00b2KiB")
        ),
        ("time-limit=nan", "time-limit nan: must be a time such as 90s, 10m or 2h"),
        ("budget-rollout=off", "budget-rollout off: must be a time such as 90s, 10m or 2h"),
        ("reports=", "reports : must be a directory, for example reports"),
        *(
            (f"set={value}", f"set {value}: must be PATH=VALUE, for example agent.temperature=0.6")
            for value in ("agent", "=5", " =5", "a=[1", "a=2024-13-45")
        ),
        *(
            (f"threshold={value}", f"threshold {value}: must be NAME=NUMBER, for example tsq=0.8 or tsq.mean=0.7")
            for value in ("tsq", "=0.8", "tsq=high", "tsq=", "tsq.mean=nan", "tsq=inf")
        ),
    ],
)
def test_faulty_options(pytester: pytest.Pytester, arguments: str, sentence: str) -> None:
    """An invalid value is a usage error with the option, the value and a correct one."""
    with pytest.raises(pytest.UsageError) as caught:
        read(pytester, f"--agentbench-{arguments}")

    assert f"--agentbench-{sentence}" == str(caught.value)


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.metavar and each.name != "resume"], ids=lambda option: option.name)
def test_values_are_required(pytester: pytest.Pytester, option: Option) -> None:
    """Every option with a value, except --agentbench-resume, is refused without one."""
    with pytest.raises(pytest.UsageError, match=f"argument {option.flag}: expected one argument"):
        pytester.parseconfig(option.flag)


def test_help_names_the_ini_key(pytester: pytest.Pytester) -> None:
    """Each option's help names its ini key."""
    (group,) = (each for each in pytester.parseconfig()._parser._groups if each.name == "agentbench")

    for option, entry in zip(OPTIONS, group.options, strict=True):
        assert entry.attrs()["help"].endswith(f"(ini: agentbench_{option.name.replace('-', '_')})")


@pytest.mark.parametrize("text", ["30m", ":", "2h:30m", "1m:1m", "soon:later"])
def test_an_invalid_window(pytester: pytest.Pytester, text: str) -> None:
    """A window needs a colon and at least one time. The second time must be later than the first."""
    with pytest.raises(pytest.UsageError, match=f"--agentbench-window {text}: must be START:END, two times after the first call"):
        read(pytester, f"--agentbench-window={text}")


@pytest.mark.parametrize("name", ["2x", "a/b", "..", "latest", "a b", "a" * 81, "-x", "A,B"])
def test_an_invalid_name(pytester: pytest.Pytester, name: str) -> None:
    """A run's name must be valid as part of a directory name, must not look like a date, and must not be `latest`."""
    with pytest.raises(pytest.UsageError, match="must be a letter, and then at most 79 letters, digits, dots, dashes or underscores"):
        read(pytester, f"--agentbench-name={name}")


@pytest.mark.parametrize("text", ["0s", "50ms", "2h", "often"])
def test_an_invalid_sample_interval(pytester: pytest.Pytester, text: str) -> None:
    """A sample interval must be neither too short nor too long."""
    with pytest.raises(pytest.UsageError, match=f"--agentbench-sample-interval {text}: must be a time"):
        read(pytester, f"--agentbench-sample-interval={text}")
