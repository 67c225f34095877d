"""The ids and labels with which a stack identifies rollouts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.tap.routing_hints import CHAT, NO_LABEL, Label, Release, make_labels, merged, new_id, run_prefix, worker_in

KEY = RolloutKey("banking", "banking-017", "rethinking", 2)
URL = "http://127.0.0.1:8000/v1"


def test_ids() -> None:
    """An id names its rollout, is unique to one attempt, and begins with the prefix of its run."""
    ids = {new_id(run_prefix("20260101-120000"), KEY) for _ in range(100)}

    assert 100 == len(ids)
    assert [] == [id for id in ids if not re.fullmatch(r"20260101-120000:banking-rethinking\.banking-017\.2:[0-9a-f]{8}", id)]


@pytest.mark.parametrize("text", ["", "a/b c", "\N{OWL}\n", "x" * 500, "null\0", "a:b", '"{}"'])
def test_ids_of_odd_names(text: str) -> None:
    """For any names of run, suite and scenario, ids are not empty, not too long, and have only allowed characters."""
    for id in (new_id(run_prefix(text), RolloutKey("s", "x")), new_id(run_prefix("r"), RolloutKey(text, text, text, 10**9))):
        assert re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", id)
        assert re.search(r":[0-9a-f]{8}$", id)
    of_role = new_id(run_prefix(text), RolloutKey("s" * 200, "x"), text or "judge")
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", of_role)
    assert re.search(r":[0-9a-f]{8}-[^:]{1}", of_role)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, NO_LABEL),
        ({"kind": "none", "priority": None}, NO_LABEL),
        ({"kind": "thunderagent"}, Label({}, {"program_id": "i"}, CHAT, usage_once=True)),
        (
            {"kind": "thunderagent", "job": True},
            Label({}, {"program_id": "i", "job_id": "i", "is_last_step": False}, CHAT, usage_once=True),
        ),
        ({"kind": "thunderagent", "trace": "/x/step_profiles.csv"}, Label({}, {"program_id": "i"}, CHAT, usage_once=True)),
    ],
)
def test_labels(options: Json, label: Label) -> None:
    """ThunderAgent's label is in the fields of Chat Completions only, and has no headers."""
    assert label == make_labels(options).label("i")


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"headers": ["x-session-id", "x-smg-routing-key"]}, Label({"x-session-id": "i", "x-smg-routing-key": "i"})),
        ({"fields": ["user"]}, Label({}, {"user": "i"})),
        (
            {"headers": ["x-a"], "fields": ["vllm_xargs.agentic_context.program_id", "vllm_xargs.x", "user"]},
            Label({"x-a": "i"}, {"vllm_xargs": {"agentic_context": {"program_id": "i"}, "x": "i"}, "user": "i"}),
        ),
    ],
)
def test_labels_of_any_router(options: Json, label: Label) -> None:
    """A session's id is in the named headers and fields. Dots in the name of a field make nested objects. Nothing is released."""
    labels = make_labels({"kind": "session", **options})

    assert label == labels.label("i")
    assert None is labels.release(URL, "m", "i")


@pytest.mark.parametrize(
    ("options", "hints"),
    [
        ({}, {}),
        ({"priority": None, "osl": None}, {}),
        ({"priority": 0, "osl": 64}, {"agent_hints": {"priority": 0, "osl": 64}}),
        ({"osl": 64, "speculative_prefill": True}, {"agent_hints": {"osl": 64}}),
        ({"processor": True, "osl": 64}, {"extra_fields": ["worker_id", "timing", "engine_data"], "agent_hints": {"osl": 64}}),
    ],
)
def test_labels_of_dynamo(options: Json, hints: Json) -> None:
    """The session is a header of each call. Requested fields and hints are in the bodies of APIs that allow them.

    Test calls at a boot ask for no second request, because an engine might count it as one of the session.
    """
    label = make_labels({"kind": "dynamo", **options}).label("i")
    nvext = {"nvext": {"extra_fields": ["worker_id", "timing"], **hints}}

    assert {"x-dynamo-session-id": "i"} == label.headers
    assert nvext == label.fields


@pytest.mark.parametrize(
    ("nvext", "worker"),
    [
        ({"worker_id": 1, "engine_data": {"worker_id": 2}}, 2),
        ({"worker_id": 1, "engine_data": {"other": 2}}, 1),
        ({"worker_id": 1, "engine_data": None}, 1),
        ({}, None),
    ],
)
def test_the_worker_in_an_answer(nvext: Json, worker: int | None) -> None:
    """If a component stands between frontend and workers, the worker that it names counts, and not the component."""
    assert worker == worker_in(nvext)


def test_releases() -> None:
    """ThunderAgent has a URL for releases. Dynamo gets an additional call, but only if the router handles it."""
    final = make_labels({"kind": "dynamo", "release": True}).release(URL, "m", "i")

    assert Release("http://127.0.0.1:8000/programs/release", {"program_id": "i"}) == make_labels({"kind": "thunderagent"}).release(
        URL, "m", "i"
    )
    assert None is make_labels({}).release(URL, "m", "i")
    assert None is make_labels({"kind": "dynamo"}).release(URL, "m", "i")
    assert final is not None
    assert ({"x-dynamo-session-id": "i", "x-dynamo-session-final": "true"}, "m", 1) == (
        final.headers,
        final.body["model"],
        final.body["max_tokens"],
    )


def test_an_unknown_kind() -> None:
    """A backend from a hook may request labels that do not exist, which is an error."""
    with pytest.raises(
        ConfigError, match=r"labels: no kind 'dynamic' .did you mean 'dynamo'..; known: dynamo, none, recording, session, thunderagent"
    ):
        make_labels({"kind": "dynamic"})


@pytest.mark.parametrize(
    ("own", "together"),
    [
        ({}, {"nvext": {"extra_fields": ["worker_id"], "agent_hints": {"osl": 5}}}),
        ({"nvext": None}, {"nvext": {"extra_fields": ["worker_id"], "agent_hints": {"osl": 5}}}),
        ({"nvext": 5}, {"nvext": 5}),
        (
            {"nvext": {"agent_hints": {"osl": 7, "priority": 1}, "greed_sampling": True}},
            {"nvext": {"agent_hints": {"osl": 7, "priority": 1}, "greed_sampling": True, "extra_fields": ["worker_id"]}},
        ),
        (
            {"nvext": {"extra_fields": ["timing", "worker_id"], "agent_hints": {}}},
            {"nvext": {"extra_fields": ["timing", "worker_id"], "agent_hints": {"osl": 5}}},
        ),
        ({"nvext": {"extra_fields": "all"}}, {"nvext": {"extra_fields": "all", "agent_hints": {"osl": 5}}}),
    ],
)
def test_merging(own: Json, together: Json) -> None:
    """Values of the agent are kept, and lists get the missing items."""
    fields: Any = {"nvext": {"extra_fields": ["worker_id"], "agent_hints": {"osl": 5}}}
    before = repr(fields)

    assert {"model": "m", **together} == merged({"model": "m", **own}, fields)
    assert before == repr(fields)


@pytest.mark.parametrize(
    ("own", "id"), [({}, "i"), ({"program_id": None}, "i"), ({"program_id": ""}, "i"), ({"program_id": "mine"}, "mine")]
)
def test_no_call_is_of_a_program_without_a_name(own: Json, id: str) -> None:
    """A router takes null for a program, and cannot release an empty name, so the label replaces both."""
    assert {"model": "m", "program_id": id} == merged({"model": "m", **own}, {"program_id": "i"})
