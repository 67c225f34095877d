"""Converts a configuration of the NeMo Agent Toolkit to the folder of a suite, with a backend.yaml beside its suite.yaml."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.agents import read_workflow
from pytest_agentbench.exports.nat_config.data import NatInputs, as_text, read_scenarios, read_scorers, read_tools
from pytest_agentbench.exports.nat_config.models import read_judge, read_llm, sampling_of
from pytest_agentbench.exports.nat_config.optimizer import NatStudy, read_study
from pytest_agentbench.exports.nat_config.reading import LeftOutKey, NatPart, NatReading
from pytest_agentbench.exports.nat_config.search_space import space_of
from pytest_agentbench.optimize.space import read_space
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.compile import compile_suite
from pytest_agentbench.suites.folder import SuiteText
from pytest_agentbench.suites.suite import SUITE_FILE

BACKEND_FILE, DATA_FILE, TOOLS_FILE, SPACE_FILE = "backend.yaml", "data.json", "tools.json", "space.yaml"

TEST = '''\
"""Every scenario has scores. The toolkit's configuration has no thresholds, so that any score passes."""

from __future__ import annotations

from pytest_agentbench import Rollout, SuiteInfo


def test_scores(rollout: Rollout, suite: SuiteInfo) -> None:
    for name in suite.scorers:
        rollout.score(name)
'''


@dataclass(frozen=True)
class ConvertedConfig:
    """The result of a conversion: the files of a suite, and what is not in them."""

    name: str  # name of the suite
    files: Mapping[str, str]  # name -> content
    concurrency: int | None  # requested concurrency, which is an option of a session
    left_out: tuple[LeftOutKey, ...]
    study: NatStudy | None  # the search over settings that the configuration describes

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Reason -> the keys that are not carried over for it."""
        return by_reason(self.left_out)

    def command(self, folder: Path) -> str:
        """Returns the command that runs the suite in a folder on its backend."""
        wide = f" --agentbench-concurrency={self.concurrency}" if self.concurrency else ""
        return f"pytest {folder} --agentbench-backend={folder / BACKEND_FILE}{wide}"

    def search_command(self, folder: Path) -> str:
        """Returns the command that searches better settings of the suite, or an empty string if there is no space.yaml."""
        if self.study is None or SPACE_FILE not in self.files:
            return ""
        trials = self.study.combinations if self.study.sampler == "grid" else self.study.trials
        given = {"--trials": trials, "--concurrency": self.concurrency}
        numbers = "".join(f" {name}={number}" for name, number in given.items() if number)
        return f"agentbench optimize {folder} --space={folder / SPACE_FILE} --backend={folder / BACKEND_FILE}{numbers}"


def convert(file: Path, inputs: NatInputs) -> ConvertedConfig:
    """Converts a configuration. Raises ConfigError for a component that has no counterpart here, or if data or tools are missing."""
    reading = NatReading(file)
    name = re.sub(r"\W|^(?=[^a-zA-Z])", "_", file.stem).lstrip("_") or "nat"
    workflow = read_workflow(reading)
    server, llm = read_llm(reading, workflow.llm)
    server["model"] = server["model"].removeprefix(workflow.client)
    agent = {**workflow.agent, **sampling_of(llm)}
    _add_stop(agent, llm)
    general = reading.part(("eval", "general"), "general")
    data, source = read_scenarios(reading, general, inputs)
    suite = {
        "name": name,
        "description": f"Converted from {file.name} of the NeMo Agent Toolkit.",
        "dataset": {"format": "agent-leaderboard", "file": DATA_FILE, "tools": TOOLS_FILE, "name": source},
        "agent": agent,
        "scorers": read_scorers(reading, has_labels=not inputs.questions),
        **(read_judge(reading, workflow.judge, server) if workflow.judge else {}),
    }
    tools = read_tools(reading, workflow.tools, inputs.tools)
    concurrency = general.take(int, "max_concurrency")
    study = read_study(reading)
    space = space_of(study, llm, server, [*suite["scorers"]]) if study else None
    left_out = tuple(reading.left_out())
    head = f"# Converted from {file.name} by `agentbench import nat-config`.\n"
    files = {
        SUITE_FILE: head + "".join(_comment(left_out)) + _yaml(suite),
        BACKEND_FILE: head + _yaml({"name": name, **server}),
        DATA_FILE: as_text(data),
        TOOLS_FILE: as_text(tools),
        f"test_{name}.py": TEST,
        **({SPACE_FILE: head + _yaml(space)} if space else {}),
    }
    return ConvertedConfig(name, files, concurrency, left_out, study)


def by_reason(left_out: Iterable[LeftOutKey]) -> dict[str, list[str]]:
    """Returns reason -> the keys that are not carried over for it."""
    grouped: dict[str, list[str]] = {}
    for path, reason in left_out:
        grouped.setdefault(reason, []).append(path)
    return grouped


def _add_stop(agent: Json, llm: NatPart) -> None:
    """Adds the stop sequences of an LLM to the agent that sends them, which may be wrapped in another one."""
    working: Any = agent.get("wraps", agent)
    if working["kind"] == "react" and (stop := llm.take(list, "stop")) is not None:
        working["stop"] = stop


def _comment(left_out: tuple[LeftOutKey, ...]) -> Iterator[str]:
    """Yields the lines of a comment with the keys that are not carried over."""
    if left_out:
        yield "# Not carried over:\n"
        yield from (f"# - {' '.join(', '.join(paths).split())}: {reason}\n" for reason, paths in by_reason(left_out).items())


def _yaml(keys: Json) -> str:
    """Returns a YAML. Texts of several lines are written as such."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value.rstrip("\n") else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump(keys, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def write(converted: ConvertedConfig, folder: Path) -> None:
    """Writes the folder of a suite, after suite.yaml, backend.yaml and space.yaml were loaded as in a session.

    If the folder exists or a file is not valid, nothing is written, and a ConfigError is raised.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; remove it, or name another folder with --output")
    parent = next(each for each in folder.absolute().parents if each.is_dir())
    draft = Path(tempfile.mkdtemp(prefix=".nat-config-", dir=parent))
    try:
        for name, content in converted.files.items():
            (draft / name).write_text(content, encoding="utf-8")
        try:
            compile_suite(SuiteText.of(draft / SUITE_FILE))
            load_backend(str(draft / BACKEND_FILE), draft)
            if SPACE_FILE in converted.files:
                read_space(draft / SPACE_FILE)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(draft), str(folder))) from error
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
