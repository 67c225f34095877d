"""What the status of a Kubernetes pod says: its phase, why it waits or failed, and its newest events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_agentbench.lib.cut_marks import beginning

MOST_EVENTS = 3  # newest events of an object that are shown
MOST_TEXT = 300  # characters of a message that are shown


@dataclass(frozen=True)
class Pod:
    """A pod as its API server describes it."""

    name: str
    phase: str  # Pending, Running, Succeeded, Failed or Unknown
    node: str  # empty if it has none yet
    is_ready: bool
    waiting: str  # why it does not run yet, such as `Unschedulable: 0/3 nodes are available`; empty if it runs or has ended
    failure: str  # why it failed, such as `Evicted: ...` or `worker ended with exit status 4 (Error)`; empty if it has not
    containers: tuple[str, ...]  # also those that run before the others
    restarted: frozenset[str]  # containers that have been restarted
    labels: Mapping[str, str]
    events: tuple[str, ...] = ()  # the newest first; only of pods that wait

    def explained(self, events: tuple[str, ...]) -> Pod:
        """Returns the pod with its events. The newest explains a wait for which the status has no reason."""
        return replace(self, events=events, waiting=events[0] if events and self.waiting == self.phase else self.waiting)


def pod_of(body: Mapping[str, Any]) -> Pod:
    """Reads a pod from its JSON."""
    spec, status, metadata = body.get("spec") or {}, body.get("status") or {}, body["metadata"]
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    phase = status.get("phase") or "Pending"
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    return Pod(
        name=metadata["name"],
        phase=phase,
        node=spec.get("nodeName") or "",
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        waiting=_waiting(phase, conditions, statuses),
        failure=_failure(status, statuses) if phase == "Failed" else "",
        containers=tuple(each["name"] for each in [*(spec.get("initContainers") or ()), *spec["containers"]]),
        restarted=frozenset(each["name"] for each in statuses if each.get("restartCount")),
        labels=metadata.get("labels") or {},
    )


def _waiting(phase: str, conditions: Mapping[str, Mapping[str, Any]], statuses: Iterable[Mapping[str, Any]]) -> str:
    if phase in ("Succeeded", "Failed"):
        return ""
    for each in statuses:
        if reason := (each.get("state") or {}).get("waiting"):
            return _text(reason.get("reason", "waiting"), reason.get("message"))
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _text(scheduled.get("reason", "not scheduled"), scheduled.get("message"))
    return phase if phase in ("Pending", "Unknown") else ""


def _failure(status: Mapping[str, Any], statuses: Iterable[Mapping[str, Any]]) -> str:
    if status.get("reason"):
        return _text(status["reason"], status.get("message"))
    return "; ".join(_ends(statuses)) or _text("Failed", status.get("message"))


def _ends(statuses: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for each in statuses:
        end = (each.get("state") or {}).get("terminated")
        if end and end.get("exitCode"):
            text = f"container {each['name']} ended with exit status {end['exitCode']} ({end.get('reason', 'no reason')})"
            yield _text(text, end.get("message"))


def event_texts(events: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns `REASON: MESSAGE` of the newest events, without repetitions. The newest comes first."""
    ordered = sorted(events, key=_time, reverse=True)
    return tuple(dict.fromkeys(_text(each.get("reason") or "event", each.get("message")) for each in ordered))[:MOST_EVENTS]


def _time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return str(next(filter(None, times), ""))


def _text(reason: str, message: str | None) -> str:
    return f"{reason}: {beginning(' '.join(message.split()), MOST_TEXT)}" if message else reason
