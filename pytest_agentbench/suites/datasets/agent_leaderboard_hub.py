"""Downloads the agent leaderboard from the Hugging Face hub at a pinned revision, with guessed labels, as format `agent-leaderboard`.

Labels guessed from keywords, as NVIDIA's NeMo Agent Toolkit does, lack some calls and contain wrong ones, cover only banking, and have
placeholders as parameters. Data with them have the label source `heuristic-v1`, which distinguishes them from data with labels made by
hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.lib.hub_client import one_line_errors, optional
from pytest_agentbench.records import Json

LABEL_SOURCE = "heuristic-v1"

#: A goal that contains a keyword expects each tool whose title or description contains one of its words.
KEYWORDS: Mapping[str, Sequence[str]] = {
    "balance": ("balance", "check", "account"),
    "transfer": ("transfer", "send", "move", "pay"),
    "transaction": ("transaction", "history", "statement"),
    "payment": ("payment", "pay", "bill"),
    "card": ("card", "credit", "debit"),
    "loan": ("loan", "mortgage", "credit"),
    "dispute": ("dispute", "challenge", "report"),
    "limit": ("limit", "increase", "decrease"),
    "block": ("block", "freeze", "lock"),
    "unblock": ("unblock", "unfreeze", "unlock"),
    "statement": ("statement", "report", "summary"),
    "contact": ("contact", "phone", "email", "address"),
    "beneficiary": ("beneficiary", "recipient", "payee"),
    "standing": ("standing", "recurring", "automatic"),
    "wire": ("wire", "international", "swift"),
}


def expected_calls(goals: Sequence[str], tools: Sequence[Json]) -> list[Json]:
    """Returns an expected call `{tool, parameters, goal}` for each tool that a goal seems to need. `goal` is the first of these goals.

    Tools are `{title, description, properties, required}`; their properties are objects, not JSON text.
    """
    calls: dict[str, Json] = {}
    for goal in goals:
        for tool in tools:
            if tool["title"] not in calls and _asks_for(goal, tool):
                calls[tool["title"]] = {"tool": tool["title"], "parameters": _placeholders(tool), "goal": goal}
    return list(calls.values())


def _asks_for(goal: str, tool: Json) -> bool:
    goal, title, description = goal.lower(), tool["title"].lower(), (tool.get("description") or "").lower()
    return any(keyword in goal and any(word in title or word in description for word in words) for keyword, words in KEYWORDS.items())


def _placeholders(tool: Json) -> Json:
    properties = tool.get("properties") or {}
    return {name: _placeholder(name, properties.get(name) or {}) for name in tool.get("required") or ()}


def _placeholder(name: str, schema: Json) -> Any:
    kind = schema.get("type", "string")
    values = {"string": f"<{name}>", "integer": 0, "number": 0.0, "boolean": True}
    return values.get(kind) if isinstance(kind, str) else None


REPOSITORY = "galileo-ai/agent-leaderboard-v2"
REVISION = "80200b599f33def2d54580f7d8c3ce3cdf8ef270"  # default revision, a commit
DOMAINS = ("banking", "healthcare", "insurance", "investment", "telecom")

#: Config of the data set -> columns that the conversion reads. The splits of a config are the domains.
COLUMNS: Mapping[str, Sequence[str]] = {
    "tools": ("title", "description", "type", "properties", "required", "response_schema"),
    "personas": ("name",),
    "adaptive_tool_use": ("persona_index", "first_message", "user_goals"),
}

DatasetRows = Mapping[str, Sequence[Json]]  # config -> rows


class Snapshot(NamedTuple):
    """The names of the files of the data set at one commit."""

    commit: str
    files: tuple[str, ...]


def download(domains: Sequence[str], revision: str, output: Path, token: str | None = None) -> list[Path]:
    """Downloads domains of the data set, such as banking, to files below `output`. Prints their sha256 and the commit, and returns them.

    `revision` is a commit, a tag or a branch. Raises ConfigError, before anything is written, for an unknown domain or layout of the
    data set, without the extra `hub`, and without network.
    """
    _check(domains)
    snapshot = _snapshot(revision, token)
    rows = {domain: {config: _rows(snapshot, config, domain, token) for config in COLUMNS} for domain in domains}
    written = write(documents(rows), output)
    for file in written:
        print(f"{file}  sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}  revision {snapshot.commit}")
    return written


def documents(rows: Mapping[str, DatasetRows]) -> dict[str, Any]:
    """Converts the rows of domains to the contents of JSON files, and returns path -> content.

    A file has the entries of one domain, the entries of all domains, or one table of a domain, with schemas as objects instead of text.
    """
    files: dict[str, Any] = {}
    everything: list[Json] = []
    for domain, source in rows.items():
        check_columns(domain, source)
        tools = [decoded_tool(row, domain) for row in source["tools"]]
        scenarios = [entry(domain, i, row, source["personas"], tools) for i, row in enumerate(source["adaptive_tool_use"])]
        files[f"agent_leaderboard_v2_{domain}.json"] = scenarios
        for config, content in {**source, "tools": tools}.items():
            files[f"raw/{domain}/{config}.json"] = content
        everything += scenarios
    files["agent_leaderboard_v2_all.json"] = everything
    return files


def check_columns(domain: str, rows: DatasetRows) -> None:
    """Raises ConfigError if a config (a table of the data set) has no rows, or lacks a column that the conversion reads."""
    for config, columns in COLUMNS.items():
        if not rows[config]:
            raise ConfigError(f"{REPOSITORY}: {config}/{domain} has no rows; choose another --revision")
        if missing := [name for name in columns if name not in rows[config][0]]:
            known = ", ".join(rows[config][0])
            raise ConfigError(f"{REPOSITORY}: {config}/{domain} has no column {missing[0]!r} (it has {known}); choose another --revision")


def decoded_tool(row: Json, domain: str) -> Json:
    """Returns a row of `tools` with its two schemas as objects instead of JSON text."""
    try:
        return {**row, **{name: json.loads(row[name]) for name in ("properties", "response_schema") if isinstance(row[name], str)}}
    except json.JSONDecodeError as error:
        raise ConfigError(f"{REPOSITORY}: tools/{domain}: a schema of {row['title']!r} is not valid JSON: {error}") from error


def entry(domain: str, index: int, row: Json, personas: Sequence[Json], tools: Sequence[Json]) -> Json:
    """Converts a row of the table `adaptive_tool_use` to an entry of the format `agent-leaderboard`.

    The entry has all tools of the domain, and heuristic labels (`expected_calls`).
    """
    goals, persona = list(row["user_goals"] or ()), row["persona_index"]
    return {
        "id": f"{domain}_scenario_{index:03d}",
        "question": row["first_message"],
        "ground_truth": "\n- ".join(["User goals:", *goals]) if goals else "Complete the user's banking tasks.",
        "metadata": {
            "benchmark": "agent-leaderboard-v2",
            "domain": domain,
            "persona_index": persona,
            "persona_name": personas[persona]["name"] if 0 <= persona < len(personas) else "",
            "num_goals": len(goals),
            "label_source": LABEL_SOURCE,
        },
        "user_goals": goals,
        "available_tools": list(tools),
        "expected_tool_calls": expected_calls(goals, tools),
    }


def parquet_files(files: Iterable[str], config: str, domain: str) -> list[str]:
    """Returns the parquet files of a config (table) and domain, in shard order: `tools/banking-00000-of-00001.parquet`."""
    pattern = re.compile(rf"{config}/{domain}(-\d+-of-\d+)?\.parquet")
    return sorted(name for name in files if pattern.fullmatch(name))


def write(files: Mapping[str, Any], output: Path) -> list[Path]:
    """Writes JSON files below a folder. They are written to a temporary folder first, so that a failure leaves no files."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=output) as folder:
        for name, content in files.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for name in files:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).replace(output / name)
    return [output / name for name in files]


def _check(domains: Sequence[str]) -> None:
    if not domains:
        raise ConfigError(f"no domain to download; name at least one; known: {', '.join(DOMAINS)}")
    for domain in domains:
        if domain not in DOMAINS:
            raise ConfigError(unknown_name("domain", domain, DOMAINS))


def _snapshot(revision: str, token: str | None) -> Snapshot:
    hub = optional("huggingface_hub")
    optional("pyarrow.parquet")  # before anything is downloaded
    with one_line_errors(REPOSITORY, revision):
        info = hub.HfApi(token=token).dataset_info(REPOSITORY, revision=revision)
    return Snapshot(info.sha, tuple(sibling.rfilename for sibling in info.siblings))


def _rows(snapshot: Snapshot, config: str, domain: str, token: str | None) -> list[Json]:
    """Downloads and returns all rows of a config (table) and domain, with the columns in the order of the data set."""
    hub, parquet = optional("huggingface_hub"), optional("pyarrow.parquet")
    files = parquet_files(snapshot.files, config, domain)
    if not files:
        known = ", ".join(snapshot.files)
        raise ConfigError(f"{REPOSITORY} at {snapshot.commit}: no file {config}/{domain}-*.parquet in {known}; choose another --revision")
    rows: list[Json] = []
    for name in files:
        with one_line_errors(REPOSITORY, snapshot.commit):
            file = hub.hf_hub_download(REPOSITORY, name, repo_type="dataset", revision=snapshot.commit, token=token)
        rows += parquet.read_table(file).to_pylist()
    return rows
