"""The three devices of one GPU, name for name and attribute for attribute, as the guide shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pci_drm_look import Look, look

from hardpoint.attributes import publishable
from hardpoint.testing.sysfs import FakeMachine

IDS = """\
8086  Intel Corporation
\t46d2  Alder Lake-N [UHD Graphics]
"""

IDENTITY = {
    "address": "0000:00:02.0",
    "bus": "pci",
    "class": "display",
    "classCode": "030000",
    "driver": "i915",
    "name": "Alder Lake-N [UHD Graphics]",
    "product": "46d2",
    "resource.kubernetes.io/pciBusID": "0000:00:02.0",
    "vendor": "8086",
}


@pytest.fixture
def found(tmp_path: Path) -> Look:
    machine = FakeMachine(tmp_path / "machine")
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128, connectors=("HDMI-A-1", "DP-1")).i2c(*range(4, 14)).fb(0)
    (tmp_path / "pci.ids").write_text(IDS)
    return look(machine.node(), pci_ids=tmp_path / "pci.ids")


def test_one_gpu_makes_the_three_devices_of_the_guide(found: Look) -> None:
    assert found.nodes == {
        "pci-0000-00-02-0": ["/dev/dri/renderD128"],
        "pci-0000-00-02-0-display": ["/dev/dri/card0"],
        "pci-0000-00-02-0-i2c-dev": [f"/dev/i2c-{n}" for n in sorted(range(4, 14), key=str)],
    }
    assert [device.shareable for device in found.devices.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("pci-0000-00-02-0", {"renderNode": True, "subsystem": "drm"}),
        ("pci-0000-00-02-0-display", {"displayNode": True, "subsystem": "drm"}),
        ("pci-0000-00-02-0-i2c-dev", {"subsystem": "i2c-dev"}),
    ],
)
def test_each_has_the_attributes_of_the_guide(
    found: Look, name: str, own: dict[str, object]
) -> None:
    fit, mended = publishable(found.devices[name], "liken.sh")

    assert not mended
    expected = IDENTITY | own
    assert {key: fit.attributes.get(key) for key in expected} == expected
    assert str(fit.attributes["modalias"]).startswith("pci:v00008086d000046D2")
    flags = {key for key, value in fit.attributes.items() if value is True}
    assert flags == {key for key, value in own.items() if value is True}


def test_beyond_the_guide_each_says_where_it_is_and_which_card_it_is(found: Look) -> None:
    fit, _ = publishable(found.devices["pci-0000-00-02-0"], "liken.sh")

    beyond = set(fit.attributes) - set(IDENTITY) - {"modalias", "subsystem", "renderNode"}
    assert beyond == {
        *("kind", "resource.kubernetes.io/pcieRoot"),
        *("subsystemVendor", "subsystemDevice", "revision"),
    }
