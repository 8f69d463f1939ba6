"""PCI functions, USB devices and disks of a fake machine, as Linux 6.x shows them."""

from __future__ import annotations

from typing import Self

from hardpoint.testing.fake_device import FakeDevice, Value, link

DRM_MAJOR, I2C_MAJOR, SOUND_MAJOR, USB_MAJOR, INPUT_MAJOR = 226, 89, 116, 189, 13
AUX_MAJOR = 238
"""Majors of include/uapi/linux/major.h; that of DP AUX is given at boot."""


class FakeDisk(FakeDevice):
    """A disk or partition: a directory in class ``block``."""

    def held_by(self, holder: FakeDevice) -> Self:
        """Let another block device stand on it: dm, md, loop."""
        link(self.path / "holders" / holder.name, holder.path)
        link(holder.path / "slaves" / self.name, self.path)
        return self

    def partition(self, number: int, major: int, minor: int) -> FakeDisk:
        """Add a partition, and return it."""
        joint = "p" if self.name[-1].isdigit() else ""
        part = FakeDisk(self.machine, self.path / f"{self.name}{joint}{number}")
        part.set(partition=number, size=2048, start=2048).in_class("block")
        part.uevent(DEVTYPE="partition").is_node(part.name, major, minor, mode=0o660, gid=6)
        (part.path / "holders").mkdir(exist_ok=True)
        return part


class WithDisks(FakeDevice):
    """Something that a disk can be below."""

    def disk(self, name: str, major: int, minor: int, /, **attributes: Value) -> FakeDisk:
        """Add a whole disk below it (``block/sda``), and return it.

        Attributes with a double underscore lie in its device: ``device__model="WD40"``.
        """
        disk = FakeDisk(self.machine, self.path / "block" / name)
        own = {k: v for k, v in attributes.items() if not k.startswith("device__")}
        disk.set(**{"size": 4096, "removable": 0, "ro": 0, **own}).in_class("block")
        disk.uevent(DEVTYPE="disk").is_node(name, major, minor, mode=0o660, gid=6)
        link(self.machine.sys / "block" / name, disk.path)
        link(disk.path / "device", self.path)
        for directory in ("holders", "slaves"):
            (disk.path / directory).mkdir(exist_ok=True)
        self.set(**{k.removeprefix("device__"): attributes[k] for k in attributes.keys() - own})
        return disk


class FakePci(WithDisks):
    """A PCI function."""

    def drm(
        self,
        card: int | None = None,
        render: int | None = None,
        *,
        connectors: tuple[str, ...] = (),
        gid: int = 44,
        render_gid: int = 104,
    ) -> Self:
        """Add DRM minors: ``card0`` with its connectors, ``renderD128``."""
        if card is not None:
            self.node("drm", f"dri/card{card}", DRM_MAJOR, card, gid=gid)
            for connector in connectors:
                at = self.path / f"drm/card{card}/card{card}-{connector}"
                FakeDevice(self.machine, at).set(status="connected").in_class("drm")
        if render is not None:
            self.node("drm", f"dri/renderD{render}", DRM_MAJOR, render, gid=render_gid)
        return self

    def i2c(self, *numbers: int) -> Self:
        """Add I2C adapters with their ``/dev/i2c-N``, as a GPU has for its monitors."""
        for number in numbers:
            adapter = self.child(f"i2c-{number}", bus="i2c", name=f"gpu bus {number}")
            adapter.node("i2c-dev", f"i2c-{number}", I2C_MAJOR, number)
        return self

    def dp_aux(self, *numbers: int, card: int = 0) -> Self:
        """Add DisplayPort AUX channels, which exist below a connector of the card."""
        for number in numbers:
            connector = self.child(f"drm/card{card}/card{card}-DP-{number + 1}", klass="drm")
            connector.node("drm_dp_aux_dev", f"drm_dp_aux{number}", AUX_MAJOR, number)
        return self

    def fb(self, number: int) -> Self:
        """Add a frame buffer."""
        return self.node("graphics", f"fb{number}", 29, number)

    def sound(self, card: int, *, id: str = "PCH", first: int = 2, jacks: int = 0) -> Self:
        """Add a sound card with one playback PCM, a codec, and jacks that are input events."""
        here = self.child(f"sound/card{card}", klass="sound", id=id, number=card)
        for offset, name in enumerate((f"controlC{card}", f"pcmC{card}D0p", f"hwC{card}D0")):
            node = here.child(name, klass="sound")
            node.is_node(f"snd/{name}", SOUND_MAJOR, first + offset, gid=29)
        for jack in range(20, 20 + jacks):
            at = here.child(f"input{jack}", klass="input", name="HDA Jack")
            at.child(f"event{jack}", klass="input").is_node(
                f"input/event{jack}", INPUT_MAJOR, 64 + jack, gid=105
            )
        return self

    def ata(self, port: int, host: int | None = None) -> WithDisks:
        """Add a SATA port with a SCSI device, for ``disk()``, and return the SCSI device."""
        return self.scsi(port - 1 if host is None else host, below=f"ata{port}")

    def scsi(
        self, host: int, target: int = 0, lun: int = 0, *, channel: int = 0, below: str = ""
    ) -> WithDisks:
        """Add a SCSI device with its host, and return it."""
        where = f"{below}/host{host}/target{host}:{channel}:{target}".lstrip("/")
        name = f"{host}:{channel}:{target}:{lun}"
        device = WithDisks(self.machine, self.path / where / name)
        return device.set(type=0, vendor="ATA", model="DISK").on_bus("scsi").bind("sd")

    def nvme(self, number: int, *, minor: int = 0, **attributes: Value) -> WithDisks:
        """Add an NVMe controller with its ``/dev/nvme0``, and return it, for ``disk()``."""
        controller = WithDisks(self.machine, self.path / "nvme" / f"nvme{number}")
        controller.set(**attributes).in_class("nvme").is_node(f"nvme{number}", 240, minor)
        return controller


class FakeInterface(WithDisks):
    """An interface of a USB device."""


class FakeUsb(FakeDevice):
    """A USB device."""

    def interface(
        self,
        number: int,
        *,
        klass: str = "ff",
        subclass: str = "00",
        protocol: str = "00",
        driver: str = "",
        config: int = 1,
        **attributes: Value,
    ) -> FakeInterface:
        """Add an interface, and return it."""
        interface = FakeInterface(self.machine, self.path / f"{self.name}:{config}.{number}")
        kind = (klass.upper(), subclass.upper(), protocol.upper())
        interface_alias = "ic{}isc{}ip{}in{:02X}".format(*kind, number)
        interface.on_bus("usb").set(
            bInterfaceNumber=f"{number:02x}",
            bInterfaceClass=klass,
            bInterfaceSubClass=subclass,
            bInterfaceProtocol=protocol,
            bAlternateSetting=" 0",
            authorized=1,
            modalias=f"usb:{self._alias()}{interface_alias}",
        ).set(**attributes).uevent(DEVTYPE="usb_interface", INTERFACE=f"{int(klass, 16)}/0/0")
        return interface.bind(driver)

    def _alias(self) -> str:
        words = ("idVendor", "idProduct", "bcdDevice", "bDeviceClass")
        return "v{}p{}d{}dc{}dsc00dp00".format(*(self._word(word) for word in words))

    def _word(self, name: str) -> str:
        path = self.path / name
        return path.read_bytes().decode(errors="replace").strip().upper() if path.is_file() else ""
