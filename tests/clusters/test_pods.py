"""The status of a pod becomes a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.clusters.pods import event_texts, pod_of


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "worker"}]}, "status": status}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "worker", "restartCount": 0, "state": state}]


@pytest.mark.parametrize(
    ("status", "waiting", "failure"),
    [
        ({}, "Pending", ""),
        ({"phase": "Running", "containerStatuses": container(running={})}, "", ""),
        (
            {"phase": "Pending", "containerStatuses": container(waiting={"reason": "ImagePullBackOff", "message": "Back-off\n pulling x"})},
            "ImagePullBackOff: Back-off pulling x",
            "",
        ),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]},
            "Unschedulable: 0/3",
            "",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}, "", "Evicted: The node was low on memory."),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 4, "reason": "Error"})},
            "",
            "container worker ended with exit status 4 (Error)",
        ),
        ({"phase": "Failed"}, "", "Failed"),
        ({"phase": "Succeeded"}, "", ""),
    ],
)
def test_why_a_pod_waits_or_failed(status: dict[str, Any], waiting: str, failure: str) -> None:
    """The reason comes from the containers, the scheduler, the pod itself, or the exit status."""
    found = pod_of(pod(**status))

    assert (waiting, failure) == (found.waiting, found.failure)


def test_the_newest_events_come_first() -> None:
    """Events with three kinds of times are put in order, and a repeated one is shown once."""
    events = [
        {"metadata": {"creationTimestamp": "2026-01-01T00:00:01Z"}, "reason": "Scheduled", "message": "on n1"},
        {"metadata": {}, "lastTimestamp": "2026-01-01T00:00:03Z", "reason": "Failed", "message": "no image"},
        {"metadata": {}, "eventTime": "2026-01-01T00:00:02.000000Z", "reason": "Failed", "message": "no image"},
        {"metadata": {}, "series": {"lastObservedTime": "2026-01-01T00:00:04Z"}, "reason": "BackOff"},
    ]

    assert ("BackOff", "Failed: no image", "Scheduled: on n1") == event_texts(events)
    assert "BackOff" == pod_of(pod()).explained(event_texts(events)).waiting
