"""The prefix cache of a stack: emptied where its servers offer that, and its hit counters, read at a moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import urlsplit

from pytest_agentbench.backends.api import Api, ApiAnswer
from pytest_agentbench.backends.telemetry.engine_stats import COUNTERS, SERVERS, CacheHits
from pytest_agentbench.backends.telemetry.samples import Page, SampledTarget, Sources, Target
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint
from pytest_agentbench.tap.routing_hints import root

#: POSTs that empty the cache of one engine: vLLM (in its development mode, VLLM_SERVER_DEV_MODE=1), SGLang.
OF_ENGINES = ("/reset_prefix_cache", "/flush_cache")
#: Dynamo's frontend passes it on to all workers, and says which of them did it.
OF_FRONTENDS = "/clear_kv_blocks"

TIMEOUT = 10.0  # seconds for a reset

Counters = dict[tuple[str, int, str], float]  # (service, replica, counter) -> all its series together


@dataclass(frozen=True)
class CacheBlock:
    """Rollouts of one arm that ran without another arm's between them, and the state of the prefix cache."""

    arm: str  # empty without arms
    rollouts: int
    primed: int | None = None  # first calls that were made before; null where none was to be
    reset: tuple[str, ...] = ()  # URLs that emptied the cache
    salt: str = ""  # before the system prompts; empty: none
    seconds: float | None = None  # from the first rollout to the last; null for a block that did not begin
    prefix_cache: CacheHits | None = None  # from before to after; null for a block that did not begin


@dataclass(frozen=True)
class Reset:
    """What came of the wish to empty a cache."""

    done: tuple[str, ...] = ()  # URLs that did it
    why_not: str = ""  # empty: all of it is empty


def reset(endpoint: Endpoint, sources: Sources) -> Reset:
    """Empties the cache of all engines behind an endpoint; a part of them is not enough."""
    if url := _cleared(Api(Endpoint(root(endpoint.url), "", api_key=endpoint.api_key, ca_file=endpoint.ca_file, headers=endpoint.headers))):
        return Reset((url,))
    engines = [_origin(target.url) for target in sources.targets if has_cache(target)] or [root(endpoint.url)]
    done: list[str] = []
    for url in dict.fromkeys(engines):
        done_by = next((f"{url}{path}" for path in OF_ENGINES if _did(Api(Endpoint(url, "", ca_file=endpoint.ca_file)), path)), "")
        if not done_by:
            return Reset(tuple(done), f"{url} answers neither {' nor '.join(OF_ENGINES)}, and its endpoint no {OF_FRONTENDS}")
        done.append(done_by)
    return Reset(tuple(done))


def _cleared(frontend: Api) -> str:
    """The URL of a Dynamo frontend whose workers all did it."""
    answer = _posted(frontend, OF_FRONTENDS)
    content = answer.json() if answer and answer.status == 200 else None
    all_did = isinstance(content, dict) and content.get("cleared_workers") and not content.get("failed_workers")
    return f"{frontend.endpoint.url}{OF_FRONTENDS}" if all_did else ""


def _did(engine: Api, path: str) -> bool:
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
    """Whether an engine tells its hits here."""
    names = {names.queries for kind, names in SERVERS.items() if kind != "dynamo"}
    return any(name in names for _, _, name in counters([target]))


def counters(targets: Sequence[Target]) -> Counters:
    """What the servers have counted until now; nothing of one that does not tell."""
    counts: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for watched in map(SampledTarget, targets):
        try:
            watched.ask()
            changes = Page().changes(watched.answer())
        except (OSError, HTTPException, ValueError):
            continue
        finally:
            watched.close()
        names = dict(enumerate(name for name, _ in changes.series))
        for number, value in changes.values:
            if names[number] in COUNTERS:
                counts[watched.target.service, watched.target.replica, names[number]] += value
    return dict(counts)


def moved(before: Mapping[tuple[str, int, str], float], after: Mapping[tuple[str, int, str], float]) -> dict[str, float]:
    """Counter -> by how much, all servers together; one that fell began again at 0."""
    by: defaultdict[str, float] = defaultdict(float)
    for series, value in after.items():
        start = before.get(series, 0.0)
        by[series[2]] += value - start if value >= start else value
    return dict(by)


def together(parts: Iterable[CacheHits]) -> CacheHits:
    """Hit ratio of several blocks, by the counters of the server; None where they do not tell."""
    known = [part for part in parts if part.queried_tokens]
    hits, queries = sum(part.hit_tokens or 0 for part in known), sum(part.queried_tokens or 0 for part in known)
    return CacheHits(hits / queries if queries else None, hits, queries)
