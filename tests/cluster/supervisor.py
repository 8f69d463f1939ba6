"""The first process of a cluster: starts its parts, waits for them, and does as it is told.

It speaks one JSON line each way on the socket ``control``: ``{"do": "kill", "part": "n0-kubelet"}``
is answered with what is so then, or with ``{"error": …}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import network, plan
from cluster.keeper import hierarchies
from cluster.plan import Plan

PATIENCE = 600.0
_NODE = """
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/kubelet
mount --bind "$1/kubelet" /var/lib/kubelet
mount -t tmpfs tmpfs /var/log
if [ -d "$1/dev" ]; then
  mkdir "$1/own"
  mount -t tmpfs -o mode=755 tmpfs "$1/own"
  for old in /dev/*; do
    new="$1/own/${old#/dev/}"
    if [ -d "$old" ] && [ ! -L "$old" ]; then mkdir "$new"; mount --rbind "$old" "$new"
    else cp -a "$old" "$new"; fi
  done
  for more in "$1/dev"/*/; do
    new="$1/own/$(basename "$more")"
    mkdir -p "$new"
    mount --bind "$more" "$new"
  done
  mount --rbind "$1/own" /dev
fi
mount --make-rshared /
touch "$1/ready"
exec sleep 2147483647
"""
"""A node's mount namespace. The device plugin directory is /var/lib/kubelet/… whatever --root-dir
says; a tmpfs above it spares the host an empty directory. Logs of pods lie below /var/log,
where each kubelet removes what is of no pod of its own: those of other nodes and other clusters. A
node with a directory ``dev`` has its directories in /dev, for what is given by path alone."""


class Part:
    """A program of the cluster, with its log."""

    def __init__(self, name: str, words: list[str], log: Path, path: str = "") -> None:
        self.name = name
        self._words, self._log = words, log
        self._environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process and self.running else 0

    def start(self) -> None:
        if self.running:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
            )

    def stop(self, how: int) -> None:
        if self._process is None or not self.running:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(5)  # an API server waits for its watchers
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Supervisor:
    """Owns the parts by name: ``etcd``, ``kube-apiserver``, …, ``n0-kubelet``."""

    def __init__(self, planned: Plan) -> None:
        self.plan = planned
        self.parts: dict[str, Part] = {}
        self.times: dict[str, float] = {}
        self._start = time.monotonic()
        self._tokens = {user: secrets.token_hex(16) for user in plan.users(_ALL_NODES)}
        self._tls = ssl._create_unverified_context()

    # -- the whole --------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything; return once the nodes are ready."""
        network.loopback_up()
        self.plan.at("logs").mkdir()
        self._accounts()
        first = [threading.Thread(target=self._runtime, args=[n]) for n in self.plan.nodes]
        for thread in first:
            thread.start()
        self._control_plane()
        for thread in first:
            thread.join()
        for node in self.plan.nodes:
            self._kubelet(node)

    def add_node(self, node: str) -> None:
        self._runtime(node)
        self._kubelet(node)

    def reboot(self, node: str) -> None:
        """End all that runs on a node and lose what a reboot loses; then start it again.

        /run (runtime state, CDI files) is a tmpfs on real nodes; the kubelet's and the runtime's
        directories below /var/lib stay.
        """
        kubelet, runtime = self.parts[f"{node}-kubelet"], self.parts[f"{node}-containerd"]
        kubelet.stop(signal.SIGKILL)
        runtime.stop(signal.SIGKILL)
        self._end_processes(node)
        for name in ("run", "cdi"):
            _emptied(self.plan.at(node, name))
        runtime.start()
        self._until(f"{node} runtime", lambda: self._runtime_answers(node), runtime)
        kubelet.start()

    # -- the control plane ------------------------------------------------------------------------

    def _accounts(self) -> None:
        """Write tokens, the key of service accounts, a kubeconfig each, and the audit policy."""
        pki = self.plan.at("pki")
        pki.mkdir(mode=0o700)
        users = plan.users(_ALL_NODES)
        lines = [f'{self._tokens[u]},{name},{u},"{group}"\n' for u, (name, group) in users.items()]
        (pki / "tokens.csv").write_text("".join(lines))
        key, public = pki / "accounts.key", pki / "accounts.pub"
        curve = ("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        _quiet("openssl", *curve, "-out", str(key))
        _quiet("openssl", "ec", "-in", str(key), "-pubout", "-out", str(public))
        for user, token in self._tokens.items():
            text = plan.kubeconfig(self.plan, user, token)
            self.plan.at(f"{user}.kubeconfig").write_text(text)
        outside = plan.kubeconfig(
            self.plan, plan.SUPERUSER, self._tokens[plan.SUPERUSER], self.plan.outside
        )
        self.plan.at("kubeconfig").write_text(outside)
        self.plan.at("audit-policy.json").write_text(json.dumps(plan.audit_policy()))

    def _control_plane(self) -> None:
        store = self._part("etcd", plan.etcd(self.plan))
        self._until("etcd", _etcd_healthy, store)
        server = self._part("kube-apiserver", plan.apiserver(self.plan))
        self._until("kube-apiserver", lambda: self._answers("/readyz"), server)
        # The roles of the parts below are written after it says that it is ready.
        self._until("roles", lambda: self._answers(_LAST_ROLE), server)
        self._part("kube-controller-manager", plan.controller_manager(self.plan))
        self._part("kube-scheduler", plan.scheduler(self.plan))
        self._until("accounts", lambda: self._answers(_FIRST_ACCOUNT), server)

    def _answers(self, path: str) -> bool:
        return self._get(path) is not None

    def _get(self, path: str) -> bytes | None:
        request = urllib.request.Request(
            f"https://127.0.0.1:{plan.API_PORT}{path}",
            headers={"Authorization": f"Bearer {self._tokens[plan.SUPERUSER]}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=self._tls) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    # -- nodes ------------------------------------------------------------------------------------

    def _runtime(self, node: str) -> None:
        """Make a node's directories, cgroup, address and namespace, and start its containerd."""
        planned, home = self.plan, self.plan.at(node)
        for name in ("kubelet/device-plugins", "run", "cdi", "cni", "etc-cdi", "static"):
            (home / name).mkdir(parents=True, exist_ok=name in ("etc-cdi", "static"))
        for hierarchy in hierarchies():
            (hierarchy / plan.cgroup(planned, node)).mkdir()
        network.add_address(plan.address(node), int(node.removeprefix("n")))
        (home / "containerd.toml").write_text(plan.containerd(planned, node))
        (home / "cni/pods.conflist").write_text(json.dumps(plan.pod_network(planned, node)))
        (home / "kubelet.json").write_text(json.dumps(plan.kubelet_configuration(planned, node)))
        private = ["unshare", "--mount", "--propagation", "private"]
        holder = self._part(f"{node}-namespace", [*private, "sh", "-ec", _NODE, "node", str(home)])
        self._until(f"{node} namespace", (home / "ready").exists, holder)
        words = [f"{planned.tools}/containerd", "--config", str(home / "containerd.toml")]
        runtime = self._part(f"{node}-containerd", [*self._inside(node), *words])
        self._until(f"{node} containerd", lambda: self._runtime_answers(node), runtime)
        _quiet(*self._ctr(node), "-n", "k8s.io", "images", "import", "--local", planned.images)
        self._mark(f"{node} images")

    def _kubelet(self, node: str) -> None:
        words = [*self._inside(node), *plan.kubelet(self.plan, node)]
        part = self._part(f"{node}-kubelet", words)
        self._until(f"{node} ready", lambda: self._node_ready(node), part)

    def _inside(self, node: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.parts[f'{node}-namespace'].pid}/ns/mnt"]

    def _ctr(self, node: str) -> list[str]:
        return [
            f"{self.plan.tools}/ctr",
            "--address",
            str(self.plan.at(node, "run/containerd.sock")),
        ]

    def _runtime_answers(self, node: str) -> bool:
        if not self.plan.at(node, "run/containerd.sock").exists():
            return False
        return subprocess.run([*self._ctr(node), "version"], capture_output=True).returncode == 0

    def _node_ready(self, node: str) -> bool:
        found = self._get(f"/api/v1/nodes/{node}")
        status = json.loads(found)["status"] if found else {}
        return any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in status.get("conditions", ())
        )

    def _end_processes(self, node: str) -> None:
        """Kill what runs in a node's pods, and the shims beside its runtime."""
        keep = self.parts[f"{node}-namespace"].pid
        mounts = os.readlink(f"/proc/{keep}/ns/mnt")
        group = plan.cgroup(self.plan, node)
        while pids := [p for p in _pids() if p != keep and _belongs(p, mounts, group)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    # -- parts ------------------------------------------------------------------------------------

    def _part(self, name: str, words: list[str]) -> Part:
        log = self.plan.at("logs", f"{name}.log")
        part = self.parts[name] = Part(name, words, log, path=self.plan.tools)
        part.start()
        return part

    def _mark(self, what: str) -> None:
        self.times[what] = round(time.monotonic() - self._start, 2)

    def _until(self, what: str, true: Callable[[], bool], part: Part) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if not part.running:
                raise RuntimeError(f"{part.name} ended: see its log")
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not after {PATIENCE:.0f} s")
            time.sleep(0.05)
        self._mark(what)

    # -- what it is told --------------------------------------------------------------------------

    def obey(self, order: dict[str, Any]) -> Any:
        verb, name = order["do"], order.get("part", "")
        if verb == "parts":
            return {part.name: part.pid for part in self.parts.values()}
        if verb in ("add-node", "reboot"):
            (self.add_node if verb == "add-node" else self.reboot)(name)
            return None
        part = self.parts[name]
        if verb in ("stop", "restart"):
            part.stop(signal.SIGTERM)
        if verb in ("kill", "crash"):
            part.stop(signal.SIGKILL)
        if verb in ("start", "restart", "crash"):
            part.start()
        return part.pid

    def reap(self) -> None:
        """Wait for orphans: shims and what ran in pods. ``Popen`` waits for its own."""
        own = {part.pid for part in self.parts.values()}
        for pid in _pids():
            with contextlib.suppress(OSError, ValueError):
                state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
                if (state, parent) == ("Z", "1") and pid not in own:
                    os.waitpid(pid, os.WNOHANG)


_ALL_NODES = tuple(f"n{number}" for number in range(plan.MOST_NODES))
_LAST_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:node-proxier"
_FIRST_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


def _etcd_healthy() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:2379/health", timeout=2) as answer:
            return bool(json.load(answer).get("health") == "true")
    except (OSError, ValueError):
        return False


def _quiet(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _belongs(pid: int, mounts: str, group: str) -> bool:
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == mounts:
            return True
        return f"/{group}/" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _emptied(directory: Path) -> None:
    """Remove what is in a directory, mounts in it first."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = sorted((m for m in mounts if m.startswith(f"{directory}/")), reverse=True)
    for each in below:
        _quiet("umount", "--lazy", each)
    _quiet("find", str(directory), "-mindepth", "1", "-xdev", "-delete")


def _serve(supervisor: Supervisor, control: socket.socket) -> None:
    while True:
        connection, _ = control.accept()
        with connection, connection.makefile("rw") as lines:
            try:
                answer = {"is": supervisor.obey(json.loads(lines.readline()))}
            except Exception as error:  # noqa: BLE001 - the cluster must not end for a bad order
                traceback.print_exc()
                answer = {"error": str(error) or repr(error)}
            with contextlib.suppress(OSError):
                lines.write(json.dumps(answer) + "\n")


def main(state: str, door: int) -> None:
    supervisor = Supervisor(Plan.load(state))
    outcome: dict[str, Any] = {}
    try:
        supervisor.up()
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        traceback.print_exc()
        outcome["error"] = str(error)
    outcome["times"] = supervisor.times
    inner = ("127.0.0.1", plan.API_PORT)
    entrance = socket.socket(fileno=door)
    threading.Thread(target=network.serve_door, args=[entrance, inner], daemon=True).start()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(supervisor.plan.at("control")))
        control.listen()
        threading.Thread(target=_serve, args=[supervisor, control], daemon=True).start()
        supervisor.plan.at("outcome.new").write_text(json.dumps(outcome))
        supervisor.plan.at("outcome.new").rename(supervisor.plan.at("outcome"))
        while "error" not in outcome:
            supervisor.reap()
            time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
