"""The reaper against a model of a node: whatever happens, no pod dies that may have what it has.

The model knows which pod, by its UID, has which device. The reaper is told names by a kubelet, and
is given clocks that jump, reads that fail, and pods that take the names of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from profiles import Model, limit, stateful
from reaper_world import ReaperWorld, Watching, reaping

from hardpoint._core.pods.revoked import Granted
from hardpoint.kubelet.pods import HeldResource, PodUse
from hardpoint.policies.pod_reaper import PodReaper
from hardpoint.testing.api_server import FakeApiServer

GPU = "hardpoint.dev/gpu"
DEVICES, ALLOCATIONS, NAMES = ("gpu0", "gpu1"), ("a1", "a2"), ("train", "play", "watch")

PENDING: dict[str, object] = {"phase": "Pending", "startTime": None, "containerStatuses": []}

DENIED = ("pods", "resourceclaims")

faults = st.sampled_from(("kubelet", "sources", *DENIED))
names = st.sampled_from(NAMES)
devices = st.sampled_from(DEVICES)
allocations = st.sampled_from(ALLOCATIONS)


@dataclass
class Alive:
    """A pod whose containers run, whatever the API server says of it."""

    name: str
    uid: str
    device: str = ""
    allocation: str = ""
    claim: bool = False
    revoked_at: float | None = None


class NodeModel(Model):
    """``alive`` is who runs, by UID."""

    deleted: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal())
        server = self.stack.enter_context(
            self.portal.wrap_async_context_manager(FakeApiServer(settling=0))
        )
        server.add_node("node-1")
        self.world = ReaperWorld(server)
        self.one: Watching = self._begin()
        self.alive: dict[str, Alive] = {}
        self.claims = 0
        self.seen = 0
        self.restless = self.jumped = False

    def _begin(self) -> Watching:
        self.running = ExitStack()
        context = self.portal.wrap_async_context_manager(
            reaping(self.world, PodReaper, pods_per_minute=1000)
        )
        return self.running.enter_context(context)

    def teardown(self) -> None:
        try:
            if not self.jumped:
                self._everybody_lets_go_in_the_end()
        finally:
            self.running.close()
            self.stack.close()
            super().teardown()

    @classmethod
    def said(cls) -> str:
        return f"{super().said()}, {cls.deleted} pods deleted"

    # -- what is so -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.world.clock.now()

    def _granted(self, device: str) -> str:
        return next((g.allocation for g in self.world.granted if g.device == device), "")

    def _holders(self) -> Iterator[Alive]:
        return (pod for pod in self.alive.values() if pod.device)

    def _api_uid(self, name: str) -> str:
        found = self.world.pods_there().get(name)
        return str(found["metadata"]["uid"]) if found else ""

    def _list(self) -> None:
        """Let the kubelet list who runs; it does not say devices of claims."""
        self.world.pods.listed = {
            pod.uid: PodUse(
                namespace="ns",
                name=pod.name,
                resources=(
                    HeldResource(
                        container="main",
                        resource=GPU,
                        ids=(f"{pod.device}@{pod.allocation}",),
                    ),
                )
                if pod.device and not pod.claim
                else (),
            )
            for pod in self.alive.values()
        }

    def _revoke(self, device: str, allocation: str) -> None:
        self.world.granted.discard(Granted("hardpoint.dev", device, allocation))
        for pod in self._holders():
            if (pod.device, pod.allocation) == (device, allocation):
                pod.revoked_at = self.now

    @initialize(restless=st.sampled_from((False, False, True)))
    def begin(self, restless: bool) -> None:
        """In some of the stories the agent restarts, and the node's clock is set."""
        self.restless = restless

    # -- grants -----------------------------------------------------------------------------------

    @rule(device=devices, allocation=allocations)
    def grant(self, device: str, allocation: str) -> None:
        others = {(p.device, p.allocation) for p in self._holders()} - {(device, allocation)}
        if self._granted(device) or any(other == device for other, _ in others):
            return
        self.world.grant(device, allocation)
        self.world.releases = [
            r for r in self.world.releases if (r.names, r.allocation) != ((device,), allocation)
        ]
        for pod in self._holders():
            if (pod.device, pod.allocation) == (device, allocation):
                pod.revoked_at = None

    @rule(device=devices)
    def end(self, device: str) -> None:
        allocation = self._granted(device)
        if allocation:
            self.world.revoke(device, allocation)
            self._revoke(device, allocation)

    @rule(device=devices)
    def forget(self, device: str) -> None:
        """The ledger is lost, and the grant's end with it."""
        allocation = self._granted(device)
        if allocation:
            self._revoke(device, allocation)

    @rule()
    def finish_releases(self) -> None:
        had = {(pod.device, pod.allocation) for pod in self._holders()}
        self.world.releases = [r for r in self.world.releases if (r.names[0], r.allocation) in had]

    # -- pods -------------------------------------------------------------------------------------

    @rule(name=names, device=st.sampled_from(("", *DEVICES)), claim=st.booleans())
    def start(self, name: str, device: str, claim: bool) -> None:
        """Start a pod, with a device that is granted, or is now."""
        if device:
            self.grant(device, ALLOCATIONS[self.claims % 2])
        allocation = self._granted(device) if device else ""
        taken = any(pod.device == device for pod in self._holders())
        if self._api_uid(name) or (device and (taken or not allocation)):
            return
        uid = self._make(name)
        self.alive[uid] = Alive(name, uid, device, allocation, claim and bool(device))
        if self.alive[uid].claim:
            self.claims += 1
            self.world.claim(f"claim-{self.claims}", device, allocation, pods=[(name, uid)])
        self._list()

    def _make(self, name: str, **changes: object) -> str:
        """Create a pod now: by the API server's clock, started by the node's."""
        created = self.world.wall() - self.world.jump
        return self.world.api_pod(
            name,
            born=created,
            started=self.world.wall(),
            **changes,  # type: ignore[arg-type]
        )

    @rule(name=st.sampled_from(NAMES[:1]))
    def stop(self, name: str) -> None:
        """It ends by itself, or its kubelet is done with ending it."""
        for pod in [pod for pod in self.alive.values() if pod.name == name]:
            del self.alive[pod.uid]
            self._unprepare(pod)
        if self._api_uid(name):
            self.world.server.remove("pods", name, "ns")
        self._list()

    def _unprepare(self, pod: Alive) -> None:
        self.world.records = [
            record
            for record in self.world.records
            if not pod.claim or record.device.name != pod.device
        ]

    @rule(name=names, started=st.booleans())
    def replace(self, name: str, started: bool) -> None:
        """Another pod takes the name at once; the containers of the old one go on."""
        if not self._api_uid(name):
            return
        self.world.server.remove("pods", name, "ns")
        uid = self._make(name, **({} if started else {"status": PENDING}))
        if started:
            self.alive[uid] = Alive(name, uid)
            self._list()

    # -- what goes wrong --------------------------------------------------------------------------

    @precondition(lambda self: self.restless)
    @rule(by=st.sampled_from((-7200.0, -90.0, 90.0, 7200.0)))
    def jump(self, by: float) -> None:
        self.world.jump += by
        self.jumped = True

    @precondition(lambda self: self.restless)
    @rule()
    def restart(self) -> None:
        self.running.close()
        self.one = self._begin()

    # -- looking ----------------------------------------------------------------------------------

    @rule(after=st.sampled_from((1.0, 29.0, 31.0, 61.0)), times=st.integers(1, 3))
    def time_passes(self, after: float, times: int) -> None:
        for _ in range(times):
            self.look(after)

    @rule(after=st.sampled_from((1.0, 31.0)), fault=faults)
    def look(self, after: float, fault: str = "") -> None:
        """Look, while something cannot be read or done."""
        world = self.world
        world.pods.broken = "it does not answer" * (fault == "kubelet")
        world.readable = fault != "sources"
        if fault in DENIED:
            world.server.deny("*", fault)
        self.portal.call(self.one.look, after)
        if fault in DENIED:
            world.server.allow("*", fault)
        self._check(blind=fault in ("kubelet", "sources"))

    def _check(self, *, blind: bool) -> None:
        for uid in self._deleted():
            type(self).deleted += 1
            assert not blind, "deleted after a failed read"
            pod = self.alive.get(uid)
            assert pod is not None, "deleted a pod that does not run"
            assert pod.device, "deleted a pod that has nothing"
            assert pod.revoked_at is not None, "deleted a pod that may have what it has"
            assert self.now - pod.revoked_at >= 30, "deleted before its time"

    def _deleted(self) -> list[str]:
        """Return the UIDs of what was deleted since this was asked last."""
        requests = self.world.server.requests[self.seen :]
        self.seen = len(self.world.server.requests)
        deletes = [r for r in requests if r.method == "DELETE" and r.status == 200]
        return [one.body["preconditions"]["uid"] for one in deletes]

    def _everybody_lets_go_in_the_end(self) -> None:
        for after in (1.0, 31.0, 61.0, 61.0):
            self.look(after)
        there = {one["metadata"]["uid"] for one in self.world.pods_there().values()}
        twice = [pod.name for pod in self.alive.values()]
        for pod in self._holders():
            if pod.revoked_at is not None and twice.count(pod.name) == 1:
                assert pod.uid not in there, f"{pod} was not deleted"


NodeModel.TestCase.settings = stateful(examples=40, steps=40)


@limit(120)
class TestNodeModel(NodeModel.TestCase):  # type: ignore[misc, valid-type]
    """Plays it."""
