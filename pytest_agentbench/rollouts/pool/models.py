"""The models that are called in a session, and what is known of them: who calls one shares it with all others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.records import Endpoint, Json


class SessionModels:
    """Of one pool. A server is asked once how much a model of which nobody says it takes."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], asyncio.Task[ModelFacts]] = {}  # URL, model and what is said of it

    async def facts(self, endpoint: Endpoint, role: Json) -> ModelFacts:
        """Of the model that plays a role at an endpoint; what is said of the role goes before what is said of the endpoint."""
        fields = {**endpoint.request_fields, **(role.get("request_fields") or {})}
        said = replace(endpoint, request_fields=fields, context_length=role.get("context_length") or endpoint.context_length)
        known = said.url, said.model, repr((sorted(fields.items()), said.context_length))
        if known not in self._known:
            self._known[known] = asyncio.create_task(_found_out(said))
        return await asyncio.shield(self._known[known])  # a rollout that is cancelled leaves it to the others


async def _found_out(endpoint: Endpoint) -> ModelFacts:
    from pytest_agentbench.backends.proof.ready import listed_context  # here: most pools have no server to ask

    context = endpoint.context_length or await asyncio.to_thread(listed_context, endpoint)
    return ModelFacts(dict(endpoint.request_fields), context)
