"""The prefix cache of a stack: requests that empty it, and readings of its hit counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pytest_agentbench.backends.api import Api, ApiAnswer
from pytest_agentbench.backends.telemetry.engine_stats import COUNTERS, SERVERS, CacheHits
from pytest_agentbench.backends.telemetry.readings import read_now
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint
from pytest_agentbench.tap.routing_hints import root

#: Paths of the POST requests that empty the cache of one engine: vLLM (only with VLLM_SERVER_DEV_MODE=1), SGLang.
OF_ENGINES = ("/reset_prefix_cache", "/flush_cache")
#: Path at Dynamo's frontend. It forwards the request to all workers and returns which of them emptied their cache.
OF_FRONTENDS = "/clear_kv_blocks"

TIMEOUT = 10.0  # seconds for a reset

Counters = dict[tuple[str, int, str], float]  # (service, replica, counter) -> sum of its series


@dataclass(frozen=True)
class CacheBlock:
    """A block (rollouts of one arm, without rollouts of other arms in between), and its use of the prefix cache."""

    arm: str  # empty without arms
    rollouts: int
    primed: int | None = None  # first calls that were sent before the block; null if none were planned
    reset: tuple[str, ...] = ()  # URLs that emptied the cache
    salt: str = ""  # text before the system prompts; empty: none
    seconds: float | None = None  # from the first rollout to the last; null for a block that did not begin
    prefix_cache: CacheHits | None = None  # from before to after; null for a block that did not begin


@dataclass(frozen=True)
class Reset:
    """The result of `reset`: which servers emptied their prefix cache, and why others did not.

    The record of earlier prompts that a router may keep, to choose an engine, is a part of the cache.
    """

    done: tuple[str, ...] = ()  # URLs that emptied a cache
    why_not: str = ""  # why a part of the cache was not emptied; empty: all of it was


def reset(endpoint: Endpoint, sources: Sources) -> Reset:
    """Empties the prefix caches of all engines behind an endpoint. Stops at the first engine that cannot do it; `why_not` says why."""
    if url := _clear_workers(
        Api(Endpoint(root(endpoint.url), "", api_key=endpoint.api_key, ca_file=endpoint.ca_file, headers=endpoint.headers))
    ):
        return Reset((url,))
    engines = [_origin(target.url) for target in sources.targets if has_cache(target)] or [root(endpoint.url)]
    done: list[str] = []
    for url in dict.fromkeys(engines):
        done_by = next((f"{url}{path}" for path in OF_ENGINES if _clear_engine(Api(Endpoint(url, "", ca_file=endpoint.ca_file)), path)), "")
        if not done_by:
            return Reset(tuple(done), f"{url} answers neither {' nor '.join(OF_ENGINES)}, and its endpoint does not answer {OF_FRONTENDS}")
        done.append(done_by)
    if (router := root(endpoint.url)) not in engines:
        return Reset(tuple(done), f"{router} is a router before the engines, and no request empties its own record of earlier prompts")
    return Reset(tuple(done))


def _clear_workers(frontend: Api) -> str:
    """Asks a Dynamo frontend to empty the caches of its workers. Returns the URL if all of them did, else an empty string."""
    answer = _posted(frontend, OF_FRONTENDS)
    content = answer.json() if answer and answer.status == 200 else None
    all_did = isinstance(content, dict) and content.get("cleared_workers") and not content.get("failed_workers")
    return f"{frontend.endpoint.url}{OF_FRONTENDS}" if all_did else ""


def _clear_engine(engine: Api, path: str) -> bool:
    answer = _posted(engine, path)
    return answer is not None and 200 <= answer.status < 300


def _posted(api: Api, path: str) -> ApiAnswer | None:
    try:
        return api.post(path, {}, TIMEOUT)
    except BackendError:
        return None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def has_cache(target: Target) -> bool:
    """Reads the metrics of one replica of a service (`target`). Returns whether they contain a counter of prefix cache lookups."""
    names = {names.queries for kind, names in SERVERS.items() if kind != "dynamo"}
    return any(name in names for _, _, name in counters([target]))


def counters(targets: Sequence[Target]) -> Counters:
    """Reads the metrics of each target, which is one replica of a service. A replica that does not answer is left out.

    Returns (service, replica, counter) -> current value, for all counters that statistics use (COUNTERS).
    """
    counts: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for source, series in read_now(targets, COUNTERS).items():
        for each, value in series.items():
            counts[(*source, each.name)] += value
    return dict(counts)


def moved(before: Mapping[tuple[str, int, str], float], after: Mapping[tuple[str, int, str], float]) -> dict[str, float]:
    """Returns counter -> increase between two results of `counters`, summed over all servers.

    A counter that fell was reset to 0 in between, so its new value is the increase.
    """
    by: defaultdict[str, float] = defaultdict(float)
    for series, value in after.items():
        start = before.get(series, 0.0)
        by[series[2]] += value - start if value >= start else value
    return dict(by)


def total_hits(parts: Iterable[CacheHits]) -> CacheHits:
    """Returns the total hits and lookups of the prefix cache in several blocks, and their ratio, which is None without lookups."""
    known = [part for part in parts if part.queried_tokens]
    hits, queries = sum(part.hit_tokens or 0 for part in known), sum(part.queried_tokens or 0 for part in known)
    return CacheHits(hits / queries if queries else None, hits, queries)
