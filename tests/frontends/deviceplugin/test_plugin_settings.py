"""The section is checked before anything is served; each refusal says what and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.node import Node
from hardpoint_deviceplugin import DevicePlugin
from hardpoint_deviceplugin.size import LARGEST_DEVICE, LARGEST_LIST, MOST_IDS

ZIGBEE = {"name": "example.com/zigbee", "selector": "device.driver == 'hardpoint.dev'"}


def load(tmp_path: Path, **section: Any) -> Plugin:
    record = Plugin("frontend", "deviceplugin", loaded=DevicePlugin)
    Plugins([record]).start(record, Node(name="node-1", sys=tmp_path), section)
    return record


def test_without_a_section_every_kind_has_its_resource(tmp_path: Path) -> None:
    settings = load(tmp_path).instance.settings

    assert (settings.kinds, settings.resources, settings.devices) == (("*",), (), "cdi")


def test_a_resource_by_selector_is_taken(tmp_path: Path) -> None:
    record = load(tmp_path, kinds=[], resources=[ZIGBEE | {"limit": 2, "replicas": 10}])

    assert record.state == "running", record.reason


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"resources": [ZIGBEE | {"selector": "device."}]}, "Syntax error"),
        ({"resources": [ZIGBEE | {"selector": "device.kind == 'usb'"}]}, "device.kind"),
        ({"resources": [ZIGBEE | {"selector": "device.driver"}]}, "true or false"),
        ({"resources": [ZIGBEE | {"name": "zigbee"}]}, "domain of your own"),
        ({"resources": [ZIGBEE | {"name": "kubernetes.io/zigbee"}]}, "Kubernetes' own"),
        ({"resources": [ZIGBEE | {"replicas": 0}]}, "replicas"),
        ({"resources": [ZIGBEE | {"limit": 0}]}, "limit"),
        (
            {"resources": [ZIGBEE | {"count": 1}]},
            "resources[0].count: unknown key; the keys are limit, name",
        ),
        ({"resources": [ZIGBEE, ZIGBEE]}, "example.com/zigbee is defined twice"),
        ({"resources": [ZIGBEE], "names": {"usb": "example.com/zigbee"}}, "defined twice"),
        ({"resources": [ZIGBEE | {"replicas": MOST_IDS + 1}]}, f"at most {MOST_IDS}"),
        ({"resources": [ZIGBEE | {"limit": 300, "replicas": 300}]}, "90000 ids"),
        ({"names": {"usb": "kubernetes.io/usb"}}, "Kubernetes' own"),
        ({"names": {"usb": "-usb"}}, "1 to 63"),
        ({"devices": "env"}, "'cdi' or 'specs'"),
    ],
)
def test_what_would_not_work_is_refused_with_the_rule(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    record = load(tmp_path, **section)

    assert record.state == "refused"
    assert said in record.reason


def test_several_kinds_may_share_a_name(tmp_path: Path) -> None:
    record = load(tmp_path, names={"usb": "example.com/serial", "tty": "example.com/serial"})

    assert record.state == "running", record.reason


def test_the_largest_device_is_as_large_as_it_is_said() -> None:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1023)])
    device = pb.Device(ID="x" * 63, health="Unhealthy", topology=topology)

    assert pb.ListAndWatchResponse(devices=[device]).ByteSize() == LARGEST_DEVICE
    whole = pb.ListAndWatchResponse(devices=[device] * MOST_IDS).ByteSize()
    assert LARGEST_LIST - LARGEST_DEVICE < whole <= LARGEST_LIST < 4 << 20
