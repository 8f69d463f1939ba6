"""What users and administrators see: the API server through the official client, as superuser.

The agent speaks to it by another client, so this one is an independent witness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from cluster.waiting import PATIENCE, Never, until
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

Json = dict[str, Any]
RESOURCES = "resource.k8s.io/v1"


class Witness:
    """The whole API server. Objects are plain dictionaries, as in YAML."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client: Any = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self._dynamic: Any = dynamic.DynamicClient(  # type: ignore[no-untyped-call]
            self._client, cache_file=str(kubeconfig.with_suffix(".discovery"))
        )
        self.core = client.CoreV1Api(self._client)

    def close(self) -> None:
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    def kind(self, kind: str, version: str = "") -> Any:
        """Return the dynamic client of a kind: ``kind("DeviceClass")``."""
        return self._dynamic.resources.get(api_version=version or _VERSIONS[kind], kind=kind)

    def create(self, body: Json, namespace: str | None = None) -> Json:
        found = self.kind(body["kind"], body["apiVersion"])
        made: Json = found.create(body=body, namespace=namespace).to_dict()
        return made

    def apply(self, manifests: str, namespace: str | None = None) -> list[Json]:
        """Create every object of a YAML text, as ``kubectl apply`` would the first time."""
        return [
            self.create(body, body["metadata"].get("namespace") or namespace)
            for body in yaml.safe_load_all(manifests)
            if body
        ]

    def get(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        try:
            found: Json = self.kind(kind).get(name=name, namespace=namespace).to_dict()
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return found

    def items(self, kind: str, namespace: str | None = None, **selectors: str) -> list[Json]:
        found = self.kind(kind).get(namespace=namespace, **selectors)
        items: list[Json] = found.to_dict()["items"]
        return items

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        try:
            self.kind(kind).delete(name=name, namespace=namespace, body={"kind": "DeleteOptions"})
        except ApiException as error:
            if error.status != 404:
                raise

    def patch(self, kind: str, name: str, body: Json, namespace: str | None = None) -> Json:
        merge = "application/merge-patch+json"
        found = self.kind(kind).patch(name=name, namespace=namespace, body=body, content_type=merge)
        changed: Json = found.to_dict()
        return changed

    def ask(self, method: str, path: str, body: Json | None = None) -> str:
        """Return what a path answers, as text: also of a kubelet, through its node's proxy."""
        return str(self._dynamic.request(method, path, body=body, serialize=False).data.decode())

    # -- devices ----------------------------------------------------------------------------------

    def slices(self, driver: str, node: str = "n0") -> list[Json]:
        found = self.items("ResourceSlice")
        return [
            one
            for one in found
            if one["spec"]["driver"] == driver and one["spec"].get("nodeName") == node
        ]

    def devices(self, driver: str, node: str = "n0") -> dict[str, Json]:
        """Return every published device of a node, by name."""
        slices = self.slices(driver, node)
        return {d["name"]: d for one in slices for d in one["spec"].get("devices") or ()}

    def namespace(self, name: str) -> Namespace:
        """Make a namespace, ready to take pods."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        until("its service account", lambda: self.get("ServiceAccount", "default", name))
        return Namespace(self, name)


class Namespace:
    """A namespace: what one test, or one step of the guide, makes and looks at."""

    def __init__(self, witness: Witness, name: str) -> None:
        self.witness, self.name = witness, name

    def apply(self, manifests: str) -> list[Json]:
        return self.witness.apply(manifests, self.name)

    def create(self, body: Json) -> Json:
        return self.witness.create(body, self.name)

    def claim(self, name: str) -> Json:
        found = self.witness.get("ResourceClaim", name, self.name)
        assert found is not None, f"no claim {name}"
        return found

    def allocated(self, name: str) -> list[str]:
        """Return the devices that a claim was allocated."""
        allocation = self.claim(name).get("status", {}).get("allocation") or {}
        return [one["device"] for one in allocation.get("devices", {}).get("results", ())]

    def delete(self, kind: str, name: str) -> None:
        self.witness.delete(kind, name, self.name)

    # -- pods -------------------------------------------------------------------------------------

    def pods(self, app: str = "") -> list[Json]:
        """Return pods, those of one Deployment (label ``app``) or all, the oldest first."""
        select = {"label_selector": f"app={app}"} if app else {}
        found = self.witness.items("Pod", self.name, **select)
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], _name(pod)))

    def pod(self, name: str) -> Json:
        found = self.witness.get("Pod", name, self.name)
        assert found is not None, f"no pod {name}"
        return found

    def until_running(self, *names: str, patience: float = PATIENCE) -> None:
        """Wait until pods run. Raises ``Never`` at once for one that has failed for good."""

        def look(name: str) -> bool:
            if (found := self.pod(name))["status"].get("phase") == "Failed":
                raise Never(f"{name} failed")
            return _runs(found)

        for name in names:
            self._until(name, "running", partial(look, name), patience)

    def until_app_runs(self, app: str, pods: int = 1) -> list[str]:
        """Wait until so many pods of a Deployment run, and no other is left; return their names."""

        def look() -> list[str]:
            found = self.pods(app)
            return [_name(p) for p in found] if [_runs(p) for p in found] == [True] * pods else []

        return until(f"{pods} pods of {app} run", look)

    def until_says(self, pod: str, sentence: str, patience: float = PATIENCE) -> str:
        """Wait for an event of a pod with these words; return its whole message."""

        def look() -> str:
            return next((said for said in self.events(pod) if sentence in said), "")

        return str(self._until(pod, f"event {sentence!r}", look, patience))

    def until_gone(self, *names: str) -> None:
        for name in names:
            gone = lambda name=name: self.witness.get("Pod", name, self.name) is None  # noqa: E731
            self._until(name, "gone", gone)

    def delete_pods(self, *names: str) -> None:
        for name in names:
            self.delete("Pod", name)
        self.until_gone(*names)

    def events(self, pod: str) -> list[str]:
        chosen = {"field_selector": f"involvedObject.name={pod}"}
        found = self.witness.items("Event", self.name, **chosen)
        return [f"{one['reason']}: {one.get('message', '')}" for one in found]

    def log(self, pod: str, container: str = "c") -> str:
        text: str = self.witness.core.read_namespaced_pod_log(pod, self.name, container=container)
        return text

    def run(self, pod: str, *words: str, container: str = "c") -> str:
        """Run a command in a container (``kubectl exec``); return what it says on both streams."""
        line: Any = stream(
            self.witness.core.connect_get_namespaced_pod_exec,
            pod,
            self.name,
            command=list(words),
            container=container,
            stdin=False,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,  # else nobody closes its socket
        )
        try:
            line.run_forever(timeout=PATIENCE)
            return str(line.read_all())
        finally:
            if (socket := line.sock.sock) is not None:
                socket.close()  # its own close() does nothing once the server has closed

    def health(self, pod: str) -> dict[str, str]:
        """Return what a pod's status says of its devices: resource id to health."""
        statuses = self.pod(pod).get("status", {}).get("containerStatuses") or ()
        return {
            resource["resourceID"]: resource.get("health", "")
            for status in statuses
            for allocated in status.get("allocatedResourcesStatus") or ()
            for resource in allocated.get("resources") or ()
        }

    def clear(self) -> None:
        """Remove all that a test made, and wait until no pod holds anything."""
        for kind in ("Deployment", "DaemonSet", "ReplicaSet", "Pod"):
            for one in self.witness.items(kind, self.name):
                self.delete(kind, _name(one))
        until(f"no pods in {self.name}", lambda: not self.pods())
        for one in self.witness.items("ResourceClaim", self.name):
            self.delete("ResourceClaim", _name(one))
        until("no claims", lambda: not self.witness.items("ResourceClaim", self.name))
        self.witness.delete("Namespace", self.name)

    def _until(self, pod: str, what: str, look: Any, patience: float = PATIENCE) -> Any:
        try:
            return until(f"{pod} {what}", look, patience)
        except Never as never:
            said = "\n".join(self.events(pod))
            found = self.witness.get("Pod", pod, self.name)
            status = json.dumps(found["status"] if found else None, indent=1)
            raise Never(f"{never}\n{said}\n{status}") from None


_VERSIONS: Mapping[str, str] = {
    **dict.fromkeys(("Pod", "Node", "Event", "Namespace", "ServiceAccount"), "v1"),
    **dict.fromkeys(("Deployment", "DaemonSet", "ReplicaSet"), "apps/v1"),
    **dict.fromkeys(
        ("ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"), RESOURCES
    ),
    "DeviceTaintRule": "resource.k8s.io/v1",
}


def _name(body: Json) -> str:
    return str(body["metadata"]["name"])


def _runs(pod: Json) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    status = pod.get("status", {})
    return status.get("phase") == "Running" and all(
        one.get("ready") for one in status.get("containerStatuses") or ()
    )
