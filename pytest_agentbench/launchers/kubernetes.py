"""`--agentbench-nodes=kubernetes`: node workers in the pods of a Job."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pytest_agentbench.clusters.manifests import CONTROLLER, RUN, label_value, labelled, own_labels, selector, yaml_text
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms, each_with
from pytest_agentbench.lib.config import PositiveSeconds, Spec

if TYPE_CHECKING:
    from pytest_agentbench.clusters.kubernetes import Cluster
    from pytest_agentbench.clusters.pods import Pod

NAME = "kubernetes"
CONTAINER = "worker"
TOKEN_FOLDER, TOKEN_KEY = "/run/agentbench", "token"  # where the pods have the token: a folder, and a file in it
PLACEHOLDER = "(the session's token)"
GRACE = 20  # seconds from SIGTERM to SIGKILL in which a node worker gives its rollouts back
RETRIES = 3  # times that a node worker whose pod was lost is started again
FINISHING = 10.0  # seconds that the pods get to end by themselves when the session is over
PAUSE = 0.5  # seconds between two looks at the pods at the end
MOST_REASONS = 3  # different reasons for which pods wait, in one sentence
FS_GROUP = 1000  # group that may read the token, because the user of the image is not known

#: What the session creates: apiVersion, kind.
KINDS = (("batch/v1", "Job"), ("v1", "Secret"), ("v1", "Service"))

Manifest = dict[str, Any]


class KubernetesNodes(Spec):
    """The keys of `nodes: {kubernetes: ...}`."""

    image: str = Field(description="image of the node workers, which has the project's installation; best by digest")
    nodes: int = Field(1, ge=1, description="number of node workers, each in a pod of its own")
    slots: int | None = Field(None, ge=1, description="rollouts at the same time in each pod; without it the concurrency is divided")
    namespace: str = Field("", description="namespace; without it the one of the context")
    context: str = Field("", description="context of the kubeconfig; without it the current one, or the session's service account")
    requests: dict[str, str] = Field({}, description="resources that each pod requests, such as `{cpu: '4', memory: 8Gi}`")
    limits: dict[str, str] = Field({}, description="limits of each pod; a limit of `cpu` makes timestamps late, so leave it out")
    node_selector: dict[str, str] = Field({}, description="labels that a machine needs")
    tolerations: list[dict[str, Any]] = Field([], description="taints of machines that the pods tolerate")
    service_account: str = Field("", description="service account of the pods, which get no credentials of the cluster in any case")
    env: dict[str, str] = Field({}, description="environment variables")
    secrets: list[str] = Field([], description="Secrets whose keys are environment variables of the pods, such as the backend's API key")
    image_pull_secrets: list[str] = Field([], description="Secrets for the registry of the image")
    controller: Literal["address", "service"] = Field(
        "address",
        description="how the pods reach the session: `address` is the one of `--agentbench-nodes-listen` or `-advertise`; `service` is a "
        "Service for a session that runs in a pod of the namespace",
    )
    deadline: PositiveSeconds = Field(86400.0, description="time after which the cluster ends the pods")
    ttl: PositiveSeconds = Field(600.0, description="time after its end when the cluster deletes a Job that a killed session has left")
    pod: dict[str, Any] = Field({}, description="more keys of the pods' `spec`, such as `{priorityClassName: batch}`")


class Kubernetes(Launcher):
    """Creates a Job with a pod for each node worker, a Secret with the token, and on request a Service for the session.

    Secret and Service belong to the Job. If the session is killed, the node workers end, so the Job ends, and the cluster deletes all.
    """

    settings_class = KubernetesNodes

    def __init__(self, argument: str, settings: KubernetesNodes) -> None:
        """Takes no argument. Raises ConfigError if there is one."""
        if argument:
            raise ConfigError(f"--agentbench-nodes={NAME}:{argument}: must be {NAME}; its settings are `nodes: {{{NAME}: {{image: ...}}}}`")
        self._settings, self._suffix = settings, secrets.token_hex(2)
        self._connected: Cluster | None = None
        self._labels: dict[str, str] = {}
        self._name, self._logs = "", Path()
        self._last = LaunchState()
        self._told: set[str] = set()  # failures that were shown

    def text(self, terms: WorkerTerms) -> str:
        return yaml_text(self._manifests(replace(terms, token=PLACEHOLDER)))

    def sentence(self, terms: WorkerTerms) -> str:
        settings, slots = self._settings, self._slots(terms)
        place = f" in namespace {settings.namespace}" if settings.namespace else ""
        return f"{settings.nodes} in pods of Kubernetes{place}, {each_with(slots)}"

    def check(self) -> None:
        self._cluster()
        if self._settings.controller == "service" and not os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise ConfigError(
                "nodes.kubernetes.controller is service, but this session does not run in a pod; "
                "use `controller: address` and an address that the pods reach, with --agentbench-nodes-listen"
            )

    def start(self, terms: WorkerTerms) -> None:
        cluster, self._logs = self._cluster(), terms.logs
        self._labels, self._name = own_labels(terms.session), self._job_name(terms)
        job, *others = self._manifests(terms)
        uid = cluster.apply([job], self._labels)[0]["metadata"]["uid"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": self._name, "uid": uid}
        for each in others:
            each["metadata"]["ownerReferences"] = [owner]
        cluster.apply(others, self._labels)
        if self._settings.controller == "service":
            labels = {CONTROLLER: self._name}
            cluster.merge("v1", "Pod", os.environ.get("POD_NAME") or socket.gethostname(), {"metadata": {"labels": labels}})

    def state(self) -> LaunchState:
        if not self._name:
            return LaunchState()
        try:
            pods, job = self._cluster().pods(selector(self._labels)), self._cluster().get("batch/v1", "Job", self._name)
            waiting = "" if _conditions(job).keys() & {"Complete", "Failed"} else self._waiting(pods)
            problem = next((text for text in _problems(pods, job) if text not in self._told), "")
        except BackendError as error:  # The API server may be away for a while; the rollouts go on.
            waiting, problem = self._last.waiting, str(error)
        self._told.add(problem)
        self._last = LaunchState(f"job {self._name}", waiting, problem)
        return self._last

    def stop(self) -> None:
        if not self._labels:
            return
        cluster, selected = self._cluster(), selector(self._labels)
        try:
            deadline = time.monotonic() + FINISHING
            while any(pod.phase == "Running" for pod in cluster.pods(selected)) and time.monotonic() < deadline:
                time.sleep(PAUSE)
            if problems := cluster.save_logs(selected, self._logs):
                self._logs.mkdir(parents=True, exist_ok=True)
                (self._logs / f"{NAME}.log").write_text("\n".join([*problems, ""]), encoding="utf-8")
        finally:
            cluster.delete(selected, KINDS)

    def _cluster(self) -> Cluster:
        from pytest_agentbench.clusters.kubernetes import Cluster

        if self._connected is None:
            self._connected = Cluster(context=self._settings.context, namespace=self._settings.namespace, where=f"nodes.{NAME}")
        return self._connected

    def _waiting(self, pods: Sequence[Pod]) -> str:
        """Returns why not all node workers have a machine. The text changes only when the reasons do, because each change is shown."""
        reasons = {pod.waiting for pod in pods if pod.waiting}
        if len(pods) < self._settings.nodes:
            events = self._cluster().events("Job", self._name)
            reasons.add(events[0] if events else "not created yet")
        return f"not all of {self._settings.nodes} pods run: {'; '.join(sorted(reasons)[:MOST_REASONS])}" if reasons else ""

    def _slots(self, terms: WorkerTerms) -> int:
        return self._settings.slots or terms.slots(self._settings.nodes)

    def _job_name(self, terms: WorkerTerms) -> str:
        """Returns a name that no other session has, also not another session of the same run."""
        return f"agentbench-{label_value(terms.session).lower().replace('_', '-').replace('.', '-')[:40].strip('-')}-{self._suffix}"

    def _manifests(self, terms: WorkerTerms) -> list[Manifest]:
        """Returns the Job, the Secret, and the Service if there is one, with their labels."""
        name, settings = self._job_name(terms), self._settings
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {TOKEN_KEY: terms.token}}
        objects = [secret]
        if settings.controller == "service":
            port = terms.join.rpartition(":")[2]
            spec = {"selector": {CONTROLLER: name}, "ports": [{"port": int(port) if port.isdecimal() else port}]}
            objects.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
            terms = replace(terms, join=f"{name}:{port}")
        return [labelled(each, own_labels(terms.session)) for each in (self._job(name, terms), *objects)]

    def _job(self, name: str, terms: WorkerTerms) -> Manifest:
        settings = self._settings
        spec = {
            "completionMode": "Indexed",
            "completions": settings.nodes,
            "parallelism": settings.nodes,
            "backoffLimitPerIndex": RETRIES,
            "activeDeadlineSeconds": int(settings.deadline),
            "ttlSecondsAfterFinished": int(settings.ttl),
            "podFailurePolicy": {"rules": FAILURE_RULES},
            "template": {"spec": self._pod(name, terms)},
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    def _pod(self, name: str, terms: WorkerTerms) -> Manifest:
        settings = self._settings
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        optional = {
            "serviceAccountName": settings.service_account,
            "nodeSelector": settings.node_selector,
            "tolerations": settings.tolerations,
            "imagePullSecrets": [{"name": each} for each in settings.image_pull_secrets],
        }
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"fsGroup": FS_GROUP},
            "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {RUN: label_value(terms.session)}}}],
            **{key: value for key, value in optional.items() if value},
            "containers": [self._container(terms)],
            "volumes": [{"name": TOKEN_KEY, "secret": {"secretName": name, "defaultMode": 0o400}}],
        }
        return {**spec, **settings.pod}

    def _container(self, terms: WorkerTerms) -> Manifest:
        settings = self._settings
        options = terms.options(self._slots(terms), file=f"{TOKEN_FOLDER}/{TOKEN_KEY}")
        env = [{"name": name, "value": value} for name, value in settings.env.items()]
        resources = {"requests": settings.requests, "limits": settings.limits}
        return {
            "name": CONTAINER,
            "image": settings.image,
            "command": ["agentbench", "worker", *options, "--node", "$(NODE)"],
            "env": [*env, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "envFrom": [{"secretRef": {"name": each}} for each in settings.secrets],
            "resources": {key: value for key, value in resources.items() if value},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": TOKEN_KEY, "mountPath": TOKEN_FOLDER, "readOnly": True}],
        }


#: The first rule that applies decides. A pod that is evicted ends with status 3 as well, and is started again at no cost. Otherwise 3
#: means that the session is gone, and 4 that it does not admit this node worker. Neither would change with another pod.
FAILURE_RULES = [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailIndex", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [3, 4]}},
]


def _conditions(job: Manifest) -> dict[str, Manifest]:
    """Returns the conditions of a Job that hold: their type -> the condition."""
    return {each["type"]: each for each in job.get("status", {}).get("conditions") or () if each["status"] == "True"}


def _problems(pods: Sequence[Pod], job: Manifest) -> list[str]:
    """Returns a sentence for each pod that failed, and one for the Job if it did."""
    problems = [f"pod {pod.name} failed: {pod.failure}" for pod in pods if pod.failure]
    if failed := _conditions(job).get("Failed"):
        problems.append(f"the job failed: {failed.get('reason')}: {failed.get('message')}")
    return problems
