"""The facts about models that all rollouts of a session share."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.records import Endpoint, Json


class SessionModels:
    """The facts about all models that one pool calls. A server is asked once for a context length that no YAML declares."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], asyncio.Task[ModelFacts]] = {}  # key: URL, model and declared facts

    async def facts(self, endpoint: Endpoint, role: Json) -> ModelFacts:
        """Returns the facts about a model. A role's declarations override those of its endpoint."""
        fields = {**endpoint.request_fields, **(role.get("request_fields") or {})}
        declared = replace(endpoint, request_fields=fields, context_length=role.get("context_length") or endpoint.context_length)
        key = declared.url, declared.model, repr((sorted(fields.items()), declared.context_length))
        if key not in self._known:
            self._known[key] = asyncio.create_task(_completed(declared))
        # Without the shield a cancelled rollout would cancel the task for all others.
        return await asyncio.shield(self._known[key])


async def _completed(endpoint: Endpoint) -> ModelFacts:
    from pytest_agentbench.backends.ready import listed_context

    context = endpoint.context_length or await asyncio.to_thread(listed_context, endpoint)
    return ModelFacts(dict(endpoint.request_fields), context)
