"""What the recorded machines have, read by hand in their trees: links of sys/dev, drivers, classes.

readlink sys/dev/char/*        which node is below which function
readlink sys/bus/pci/devices/*/driver
"""

from __future__ import annotations

import pytest
from pci_drm_look import look
from recorded_machines import NAMES, Recorded

from hardpoint import Topology
from hardpoint.attributes import publishable

BUTTON_AND_KEYBOARD = {
    "acpi-lnxpwrbn-00": ["/dev/input/event1"],
    "platform-i8042": ["/dev/input/event0", "/dev/input/event3", "/dev/input/mouse0"],
    "platform-pcspkr": ["/dev/input/event2"],
}

DESKTOP = {
    "pci-0000-00-01-0": ["/dev/dri/renderD128"],
    "pci-0000-00-01-0-display": ["/dev/dri/card1"],
    "pci-0000-00-02-0-display": ["/dev/dri/card0"],
    "pci-0000-00-05-0": [
        *("/dev/snd/controlC1", "/dev/snd/hwC1D0", "/dev/snd/hwC1D1"),
        *("/dev/snd/pcmC1D0c", "/dev/snd/pcmC1D0p", "/dev/snd/pcmC1D2p"),
    ],
    "pci-0000-00-06-0": [
        *("/dev/snd/controlC0", "/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p", "/dev/snd/pcmC0D1c"),
    ],
    "pci-0000-00-07-0-nvme-1": ["/dev/nvme0n1", "/dev/nvme0n1p1", "/dev/nvme0n1p2"],
    "pci-0000-00-08-0-disk": ["/dev/vda"],
    "pci-0000-00-09-0-scsi-0-0-0-0": ["/dev/sda"],
    "pci-0000-00-0b-0": ["/dev/ptp0"],
    "pci-0000-00-0c-0-mmc-0": ["/dev/mmcblk0", "/dev/mmcblk0p1"],
    "pci-0000-00-0e-0": ["/dev/ttyS1"],
    "pci-0000-00-1c-2": ["/dev/vport5p1", "/dev/vport5p2"],
    "pci-0000-00-1f-0": ["/dev/watchdog1"],
    "pci-0000-00-1f-2-ata-3-0": ["/dev/sr0"],
    **BUTTON_AND_KEYBOARD,
}

GRAPHICS = {
    "pci-0000-00-01-0": ["/dev/dri/renderD131"],
    "pci-0000-00-01-0-display": ["/dev/dri/card5"],
    "pci-0000-00-01-0-i2c-dev": ["/dev/i2c-1", "/dev/i2c-2", "/dev/i2c-3", "/dev/i2c-4"],
    "pci-0000-00-02-0": ["/dev/dri/renderD129"],
    "pci-0000-00-02-0-display": ["/dev/dri/card1"],
    "pci-0000-00-03-0": ["/dev/dri/renderD130"],
    "pci-0000-00-03-0-display": ["/dev/dri/card2"],
    "pci-0000-00-05-0-display": ["/dev/dri/card3"],
    "pci-0000-00-06-0-display": ["/dev/dri/card4"],
    "pci-0000-00-1c-2": ["/dev/vport4p1", "/dev/vport4p2"],
    "pci-0000-00-1f-0": ["/dev/watchdog", "/dev/watchdog0"],
    "acpi-lnxpwrbn-00": ["/dev/input/event1"],
    "platform-i8042": ["/dev/input/event0", "/dev/input/event3", "/dev/input/mouse0"],
    "platform-pcspkr": ["/dev/input/event2"],
}

LEGACY = {
    "pci-0000-00-01-1-ata-1-0": ["/dev/sdb", "/dev/sdb1"],
    "pci-0000-00-01-1-ata-2-0": ["/dev/sr0"],
    "pci-0000-00-02-0-display": ["/dev/dri/card1"],
    "pci-0000-00-03-0-display": ["/dev/dri/card0"],
    "pci-0000-00-04-0": [
        *("/dev/dmmidi", "/dev/midi", "/dev/snd/controlC0", "/dev/snd/midiC0D0"),
        *("/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p", "/dev/snd/pcmC0D1p"),
    ],
    "pci-0000-00-09-0-scsi-0-0-0-0": ["/dev/sda"],
    "pci-0000-00-0b-0": ["/dev/ttyS1", "/dev/ttyS2"],
    "pci-0000-00-1c-2": ["/dev/vport2p1", "/dev/vport2p2"],
    "platform-floppy-0-disk": ["/dev/fd0"],
    "pnp-00-00": ["/dev/lp0", "/dev/parport0"],
    **BUTTON_AND_KEYBOARD,
}

DISKS = {
    "pci-0000-00-06-0-nvme-1": ["/dev/nvme1n1"],
    "pci-0000-00-06-0-nvme-2": ["/dev/nvme1n2"],
    "pci-0000-00-07-0-scsi-0-0-4-0": ["/dev/sdg"],  # LVM: for the framework to keep
    "pci-0000-00-07-0-scsi-0-0-5-0": ["/dev/sdh"],  # LUKS, likewise
    "pci-0000-00-07-0-scsi-0-0-6-0": ["/dev/sdi"],
    "pci-0000-00-07-0-scsi-0-0-7-0": ["/dev/sdj"],
    "pci-0000-00-09-0-disk": ["/dev/vdb"],
    "pci-0000-00-0a-0-mmc-0": ["/dev/mmcblk0"],
    "pci-0000-00-1c-2": ["/dev/vport5p1", "/dev/vport5p2"],
    "pci-0000-00-1f-0": ["/dev/watchdog", "/dev/watchdog0"],
    "pci-0000-00-1f-2-ata-1-0": ["/dev/sda", "/dev/sda1", "/dev/sda2"],
    "pci-0000-00-1f-2-ata-2-0": ["/dev/sdb"],
    "pci-0000-00-1f-2-ata-3-0": ["/dev/sr0"],
    "pci-0000-00-1f-2-ata-4-0": ["/dev/sr1"],
    "acpi-lnxpwrbn-00": ["/dev/input/event1"],
    "platform-i8042": ["/dev/input/event0", "/dev/input/event3", "/dev/input/mouse0"],
    "platform-pcspkr": ["/dev/input/event2"],
}

VIRTUAL = {
    "pci-0000-00-1c-2": ["/dev/vport2p1", "/dev/vport2p2"],
    "pci-0000-00-1f-0": ["/dev/watchdog", "/dev/watchdog0"],
    "acpi-lnxpwrbn-00": ["/dev/input/event3"],
    "platform-i8042": ["/dev/input/event0", "/dev/input/event5", "/dev/input/mouse0"],
    "platform-pcspkr": ["/dev/input/event4"],
    "platform-snd-aloop-0": [
        *("/dev/snd/controlC1", "/dev/snd/pcmC1D0c", "/dev/snd/pcmC1D0p"),
        *("/dev/snd/pcmC1D1c", "/dev/snd/pcmC1D1p"),
    ],
    "platform-snd-dummy-0": [
        *("/dev/snd/controlC0", "/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p"),
    ],
    "platform-vivid-0": [
        *("/dev/cec0", "/dev/cec1", "/dev/input/event1", "/dev/input/event2", "/dev/media0"),
        *("/dev/radio0", "/dev/radio1", "/dev/swradio0", "/dev/v4l-touch0", "/dev/vbi0"),
        *("/dev/vbi1", "/dev/video0", "/dev/video1", "/dev/video2", "/dev/video3"),
    ],
    "pseudo-adapter0-scsi-0-0-0-0": ["/dev/sda"],
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("desktop", DESKTOP),
        ("graphics", GRAPHICS),
        ("legacy", LEGACY),
        ("disks", DISKS),
        ("virtual", VIRTUAL),
    ],
)
def test_a_recorded_machine_makes_these_devices(
    recorded: Recorded, name: str, expected: dict[str, list[str]]
) -> None:
    found = look(recorded(name))

    assert {name: sorted(nodes) for name, nodes in found.nodes.items()} == expected
    assert not found.unread


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        (
            "desktop",
            {
                "pci 0000:00:00.0": "plumbing",
                "pci 0000:00:01.0 /dev/fb1": "framebuffer",
                "pci 0000:00:02.0 /dev/fb0": "framebuffer",
                "pci 0000:00:03.0": "no-driver",  # class 030000, and nothing knows it
                "pci 0000:00:04.0": "no-nodes",  # xhci_hcd
                "pci 0000:00:0a.0": "no-nodes",  # e1000
                "pci 0000:00:0d.0": "no-nodes",  # its watchdog0 hangs from nothing
                "pci 0000:00:10.0": "plumbing",
                "pci 0000:00:10.1": "plumbing",
                "pci 0000:00:1c.0": "no-nodes",  # virtio 9p
                "pci 0000:00:1c.1": "no-nodes",
                **{f"pci 0000:00:1d.{n}": "no-nodes" for n in (0, 1, 2, 7)},
                "pci 0000:00:1f.0 /dev/tpm0": "platform",
                "pci 0000:00:1f.0 /dev/tpmrm0": "platform",
                "pci 0000:00:1f.3 /dev/i2c-0": "smbus",  # SMBus I801 adapter at 0700
                "platform serial8250": "platform",  # ttyS2 and ttyS3 have type 0
                "pnp 00:02": "platform",  # ttyS0, the console
                "pnp 00:03": "platform",  # rtc0
            },
        ),
        (
            "legacy",
            {
                "pci 0000:00:00.0": "plumbing",
                "pci 0000:00:01.0": "plumbing",  # ISA bridge without a driver, IPI0001:00 below it
                "pci 0000:00:01.3 /dev/i2c-0": "smbus",  # class 068000, SMBus PIIX4 adapter
                "pci 0000:00:02.0 /dev/fb1": "framebuffer",
                "pci 0000:00:03.0 /dev/fb0": "framebuffer",
                **{f"pci 0000:00:0{n}.0": "no-nodes" for n in (5, 6, 7, 8)},
                "pci 0000:00:0a.0": "no-nodes",  # can0
                "pci 0000:00:1c.0": "no-nodes",
                "pci 0000:00:1c.1": "no-nodes",
                "platform IPI0001:00": "platform",  # ipmi0
                "platform serial8250": "platform",
                "pnp 00:04": "platform",
                "pnp 00:05": "platform",
            },
        ),
        (
            "disks",
            {
                "pci 0000:00:00.0": "plumbing",
                "pci 0000:00:04.0": "no-nodes",
                "pci 0000:00:05.0 nvme0n1": "disk-in-use",
                **{f"pci 0000:00:07.0 sd{x}": "disk-in-use" for x in "cdef"},
                "pci 0000:00:08.0 vda": "disk-in-use",
                "pci 0000:00:10.0": "plumbing",
                "pci 0000:00:10.1": "plumbing",
                "pci 0000:00:1c.0": "no-nodes",
                "pci 0000:00:1c.1": "no-nodes",
                "pci 0000:00:1f.3": "no-nodes",  # i2c-dev is not loaded there
                "platform serial8250": "platform",
                "pnp 00:02": "platform",
                "pnp 00:03": "platform",
            },
        ),
    ],
)
def test_everything_else_of_a_recorded_machine_has_a_reason(
    recorded: Recorded, name: str, rules: dict[str, str]
) -> None:
    assert look(recorded(name)).rules == rules


def test_a_can_controller_makes_a_network_interface(recorded: Recorded) -> None:
    withheld = look(recorded("legacy")).withheld["pci 0000:00:0a.0"]

    assert withheld.reason == "kvaser_pci makes it a network interface, and no node in /dev"


def test_nodes_on_the_board_without_a_driver_are_told(recorded: Recorded) -> None:
    assert look(recorded("graphics")).rules["platform vgem"] == "no-driver"
    assert look(recorded("virtual")).rules["i2c i2c-0"] == "no-driver"


def test_a_machine_of_164_functions_accounts_for_each(recorded: Recorded) -> None:
    node = recorded("many")
    found = look(node)

    addresses = {entry.address for entry in node.entries("bus/pci/devices")}
    published = {d.origin["address"] for d in found.devices.values() if d.origin["bus"] == "pci"}
    reasons = {w.subject.split()[1] for w in found.withheld.values() if w.subject[:4] == "pci "}
    assert len(addresses) == 164
    assert published | reasons == addresses
    assert list(found.rules.values()).count("no-driver") == 144  # class 00ff00, no driver


@pytest.mark.parametrize("name", NAMES)
def test_the_api_server_takes_all_of_every_machine(recorded: Recorded, name: str) -> None:
    for device in look(recorded(name)).devices.values():
        assert publishable(device, "hardpoint.dev")[1] == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_numbers_and_those_of_dev_agree(recorded: Recorded, name: str) -> None:
    node = recorded(name)
    for device in look(node).devices.values():
        for device_node in device.nodes:
            info = node.info(device_node.path)
            assert info is not None
            assert (info.type, info.major, info.minor) == (
                device_node.type,
                device_node.major,
                device_node.minor,
            )


def test_the_groups_of_the_nodes_are_those_of_the_machine(recorded: Recorded) -> None:
    devices = look(recorded("desktop")).devices

    # render, video, dialout and audio in its dev.json
    assert devices["pci-0000-00-01-0"].nodes[0].gid == 109
    assert devices["pci-0000-00-01-0-display"].nodes[0].gid == 44
    assert devices["pci-0000-00-0e-0"].nodes[0].gid == 20
    assert {node.gid for node in devices["pci-0000-00-05-0"].nodes} == {29}


def test_a_drive_says_what_it_is(recorded: Recorded) -> None:
    devices = look(recorded("disks")).devices

    old = devices["pci-0000-00-1f-2-ata-1-0"]
    assert old.attributes["model"] == "EXAMPLE HDD 5400"
    assert old.attributes["serial"] == "SATA-OLD"
    assert old.attributes["wwid"] == "naa.5000c500aaaa0001"
    assert old.attributes["rotational"] is True
    assert old.capacity["size"].value == str(256 << 20)
    new = devices["pci-0000-00-1f-2-ata-2-0"]
    assert "rotational" not in new.attributes
    assert devices["pci-0000-00-06-0-nvme-2"].attributes["serial"] == "NVME-FREE"
    assert devices["pci-0000-00-06-0-nvme-2"].capacity["size"].value == str(64 << 20)
    assert devices["pci-0000-00-07-0-scsi-0-0-6-0"].attributes["readOnly"] is True
    disc = devices["pci-0000-00-1f-2-ata-4-0"]
    assert (disc.kind, disc.attributes["removable"]) == ("disk.optical", True)


def test_a_board_device_has_no_root_complex(recorded: Recorded) -> None:
    devices = look(recorded("legacy")).devices

    assert devices["pnp-00-00"].topology == Topology()
    assert devices["pci-0000-00-0b-0"].topology == Topology(pcie_root="pci0000:00")
    assert devices["pnp-00-00"].attributes["bus"] == "pnp"
    assert "resource.kubernetes.io/pciBusID" not in devices["pnp-00-00"].attributes
