"""The bcd seed by configuration alone: the settings of the page, an agent, and the seed's names.

What a control plane, pods and admins of that system know things by is what they find: resources,
ids, variables, CDI names, the slice, labels, conditions, and how a node is asked for.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from plain_plugin import Plugin as DevicePlugin
from tutorial import blocks

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.grants import releases
from hardpoint._core.offline import start_plugins
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.pods.absence import Pace
from hardpoint.grants import tag
from hardpoint.policies.node_status import keeping
from hardpoint.settings import load
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.gpus import FakeGpus, GpuStandIn
from hardpoint.testing.kubelet import Container, FakeKubelet, Pod, PodFailed
from hardpoint.testing.sysfs import FakeMachine

pytestmark = pytest.mark.timeout(90)

NODE, DRIVER = "node-1", "gpu.bcd.dev"
GPU, MIG, SLOT = "bcd.dev/gpu", "bcd.dev/gpu.mig", "bcd.dev/gpu.slot"
RIVAL = "nvidia.com/gpu"
TAINT = {"key": "example.com/gpu", "value": "reserved", "effect": "NoSchedule"}
_SETTINGS, _NAMES = blocks("howto/grants.md", "toml")[1:3]
WHOLE = _SETTINGS.replace('"cdi_grants", ', '"cdi_grants", "drain", "node_status", ', 1) + _NAMES
"""The page's two blocks as one file, with the policies of the second."""


class Seed:
    """One node of the seed's: GPUs, its cluster, and a control plane that a test plays."""

    def __init__(self, root: Path, server: FakeApiServer, kubelet: FakeKubelet) -> None:
        self.root, self.server, self.kubelet = root, server, kubelet
        self.holds = root / "etc-cdi"
        machine = FakeMachine(root / "machine")
        (machine.proc / "2").mkdir(parents=True)
        (machine.proc / "2/comm").write_text("kthreadd\n")
        self.gpus = FakeGpus(machine)
        self.whole, self.cut, self.shared = (
            self.gpus.add(),
            self.gpus.add(mig=2),
            self.gpus.add(slots=2),
        )
        (root / "hardpoint.toml").write_text(WHOLE)

    @asynccontextmanager
    async def agent(self, frontend: str) -> AsyncIterator[HardpointAgent]:
        """Run an agent on the page's settings; directories and times are the test's."""
        settings = load(
            environment={
                "HARDPOINT_CONFIG": str(self.root / "hardpoint.toml"),
                "HARDPOINT_NODE_NAME": NODE,
                "HARDPOINT_DRIVERS": "[]",
                "HARDPOINT_FRONTENDS": frontend,
                "HARDPOINT_KUBE__URL": self.server.url,
                "HARDPOINT_PATHS__STATE": str(self.root / "state"),
                "HARDPOINT_PATHS__CDI": str(self.root / "cdi"),
                "HARDPOINT_PATHS__KUBELET": str(self.root / "kubelet"),
                "HARDPOINT_PATHS__DEVICE_PLUGINS": str(self.root / "kubelet/device-plugins"),
                "HARDPOINT_POLICY__CDI_GRANTS__DIRECTORY": str(self.holds),
                "HARDPOINT_POLICY__EXCLUSIVE_SOURCE__EVERY": "1",
                "HARDPOINT_POLICY__EXCLUSIVE_SOURCE__RETURN_AFTER": "0",
                "HARDPOINT_POLICY__NODE_STATUS__NODE_ID": "node_01k",
                "HARDPOINT_POLICY__NODE_STATUS__SITE": "site_01k",
                "HARDPOINT_POLICY__NODE_STATUS__TAINTS": '["example.com/gpu=reserved:NoSchedule"]',
                "HARDPOINT_POLICY__POD_REAPER__FIRST_AFTER_S": "1",
                "HARDPOINT_POLICY__POD_RESOURCES__SETTLE": "0.5",
            }
        )
        node = self.gpus.machine.node(writable=True)
        node.name = NODE
        plugins = start_plugins(settings, node)
        driver = Plugin("driver", "acme_gpu", loaded=GpuStandIn)
        plugins.all.append(driver)
        plugins.start(driver, node, {})
        assert not [one for one in plugins.all if one.state in ("refused", "missing")]
        pace = Pace(every=0.5, apart=0.2, margin=0.5, settle=0.5)
        agent = HardpointAgent(settings, node, events=False, plugins=plugins, pace=pace)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(20):
                await agent.started.wait()
            yield agent
            tasks.cancel_scope.cancel()

    # -- what the control plane does and reads ----------------------------------------------------

    def bind(self, allocation: str, *devices: str) -> None:
        """Write a hold as the seed's daemon does: by another name first."""
        edits = {"env": ["BCD_BOUND=1"]}
        document = {
            "cdiVersion": "0.6.0",
            "kind": "bcd.dev/gpu",
            "annotations": {"bcd.dev/binding": "kubernetes"},
            "devices": [{"name": one, "containerEdits": edits} for one in devices],
        }
        self.put(allocation, json.dumps(document))

    def put(self, allocation: str, content: str) -> None:
        temporary = self.holds / ".new"
        temporary.write_text(content)
        temporary.rename(self.holds / f"bcd-{allocation}.json")

    def release(self, allocation: str) -> None:
        (self.holds / f"bcd-{allocation}.json").unlink()

    def report(self, allocation: str) -> dict[str, Any]:
        file = self.root / f"state/grants/{allocation}.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    # -- what the cluster shows -------------------------------------------------------------------

    @property
    def node(self) -> dict[str, Any]:
        return self.server.get("nodes", NODE)

    @property
    def labels(self) -> dict[str, str]:
        return self.node["metadata"].get("labels") or {}

    def condition(self, type_: str) -> dict[str, str]:
        """Status, reason and message of a condition of the Node; empty where it never was."""
        listed = (self.node.get("status") or {}).get("conditions") or ()
        return next((one for one in listed if one["type"] == type_), {})

    def is_so(self, type_: str, reason: str) -> bool:
        found = self.condition(type_)
        return (found.get("status"), found.get("reason")) == ("True", reason)

    def is_over(self, type_: str) -> bool:
        return self.condition(type_).get("status") == "False"

    def listed(self) -> set[str]:
        """Every healthy id of the seed's resources."""
        return {
            id_
            for resource in (GPU, MIG, SLOT)
            for id_, one in self.kubelet.listed(resource).items()
            if one.health == "Healthy"
        }

    def show(self, name: str, **spec: Any) -> Pod:
        """Let the API server have a pod that has run for long; return the kubelet's side of it."""
        made = self.server.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Running", "startTime": "2020-01-01T00:00:00Z"},
            }
        )
        return Pod(name=name, uid=str(made["metadata"]["uid"]), **spec)

    def deleted(self, name: str) -> int | None:
        """Return the grace with which a pod is to end; None where it is not."""
        found = next(p for p in self.server.items("pods") if p["metadata"]["name"] == name)
        grace: int | None = found["metadata"].get("deletionGracePeriodSeconds")
        return grace

    def end(self, pod: Pod) -> None:
        self.kubelet.end(pod)
        self.server.remove("pods", pod.name, "default")

    async def until(self, what: str, true: Callable[[], Any]) -> None:
        with anyio.move_on_after(20) as waiting:
            while not true():  # noqa: ASYNC110 - files and another's socket set no Event
                await anyio.sleep(0.02)
        assert not waiting.cancelled_caught, f"{what}: {self.node}"


@pytest.fixture
async def seed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seed]:
    monkeypatch.setattr(releases, "STUCK_AFTER", 1.0)
    monkeypatch.setattr(keeping, "Pace", partial(keeping.Pace, gap=0.1, settle=0.5))
    (short_path / "etc-cdi").mkdir()

    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one for one in server.items("resourceclaims") if one["metadata"]["name"] == name)
        return next(found, None)

    async with (
        FakeApiServer() as server,
        FakeKubelet(
            short_path / "kubelet",
            get_claim=get_claim,
            cdi=(short_path / "etc-cdi", short_path / "cdi"),
            device_plugins=short_path / "kubelet/device-plugins",
        ) as kubelet,
    ):
        server.add_node(NODE)
        yield Seed(short_path, server, kubelet)


# -- the node -------------------------------------------------------------------------------------


async def test_the_node_has_the_seeds_labels_and_its_taints_drift_is_said(seed: Seed) -> None:
    async with seed.agent("deviceplugin"):
        await seed.until("labels", lambda: "bcd.dev/gpu.count" in seed.labels)
        assert {k: v for k, v in seed.labels.items() if "bc" in k} == {
            "bcd.dev/node-id": "node_01k",
            "bcd.dev/site": "site_01k",
            "bcd.dev/gpu.count": "3",
            "bcd.dev/gpu.product": "Acme-G100-80GB",
            "bcd.dev/gpu.driver": "570.86.15",
            "bc.dev/cap.binding.kubernetes": "true",
        }
        await seed.until("drift", lambda: seed.is_so("KubernetesTaintsDrift", "TaintsDiffer"))
        command = f"kubectl taint node {NODE} --overwrite example.com/gpu=reserved:NoSchedule"
        assert command in seed.condition("KubernetesTaintsDrift")["message"]

        seed.server.edit("nodes", NODE).change(lambda node: node.update(spec={"taints": [TAINT]}))
        await seed.until("no drift", lambda: seed.is_over("KubernetesTaintsDrift"))


async def test_a_node_is_handed_back_by_the_seeds_annotation(seed: Seed) -> None:
    def annotated(node: dict[str, Any], asked: bool) -> None:
        notes = node["metadata"].setdefault("annotations", {})
        notes.pop("bcd.dev/drain", None)
        if asked:
            notes["bcd.dev/drain"] = ""

    seed.bind("a1", seed.whole.name)
    async with seed.agent("deviceplugin"):
        await seed.until("offered", lambda: seed.listed() == {f"{seed.whole.name}@a1"})
        seed.server.edit("nodes", NODE).change(lambda node: annotated(node, True))

        await seed.until("released", lambda: seed.is_so("KubernetesReleased", "Drained"))
        assert seed.node["spec"]["unschedulable"] is True
        assert "bcd.dev/cordoned" in seed.node["metadata"]["annotations"]
        assert seed.listed() == set()

        seed.server.edit("nodes", NODE).change(lambda node: annotated(node, False))
        await seed.until("back", lambda: seed.listed() == {f"{seed.whole.name}@a1"})
        await seed.until("over", lambda: seed.is_over("KubernetesReleased"))
        await seed.until("uncordoned", lambda: not seed.node["spec"].get("unschedulable"))


# -- the device plugin ----------------------------------------------------------------------------


async def test_each_class_is_a_resource_and_a_pod_is_told_its_allocation(seed: Seed) -> None:
    parts = {GPU: [seed.whole.name], MIG: seed.cut.parts, SLOT: seed.shared.parts}
    async with seed.agent("deviceplugin"):
        for number, devices in enumerate(parts.values()):
            seed.bind(f"a{number}", *devices)
        for number, (resource, devices) in enumerate(parts.items()):
            await seed.kubelet.until_allocatable(resource, len(devices))
            assert {*seed.kubelet.listed(resource)} == {f"{one}@a{number}" for one in devices}

        wants = {GPU: 1, MIG: 2}
        pod = seed.show("train", containers=(Container(name="main", resources=wants),))
        given = await seed.kubelet.admit(pod)
        names = {name for one in given for name in one.cdi_ids}
        assert {f"bcd.dev/gpu={one}" for one in (*parts[GPU], *parts[MIG])} <= names
        (said,) = {one.response.envs["BCD_ALLOCATION_IDS"] for one in given if one.resource == GPU}
        assert said == "a0"
        assert {one.response.annotations["bcd.dev/allocation-ids"] for one in given} == {"a0", "a1"}
        inside = await seed.kubelet.run(pod)
        assert not [one for one in inside.env if one.startswith("NVIDIA_VISIBLE_DEVICES")]
        assert seed.report("a0")["outcome"] == "in-force"


async def test_another_source_of_gpus_withdraws_all_with_the_seeds_condition(seed: Seed) -> None:
    rival = DevicePlugin(seed.root / "kubelet/device-plugins", "GPU-1", resource=RIVAL)
    async with seed.agent("deviceplugin") as agent, rival.serving():
        await seed.until("exposed", lambda: seed.is_so("ForeignGpuExposure", "OtherGpuPath"))
        seed.bind("a1", seed.whole.name)
        await seed.until("bound", lambda: seed.report("a1"))
        assert "devicePlugin.enabled=false" in seed.condition("ForeignGpuExposure")["message"]
        assert agent.offer.devices == ()
        assert seed.listed() == set()

        rival.tell()
        await seed.until("offered", lambda: seed.listed() == {f"{seed.whole.name}@a1"})
        await seed.until("over", lambda: seed.is_over("ForeignGpuExposure"))


async def test_a_release_is_reported_once_its_pod_is_gone_and_is_stuck_till_then(
    seed: Seed,
) -> None:
    device = seed.whole.name
    seed.bind("a1", device)
    seed.bind("a2", *seed.shared.parts)  # one that goes on
    async with seed.agent("deviceplugin") as agent:
        await seed.kubelet.until_allocatable(GPU, 1)
        pod = seed.show("train", containers=(Container(name="main", resources={GPU: 1}),))
        await seed.kubelet.admit(pod)
        await seed.until("held", lambda: agent.holds())

        seed.put("x", "{")  # nobody is deleted after a failed read of the holds
        await seed.until("unread", lambda: agent.policies.granting.known is False)
        seed.release("a1")
        await seed.until("stuck", lambda: seed.is_so("KubernetesReleaseStuck", "PodsHoldDevices"))
        message = seed.condition("KubernetesReleaseStuck")["message"]
        assert "a1" in message
        assert device in message
        await anyio.sleep(2.5)  # more than a pod is left, were the holds read
        assert seed.deleted("train") is None
        seed.release("x")
        await seed.until("reaped", lambda: seed.deleted("train") == 10)
        assert "released" not in seed.report("a1")
        with pytest.raises(PodFailed):
            await seed.kubelet.admit(
                Pod(name="next", containers=(Container(name="main", resources={GPU: 1}),))
            )

        seed.end(pod)
        await seed.until("reported", lambda: seed.report("a1").get("released"))
        await seed.until("over", lambda: seed.is_over("KubernetesReleaseStuck"))


async def test_what_cannot_be_known_is_said_by_the_seeds_conditions(seed: Seed) -> None:
    seed.bind("a1", seed.whole.name)
    async with seed.agent("deviceplugin"):
        await seed.kubelet.until_allocatable(GPU, 1)
        pod = seed.show("train", containers=(Container(name="main", resources={GPU: 1}),))
        await seed.kubelet.admit(pod)
    ledger = seed.root / "state/ledger.db"
    ledger.write_bytes(b"\0" * 4096)
    seed.release("a1")

    async with seed.agent("deviceplugin"):
        unreadable = "KubernetesReleasesUnreadable"
        await seed.until("lost", lambda: seed.is_so(unreadable, "ReleasesFileUnreadable"))
        assert f"{seed.root}/state/releases.unreadable" in seed.condition(unreadable)["message"]
        assert [one.read_bytes() for one in ledger.parent.glob("ledger.db.*")].count(b"\0" * 4096)
        assert (ledger.parent / "releases.unreadable").exists()

        seed.end(pod)
        await seed.until("it clears by itself", lambda: seed.is_over(unreadable))
        assert not (ledger.parent / "releases.unreadable").exists()

        seed.bind("a2", seed.whole.name)
        await seed.kubelet.until_allocatable(GPU, 1)
        (seed.root / "kubelet/pod-resources/kubelet.sock").unlink()
        silent = "PodResourcesUnavailable"
        await seed.until(silent, lambda: seed.condition(silent).get("status") == "True")


# -- DRA ------------------------------------------------------------------------------------------


def _slices(seed: Seed) -> list[dict[str, Any]]:
    return [one for one in seed.server.items("resourceslices") if one["spec"]["driver"] == DRIVER]


def _claim(seed: Seed, name: str, device: str, **more: Any) -> Pod:
    request = {"name": "r", "exactly": {"deviceClassName": "any", **more}}
    seed.server.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    pod = seed.show(f"pod-of-{name}", claims=(name,))
    result = {"request": "r", "driver": DRIVER, "pool": NODE, "device": device, **more}
    reserved = [{"resource": "pods", "name": pod.name, "uid": pod.identity}]
    seed.server.allocate("default", name, [result], reserved_for=reserved)
    return pod


async def test_the_slice_and_its_claims_are_the_seeds(seed: Seed) -> None:
    device = seed.whole.name
    seed.bind("a1", device)
    async with seed.agent("dra"):
        published = f"{device}-{tag('a1')}"
        await seed.until("slice", lambda: _slices(seed) and _slices(seed)[0]["spec"].get("devices"))
        (one,) = _slices(seed)
        assert one["metadata"]["name"] == f"{NODE}-{DRIVER}"
        assert (one["spec"]["nodeName"], one["spec"]["pool"]["name"]) == (NODE, NODE)
        (listed,) = one["spec"]["devices"]
        assert listed["name"] == published
        said = {name: next(iter(value.values())) for name, value in listed["attributes"].items()}
        assert (
            said.items()
            >= {
                "uuid": seed.whole.uuid,
                "class": "gpu",
                "allocation": "a1",
                "visibleDevice": seed.whole.uuid,
                "numaNode": 0,
            }.items()
        )
        assert (seed.root / f"kubelet/plugins_registry/{DRIVER}-reg.sock").exists()

        seed.whole.fail("xid 48")
        await seed.until("it leaves while it is ill", lambda: _slices(seed) == [])
        seed.whole.mend()
        await seed.until("it comes back", lambda: len(_slices(seed)) == 1)
        pod = _claim(seed, "c1", published)
        (prepared,) = await seed.kubelet.prepare(pod)
        assert f"bcd.dev/gpu={device}" in prepared.cdi_ids
        assert "BCD_ALLOCATION_IDS=a1" in seed.kubelet.inject(pod).env
        with pytest.raises(PodFailed, match="default/c1"):
            await seed.kubelet.prepare(_claim(seed, "c2", published))
        with pytest.raises(PodFailed, match="admin access"):
            await seed.kubelet.prepare(_claim(seed, "c3", published, adminAccess=True))

        seed.release("a1")
        await seed.until("no slice", lambda: _slices(seed) == [])
        await seed.until("reaped", lambda: seed.deleted(pod.name) == 10)
        assert "released" not in seed.report("a1")
        await seed.kubelet.unprepare(pod)
        seed.end(pod)
        await seed.until("reported", lambda: seed.report("a1").get("released"))


async def test_another_dra_driver_of_gpus_withdraws_the_slice(seed: Seed) -> None:
    seed.bind("a1", seed.whole.name)
    seed.server.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "theirs"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        }
    )
    async with seed.agent("dra") as agent:
        await seed.until("exposed", lambda: seed.is_so("ForeignGpuExposure", "OtherGpuPath"))
        assert "gpu.nvidia.com" in seed.condition("ForeignGpuExposure")["message"]
        assert agent.offer.devices == ()
        assert _slices(seed) == []
