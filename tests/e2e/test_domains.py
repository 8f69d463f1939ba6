"""What devices are published under, set for all drivers, for one, and name by name."""

from __future__ import annotations

import pytest
from e2e_node import ADAPTER, LIKEN, NODE, RENDER, EndToEnd

from hardpoint.testing.kubelet import Pod

USB = "usb.example.com"


def _driver_of(node: EndToEnd) -> dict[str, str]:
    return {
        device["name"]: found["spec"]["driver"]
        for found in node.slices
        for device in found["spec"].get("devices", ())
    }


async def test_a_driver_with_a_domain_of_its_own_has_a_slice_of_its_own(node: EndToEnd) -> None:
    node.environment["HARDPOINT_NAMES__USB__DOMAIN"] = USB
    async with node.agent():
        await node.server.until(lambda: len(node.published) == 4)

        assert {found["metadata"]["name"] for found in node.slices} == {
            f"{NODE}-{LIKEN}",
            f"{NODE}-{USB}",
        }
        assert _driver_of(node)[ADAPTER] == USB
        assert _driver_of(node)[RENDER] == LIKEN


async def test_each_domain_is_claimed_and_delivered_under_its_own_name(node: EndToEnd) -> None:
    node.environment["HARDPOINT_NAMES__USB__DOMAIN"] = USB
    gpu, gpu_uid = node.claim("gpu", RENDER)
    zigbee, zigbee_uid = node.claim("zigbee", ADAPTER, driver=USB)
    async with node.agent():
        (one,) = await node.kubelet.prepare(gpu)
        (two,) = await node.kubelet.prepare(zigbee)

        assert one.cdi_ids == (f"{LIKEN}/device={gpu_uid}-{RENDER}",)
        assert two.cdi_ids == (f"{USB}/device={zigbee_uid}-{ADAPTER}",)
        assert node.files == sorted([f"{LIKEN}-{gpu_uid}.json", f"{USB}-{zigbee_uid}.json"])
        assert "/dev/ttyUSB0" in node.inside(zigbee).paths
        await node.kubelet.unprepare(gpu)
        await node.kubelet.unprepare(zigbee)
        assert node.files == []


async def test_one_claim_may_have_devices_of_two_domains(node: EndToEnd) -> None:
    node.environment["HARDPOINT_NAMES__USB__DOMAIN"] = USB
    pod = _of_both(node)
    async with node.agent() as agent:
        prepared = await node.kubelet.prepare(pod)
        paths = node.inside(pod).paths
        await node.kubelet.unprepare(pod)

        assert sorted((one.driver, one.device) for one in prepared) == [
            (LIKEN, RENDER),
            (USB, ADAPTER),
        ]
        assert {"/dev/dri/renderD128", "/dev/ttyUSB0"} <= set(paths)
        assert (agent.holds(), node.files) == ((), [])


def _of_both(node: EndToEnd) -> Pod:
    pod, _ = node.claim("both", RENDER, ADAPTER)

    def change(claim: dict[str, object]) -> None:
        claim["status"]["allocation"]["devices"]["results"][1]["driver"] = USB  # type: ignore[index]

    node.server.edit("resourceclaims", "both", "default").change(change)
    return pod


@pytest.mark.parametrize(
    ("variable", "driver", "vendor"),
    [
        ("HARDPOINT_DRA_DRIVER", "gpu.example.com", LIKEN),
        ("HARDPOINT_CDI_VENDOR", LIKEN, "gpu.example.com"),
        ("HARDPOINT_NAMES__PCI_DRM__CDI_VENDOR", LIKEN, "gpu.example.com"),
    ],
)
async def test_each_of_the_names_can_be_set_alone(
    node: EndToEnd, variable: str, driver: str, vendor: str
) -> None:
    node.environment[variable] = "gpu.example.com"
    pod, uid = node.claim("gpu", RENDER, driver=driver)
    async with node.agent():
        await node.server.until(lambda: len(node.published) == 4)
        (prepared,) = await node.kubelet.prepare(pod)

        assert _driver_of(node)[RENDER] == driver
        assert prepared.cdi_ids == (f"{vendor}/device={uid}-{RENDER}",)
        assert node.files == [f"{vendor}-{uid}.json"]


async def test_a_claim_from_before_a_rename_is_still_given_back(node: EndToEnd) -> None:
    pod, _ = node.claim("zigbee", ADAPTER)
    async with node.agent():
        await node.kubelet.prepare(pod)
    node.environment["HARDPOINT_NAMES__USB__DOMAIN"] = USB
    async with node.agent() as agent:
        await node.kubelet.unprepare(pod)

        assert (agent.holds(), node.files) == ((), [])
        await node.server.until(lambda: _driver_of(node).get(ADAPTER) == USB)
