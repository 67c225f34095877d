"""Nine configurations of the NeMo Agent Toolkit, and the tables about them in docs/coming-from/nat-config.md.

They have the keys, types and numbers of the nine configurations of the toolkit's example for Dynamo. Prompts are our own, and paths lead
to the suite banking. `python -m tests.nat_configs` writes the golden files of tests/exports/nat_config.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pytest_agentbench.exports.nat_config.convert import BACKEND_FILE, SPACE_FILE, ConvertedConfig, convert
from pytest_agentbench.exports.nat_config.data import NatInputs
from pytest_agentbench.exports.nat_config.keys import KEYS, TITLES, NatKey
from pytest_agentbench.exports.nat_config.reading import SECTIONS
from pytest_agentbench.suites.suite import SUITE_FILE
from tests.pages.markdown import table_row

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "exports" / "nat_config"
CONFIGS, GOLDEN = FOLDER / "configs", FOLDER / "golden"

#: A question that the built-in engine answers with a call of `current_datetime`, for configurations without data.
QUESTION = "What is the current date and time?"


class LimitedSession(NamedTuple):
    """The rollout of a session with the built-in engine and `--agentbench-limit 1`, which tests/acceptance/test_nat_config.py repeats."""

    called: bool  # whether a tool was called
    drafts: bool  # whether a judge judged drafts

    @property
    def text(self) -> str:
        """The result for the table."""
        parts = ["tool calls" if self.called else "no tool call", *(["judged drafts"] if self.drafts else [])]
        return f"`ok`, {', '.join(parts)}"


#: Configuration -> the rollout of its limited session, with the status `ok`.
NINE: Mapping[str, LimitedSession] = {
    "config_dynamo_adk_e2e_test": LimitedSession(called=False, drafts=False),
    "config_dynamo_e2e_test": LimitedSession(called=True, drafts=False),
    "config_dynamo_prefix_e2e_test": LimitedSession(called=True, drafts=False),
    "eval_config_no_rethinking_full_test": LimitedSession(called=True, drafts=False),
    "eval_config_no_rethinking_minimal_test": LimitedSession(called=True, drafts=False),
    "eval_config_rethinking_full_test": LimitedSession(called=True, drafts=True),
    "optimize_rethinking_full_test": LimitedSession(called=True, drafts=True),
    "profile_rethinking_full_test": LimitedSession(called=True, drafts=True),
    "run_with_prediction_trie": LimitedSession(called=True, drafts=True),
}

#: Configurations whose files are kept as golden files: three of the nine, and one with `openai` and a judge elsewhere.
GOLDEN_CONFIGS = ("config_dynamo_prefix_e2e_test", "eval_config_no_rethinking_minimal_test", "optimize_rethinking_full_test", "openai")


def has_data(name: str) -> bool:
    """Returns whether a configuration names data. The others need a question."""
    return "eval" in yaml.safe_load((CONFIGS / f"{name}.yml").read_text(encoding="utf-8"))


def converted(name: str) -> ConvertedConfig:
    """Converts a configuration in the directory of this repository, where its paths begin."""
    with contextlib.chdir(ROOT):
        return convert(CONFIGS / f"{name}.yml", NatInputs(questions=() if has_data(name) else (QUESTION,)))


def golden_text(name: str) -> str:
    """Returns the YAML files of a converted configuration, and the commands that it prints."""
    result, folder = converted(name), Path("scenarios", name)
    files = (result.files[each] for each in (SUITE_FILE, BACKEND_FILE, SPACE_FILE) if each in result.files)
    commands = (f"# {each}\n" for each in (result.command(folder), result.search_command(folder)) if each)
    return "\n".join((*files, "".join(commands)))


def leaves(keys: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each value that is not a mapping with keys."""
    if isinstance(keys, dict) and keys:
        for key, value in keys.items():
            yield from leaves(value, (*path, str(key)))
    else:
        yield path


@functools.cache
def table_of_nine() -> tuple[str, ...]:
    """Returns the table of the nine configurations."""
    return "| configuration | converted to | run | left out |", "|---|---|---|---|", *(_row(name) for name in NINE)


def _row(name: str) -> str:
    result = converted(name)
    suite, backend = (yaml.safe_load(result.files[file]) for file in (SUITE_FILE, BACKEND_FILE))
    wrapped = suite["agent"].get("wraps")
    parts = [
        f"`{suite['agent']['kind']}`" + (f" around `{wrapped['kind']}`" if wrapped else ""),
        *(f"`{scorer}`" for scorer in suite["scorers"]),
        *(["hints"] if "labels" in backend else []),
    ]
    keys = [*leaves(yaml.safe_load((CONFIGS / f"{name}.yml").read_text(encoding="utf-8")))]
    left_out = [path for path in keys if any(f"{'.'.join(path)}.".startswith(f"{each.path}.") for each in result.left_out)]
    whole = {each.path for each in result.left_out}
    names = ", ".join(f"`{each}`" for each in dict.fromkeys(_short(each.path.split("."), whole) for each in result.left_out))
    return f"| `{name}` | {', '.join(parts)} | {NINE[name].text} | {len(left_out)} of {len(keys)} keys: {names} |"


def _short(steps: Sequence[str], left_out: Collection[str]) -> str:
    """Returns a key for the table without its section, or the name of the mapping around it if that is left out as a whole."""
    match steps:
        case ["eval", "general", "dataset", *key]:
            return ".".join(("dataset", *key))
        case ["eval", "general", mapping, *_]:
            return mapping
        case ["eval", "evaluators", evaluator, *key]:
            return evaluator if f"eval.evaluators.{evaluator}._type" in left_out else ".".join((evaluator, *key))
        case ["llms", llm, "search_space", *_]:
            return f"{llm}.search_space"
        case ["optimizer", *_]:
            return "optimizer"
    return ".".join(steps[1:] if steps[0] in SECTIONS else steps)


def table_of_keys() -> Iterator[str]:
    """Yields the table of all keys of KEYS. Parts with the same keys share their rows, and so do keys with the same fate."""
    yield from ("| part | keys | become | are not carried over, because |", "|---|---|---|---|")
    parts: dict[int, list[str]] = {}
    for part, keys in KEYS.items():
        parts.setdefault(id(keys), []).append(part)
    for same in parts.values():
        title, listed = ", ".join(TITLES.get(part, f"`{part}`") for part in same), KEYS[same[0]]
        rows: dict[NatKey, list[str]] = {}
        for key, fate in listed.items():
            if same != ["dynamo"] or KEYS["openai"].get(key) != fate:
                rows.setdefault(fate, []).append(f"`{key}`" if key else "all others" if len(listed) > 1 else "all")
        for fate, names in rows.items():
            yield table_row(title, ", ".join(names), fate.becomes, fate.reason)


if __name__ == "__main__":
    for each in GOLDEN_CONFIGS:
        (GOLDEN / f"{each}.txt").write_text(golden_text(each), encoding="utf-8")
