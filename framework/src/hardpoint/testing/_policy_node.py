"""One node for the tests of a policy: GPUs of files, an agent that offers them, what is around."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import anyio

from hardpoint import hookspecs
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.contract import spec_of
from hardpoint.grants import HoldingPod, Release
from hardpoint.kube import Kube
from hardpoint.model import Allotment, Claim, ClaimKey, Device, Domain, Hold, Offered
from hardpoint.node import Node
from hardpoint.testing._frontend_node import NODE, TOKEN, short_place
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.driver_under_test import DriverUnderTest
from hardpoint.testing.gpus import FakeGpus, GpuStandIn
from hardpoint.testing.kubelet import FakeKubelet
from hardpoint.testing.sysfs import FakeMachine

DOMAIN = Domain.named("contract.test")
DRIVER = "gpus"
"""What the devices' driver is called here."""
ALLOCATION = "alloc-1"
"""An allocation that a test may grant."""
OPENABLE = (1, 7)
"""``/dev/full``, which is everywhere and which nobody has open by chance: the whole GPU's node."""
NAMESPACE, CONTAINER = "contract", "main"
_AN_HOUR = timedelta(hours=1)


class PolicyObject:
    """One object of a policy, called through the relay as the agent calls it.

    ``record`` says whether it runs: ``record.state``, and why not: ``record.reason``.
    """

    def __init__(self, node: PolicyNode, record: Plugin, plugins: Plugins) -> None:
        self.node, self.record, self._plugins = node, record, plugins

    def has(self, hook: str) -> bool:
        """Say whether the policy has this hook."""
        return callable(getattr(self.record.instance, hook, None))

    async def ask(self, hook: str, **arguments: Any) -> Any:
        """Call one hook once. Raises ``TryAgain`` or ``Refuse``, and ``HookFault`` for all else."""
        given = {"agent": self.node.agent, "holds": self.node.agent.holds()} | arguments
        error: Exception | None = None
        async with Relay(self._plugins, FaultBoard()) as relay:
            implementation = relay.implementations(hook)[self.record.id]
            spec = spec_of(getattr(hookspecs, hook))
            try:
                answer = await relay._ask(implementation, hook, "", spec, given)
            except Exception as raised:  # noqa: BLE001 - raised again outside, unwrapped
                error = raised
        if error is not None:
            raise error
        return answer

    async def serve(self, hook: str = "serve_policy", **arguments: Any) -> None:
        """Run a hook that lasts; raises what it raises."""
        method = getattr(self.record.instance, hook)
        given = {"agent": self.node.agent} | arguments
        wanted = inspect.signature(method).parameters
        await method(**{name: given[name] for name in wanted})


class PolicyNode:
    """What a policy under test is asked about. ``agent`` offers every device of ``gpus``."""

    def __init__(
        self,
        root: Path,
        server: FakeApiServer,
        kubelet: FakeKubelet,
        made: type,
        configure: Callable[[Path], Mapping[str, Any]],
    ) -> None:
        self.root, self.server, self.kubelet = root, server, kubelet
        self._made, self._configure = made, configure
        self.machine = FakeMachine(root / "machine", name=NODE)
        self.gpus = FakeGpus(self.machine)
        """One whole, one in two partitions, one in two slots; everybody may open the first."""
        self.gpus.add(numbers=OPENABLE)
        self.gpus.add(mig=2)
        self.gpus.add(slots=2)
        token = root / "token"
        token.write_text(TOKEN)
        server.require_token(TOKEN)
        self.agent = FakeAgent(
            root,
            node=self._machine_of_agent(),
            domains=[DOMAIN],
            kube=lambda: Kube.at(server.url, token),
        )
        self.agent.show(*self.offered)

    def _machine_of_agent(self) -> Node:
        node = self.machine.node(writable=True)
        node.kubelet, node.device_plugins = self.root / "kubelet", self.root / "device-plugins"
        return node

    # -- the policy -------------------------------------------------------------------------------

    def policy(self, **settings: Any) -> PolicyObject:
        """Make a new object of the policy, as the agent does when it starts."""
        record = Plugin("policy", "contract", loaded=self._made)
        plugins = Plugins([record])
        plugins.start(record, self.agent.node, {**self._configure(self.root), **settings})
        assert record.state == "running", record.reason
        return PolicyObject(self, record, plugins)

    # -- what it is asked about -------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The whole GPU, the partitions, the slots: in order of kind and name."""
        driver = DriverUnderTest(GpuStandIn, self.machine.node(writable=True))
        found = (replace(one, driver=DRIVER) for one in _scanned(driver))
        return tuple(sorted(found, key=lambda one: (one.kind, one.name)))

    @property
    def offered(self) -> tuple[Offered, ...]:
        """Them as they are offered, each under a grant of its own."""
        return tuple(
            Offered(device=one, domain=DOMAIN, allocation=allocation_of(one))
            for one in self.devices
        )

    def release(self, device: Device | None = None) -> Release:
        """Return the release of a device, the whole GPU, which leaves the offer with that."""
        chosen = device or self.devices[0]
        self.agent.show(*(one for one in self.agent.offer.devices if one.name != chosen.name))
        return Release(
            id=f"release-{chosen.name}",
            allocation=allocation_of(chosen),
            source="policy/contract",
            devices=(chosen,),
            since=time.time() - 600,
            left=time.monotonic(),
            nodes=chosen.nodes if chosen.kind == "gpu" else (),
            dra_drivers=(DOMAIN.dra_driver,),
        )

    def claim(self, device: Device, *, name: str = "claim", admin: bool = False) -> Claim:
        """Return a claim that was allocated a device."""
        key = ClaimKey(str(uuid5(NAMESPACE_DNS, name)), NAMESPACE, name, DOMAIN.dra_driver)
        allotment = Allotment(
            request="gpu",
            device=device.name,
            pool=NODE,
            admin_access=admin,
            allocation=allocation_of(device),
        )
        return Claim(key=key, allotments=(allotment,))

    def hold(self, device: Device) -> Hold:
        """Return a hold of that claim, which remembers in memory."""
        key = self.claim(device).key
        return Hold(claim=key, device=device, request="gpu", allocation=allocation_of(device))

    # -- pods -------------------------------------------------------------------------------------

    def add_pod(
        self, name: str = "train", *, node: str = NODE, born: float | None = None, **body: Any
    ) -> dict[str, Any]:
        """Create a running pod; ``born`` is in seconds since 1970, an hour ago unless said."""
        metadata = {"name": name, "namespace": NAMESPACE} | body.pop("metadata", {})
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": CONTAINER, "image": "registry.example/train"}],
        }
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.server.add({**made, "status": {"phase": "Running"}, **body})
        at = datetime.now(UTC) - _AN_HOUR if born is None else datetime.fromtimestamp(born, UTC)

        def age(pod: dict[str, Any]) -> None:
            pod["metadata"]["creationTimestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")

        self.server.edit("pods", name, NAMESPACE).change(age)
        return self.server.get("pods", name, NAMESPACE)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods that are there and not being deleted, by UID."""
        found = (one["metadata"] | {"pod": one} for one in self.server.items("pods"))
        return {m["uid"]: m["pod"] for m in found if "deletionTimestamp" not in m}

    def deletes(self) -> list[Any]:
        """Return every request to delete something, in order, answered or not."""
        return [seen for seen in self.server.requests if seen.method == "DELETE"]

    def holding(
        self,
        pod: Mapping[str, Any],
        still_holds: Callable[[], Awaitable[bool]],
        *,
        uids: tuple[str, ...] = (),
    ) -> HoldingPod:
        """Return a pod as the agent names one that has what it must not have."""
        metadata = pod["metadata"]
        return HoldingPod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            devices=(self.devices[0].name,),
            since=time.time() - 300,
            uids=uids,
            still_holds=still_holds,
        )

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait until something is true, wherever it is to be seen. Raises ``TimeoutError``."""
        with anyio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - files and other processes set no Event
                await anyio.sleep(0.01)


def allocation_of(device: Device) -> str:
    """Return the allocation under which a device is offered."""
    return f"alloc-{device.name}"


def _scanned(driver: DriverUnderTest) -> tuple[Device, ...]:
    """Walk without the relay, which would want a loop of its own."""
    found = driver.record.instance.publish_devices()
    return tuple(one for one in found if isinstance(one, Device))


@asynccontextmanager
async def policy_node(
    made: type, configure: Callable[[Path], Mapping[str, Any]] = lambda root: {}
) -> AsyncIterator[PolicyNode]:
    """Start a kubelet and an API server in a directory short enough for unix sockets."""
    root = Path(tempfile.mkdtemp(prefix="hp-", dir=short_place()))
    try:
        async with (
            FakeApiServer() as server,
            FakeKubelet(root / "kubelet", device_plugins=root / "device-plugins") as kubelet,
        ):
            server.add_node(NODE)
            yield PolicyNode(root, server, kubelet, made, configure)
    finally:
        shutil.rmtree(root, ignore_errors=True)
