"""A USB adapter that is unplugged and plugged in again under a claim that holds it."""

from __future__ import annotations

import json

import pytest
from e2e_node import ADAPTER, LIKEN, EndToEnd, plug

from hardpoint.testing.cdi import CdiError
from hardpoint.testing.kubelet import Pod, PodFailed
from hardpoint.testing.sysfs import FakeDevice


def unplug(node: EndToEnd) -> None:
    port = (node.machine.sys / "bus/usb/devices/1-8").resolve()
    FakeDevice(node.machine, port).remove()


async def _delivers(node: EndToEnd, pod: Pod, *paths: str) -> None:
    def true() -> bool:
        try:
            return sorted(node.inside(pod).paths) == list(paths)
        except CdiError:
            return False

    await node.eventually(true)


@pytest.mark.field_case("G16")
async def test_the_file_of_a_held_claim_follows_a_replug(node: EndToEnd) -> None:
    pod, uid = node.claim("zigbee", ADAPTER)
    async with node.agent() as agent:
        await node.kubelet.prepare(pod)
        assert sorted(node.inside(pod).paths) == ["/dev/bus/usb/001/002", "/dev/ttyUSB0"]

        unplug(node)
        await node.look_again(agent, lambda found: not found[ADAPTER].claimable)
        file = node.cdi / f"{LIKEN}-{uid}.json"
        await node.eventually(lambda: "device-absent" in file.read_text())
        with pytest.raises(CdiError):
            node.inside(pod)

        plug(node.machine, devnum=7, tty=3)
        await node.look_again(agent, lambda found: found[ADAPTER].claimable)
        await _delivers(node, pod, "/dev/bus/usb/001/007", "/dev/ttyUSB3")
        nodes = json.loads(file.read_text())["devices"][0]["containerEdits"]["deviceNodes"]
        numbers = {one["path"]: (one["major"], one["minor"]) for one in nodes}
        assert numbers == {"/dev/bus/usb/001/007": (189, 6), "/dev/ttyUSB3": (188, 3)}

        await node.kubelet.unprepare(pod)
        assert node.files == []


async def test_a_replug_while_the_agent_was_down_is_noticed(node: EndToEnd) -> None:
    pod, _ = node.claim("zigbee", ADAPTER)
    async with node.agent():
        await node.kubelet.prepare(pod)
    unplug(node)
    plug(node.machine, devnum=5, tty=1)
    async with node.agent():
        await _delivers(node, pod, "/dev/bus/usb/001/005", "/dev/ttyUSB1")


async def test_while_it_is_unplugged_the_claim_is_told_so(node: EndToEnd) -> None:
    pod, uid = node.claim("zigbee", ADAPTER)
    wire = [{"namespace": "default", "name": "zigbee", "uid": uid}]
    async with node.agent() as agent:
        await node.kubelet.prepare(pod)
        unplug(node)
        await node.look_again(agent, lambda found: not found[ADAPTER].claimable)

        answer = await node.kubelet.call(LIKEN, "NodePrepareResources", wire)

        assert f"device {ADAPTER} is not on the node" in answer.claims[uid].error
        await node.server.until(lambda: node.published[ADAPTER].get("taints"))
        keys = {taint["key"].rpartition("/")[2] for taint in node.published[ADAPTER]["taints"]}
        assert "absent" in keys
        await node.kubelet.unprepare(pod)
        await node.server.until(lambda: ADAPTER not in node.published)


async def test_another_model_in_the_port_is_nobody_elses(node: EndToEnd) -> None:
    pod, _ = node.claim("zigbee", ADAPTER)
    other, _ = node.claim("other", ADAPTER)
    async with node.agent() as agent:
        await node.kubelet.prepare(pod)
        unplug(node)
        await node.look_again(agent, lambda found: not found[ADAPTER].claimable)
        stick = node.machine.usb("1-8", vendor="0403", product="6001", devnum=9)
        stick.interface(0, driver="ftdi_sio").node("tty", "ttyUSB4", 188, 4)
        agent._scanner.wake.set()
        await node.eventually(lambda: any(w.rule == "other-model" for w in agent.offer.withheld))

        await _refused(node, pod)
        with pytest.raises(PodFailed):
            await node.kubelet.prepare(other)


async def test_another_device_under_the_old_numbers_is_not_delivered(node: EndToEnd) -> None:
    pod, _ = node.claim("zigbee", ADAPTER)
    async with node.agent() as agent:
        await node.kubelet.prepare(pod)
        unplug(node)
        thief = node.machine.usb("1-9", vendor="0403", product="6001", devnum=2)
        thief.interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
        await node.look_again(agent, lambda found: "usb-1-9-1-0" in found)

        await _refused(node, pod)
        plug(node.machine, devnum=3, tty=1)
        await node.look_again(agent, lambda found: found[ADAPTER].claimable)
        await _delivers(node, pod, "/dev/bus/usb/001/003", "/dev/ttyUSB1")


async def _refused(node: EndToEnd, pod: Pod) -> None:
    def true() -> bool:
        try:
            node.inside(pod)
        except CdiError:
            return True
        return False

    await node.eventually(true)
