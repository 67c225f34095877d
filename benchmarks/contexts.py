"""contexts: prefix cache hits of an orchestrator with a new prompt in each round, relative to one with a growing conversation"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Figure, Options, Result
from pytest_agentbench.cli import main as agentbench
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json

ROOT = Path(__file__).parents[1]
ROUNDS = ("search", "enhance_reasoning", "search", "enhance_reasoning", "search", "answer")
EXPERTS = {"search": "search-1", "enhance_reasoning": "reasoner-1", "answer": "answer-1"}
BLOCKS = (65536, 4096, 1024)  # of 16 tokens in the KV cache: all fits, and less than the rollouts in flight need
ARMS = ("rebuild", "transcript")
LIMIT = 1.25  # more would say that the conversation is not kept
PIECE = 1500  # characters of a document
DOCUMENTS = 10  # of a search
PROGRAM = "for number in range(40):\n    print(number, number**2, number**3)"


def measure(_options: Options) -> Result:
    if shutil.which("bwrap") is None:
        raise BenchmarkSkipped("the command `bwrap` is missing; install bubblewrap")
    figures, notes = [], []
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as (experts, retriever):
        for blocks in BLOCKS:
            caches = _session(Path(folder), blocks, experts, retriever)
            rebuild, transcript = (caches[arm]["hit_ratio"] for arm in ARMS)
            detail = f"{rebuild:.3f} over {transcript:.3f}"
            figures.append(Figure(f"contexts.hits_{blocks}", rebuild / transcript, "x", LIMIT, detail))
            tokens = ", ".join(f"{arm} {each['hit_tokens']:.0f} of {each['queried_tokens']:.0f} tokens" for arm, each in caches.items())
            notes.append(f"contexts.hits_{blocks}: hits of `rebuild` over those of `transcript` with {blocks} blocks: {tokens}")
    return Result(figures, notes)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, str]]:
    """Starts an engine that plays the expert models, and a retriever over the pages of docs/. Yields the base URLs of both."""
    pieces = [
        {"id": f"{page.stem}-{start}", "content": text[start : start + PIECE]}
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for text in [page.read_text(encoding="utf-8")]
        for start in range(0, len(text), PIECE)
    ]
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in pieces))
    (folder / "experts.yaml").write_text(json.dumps(_experts()))
    with ExitStack() as stack:
        config = {"policy": "script", "script": str(folder / "experts.yaml"), "model": "expert"}
        engine = f"http://127.0.0.1:{_child(stack, 'engine', config, folder)}/v1"
        index = str(folder / "index")
        if agentbench(["retriever", "build", str(folder / "corpus.jsonl"), "--output", index, "--url", engine, "--model", "expert"]):
            raise BenchmarkError("the index of the retriever was not built; see the output above")
        port = _child(stack, "retriever", {"index_dir": index, "embeddings": {"url": engine, "model": "expert"}}, folder)
        yield engine, f"http://127.0.0.1:{port}"


def _child(stack: ExitStack, name: str, config: Json, folder: Path) -> int:
    child = Child(f"pytest_agentbench.{name}", config, folder / f"{name}.log")
    stack.callback(child.stop)
    return int(child.ready(Listening).port)


def _experts() -> list[Json]:
    """Returns script rules for the expert models: a program, an answer, and a query that depends on the documents in the prompt.

    The answers are the same in both arms, so that only the prompts of the orchestrator differ.
    """
    queries = {"Doc 11: ": "what a container may do, and its network", "Doc 1: ": "prefix cache hits of a backend", "": "scores and judges"}
    return [
        {"match": {"contains": "one additional piece of Python"}, "text": f"```python\n{PROGRAM}\n```"},
        {"match": {"contains": "between <answer>"}, "text": "<answer>42</answer>"},
        *({"match": {"contains": known}, "text": f"<query>{query}</query>"} for known, query in queries.items()),
    ]


def _session(folder: Path, blocks: int, experts: str, retriever: str) -> dict[str, Any]:
    """Runs a session with both arms and a KV cache of `blocks` blocks. Returns the prefix cache statistics of each arm, by name."""
    project = folder / str(blocks)
    shutil.copytree(ROOT / "scenarios/hle", project / "scenarios/hle", ignore=shutil.ignore_patterns("__pycache__"))
    questions = [json.loads(line)["question"] for line in (project / "scenarios/hle/sample.jsonl").read_text().splitlines()]
    rules = [
        {"match": {"contains": f"Problem: {question}", "call": arm * len(ROUNDS) + number},
         "tool_calls": [{"name": name, "arguments": {"model": EXPERTS[name]}}]}
        for question in questions for arm in range(len(ARMS)) for number, name in enumerate(ROUNDS, 1)
    ]  # fmt: skip
    (project / "rules.yaml").write_text(json.dumps(rules))
    (project / "backend.yaml").write_text(json.dumps({"kind": "embedded", "policy": "script", "script": "rules.yaml", "kv_blocks": blocks}))
    role = {"url": experts, "model": "expert"}
    agent = {"kind": "orchestrator", "code_sandbox": "bubblewrap", "retriever": retriever, "topk": DOCUMENTS}
    dataset = {"format": "hle", "file": "sample.jsonl", "name": "sample"}
    suite = {"name": "hle", "dataset": dataset, "agent": agent, "roles": dict.fromkeys(("search", "reasoner", "answer"), role),
             "judge": role, "scorers": ["judged_answer"]}  # fmt: skip
    (project / "scenarios/hle/suite.yaml").write_text(json.dumps(suite))
    (project / "scenarios/hle/test_hle.py").write_text("def test_rounds(rollout):\n    assert 6 == rollout.turns\n")
    words = ("-q", "scenarios/hle", "--agentbench-backend=backend.yaml", f"--agentbench-ab=set:agent.context={'|'.join(ARMS)}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--agentbench-concurrency=8"], cwd=project, capture_output=True, text=True, check=False
    )
    run = json.loads((project / "reports/latest/run.json").read_text())
    if done.returncode != 0:
        raise BenchmarkError(done.stdout[-2000:])
    return {each["name"]: each["prefix_cache"] for each in run["ab"]["arms"]}
