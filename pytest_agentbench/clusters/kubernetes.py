"""Creates objects in a namespace of a Kubernetes cluster, looks at their pods, reads logs, and deletes all of them by label.

The package `kubernetes` is imported only here, when a `Cluster` is made.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pytest_agentbench.clusters.manifests import labelled, name_of
from pytest_agentbench.clusters.pods import Pod, event_texts, pod_of
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.cut_marks import beginning

INSTALL = "pip install 'pytest-agentbench[kubernetes]'"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

TIMEOUT = (10.0, 30.0)  # seconds for a connection, and between two reads of an answer
DELETION = 60.0  # seconds that objects get to be deleted; pods have a grace period of 30 s unless they say otherwise
PAUSE = 0.5  # seconds between two looks at objects that are being deleted
MOST_LOG = 50_000_000  # bytes of a container's log that are kept, from its beginning
MOST_EXPLAINED = 5  # pods whose events are read in one look, because each costs a request

#: Kinds of objects that are deleted by label unless the caller names others: apiVersion, kind.
KINDS = (
    ("batch/v1", "Job"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
)

KubernetesObject = dict[str, Any]  # an object of the API, as its JSON


class Cluster:
    """A namespace of a cluster, through the cluster's API server. Safe to use from several threads.

    Nothing is requested before the first method is called. Each request has a time limit. A method whose request fails raises
    BackendError, which names the API server and what was requested.
    """

    def __init__(self, *, context: str = "", kubeconfig: str = "", namespace: str = "", where: str = "kubernetes") -> None:
        """Reads the configuration of the client.

        Args:
            context: A context of the kubeconfig. By default the current one, or the service account of the pod in which this process runs.
            kubeconfig: A file. By default the value of KUBECONFIG, or ~/.kube/config.
            namespace: By default the one of the context or of the service account, else `default`.
            where: What the error messages begin with.

        Raises:
            ConfigError: The package `kubernetes` is not installed, or there is no usable configuration.
        """
        try:
            from kubernetes.client import ApiClient, Configuration
            from kubernetes.dynamic import DynamicClient
        except ImportError as error:
            raise ConfigError(f"{where}: needs the package kubernetes, which is not installed here: {INSTALL}") from error
        configuration = Configuration()
        configuration.retries = False
        self.user, usual = _load(configuration, context, kubeconfig, where)
        self.server = str(configuration.host)
        self.namespace = namespace or usual
        self._client = DynamicClient(ApiClient(configuration), discoverer=lambda *_: None)
        self._kinds: dict[tuple[str, str], _ObjectKind] = {}

    def apply(self, objects: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[KubernetesObject]:
        """Creates objects of any kind in this order, with these labels on them and on their pods. Returns what the server has made of them.

        If one is refused, those before it stay; `delete` removes them.

        Raises:
            BackendError: An object is refused, such as one that exists already, or one that is not in this namespace.
        """
        return [self._create(labelled(each, labels)) for each in objects]

    def _create(self, body: KubernetesObject) -> KubernetesObject:
        kind = self._kind(body["apiVersion"], body["kind"])
        other = body["metadata"].get("namespace", self.namespace)
        if not kind.is_namespaced or other != self.namespace:
            place = f"is in namespace {other}, and not in {self.namespace}" if kind.is_namespaced else "is in no namespace"
            raise BackendError(f"{name_of(body)} {place}; create it before, with `kubectl apply`")
        created: KubernetesObject = self._request("create", kind, "POST", body=body)
        return created

    def objects(self, api_version: str, kind: str, selector: str = "") -> list[KubernetesObject]:
        """Returns the objects of a kind that have labels, such as `agentbench.io/run=ID,app=worker`."""
        return self._labelled(self._kind(api_version, kind), selector)

    def get(self, api_version: str, kind: str, name: str) -> KubernetesObject:
        """Returns one object."""
        one: KubernetesObject = self._request("get", self._kind(api_version, kind), "GET", name=name)
        return one

    def merge(self, api_version: str, kind: str, name: str, changes: KubernetesObject) -> None:
        """Changes an object: mappings are merged, other values are replaced."""
        self._request("patch", self._kind(api_version, kind), "PATCH", name=name, body=changes)

    def pods(self, selector: str) -> list[Pod]:
        """Returns the pods that have labels, in the order of their names. Some of those that wait come with their newest events."""
        pods = sorted((pod_of(each) for each in self.objects("v1", "Pod", selector)), key=lambda pod: pod.name)
        waiting = [pod.name for pod in pods if pod.waiting][:MOST_EXPLAINED]
        return [pod.explained(self.events("Pod", pod.name)) if pod.name in waiting else pod for pod in pods]

    def events(self, kind: str, name: str) -> tuple[str, ...]:
        """Returns the newest events of an object, such as `FailedScheduling: 0/3 nodes are available`. The newest comes first."""
        query = {"fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        return event_texts(self._request("list", self._kind("v1", "Event"), "GET", query=query)["items"])

    def save_logs(self, selector: str, folder: Path) -> list[str]:
        """Writes the logs of all containers of pods to `folder`: POD.log, or POD-CONTAINER.log if the pod has several.

        A container that was restarted also has the log of the time before, POD-CONTAINER-previous.log. Returns a sentence for each log
        that cannot be read.
        """
        problems = []
        for pod in sorted((pod_of(each) for each in self.objects("v1", "Pod", selector)), key=lambda pod: pod.name):
            for container in pod.containers if pod.node else ():  # A pod without a node has not run.
                stem = pod.name if len(pod.containers) == 1 else f"{pod.name}-{container}"
                for name, query in [(stem, {}), (f"{stem}-previous", {"previous": "true"})][: 1 + (container in pod.restarted)]:
                    try:
                        self._save_log(pod.name, {"container": container, "limitBytes": str(MOST_LOG), **query}, folder / f"{name}.log")
                    except BackendError as error:
                        problems.append(str(error))
        return problems

    def _save_log(self, pod: str, query: Mapping[str, str], file: Path) -> None:
        with self._sentences("get", "pods/log", f"the log of container {query['container']} of pod {pod}"):
            path = f"{_ObjectKind('v1', 'Pod', 'pods').path(self.namespace, pod)}/log?{urlencode(query)}"
            answer = self._client.request("get", path, serialize=False, header_params={"Accept": "*/*"}, _request_timeout=TIMEOUT)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as written:
                    written.writelines(answer.stream(1 << 16))
            finally:
                answer.release_conn()

    def delete(self, selector: str, kinds: Sequence[tuple[str, str]] = KINDS, *, limit: float = DELETION) -> list[str]:
        """Deletes all objects of some kinds that have labels, with all that belongs to them, and waits until they are gone.

        Returns a name for each, such as `Job workers`. Kinds that the cluster does not have are skipped.

        Raises:
            BackendError: The server refuses, or objects are still there after `limit` seconds.
        """
        known = [kind for kind in (self._kind(*each, missing_ok=True) for each in kinds) if kind is not None]
        deleted: dict[str, None] = {}
        deadline = time.monotonic() + limit
        while left := [(kind, each) for kind in known for each in self._labelled(kind, selector)]:
            for kind, each in left:
                if (what := f"{kind.kind} {each['metadata']['name']}") not in deleted:
                    deleted[what] = None
                    self._delete(kind, each["metadata"]["name"])
            if time.monotonic() > deadline:
                names = ", ".join(f"{kind.kind} {each['metadata']['name']}" for kind, each in left)
                raise BackendError(
                    f"{self.server}: still there {limit:.0f} s after their deletion: {names}; see `kubectl describe` for what holds them"
                )
            time.sleep(PAUSE)
        return [*deleted]

    def _labelled(self, kind: _ObjectKind, selector: str) -> list[KubernetesObject]:
        query = {"labelSelector": selector} if selector else {}
        items: list[KubernetesObject] = self._request("list", kind, "GET", query=query)["items"]
        return items

    def _delete(self, kind: _ObjectKind, name: str) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        self._request("delete", kind, "DELETE", name=name, body=body, missing_ok=True)

    def _kind(self, api_version: str, kind: str, *, missing_ok: bool = False) -> Any:
        """Returns what the server knows of a kind. With `missing_ok`, returns None if it does not know it."""
        if known := self._kinds.get((api_version, kind)):
            return known
        group = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        with self._sentences("get", "the list of its kinds", f"the kinds of {api_version}"):
            answer = self._json("get", group, missing_ok=True)
        for each in (answer or {}).get("resources", ()):
            if each["kind"] == kind and "/" not in each["name"]:
                return self._kinds.setdefault((api_version, kind), _ObjectKind(api_version, kind, each["name"], each["namespaced"]))
        if missing_ok:
            return None
        raise BackendError(f"{self.server} has no kind {kind} of {api_version}; install what defines it, or correct apiVersion and kind")

    def _request(
        self,
        verb: str,
        kind: _ObjectKind,
        method: str,
        *,
        name: str = "",
        body: KubernetesObject | None = None,
        query: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> Any:
        path = kind.path(self.namespace, name) + (f"?{urlencode(query)}" if query else "")
        what = f"{kind.kind} {name or (body or {}).get('metadata', {}).get('name', '')}".strip()
        with self._sentences(verb, kind.plural, what):
            return self._json(method, path, body, missing_ok=missing_ok)

    def _json(self, method: str, path: str, body: KubernetesObject | None = None, *, missing_ok: bool = False) -> Any:
        from kubernetes.dynamic.exceptions import NotFoundError

        headers = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
        try:
            answer = self._client.request(method, path, body=body, serialize=False, _request_timeout=TIMEOUT, **headers)
        except NotFoundError:
            if missing_ok:
                return None
            raise
        return json.loads(answer.data)

    @contextmanager
    def _sentences(self, verb: str, plural: str, what: str) -> Iterator[None]:
        """Converts what a request raises to a BackendError."""
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise BackendError(self._refusal(verb, plural, what, error.status, _message(error.body) or str(error.reason))) from error
        except (HTTPError, OSError, ValueError, ConfigException) as error:
            reason = beginning(" ".join(str(error).split()), 300)
            raise BackendError(
                f"{self.server} cannot be asked to {verb} {what}: {type(error).__name__}: {reason}; it is the server of {self.user}"
            ) from error

    def _refusal(self, verb: str, plural: str, what: str, status: int, message: str) -> str:
        match status:
            case 401:
                return f"{self.server} refuses the token or certificate of {self.user}: {message}; it may have expired, so log in again"
            case 403:
                return (
                    f"{self.user} may not {verb} {plural} in namespace {self.namespace} of {self.server}: {message}; "
                    f"grant it the verb {verb} on {plural} with a Role"
                )
            case 404 if verb == "create":
                return f"{self.server} cannot {verb} {what} in namespace {self.namespace}: {message}; create the namespace or name another"
        return f"{self.server} refuses to {verb} {what} in namespace {self.namespace}: {message}"


class _ObjectKind:
    """A kind of objects, and where the API server has them."""

    def __init__(self, api_version: str, kind: str, plural: str, is_namespaced: bool = True) -> None:
        self.kind, self.plural, self.is_namespaced = kind, plural, is_namespaced
        self._root = f"/{'apis' if '/' in api_version else 'api'}/{api_version}"

    def path(self, namespace: str, name: str = "") -> str:
        place = f"/namespaces/{namespace}" if self.is_namespaced else ""
        return f"{self._root}{place}/{self.plural}{f'/{name}' if name else ''}"


def _load(configuration: Any, context: str, kubeconfig: str, where: str) -> tuple[str, str]:
    """Fills the configuration of a client. Returns the name of the user for messages, and the namespace that it has by default."""
    from kubernetes import config

    files = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    there = any(Path(each).expanduser().exists() for each in files.split(os.pathsep))
    try:
        if not there and not kubeconfig and not context and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(configuration)
            return "the pod's service account", (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        if not there:
            raise ConfigError(
                f"{where}: there is no file {files}; write a kubeconfig there, or name one with the variable KUBECONFIG. "
                "In a pod of the cluster, its service account is used instead"
            )
        contexts, current = config.list_kube_config_contexts(files)
        by_name = {each["name"]: each["context"] for each in contexts}
        chosen = context or current["name"]
        if chosen not in by_name:
            raise ConfigError(f"{where}: {files} has no context {chosen!r}; its contexts are {', '.join(sorted(by_name))}")
        config.load_kube_config(files, chosen, configuration, persist_config=False)
        return f"context {chosen} of {files}", by_name[chosen].get("namespace") or "default"
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = files if there else "the pod's service account"
        raise ConfigError(
            f"{where}: {what} cannot be used: {' '.join(str(error).split())}; `kubectl get pods` has to work with it"
        ) from error


def _message(body: Any) -> str:
    """Returns the sentence in the answer of an API server that refuses a request."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return beginning(str(body or ""), 300)
