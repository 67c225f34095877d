"""Services that are objects of a Kubernetes cluster: their manifest, whether they are ready, and what ends them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.stack.placed import note_placed, remove_note
from pytest_agentbench.backends.stack.placement import LOST, POLL, PlacedUnit
from pytest_agentbench.backends.stack.placement_spec import ManifestSpec
from pytest_agentbench.clusters.kubernetes import DELETION, Cluster
from pytest_agentbench.clusters.manifests import OWNER, label_value, labelled, name_of, read_manifests, selector, yaml_text
from pytest_agentbench.clusters.pods import Pod
from pytest_agentbench.errors import BackendError, ConfigError, MissingError
from pytest_agentbench.records import Json

SERVICE = "agentbench.io/service"  # label of the objects of one service

#: Conditions that say whether an object is ready. Other kinds of objects without any of them, such as Services, are ready at once.
READY = ("Ready", "Available")

#: API groups that Kubernetes itself defines. Objects of other groups are custom resources.
_BUILT_IN = re.compile(r"v1$|(apps|batch|autoscaling|policy)/|[\w.]+\.k8s\.io/")

_SIMPLE = ("Pod", "Job")  # kinds that are ready when their pods are


class KubernetesService(PlacedUnit):
    """One service that is a set of objects in a namespace. It can be started once.

    It is ready when all of its pods are, and when conditions of its custom resources say so. Its log has a line for each change of what it
    waits for. The logs of its pods are in a folder beside it, which is written when the service ends and for error messages.
    """

    def __init__(self, name: str, manifest: str, where: str, spec: ManifestSpec, log: Path, home: Path) -> None:
        """Creates the object; `start` creates the objects of the cluster.

        Args:
            name: Name of the service.
            manifest: The text of the manifest. Its templates have been replaced.
            where: What names the manifest in error messages.
            spec: Cluster and namespace, also without templates.
            log: The file of the log.
            home: The folder of the stack, whose name labels the objects.

        Raises:
            ConfigError: The manifest is not valid.
        """
        self.name, self.log = name, log
        self._spec, self._where, self._home = spec, where, home
        self._objects = read_manifests(manifest, where)
        self._labels = {OWNER: label_value(home.name), SERVICE: label_value(name)}
        self.command = f"kubectl create -f {spec.manifest}"
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()  # held while the cluster is asked
        self._state_read_at = 0.0  # time.monotonic() at which the state was last read
        self._queued, self._problem = "it was not created yet", ""
        self._code: int | None = None
        self._over = threading.Event()

    @property
    def _selector(self) -> str:
        return selector(self._labels)

    @property
    def _kinds(self) -> list[tuple[str, str]]:
        return [*dict.fromkeys((each["apiVersion"], each["kind"]) for each in reversed(self._objects))]

    def text(self) -> str:
        return yaml_text(labelled(each, self._labels) for each in self._objects)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        place = {"context": self._spec.context, "kubeconfig": self._spec.kubeconfig, "namespace": self._spec.namespace}
        try:
            self._cluster = Cluster(where=self._where, **place)
        except ConfigError as error:
            raise MissingError(str(error)) from error
        self.id = f"{name_of(self._objects[0])} in namespace {self._cluster.namespace}"
        note_placed(self._home, self.name, {"kubernetes": {**place, "selector": self._selector, "kinds": self._kinds}})
        self._cluster.apply(self._objects, self._labels)

    def waits(self) -> str:
        self._look()
        return self._queued

    def problem(self) -> str:
        self._look()
        return self._problem

    def exit_code(self) -> int | None:
        return self._code

    def wait(self) -> int:
        while (code := self._code) is None:
            self._over.wait(POLL)
            self._look()
        return code

    def stop(self, grace: float) -> None:
        if self._cluster is not None:
            self._save_logs()
            self._cluster.delete(self._selector, self._kinds, limit=grace + DELETION)
            self._code = LOST if self._code is None else self._code
        self._over.set()
        remove_note(self._home, self.name)

    def logs(self) -> list[Path]:
        self._save_logs()
        return [*self.log.parent.glob(self.log.name), *sorted((self.log.parent / self.name).glob("*.log"))]

    def _save_logs(self) -> None:
        try:
            problems = self._cluster.save_logs(self._selector, self.log.parent / self.name) if self._cluster is not None else []
        except BackendError as error:
            problems = [str(error)]
        for problem in problems:
            self._write(problem)

    def _look(self) -> None:
        """Asks the cluster for objects and pods, at most every POLL seconds. If it does not answer, what was known before counts."""
        with self._lock:
            if self._cluster is None or self._code is not None or time.monotonic() - self._state_read_at < POLL:
                return
            before = self._queued, self._problem
            try:
                objects = [self._created(self._cluster, each) for each in self._objects]
                pods = self._cluster.pods(self._selector)
            except BackendError as error:
                self._queued, self._problem = "", self._problem or str(error)
            else:
                self.hosts = tuple(sorted({pod.node for pod in pods if pod.node}))
                self._queued = next((f"{pod.name}: {pod.waiting}" for pod in pods if pod.waiting and not pod.node), "")
                self._problem = self._queued or why_not_ready(objects, pods, self._cluster.events)
                self._code = ending(self._objects, objects, pods)
            self._state_read_at = time.monotonic()
            if (self._queued, self._problem) != before:
                self._write(self._problem or "ready")

    def _created(self, cluster: Cluster, wanted: Json) -> Json | None:
        """Returns an object as the cluster has it now, or None if it is gone."""
        every = cluster.objects(wanted["apiVersion"], wanted["kind"], self._selector)
        return next((each for each in every if each["metadata"]["name"] == wanted["metadata"]["name"]), None)

    def _write(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}\n")


def why_not_ready(objects: Sequence[Json | None], pods: Sequence[Pod], events: Callable[[str, str], Sequence[str]]) -> str:
    """Returns why a service is not ready, or an empty string. `events` returns the newest events of an object by its kind and name."""
    unready = [pod for pod in pods if not pod.is_ready and pod.phase != "Succeeded"]
    for pod in unready:
        if reason := pod.failure or pod.waiting:
            return f"{pod.name}: {reason}"
    for each in filter(None, objects):
        if reason := _object_problem(each, has_pods=bool(pods)):
            kind, name = each["kind"], each["metadata"]["name"]
            return f"{kind} {name}: {'; '.join((reason, *list(events(kind, name))[:1]))}"
    return f"{unready[0].name} is not ready" if unready else ""


def _object_problem(each: Json, *, has_pods: bool) -> str:
    """Returns why an object is not ready, by its status, or an empty string."""
    status, spec = each.get("status") or {}, each.get("spec") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    found = [conditions[name] for name in READY if name in conditions]
    for condition in found:
        if condition.get("status") != "True":
            return f"{condition['type']} is {condition.get('status')}: {_words(condition)}"
    is_custom = not _BUILT_IN.match(each["apiVersion"])
    if is_custom and not found:
        return f"its status has no condition {' or '.join(READY)} yet"
    if each["kind"] in ("Deployment", "StatefulSet") and each["apiVersion"].startswith("apps/"):
        wanted, ready = spec.get("replicas", 1), status.get("readyReplicas") or 0
        return "" if ready >= wanted else f"{ready} of {wanted} pods are ready"
    return "it has no pod yet" if each["kind"] in _SIMPLE and not is_custom and not has_pods else ""


def _words(condition: Mapping[str, Any]) -> str:
    return " ".join(str(condition.get("message") or condition.get("reason") or "no reason").split())


def ending(wanted: Sequence[Json], objects: Sequence[Json | None], pods: Sequence[Pod]) -> int | None:
    """Returns the exit code of a service that has ended, or None. An object that something else has deleted ends it, too."""
    if None in objects:
        return LOST
    kinds = [each["kind"] for each in wanted]
    for each in filter(None, objects):
        for condition in (each.get("status") or {}).get("conditions") or ():
            if each["kind"] == "Job" and condition.get("status") == "True" and condition.get("type") in ("Failed", "Complete"):
                return int(condition["type"] == "Failed")
    if kinds.count("Pod") and (over := [pod for pod in pods if pod.phase in ("Succeeded", "Failed")]):
        return int(any(pod.phase == "Failed" for pod in over))
    return None
