"""Figures of Hardpoint on a real node, and the same on the test kit's fake servers.

``make bench-cluster`` prints a table and writes build/bench-cluster.json. The machine has one GPU
and forty serial adapters. Run it when nothing else runs: all of Kubernetes shares the processors.
"""

from __future__ import annotations

import json
import os
import ssl
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
from cluster import bench_fakes, pods
from cluster.agent import AgentProcess, agent_on, grant_role
from cluster.bench_rows import (
    Calls,
    Json,
    Report,
    calls,
    durable_writes,
    load,
    memory,
    now,
    processes,
    processor_seconds,
    ready_since,
)
from cluster.machine import kernel_event, lay_nodes, trees
from cluster.node import CannotRun, Cluster, check_machine, own_directory
from cluster.programs import release
from cluster.waiting import until
from cluster.witness import Namespace, Witness

from hardpoint.testing.sysfs import FakeMachine

DOMAIN = "hardpoint.dev"
ADAPTERS = 40
OF_THE_GPU = 2
"""Devices: its render node and its display."""
SLICES = f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver={DOMAIN}"
SERVING, REGISTERED = b"serving node=", b"registered driver="


def machine(root: Path) -> FakeMachine:
    """Return the machine: what five of the Go example driver's nodes would publish."""
    made = FakeMachine(root)
    (made.proc / "2").mkdir()
    (made.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen
    gpu = made.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128, connectors=("HDMI-A-1",))
    for number in range(ADAPTERS):
        plug(made, number)
    lay_nodes(made)
    return made


def plug(made: FakeMachine, number: int) -> None:
    port = f"{number // 14 + 1}-{number % 14 + 1}"
    stick = made.usb(port, vendor="0403", product="6001", serial=f"S{number}", devnum=number + 2)
    line = stick.interface(0, klass="ff", driver="ftdi_sio")
    line.node("tty", f"ttyUSB{number}", 188, number)


class Seen:
    """What a watch of the API server has told, each with the moment it came."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Json]] = []

    def first(self, true: Callable[[Json], bool], since: float = 0.0) -> float:
        """Wait for the first event of which something is true; return its moment."""

        def look() -> float:
            found = (at for at, event in list(self.events) if at >= since and true(event))
            return next(found, 0.0)

        return until("a change at the API server", look)


@contextmanager
def watching(cluster: Cluster, path: str) -> Iterator[Seen]:
    """Follow a collection from now on, in a thread."""
    user = json.loads(cluster.kubeconfig.read_text())["users"][0]["user"]
    glue = "&" if "?" in path else "?"
    request = urllib.request.Request(
        f"{cluster.server}{path}{glue}watch=true",
        headers={"Authorization": f"Bearer {user['token']}"},
    )
    trust = ssl.create_default_context(cafile=str(cluster.authority))
    answer = urllib.request.urlopen(request, context=trust, timeout=3600)
    seen = Seen()

    def read() -> None:
        try:
            while line := answer.readline():
                seen.events.append((now(), json.loads(line)))
        except (OSError, ValueError, AttributeError):
            return  # closed below

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        answer.fp.raw._sock.shutdown(2)
        thread.join(10)
        answer.close()


def devices(event: Json) -> set[str]:
    found = event["object"]["spec"].get("devices") or ()
    return set() if event["type"] == "DELETED" else {one["name"] for one in found}


class Bench:
    """The node, its machine and its agent."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self.cluster, self.report = cluster, report
        self.witness = Witness(cluster.kubeconfig)
        self.machine = machine(cluster.state / "machine")
        self.plugged = ADAPTERS
        grant_role(self.witness)
        self.witness.create(
            pods.device_class(
                "adapter",
                f"device.driver == '{DOMAIN}' && device.attributes['{DOMAIN}'].kind == 'usb'",
            )
        )
        settings = trees(self.machine.root) | {"HARDPOINT_DOMAIN": DOMAIN}
        self.agent: AgentProcess = agent_on(cluster, self.witness, "n0", settings)
        self.namespace: Namespace = self.witness.namespace("bench")

    def close(self) -> None:
        self.agent.stop()
        self.witness.close()

    # -- starting ---------------------------------------------------------------------------------

    def starts(self, times: int = 5) -> None:
        """Start on a node that has no slice of ours."""
        serving, registered, visible = [], [], []
        for _ in range(times):
            self.agent.kill()
            for one in self.witness.slices(DOMAIN):
                self.witness.delete("ResourceSlice", one["metadata"]["name"])
            with watching(self.cluster, SLICES) as seen:
                began, ready, known = self._start()
                shown = seen.first(partial(_shows, self.plugged + OF_THE_GPU), began)
                serving.append(ready - began)
                registered.append(known - ready)
                visible.append((shown - began, shown - known))
        self.report.spread("start to serving, interpreter's start included", serving)
        self.report.spread(
            "serving to registered, by a kubelet that looks once a second", registered
        )
        self.report.spread("registered to slice visible", [after for _, after in visible])
        self.report.spread("start to slice visible, all of that", [whole for whole, _ in visible])

    def restarts(self, times: int = 5) -> None:
        """Kill it and start it again; its slices stand."""
        took = []
        for _ in range(times):
            self.agent.kill()
            began, _, known = self._start()
            took.append(known - began)
        self.report.spread("restart to registered again", took)

    def _start(self) -> tuple[float, float, float]:
        """Start it; return when that was, when it served, and when the kubelet had taken it."""
        log = self.agent.log
        offset = log.stat().st_size if log.exists() else 0
        moments = [now()]
        self.agent.start()
        for words in (SERVING, REGISTERED):
            while not ready_since(log, offset, words):
                time.sleep(0.005)
            moments.append(now())
        began, serving, known = moments
        return began, serving, known

    # -- events -----------------------------------------------------------------------------------

    def events(self, times: int = 5) -> None:
        """Plug devices in; the kernel's event is the last that a plug causes."""
        took = []
        with watching(self.cluster, SLICES) as seen:
            for _ in range(times):
                time.sleep(1.5)
                plug(self.machine, self.plugged)
                self.plugged += 1
                lay_nodes(self.machine)
                began, wanted = now(), self.plugged + OF_THE_GPU
                kernel_event()
                took.append(seen.first(partial(_shows, wanted), began) - began)
        self.report.spread("uevent to slice visible, 100 ms of settling included", took, bound=250)

    # -- pods -------------------------------------------------------------------------------------

    def one_after_another(self, times: int = 8) -> None:
        """Start and end pods one by one, each with an adapter, and the same without."""
        before = self._counted()
        took: dict[bool, list[float]] = {True: [], False: []}
        with watching(self.cluster, f"/api/v1/namespaces/{self.namespace.name}/pods") as seen:
            for number in range(times):
                for using in (True, False):
                    name = f"{'with' if using else 'without'}-{number}"
                    took[using].append(self._run(seen, [name], using=using))
                    self._end([name])
        self.report.spread("pod created to Running, with a device", took[True])
        self.report.spread("pod created to Running, without", took[False])
        extra = statistics.median(took[True]) - statistics.median(took[False])
        self.report.add("what the device costs the pod", extra * 1000, "ms")
        self._tell(f"{times} pods one after another", before)

    def at_once(self, count: int = 30) -> None:
        """Start and end many pods in one moment, each with an adapter, and the same without."""
        for using in (True, False):
            before = self._counted()
            names = [f"{'many' if using else 'bare'}-{number}" for number in range(count)]
            with watching(self.cluster, f"/api/v1/namespaces/{self.namespace.name}/pods") as seen:
                took = self._run(seen, names, using=using)
            self._end(names)
            what = "with a device each" if using else "without"
            self.report.add(f"{count} pods at once to Running, {what}", took, "s")
            if using:
                self._tell(f"{count} pods at once", before)

    def _run(self, seen: Seen, names: list[str], *, using: bool) -> float:
        """Create pods and return after how many seconds the last of them runs."""
        if using:
            for name in names:
                self.namespace.create(pods.claim(name, adapter="adapter"))
        bodies = [pods.pod(name, {"own": name} if using else {}) for name in names]
        began = now()
        for body in bodies:
            self.namespace.create(body)
        return max(seen.first(partial(_runs, name), began) for name in names) - began

    def _end(self, names: list[str]) -> None:
        self.namespace.delete_pods(*names)
        for name in names:
            self.namespace.delete("ResourceClaim", name)

    def _counted(self) -> dict[str, Calls]:
        named = {"prepare": "NodePrepareResources", "unprepare": "NodeUnprepareResources"}
        return {what: calls(self.witness, DOMAIN, method) for what, method in named.items()}

    def _tell(self, when: str, before: dict[str, Calls]) -> None:
        for what, found in self._counted().items():
            new = found.since(before[what])
            mean = new.seconds / new.count * 1000 if new.count else float("nan")
            self.report.add(f"{what}, the kubelet's mean, {when}", mean, "ms")
            for share in (0.5, 0.95, 1.0):
                value = new.bucket(share) * 1000
                self.report.add(f"{what}, {share:.0%} of calls within, {when}", value, "ms")

    # -- at rest ----------------------------------------------------------------------------------

    def at_rest(self, seconds: float = 15.0) -> None:
        """Say what everything costs while nothing happens."""
        time.sleep(5)
        busy = processor_seconds(self.agent.pid)
        time.sleep(seconds)
        used = (processor_seconds(self.agent.pid) - busy) / seconds * 100
        self.report.add("agent, processor idle", used, "% of a core", 0.2)
        self._memory("agent", [self.agent.pid], bound=64)
        for name, pids in sorted(processes(self.cluster.state).items()):
            if name.startswith(("kube", "etcd", "containerd")):
                self._memory(name, pids)

    def _memory(self, name: str, pids: list[int], bound: float | None = None) -> None:
        both = [memory(pid) for pid in pids]
        self.report.add(f"{name}, RSS idle", sum(rss for rss, _ in both), "MiB", bound)
        self.report.add(f"{name}, PSS idle", sum(pss for _, pss in both), "MiB")


def _shows(count: int, event: Json) -> bool:
    return len(devices(event)) == count


def _runs(name: str, event: Json) -> bool:
    found = event["object"]
    status = found.get("status", {})
    ready = all(one.get("ready") for one in status.get("containerStatuses") or ())
    return bool(found["metadata"]["name"] == name and status.get("phase") == "Running" and ready)


def real(report: Report) -> None:
    wanted = release(os.environ.get("KUBERNETES", ""))
    with own_directory() as state, Cluster.up(state, wanted) as cluster:
        report.head(f"real node: Kubernetes {wanted.emulate or wanted.version}")
        report.add("cluster's start to node ready", cluster.times["n0 ready"], "s")
        bench = Bench(cluster, report)
        try:
            bench.starts()
            bench.restarts()
            bench.events()
            bench.at_rest()
            bench.one_after_another()
            bench.at_once()
        finally:
            bench.close()


def main() -> int:
    """Measure and print; 1 where a bound is missed, 2 where no cluster can run."""
    report = Report()
    report.head(f"this machine: {os.cpu_count()} processors")
    report.add("processes that wanted to run in the minute before", load(), "")
    try:
        check_machine()
    except CannotRun as error:
        sys.stderr.write(f"no cluster here: {error}\n")
        return 2
    with own_directory() as state:
        report.spread("three durable writes of this disk", durable_writes(state))
    real(report)
    with own_directory() as state:
        report.head("fake servers: the test kit's, in this process")
        anyio.run(bench_fakes.measure, state, report)
    report.head("this machine: after")
    report.add("processes that wanted to run in the last minute", load(), "")
    report.write()
    return 0 if all(row.ok for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
