"""What the kubelet is told, message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hardpoint.allocation import Assigned, Assignment
from hardpoint.errors import HoldDenied
from hardpoint.model import Delivery, Device, DeviceNode, Domain, Hook, Mount, Offered, Topology
from hardpoint.node import Node
from hardpoint_deviceplugin import translate
from hardpoint_deviceplugin.resources import Entry, Resource

DOMAIN = Domain.named("hardpoint.dev")


def entry(name: str, numa: int | None = None, refusal: str = "") -> Entry:
    device = Device(name=name, kind="usb", topology=Topology(numa))
    return Entry(id=name, offered=Offered(device=device, domain=DOMAIN), refusal=refusal)


def assigned(name: str = "usb-0", cdi: tuple[str, ...] = (), **delivery: Any) -> Assigned:
    assignment = Assignment(resource="hardpoint.dev/usb", id=name, device=name, domain=DOMAIN)
    names = cdi or (f"hardpoint.dev/device={name}",)
    return Assigned(assignment=assignment, cdi_ids=names, delivery=Delivery(**delivery))


# -- the list -------------------------------------------------------------------------------------


def test_a_list_says_id_health_and_numa_node_of_each_device() -> None:
    resource = Resource(name="a.b/c", entries=(entry("usb-0", 1), entry("usb-1", refusal="held")))

    first, second = translate.listing(resource, frozenset({0, 1})).devices

    assert (first.ID, first.health, [n.ID for n in first.topology.nodes]) == (
        "usb-0",
        "Healthy",
        [1],
    )
    assert (second.ID, second.health, second.HasField("topology")) == ("usb-1", "Unhealthy", False)


@pytest.mark.parametrize("numa", [None, -1, 7])
def test_a_numa_node_that_the_machine_does_not_have_is_never_said(numa: int | None) -> None:
    resource = Resource(name="a.b/c", entries=(entry("usb-0", numa),))

    (device,) = translate.listing(resource, frozenset({0, 1})).devices

    assert not device.HasField("topology")


def test_the_machines_numa_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    for name in ("node0", "node3", "nodes", "power"):
        (tmp_path / "devices/system/node" / name).mkdir(parents=True)

    assert translate.numa_nodes(Node(name="n", sys=tmp_path)) == {0, 3}
    assert translate.numa_nodes(Node(name="n", sys=tmp_path / "none")) == frozenset()


# -- answers --------------------------------------------------------------------------------------


def test_a_container_gets_the_cdi_names_of_its_devices_each_once() -> None:
    two = [assigned("usb-0"), assigned("usb-1", ("hardpoint.dev/device=usb-1", "acme.com/x=y"))]

    answer = translate.by_cdi([*two, two[0]])

    assert [one.name for one in answer.cdi_devices] == [
        "hardpoint.dev/device=usb-0",
        "hardpoint.dev/device=usb-1",
        "acme.com/x=y",
    ]
    assert not answer.devices
    assert not answer.mounts


@pytest.mark.parametrize("way", ["cdi", "specs"])
def test_variables_of_one_name_show_a_container_all_of_its_devices(
    way: str, tmp_path: Path
) -> None:
    two = [
        assigned("gpu-0", env={"UUIDS": "GPU-0", "MODE": "x"}, annotations={"acme.com/a": "1"}),
        assigned("gpu-1", env={"UUIDS": "GPU-1", "MODE": "x"}),
    ]

    answer = translate.by_cdi(two) if way == "cdi" else translate.by_specs(two, tmp_path)

    assert dict(answer.envs) == {"UUIDS": "GPU-0,GPU-1", "MODE": "x"}
    assert dict(answer.annotations) == {"acme.com/a": "1"}


def test_without_cdi_a_container_gets_nodes_and_mounts(tmp_path: Path) -> None:
    one = assigned(
        nodes=(
            DeviceNode(path="/dev/ttyUSB0", major=188, minor=0),
            DeviceNode(path="/dev/in", host_path="/dev/out", permissions="r"),
        ),
        mounts=(
            Mount(host_path="/opt/fw", container_path="/fw"),
            Mount(host_path="/run/acme", container_path="/run/acme", options=("rw", "bind")),
        ),
    )

    answer = translate.by_specs([one], tmp_path)

    assert [(d.container_path, d.host_path, d.permissions) for d in answer.devices] == [
        ("/dev/ttyUSB0", "/dev/ttyUSB0", "rw"),
        ("/dev/in", "/dev/out", "r"),
    ]
    assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [
        ("/fw", "/opt/fw", True),
        ("/run/acme", "/run/acme", False),
    ]
    assert not answer.cdi_devices


def test_a_node_that_two_devices_share_is_given_once(tmp_path: Path) -> None:
    timer = DeviceNode(path="/dev/snd/timer", shared=True)

    answer = translate.by_specs(
        [assigned("a", nodes=(timer,)), assigned("b", nodes=(timer,))], tmp_path
    )

    assert [one.container_path for one in answer.devices] == ["/dev/snd/timer"]


def test_a_node_that_may_come_later_is_given_only_when_it_is_there(tmp_path: Path) -> None:
    nodes = tuple(DeviceNode(path=f"/dev/input/event{n}", absent_ok=True) for n in range(2))
    (tmp_path / "input").mkdir()
    (tmp_path / "input/event1").touch()

    answer = translate.by_specs([assigned(nodes=nodes)], tmp_path)

    assert [one.host_path for one in answer.devices] == ["/dev/input/event1"]


@pytest.mark.parametrize(
    ("delivery", "what"),
    [
        ({"hooks": (Hook(name="prestart", path="/bin/x"),)}, "hooks"),
        ({"cdi_devices": ("nvidia.com/gpu=0",)}, "CDI devices of others"),
        (
            {"mounts": (Mount(host_path="tmpfs", container_path="/x", type="tmpfs"),)},
            "no bind mounts",
        ),
    ],
)
def test_what_only_cdi_can_say_is_refused_rather_than_left_out(
    delivery: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(HoldDenied, match=what):
        translate.by_specs([assigned(**delivery)], tmp_path)
