from __future__ import annotations

from pathlib import Path

import pytest
from pci_drm_look import look

from hardpoint import Topology
from hardpoint.testing.sysfs import FakeMachine, FakePci
from hardpoint_pci_drm.pci import PciIds, class_word, megatransfers

IDS = """\
# a comment
10ec  Realtek Semiconductor Co., Ltd.
\t8852  RTL8852AE Wi-Fi
\t\t10ec 8852  a subsystem
# another
\t8168  RTL8111
1002  Advanced Micro Devices

\t744c  Navi 31
C 0c  Serial bus controller
\t03  USB controller
ffff  Illegal Vendor ID
"""


@pytest.fixture
def ids(tmp_path: Path) -> PciIds:
    path = tmp_path / "pci.ids"
    path.write_text(IDS)
    return PciIds([str(tmp_path / "absent"), str(path)])


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        ("10ec", "8852", "RTL8852AE Wi-Fi"),
        ("10EC", "8168", "RTL8111"),
        ("1002", "744c", "Navi 31"),
        ("10ec", "0001", "Realtek Semiconductor Co., Ltd. device 0001"),
        ("10ec", "10ec", "Realtek Semiconductor Co., Ltd. device 10ec"),
        ("1002", "8852", "Advanced Micro Devices device 8852"),
        ("ffff", "0003", "Illegal Vendor ID device 0003"),
        ("abcd", "0001", "abcd:0001"),
        ("0c03", "0001", "0c03:0001"),
        ("", "", ""),
        ("odd\n", "x", "odd\n:x"),
    ],
)
def test_a_name_is_looked_up_or_the_numbers_stand_for_it(
    ids: PciIds, vendor: str, device: str, name: str
) -> None:
    assert ids.name(vendor, device) == name


def test_without_a_database_names_are_numbers(tmp_path: Path) -> None:
    assert PciIds([str(tmp_path / "absent")]).name("8086", "46d2") == "8086:46d2"


def test_a_database_that_is_not_utf_8_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_bytes(b"8086  Int\xffel\n\t0001  Caf\xc3\xa9\n\t0002  \xff\x00")

    ids = PciIds([str(tmp_path / "pci.ids")])

    assert ids.name("8086", "0001") == "Café"
    assert ids.name("8086", "0002") == "\ufffd"
    assert ids.name("8086", "0003") == "Int\ufffdel device 0003"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("030200", "display"),
        ("0c0330", "serial-bus"),
        ("088000", "system"),
        ("080501", "storage"),
        ("120000", "accelerator"),
        ("130000", ""),
        ("ff0000", ""),
        ("", ""),
    ],
)
def test_a_class_has_a_word_where_the_specification_gives_it_one(code: str, word: str) -> None:
    assert class_word(code) == word


@pytest.mark.parametrize(
    ("speed", "number"),
    [("2.5 GT/s PCIe", 2500), ("16.0 GT/s PCIe", 16000), ("64 GT/s", 64000), ("Unknown", None)],
)
def test_the_speed_of_a_link_is_a_number(speed: str, number: int | None) -> None:
    assert megatransfers(speed) == number


def gpu(machine: FakeMachine, **attributes: str | int | bytes | None) -> FakePci:
    card = machine.pci("0000:0a:00.0", vendor="1002", device="744c", klass="030000")
    return card.set(**attributes).bind("amdgpu").drm(card=0, render=128)


def test_every_device_of_a_card_carries_its_identity(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    gpu(machine).i2c(3)

    for device in look(machine.node()).devices.values():
        assert device.attributes["resource.kubernetes.io/pciBusID"] == "0000:0a:00.0"
        assert device.attributes["address"] == "0000:0a:00.0"
        assert device.attributes["vendor"] == "1002"
        assert device.attributes["product"] == "744c"
        assert device.attributes["classCode"] == "030000"


def test_finer_facts_are_there_where_the_kernel_has_them(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    card = gpu(
        machine,
        max_link_speed="16.0 GT/s PCIe",
        max_link_width=16,
        mem_info_vram_total=25753026560,
        unique_id="7f1c2d3e4f5a6b7c",
    )
    (card.path / "iommu_group").symlink_to("../../../kernel/iommu_groups/14")

    device = look(machine.node()).devices["pci-0000-0a-00-0"]

    expected = {"maxLinkSpeed": 16000, "maxLinkWidth": 16, "iommuGroup": 14}
    assert {name: device.attributes[name] for name in expected} == expected
    assert device.attributes["uniqueId"] == "7f1c2d3e4f5a6b7c"
    assert device.capacity["memory"].value == "25753026560"


def test_what_the_kernel_does_not_know_is_absent(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    gpu(
        machine,
        max_link_speed="Unknown",
        max_link_width=255,
        mem_info_vram_total=0,
        unique_id="0000000000000000",
        subsystem_vendor=None,
        revision="",
    )

    device = look(machine.node()).devices["pci-0000-0a-00-0"]

    absent = {"maxLinkSpeed", "maxLinkWidth", "uniqueId", "subsystemVendor", "revision", "serial"}
    assert not absent & set(device.attributes)
    assert not device.capacity


@pytest.mark.field_case("G06", "G07")
@pytest.mark.parametrize(
    ("numa", "node"), [("1", 1), ("-1", None), (None, None), ("7", None), ("rubbish", None)]
)
def test_the_numa_node_is_one_that_the_machine_has(
    tmp_path: Path, numa: str | None, node: int | None
) -> None:
    machine = FakeMachine(tmp_path).numa(0, 1)
    gpu(machine, numa_node=numa)

    topology = look(machine.node()).devices["pci-0000-0a-00-0"].topology

    assert topology == Topology(numa_node=node, pcie_root="pci0000:0a")


def test_the_group_of_a_node_is_the_hosts(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:02.0", driver="i915").drm(card=0, render=128, render_gid=993)

    (node,) = look(machine.node()).devices["pci-0000-00-02-0"].nodes

    assert (node.gid, node.major, node.minor) == (993, 226, 128)


def test_amds_way_to_compute_stands_beside_the_render_nodes_that_use_it(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    gpu(machine)
    machine.pci("0000:00:02.0", driver="i915").drm(card=1, render=129)
    kfd = machine.virtual("kfd", "kfd", 240, 0)
    for number, minor in enumerate((0, 128)):
        kfd.attribute(
            f"topology/nodes/{number}/properties", f"cpu_cores 1\ndrm_render_minor {minor}"
        )

    found = look(machine.node())

    assert found.nodes["pci-0000-0a-00-0"] == ["/dev/dri/renderD128", "/dev/kfd"]
    assert found.nodes["pci-0000-00-02-0"] == ["/dev/dri/renderD129"]
    computing = found.devices["pci-0000-0a-00-0"]
    assert computing.attributes["computeNode"] is True
    assert not [part for part in computing.all_parts if part.exclusive]
    assert look(machine.node(), compute=False).nodes["pci-0000-0a-00-0"] == ["/dev/dri/renderD128"]
