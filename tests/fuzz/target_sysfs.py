"""A machine whose sysfs is not as it should be: what of it is bad costs itself, and nothing else.

A healthy machine is spoilt in a few places below one directory, listed by the real drivers and
offered. Every device that is not above or below that directory is offered as before, the API server
would take every slice, and no string of the hardware is in what is said of the rest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fuzz.choices import Choices
from fuzz.world import CANARY, DOMAIN, Stage, check_published

from hardpoint import Node
from hardpoint._core.offer.inventory import Built, Facts, Listing, as_offer, build
from hardpoint._core.plugins.listing import listing
from hardpoint.model import Offer, Offered, Unread
from hardpoint.platform import Platform
from hardpoint.testing import FakeMachine
from hardpoint.testing.sysfs import FakeInterface
from hardpoint_pci_drm import PciDrm
from hardpoint_usb import Usb

ODD_BYTES = (
    b"",
    b"\n",
    b"\xff\xfe\n",
    b"\x00",
    b"\xc2\xb2\n",
    b"\xd9\xa3\n",
    b"0\n",
    b"-1\n",
    b"1\n",
    b"0x\n",
    b"99999999999999999999\n",
    b"9" * 5000,
    b"\x1b[2J\n",
    b"../../../etc\n",
    b"A" * 4096,
    b"MAJOR=1\nMINOR=\xc2\xb2\nDEVNAME=../sda\n",
    b"MAJOR=1\nMINOR=3\nDEVNAME=null\n",
    b"DEVTYPE=usb_device\nDEVNAME=bus/usb/001/001\n",
    b"226:0\n",
    b"8:0\n",
    b"1:\xc2\xb2\n",
)
ODD_NAMES = (
    "1-9",
    "1-9:1.0",
    "usb9",
    "²",
    "1-²",
    "0000:00:zz.0",
    "a" * 255,
    "\x1b[m",
    "card9",
    "0",
)


class Fuzzed:
    """Spoils the machine and mends it again, for each input."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        machine = healthy(stage.root / "machine")
        self.machine, self.node = machine, machine.node()
        self.devices = machine.sys / "devices"
        self.files = sorted(
            path
            for path in self.devices.rglob("*")
            if path.is_symlink() or path.is_file() or path.is_dir()
        )
        self.good = offered(self.node)
        self.whole = {
            one.name: (one, os.path.realpath(self.node.sys / one.device.entry))
            for one in self.good[0].devices
        }
        assert len(self.whole) > 8
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        with Spoilt(self.machine, self.files) as spoilt:
            for _ in range(1 + choices.below(3)):
                spoilt.somewhere(choices)
            offer, built = offered(self.node)
            for name, (one, where) in self.whole.items():
                if not spoilt.concerns(where):
                    now = next((o for o in offer.devices if o.name == name), None)
                    known = spoilt.placed(now)
                    assert known == spoilt.placed(one), f"{spoilt.where}: {name} {one} {now}"
            check_published(offer)
            said = [str(problem) for _, _, problem in built.problems]
            said += [w.reason for w in built.withheld if w.rule in ("unread", "bad-device")]
            assert CANARY not in "".join(said), said
            self.stage.quiet()


class Spoilt:
    """Changes files of a machine, remembers which, and puts all of it back."""

    def __init__(self, machine: FakeMachine, files: list[Path]) -> None:
        self._machine, self._files = machine, files
        self._back: list[Callable[[], object]] = []
        self.where: list[str] = []

    def __enter__(self) -> Spoilt:
        return self

    def __exit__(self, *exception: object) -> None:
        for undo in reversed(self._back):
            undo()

    def concerns(self, path: str) -> bool:
        """Say whether a device is above or below something that was changed."""
        return any(
            place.startswith(path + "/") or f"{path}/".startswith(os.path.dirname(place) + "/")
            for place in self.where
        )

    def placed(self, offered: Offered | None) -> Offered | None:
        """Return a device without its NUMA node, where the list of those may be spoilt."""
        if offered is None or not any("/devices/system" in place for place in self.where):
            return offered
        device = offered.device
        facts = {k: v for k, v in device.attributes.items() if not k.endswith("/numaNode")}
        place = replace(device.topology, numa_node=None)
        return replace(offered, device=replace(device, attributes=facts, topology=place))

    def somewhere(self, choices: Choices) -> None:
        how = choices.below(9)
        if how == 8:
            self._add_entry(choices)
            return
        path = self._files[choices.below(len(self._files))]
        if not os.path.lexists(path) or any(str(path).startswith(f"{w}/") for w in self.where):
            return
        self.where.append(str(path))
        self._aside(path)
        content = choices.pick((choices.pick(ODD_BYTES), choices.chunk(80)))
        with suppress(ValueError):
            _put(path, how, content, choices)

    def _aside(self, path: Path) -> None:
        aside = self._machine.root / f"aside-{len(self._back)}"
        os.rename(path, aside)

        def back() -> None:
            if not path.is_symlink() and path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            os.rename(aside, path)

        self._back.append(back)

    def _add_entry(self, choices: Choices) -> None:
        """Let a bus or class list something odd."""
        folder = choices.pick(("bus/usb/devices", "bus/pci/devices", "class/drm", "dev/char"))
        path = self._machine.sys / folder / choices.pick(ODD_NAMES)
        targets = ("nowhere", ".", "../..", "../../../devices", "/", path.name)
        if not os.path.lexists(path):
            path.symlink_to(choices.pick(targets))
            self._back.append(path.unlink)


def _put(path: Path, how: int, content: bytes, choices: Choices) -> None:
    """Put something in place of what was there; nothing at all for 0."""
    if how in (1, 2, 3):
        path.write_bytes(content)
    elif how == 4:
        path.mkdir()
        (path / "inner").mkdir()
    elif how == 5:
        target = choices.pick((path.name, "..", ".", "../../..", "nowhere", os.fsdecode(content)))
        if target and "\0" not in target:
            path.symlink_to(target[:1000])
    elif how == 6:
        path.write_bytes((content or b"\xff") * 20_000)
    elif how == 7:
        deep = path.joinpath(*["d" * 10] * (1 + choices.below(60)))
        deep.mkdir(parents=True)
        (deep / "uevent").write_bytes(content)


def offered(node: Node) -> tuple[Offer, Built]:
    """List a machine with the real drivers and make the offer, as the agent does."""
    drivers = {
        "pci_drm": PciDrm(node, PciDrm.Settings(pci_ids=())).publish_devices,
        "usb": Usb(node, Usb.Settings()).publish_devices,
    }
    listings = []
    for name, publish in drivers.items():
        listed = listing(publish)
        listings.append(Listing(name).after(listed, 0.0))
        for one in listed:
            assert not (isinstance(one, Unread) and "RecursionError" in one.reason), one
    facts = Facts(domain_of=lambda _: DOMAIN, node_reason=Platform.of(node).reason, now=1e6)
    built = build(listings, facts)
    return as_offer(built, Offer(generation=0), complete=True), built


def healthy(root: Path) -> FakeMachine:
    """Two GPUs and USB devices at two controllers, whose strings are all canaries."""
    machine = FakeMachine(root)
    machine.numa(0, 1)
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128, connectors=("HDMI-A-1",)).i2c(4, 5).fb(0).set(numa_node=0)
    machine.pci("0000:00:01.0", klass="060400", driver="pcieport")
    other = machine.pci(
        "0000:03:00.0",
        vendor="1002",
        device="744c",
        klass="030000",
        driver="amdgpu",
        behind="0000:00:01.0",
        numa_node=1,
    )
    other.drm(card=1, render=129).dp_aux(0, card=1).i2c(7)
    _usb(machine, "1-1", "ftdi_sio", "ff").node("tty", "ttyUSB0", 188, 0, gid=20)
    _usb(machine, "1-2", "usbhid", "03").node("hidraw", "hidraw0", 245, 0, gid=20)
    _usb(machine, "1-4.1", "uvcvideo", "0e").node("video4linux", "video0", 81, 0, gid=20)
    _usb(machine, "1-5", "", "ff")
    second = _usb(machine, "2-1", "cp210x", "ff", controller="0000:00:1a.0")
    second.node("tty", "ttyUSB1", 188, 1, gid=20)
    return machine


def _usb(
    machine: FakeMachine, port: str, driver: str, klass: str, controller: str = "0000:00:14.0"
) -> FakeInterface:
    device = machine.usb(
        port,
        vendor="0403",
        product="6001",
        serial=f"{CANARY}-{port}",
        controller=controller,
        manufacturer=f"{CANARY} Inc",
        product_name=f"{CANARY} Thing",
    )
    return device.interface(0, klass=klass, driver=driver, interface=f"{CANARY} port")


__all__ = ["Fuzzed", "healthy", "offered"]
