"""What each recorded hotplug step changes in the answer, derived by hand from the step's own files.

tar tzf <machine>.tar.gz steps/NN, `dev` and `devnum` in it, and "gone" of events.jsonl
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from recorded_steps import replay, scratch

from hardpoint._core.offline import look
from hardpoint.cli.devices import document
from hardpoint.node import Node
from hardpoint.settings import AgentSettings

__all__ = ["scratch"]

Step = tuple[str, set[str], set[str]]
"""A command, what is new in the answer after it, and what is gone."""

FTDI = "usb-{} /dev/ttyUSB{} /dev/bus/usb/001/{:03d}"

SPEAKER = "usb-1-6-1-0 /dev/snd/controlC2 /dev/snd/pcmC2D0p /dev/bus/usb/001/{:03d}"
WEBCAM = "usb-7-1-1-0 /dev/input/event10 /dev/media0 /dev/video0 /dev/video1 /dev/bus/usb/007/002"
HDA = (
    "pci-0000-00-05-0 /dev/snd/controlC1 /dev/snd/hwC1D0 /dev/snd/hwC1D1 "
    "/dev/snd/pcmC1D0c /dev/snd/pcmC1D0p /dev/snd/pcmC1D2p"
)

DESKTOP: list[Step] = [
    ("unplug serial-1", set(), {FTDI.format("1-1-1-0", 0, 2)}),
    ("plug serial-1", {FTDI.format("1-1-1-0", 0, 16)}, set()),
    ("unplug speaker", set(), {SPEAKER.format(8), "1-6:1.1 second-half"}),
    ("plug speaker", {SPEAKER.format(17), "1-6:1.1 second-half"}, set()),
    ("unplug thumb", set(), {"usb-2-7-1-0 block-device"}),
    (
        "unplug scsi-disk",
        {"pci 0000:00:09.0 controller"},
        {"pci-0000-00-09-0-scsi-0-0-0-0 block-device"},
    ),
    (
        "plug scsi-disk",
        {"pci-0000-00-09-0-scsi-0-0-0-0 block-device"},
        {"pci 0000:00:09.0 controller"},
    ),
    (
        "remove 0000:00:02.0",
        set(),
        {"pci-0000-00-02-0-display /dev/dri/card0", "pci 0000:00:02.0 /dev/fb0 framebuffer"},
    ),
    (
        "rescan",
        {"pci-0000-00-02-0-display /dev/dri/card0", "pci 0000:00:02.0 /dev/fb0 framebuffer"},
        set(),
    ),
    (
        "unbind 0000:00:05.0",
        {"pci 0000:00:05.0 no-driver"},
        {HDA},
    ),
    (
        "bind 0000:00:05.0 snd_hda_intel",
        {HDA},
        {"pci 0000:00:05.0 no-driver"},
    ),
    ("plug pad", set(), set()),  # below virtual/misc/uhid
    ("unplug pad", set(), set()),
    ("plug webcam", {WEBCAM, "7-1:1.1 second-half"}, set()),
]

GRAPHICS: list[Step] = [
    (
        "remove 0000:00:02.0",
        set(),
        {"pci-0000-00-02-0 /dev/dri/renderD129", "pci-0000-00-02-0-display /dev/dri/card1"},
    ),
    (
        "rescan",
        {"pci-0000-00-02-0 /dev/dri/renderD129", "pci-0000-00-02-0-display /dev/dri/card1"},
        set(),
    ),
    (
        "unbind 0000:00:05.0",
        {"pci 0000:00:05.0 no-driver"},
        {"pci-0000-00-05-0-display /dev/dri/card3"},
    ),
    (
        "bind 0000:00:05.0 bochs-drm",
        {"pci-0000-00-05-0-display /dev/dri/card3"},
        {"pci 0000:00:05.0 no-driver"},
    ),
    ("plug gpu", {"pci-0000-01-00-0-display /dev/dri/card6"}, set()),
    ("unplug gpu", set(), {"pci-0000-01-00-0-display /dev/dri/card6"}),
]

MINIMAL: list[Step] = [
    ("plug ftdi-a", {FTDI.format("1-1-1-0", 0, 2)}, set()),
    ("plug ftdi-b", {FTDI.format("1-2-1-0", 1, 3)}, set()),
    ("unplug ftdi-a", set(), {FTDI.format("1-1-1-0", 0, 2)}),
    (
        "plug keyboard",
        {"usb-1-3-1-0 /dev/hidraw0 /dev/input/event4 /dev/bus/usb/001/004"},
        set(),
    ),
    ("plug usbdisk", {"usb-2-4-1-0 block-device"}, set()),
    ("unplug usbdisk", set(), {"usb-2-4-1-0 block-device"}),
    ("plug nvme", {"pci-0000-02-00-0-nvme-1 block-device"}, set()),
    ("unplug nvme", set(), {"pci-0000-02-00-0-nvme-1 block-device"}),
    (
        "plug gpu",
        {"pci-0000-01-00-0-display /dev/dri/card0", "pci 0000:01:00.0 /dev/fb0 framebuffer"},
        set(),
    ),
    (
        "unplug gpu",
        set(),
        {"pci-0000-01-00-0-display /dev/dri/card0", "pci 0000:01:00.0 /dev/fb0 framebuffer"},
    ),
    ("plug nic", {"pci-0000-01-00-0 /dev/ptp0"}, set()),
]

_DUMMY = "platform-snd-dummy-0 /dev/snd/controlC0 /dev/snd/pcmC0D0c /dev/snd/pcmC0D0p"


def vivid(instances: int) -> str:
    """One platform device, with so many of everything for each of its instances."""
    names = (
        *(f"/dev/cec{n}" for n in range(2 * instances)),
        *(f"/dev/input/event{n}" for n in (1, 2, 6, 7)[: 2 * instances]),
        *(f"/dev/media{n}" for n in range(instances)),
        *(f"/dev/radio{n}" for n in range(2 * instances)),
        *(f"/dev/swradio{n}" for n in range(instances)),
        *(f"/dev/v4l-touch{n}" for n in range(instances)),
        *(f"/dev/vbi{n}" for n in range(2 * instances)),
        *(f"/dev/video{n}" for n in range(4 * instances)),
    )
    return " ".join(("platform-vivid-0", *names))


VIRTUAL: list[Step] = [
    ("modprobe -r snd-dummy", set(), {_DUMMY}),
    ("modprobe snd-dummy", {_DUMMY}, set()),
    ("modprobe -r vivid", set(), {vivid(1)}),
    ("modprobe vivid n_devs=2", {vivid(2)}, set()),
    ("modprobe -r mac80211_hwsim", set(), set()),
    ("modprobe mac80211_hwsim radios=1", set(), set()),
]

LEGACY: list[Step] = [
    ("plug nic-pci", {"pci 0000:00:12.0 no-nodes"}, set()),
    ("unplug nic-pci", set(), {"pci 0000:00:12.0 no-nodes"}),
    ("unplug serial-2", set(), {FTDI.format("1-2-1-0", 0, 3)}),
    ("plug serial-2", {FTDI.format("1-2-1-0", 0, 7)}, set()),
    ("plug ftdi-uhci", {FTDI.format("1-1-4-1-0", 2, 8)}, set()),
]


def seen(node: Node) -> set[str]:
    """Return each device with its nodes, and each thing that is not offered with its rule."""
    found = anyio.run(look, node, AgentSettings(drivers=("pci_drm", "usb")))
    answer = document(found.offer, found.faults)
    assert answer["faults"] == []
    offered = {
        " ".join((device["name"], *_in_order([n["path"] for n in device["nodes"]])))
        for device in answer["devices"]
    }
    return offered | {f"{each['subject']} {each['rule']}" for each in answer["not_offered"]}


def _in_order(paths: list[str]) -> list[str]:
    return sorted(paths, key=lambda path: (path.startswith("/dev/bus/"), path))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("desktop", DESKTOP),
        ("graphics", GRAPHICS),
        ("minimal", MINIMAL),
        ("virtual", VIRTUAL),
        ("legacy", LEGACY),
    ],
)
def test_a_step_changes_what_it_should_and_nothing_else(
    scratch: Path, name: str, steps: list[Step]
) -> None:
    commands, before = list[str](), set[str]()
    for command, node in replay(name, scratch):
        now = seen(node)
        if command:
            expected = steps[len(commands)]
            assert (command, now - before, before - now) == expected
            commands.append(command)
        before = now

    assert len(commands) == len(steps)
