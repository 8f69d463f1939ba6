"""A machine made of files that looks real: for tests of drivers, without hardware or root.

    machine = FakeMachine(tmp_path)
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128).i2c(4, 5)
    stick = machine.usb("1-2", vendor="0403", product="6001", serial="FT1")
    stick.interface(0, klass="ff", driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    node = machine.node()

Directories are real below ``sys/devices``; ``bus``, ``class``, ``dev`` and ``block`` hold links, as
in sysfs. The nodes of /dev are in a table, since making one needs root.
"""

from __future__ import annotations

import json
from pathlib import Path

from hardpoint.node import Node, NodeInfo
from hardpoint.recorded import RecordedNode
from hardpoint.testing.fake_device import FakeDevice, Value, dev_table, put
from hardpoint.testing.fake_hardware import (
    USB_MAJOR,
    FakeDisk,
    FakeInterface,
    FakePci,
    FakeUsb,
    WithDisks,
)

__all__ = [
    "FakeDevice",
    "FakeDisk",
    "FakeInterface",
    "FakeMachine",
    "FakePci",
    "FakeUsb",
    "WithDisks",
]

XHCI = "0000:00:14.0"


class FakeMachine:
    """A tree of ``sys``, ``dev``, ``proc`` and ``run`` below ``root``, empty at first."""

    def __init__(self, root: str | Path, *, name: str = "fake") -> None:
        self.root, self.name = Path(root), name
        self.sys, self.dev = self.root / "sys", self.root / "dev"
        self.proc, self.run = self.root / "proc", self.root / "run"
        self._dev: dict[str, NodeInfo] = {}
        self._links: dict[str, str] = {}
        self._mounts: list[str] = []
        for path in (self.sys / "bus", self.sys / "devices", self.dev, self.proc, self.run):
            path.mkdir(parents=True, exist_ok=True)
        put(self.proc / "sys/kernel/random/boot_id", "6b1d3a52-0000-4000-8000-00000000b007")
        put(self.proc / "swaps", "Filename\tType\tSize\tUsed\tPriority")
        self.mount("0:23", "/", kind="overlay", source="overlay")

    def node(self, *, writable: bool = False) -> Node:
        """Return the machine as drivers see it. ``writable`` lets ``Entry.write`` change it."""
        self.save()
        return RecordedNode(self.root, self._dev, name=self.name, recorded=not writable)

    def save(self) -> Path:
        """Write ``dev.json``, so that the tree can be opened as a recorded one; return the root."""
        table = {"nodes": dev_table(self._dev), "links": self._links}
        put(self.root / "dev.json", json.dumps(table))
        return self.root

    # -- devices ----------------------------------------------------------------------------------

    def device(
        self,
        bus: str,
        address: str,
        /,
        *,
        below: str | FakeDevice = "",
        driver: str = "",
        **attributes: Value,
    ) -> FakeDevice:
        """Add a device of any bus; ``below`` is a directory of ``sys/devices`` (the bus's name)."""
        above = below.path if isinstance(below, FakeDevice) else self.sys / "devices" / below
        base = above if below else above / bus
        return FakeDevice(self, base / address).set(**attributes).on_bus(bus).bind(driver)

    def platform(
        self, address: str, *, driver: str = "", modalias: str = "", **attributes: Value
    ) -> FakeDevice:
        """Add a platform device: what the board has without a bus that could list it."""
        alias = modalias or f"platform:{address}"
        return self.device("platform", address, driver=driver, modalias=alias).set(**attributes)

    def virtual(
        self, subsystem: str, name: str, major: int, minor: int, /, **attributes: Value
    ) -> FakeDevice:
        """Add a node that no hardware stands behind: ``virtual("misc", "uhid", 10, 239)``."""
        device = FakeDevice(self, self.sys / "devices/virtual" / subsystem / name.split("/")[-1])
        return device.set(**attributes).in_class(subsystem).is_node(name, major, minor)

    def virtual_disk(self, name: str, major: int, minor: int, /, **attributes: Value) -> FakeDisk:
        """Add a block device without hardware: ``dm-0``, ``md0``, ``loop0``."""
        return WithDisks(self, self.sys / "devices/virtual").disk(name, major, minor, **attributes)

    def pci(
        self,
        address: str,
        *,
        vendor: str = "1af4",
        device: str = "1000",
        klass: str = "000000",
        driver: str = "",
        behind: str = "",
        **attributes: Value,
    ) -> FakePci:
        """Add a PCI function, below the bridge at address ``behind`` or a root of its own bus.

        ``vendor``, ``device`` and ``klass`` are hexadecimal digits as ``lspci -n`` prints them.
        """
        domain, bus, _ = address.split(":")
        root = self.sys / "devices" / f"pci{domain}:{bus}"
        above = (self.sys / "bus/pci/devices" / behind).resolve() if behind else root
        if not behind:
            put(root / "uevent", b"")
        function = FakePci(self, above / address).on_bus("pci")
        function.set(
            vendor=f"0x{vendor}",
            device=f"0x{device}",
            klass=f"0x{klass}",
            subsystem_vendor="0x1028",
            subsystem_device="0x0b0d",
            revision="0x01",
            numa_node=-1,
            enable=1,
            modalias=_pci_alias(vendor, device, klass),
        ).set(**attributes)
        function.uevent(PCI_SLOT_NAME=address, PCI_ID=f"{vendor}:{device}".upper())
        return function.bind(driver)

    def usb(
        self,
        address: str,
        *,
        vendor: str = "1d6b",
        product: str = "0104",
        serial: Value = None,
        driver: str = "usb",
        bcd: str = "0600",
        devnum: int = 0,
        controller: str = XHCI,
        **attributes: Value,
    ) -> FakeUsb:
        """Add a USB device at a port path (``1-2.3``), with the hubs and the controller above it.

        ``manufacturer``, ``product_name`` and ``serial`` are its strings; ``product`` is its id.
        """
        bus = int(address.partition("-")[0])
        name = attributes.pop("product_name", None)
        device = FakeUsb(self, self._usb_above(address, controller).path / address).on_bus("usb")
        device.set(
            idVendor=vendor,
            idProduct=product,
            bcdDevice=bcd,
            bDeviceClass="00",
            bDeviceSubClass="00",
            bDeviceProtocol="00",
            bConfigurationValue=1,
            busnum=bus,
            devpath=address.partition("-")[2],
            speed="480",
            version=" 2.00",
            authorized=1,
            serial=serial,
            product=name,
        ).set(**attributes)
        device.uevent(DEVTYPE="usb_device").bind(driver)
        return self.renumber(device, devnum or self._next_devnum(bus))

    def renumber(self, device: FakeUsb, devnum: int) -> FakeUsb:
        """Give a USB device another number on its bus, as a replug into the same port does."""
        bus = int((device.path / "busnum").read_text())
        old = device.path / "dev"
        if old.exists():
            (self.sys / "dev/char" / old.read_text().strip()).unlink(missing_ok=True)
            before = int((device.path / "devnum").read_text())
            self.dev_gone(f"/dev/bus/usb/{bus:03d}/{before:03d}")
        device.set(devnum=devnum).uevent(BUSNUM=f"{bus:03d}", DEVNUM=f"{devnum:03d}")
        minor = (bus - 1) * 128 + devnum - 1
        return device.is_node(f"bus/usb/{bus:03d}/{devnum:03d}", USB_MAJOR, minor, mode=0o664)

    def _usb_above(self, address: str, controller: str) -> FakeDevice:
        """Return the hub or root hub that a port path hangs from, made where it is missing."""
        above = address.rpartition(".")[0]
        bus = address.partition("-")[0]
        if above:
            at = self.sys / "bus/usb/devices" / above
            if at.exists():
                return FakeDevice(self, at.resolve())
            hub = self.usb(above, vendor="05e3", product="0610", controller=controller)
            hub.set(bDeviceClass="09").interface(0, klass="09", driver="hub")
            return hub
        root = self.sys / "bus/usb/devices" / f"usb{bus}"
        if root.exists():
            return FakeDevice(self, root.resolve())
        return self._root_hub(int(bus), controller)

    def _root_hub(self, bus: int, controller: str) -> FakeUsb:
        at = self.sys / "bus/pci/devices" / controller
        host = (
            FakePci(self, at.resolve())
            if at.exists()
            else self.pci(
                controller, vendor="8086", device="a36d", klass="0c0330", driver="xhci_hcd"
            )
        )
        hub = FakeUsb(self, host.path / f"usb{bus}").on_bus("usb")
        hub.set(idVendor="1d6b", idProduct="0002", bcdDevice="0601", bDeviceClass="09", busnum=bus)
        hub.set(devpath="0", speed="480", authorized=1, bConfigurationValue=1)
        hub.uevent(DEVTYPE="usb_device").bind("usb")
        self.renumber(hub, 1)
        FakeDevice(self, hub.path / f"{bus}-0:1.0").on_bus("usb").set(
            bInterfaceClass="09",
            bInterfaceSubClass="00",
            bInterfaceProtocol="00",
            bInterfaceNumber="00",
            authorized=1,
            modalias="usb:v1D6Bp0002d0601dc09dsc00dp01ic09isc00ip00in00",
        ).uevent(DEVTYPE="usb_interface").bind("hub")
        return hub

    def _next_devnum(self, bus: int) -> int:
        known = self.sys.glob("bus/usb/devices/*/devnum")
        same = [p for p in known if int((p.parent / "busnum").read_text()) == bus]
        return 1 + max((int(p.read_text()) for p in same), default=1)

    # -- what the machine uses --------------------------------------------------------------------

    def mount(
        self, numbers: str, where: str, *, kind: str = "ext4", source: str = "/dev/root"
    ) -> FakeMachine:
        """Mount what has these numbers (``8:1``) at a place; a second mount there hides the first.

        It is written to the tables of process 1 and of the reader.
        """
        line = f"{len(self._mounts) + 20} 1 {numbers} / {where} rw,relatime - {kind} {source} rw"
        self._mounts.append(line)
        for who in ("1", "self"):
            put(self.proc / who / "mountinfo", "\n".join(self._mounts))
        return self

    def swap(self, path: str, *, kind: str = "partition") -> FakeMachine:
        """Swap to a partition or file."""
        swaps = self.proc / "swaps"
        put(swaps, swaps.read_text().rstrip("\n") + f"\n{path} {kind} 1048572 0 -2")
        return self

    def consoles(self, *names: str) -> FakeMachine:
        """Let the kernel write to these terminals."""
        console = FakeDevice(self, self.sys / "devices/virtual/tty/console")
        console.in_class("tty").set(active=" ".join(names)).is_node("console", 5, 1)
        return self

    def dev_node(self, path: str, info: NodeInfo) -> FakeMachine:
        """State a node of /dev, also one that contradicts sysfs."""
        self._dev[path] = info
        return self

    def dev_gone(self, path: str) -> FakeMachine:
        """Forget a node of /dev; sysfs stays as it is."""
        self._dev.pop(path, None)
        return self

    def dev_link(self, path: str, target: str) -> FakeMachine:
        """Add a link in /dev: ``dev_link("/dev/serial/by-id/usb-x", "../../ttyUSB0")``."""
        self._links[path] = target
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(target)
        return self

    def numa(self, *numbers: int) -> FakeMachine:
        """State the NUMA nodes that the machine has."""
        for number in numbers:
            (self.sys / f"devices/system/node/node{number}").mkdir(parents=True)
        return self


def _pci_alias(vendor: str, device: str, klass: str) -> str:
    base, sub, interface = klass[:2], klass[2:4], klass[4:]
    identity = f"v{vendor.upper():0>8}d{device.upper():0>8}sv00001028sd00000B0D"
    return f"pci:{identity}bc{base}sc{sub}i{interface}"
