"""Measures how much TTFT hits in the prefix cache save, at prompts of several lengths: `python -m benchmarks.prefix_hits [URL]`.

Each prompt of random words is sent twice: the first call is a miss, the second a hit. Without a URL, a built-in engine is measured
whose three coefficients are those of `--cost`. With a URL, such as http://127.0.0.1:8000/v1, any server of Chat Completions is measured,
and `--cost` only fills the column of the formula. Each call has a connection of its own, so that no first token waits for an
acknowledgement of an earlier answer. The printed table is Markdown.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import string
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

from pytest_agentbench.engine.prefill import Prefill
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json

LENGTHS = (600, 1_200, 2_400, 4_800, 9_500)  # tokens
COST = (66.0, 57.0, 4.41)  # ms, ms per 1k tokens, ms per square of 1k tokens: the reference values of vllm-router's program scheduling
WORD = 5  # letters
PAUSE = 0.1  # seconds between two calls
TIMEOUT = 120.0  # seconds of a call


class Call(NamedTuple):
    """One measured call."""

    ttft: float  # milliseconds from the request to the first event with text
    prompt: int  # tokens
    cached: int | None  # tokens of the prompt that were cached; None if the server does not say


class Row(NamedTuple):
    """The calls at one length of prompts."""

    misses: list[Call]
    hits: list[Call]
    together: list[Call]  # misses that were sent at the same time


class Client:
    """Sends chat requests with random prompts to one server."""

    def __init__(self, url: str, model: str | None, seed: int) -> None:
        self._parts = urlsplit(url)
        self._random = random.Random(seed)
        self._model = model or str(self._get("/models")["data"][0]["id"])
        short, long = (self.call(self._words(count)).prompt for count in (50, 250))
        self._per_word = (long - short) / 200
        self._template = short - 50 * self._per_word

    def prompt(self, tokens: int) -> str:
        """Returns a new prompt of about this number of tokens, the chat template included."""
        return self._words(max(1, round((tokens - self._template) / self._per_word)))

    def call(self, prompt: str) -> Call:
        """Sends a prompt on a connection of its own. Raises RuntimeError if there is no complete answer with a usage."""
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "stream": True}
        data = json.dumps({**body, "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection(self._parts.netloc, timeout=TIMEOUT)
        connection.connect()
        started = time.perf_counter()
        connection.request("POST", f"{self._parts.path}/chat/completions", data, {"content-type": "application/json"})
        response = connection.getresponse()
        first, usage = None, None
        for line in response:
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            if first is None and any((choice.get("delta") or {}).get("content") for choice in event.get("choices") or ()):
                first = time.perf_counter()
            usage = event.get("usage") or usage
        connection.close()
        if response.status != 200 or first is None or usage is None:
            raise RuntimeError(f"{self._parts.geturl()}: no stream with text and a usage (status {response.status})")
        details = usage.get("prompt_tokens_details") or {}
        return Call((first - started) * 1000, usage["prompt_tokens"], details.get("cached_tokens"))

    def _get(self, path: str) -> Json:
        connection = http.client.HTTPConnection(self._parts.netloc, timeout=TIMEOUT)
        connection.request("GET", f"{self._parts.path}{path}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return dict(answer)

    def _words(self, count: int) -> str:
        return " ".join("".join(self._random.choices(string.ascii_lowercase, k=WORD)) for _ in range(count))


def measure(client: Client, tokens: int, repeats: int, together: int) -> Row:
    """Measures misses and hits of prompts with this number of tokens, one call at a time, and then several misses at the same time."""
    misses: list[Call] = []
    hits: list[Call] = []
    for _ in range(repeats):
        prompt = client.prompt(tokens)
        for calls in (misses, hits):
            time.sleep(PAUSE)
            calls.append(client.call(prompt))
    prompts = [client.prompt(tokens) for _ in range(together)]
    with ThreadPoolExecutor(max(1, together)) as threads:
        return Row(misses, hits, sorted(threads.map(client.call, prompts)))


def table(rows: Sequence[Row], cost: Sequence[float]) -> Iterator[str]:
    """Yields the lines of a Markdown table: median, least and greatest TTFT in milliseconds."""
    columns = ("prompt tokens", "miss, ms", "by the formula", "hit, ms", "by the formula", "cached tokens", "misses at the same time")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        prompt, hit = row.misses[0].prompt, row.hits[0]
        cached = "unknown" if hit.cached is None else f"{hit.cached:,}"
        known = "" if hit.cached is None else f"{formula(cost, hit.prompt - hit.cached):.1f}"
        times = f"{len(row.together)}: {row.together[0].ttft:.0f} to {row.together[-1].ttft:.0f} ms" if row.together else ""
        yield f"| {prompt:,} | {spread(row.misses)} | {formula(cost, prompt):.1f} | {spread(row.hits)} | {known} | {cached} | {times} |"


def spread(calls: Sequence[Call]) -> str:
    times = [call.ttft for call in calls]
    return f"{median(times):.1f} ({min(times):.1f} to {max(times):.1f})"


def formula(cost: Sequence[float], tokens: int) -> float:
    """Returns the milliseconds to the first token if this number of tokens must be computed."""
    fixed, linear, square = cost
    return fixed + Prefill(linear, square).seconds(tokens) * 1000


@contextmanager
def built_in(cost: Sequence[float]) -> Iterator[str]:
    """Yields the URL of a built-in engine with these coefficients, which ends with the block."""
    ttft, linear, square = cost
    with TemporaryDirectory() as folder:
        settings = {"ttft_ms": ttft, "prefill_ms_per_1k": linear, "prefill_ms_per_1k2": square}
        child = Child("pytest_agentbench.engine", settings, Path(folder) / "engine.log")
        try:
            yield f"http://127.0.0.1:{child.ready(Listening).port}/v1"
        finally:
            child.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_hits", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("url", nargs="?", help="URL of the server, with /v1. By default a built-in engine is started.")
    add("--model", help="name of the model. The default is the first of the server.")
    add("--tokens", type=int, nargs="+", default=LENGTHS, help="lengths of prompts")
    add("--repeats", type=int, default=5, help="prompts of each length")
    add("--together", type=int, default=8, help="misses that are sent at the same time")
    add("--cost", type=float, nargs=3, default=COST, metavar=("MS", "PER_1K", "PER_1K2"), help="coefficients in milliseconds")
    add("--seed", type=int, default=time.time_ns() % 2**32, help="seed of the random words. By default it differs each time.")
    options = parser.parse_args(arguments)
    started = os.getloadavg()[0]
    with built_in(options.cost) if options.url is None else nullcontext(options.url) as url:
        client = Client(url, options.model, options.seed)
        rows = [measure(client, tokens, options.repeats, options.together) for tokens in options.tokens]
    print("\n".join(table(rows, options.cost)))
    print(f"\n{options.repeats} prompts of each length; median (least to greatest). Load {started:.1f} to {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
