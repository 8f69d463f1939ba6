"""A driver with GPU-like devices, and the GPUs it finds on a machine made of files.

    gpus = FakeGpus(FakeMachine(tmp_path))
    whole, cut, sliced = gpus.add(), gpus.add(mig=2), gpus.add(slots=4)
    whole.fail("row remap pending")

``GpuStandIn`` stands in for a vendor's driver wherever grants, isolation and release are tried
without hardware: the kinds are ``gpu`` (a whole one, exclusive), ``gpu.mig`` (a partition) and
``gpu.slot`` (a share of its time). Partitions and slots deliver their GPU's node together. What it
did to a GPU is in its log (``FakeGpus.log``), and of a GPU that two claims have at once it says so
there: it asks nobody for that.

In sysfs, every GPU, partition and slot is a directory of the class ``acme_gpu``; those of a GPU lie
in it. ``run/acme_gpu/event`` changes when something else does, for want of a kernel that says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_DNS, uuid5

import anyio
import anyio.to_thread

from hardpoint import (
    AttributeInfo,
    AttributeType,
    Capacity,
    Condition,
    Delivery,
    Device,
    DeviceNode,
    Entry,
    Health,
    Hold,
    Node,
    Part,
    Settings,
    TryAgain,
    Version,
    Withheld,
    exclusive,
    hookimpl,
    shared,
)
from hardpoint.testing.fake_device import FakeDevice, link, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint.testing.sysfs import FakeMachine

CLASS = "acme_gpu"
MAJOR = 247
"""Of the range for local use (Documentation/admin-guide/devices.txt)."""
GPU, MIG, SLOT = "gpu", "gpu.mig", "gpu.slot"
_PRODUCT, _DRIVER = "Acme G100 80GB", "570.86.15"
_LOOK_EVERY = 0.1
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL = 63


class GpuSettings(Settings):
    """The section ``[driver.acme_gpu]``."""

    full_names: bool = False
    """Name devices by the whole UUID of their GPU rather than by its first eight digits."""


class GpuStandIn:
    """GPUs whole, in partitions, and in slots of time."""

    Settings = GpuSettings

    def __init__(self, node: Node, settings: GpuSettings) -> None:
        self.node, self.settings = node, settings

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld]:
        """Read every GPU, partition and slot."""
        for entry in self.node.each(f"class/{CLASS}"):
            if entry.text("kind") == GPU and not entry.text("whole"):
                yield Withheld(entry.name, "divided", "its partitions or slots are offered instead")
            else:
                yield self._describe(entry)

    @hookimpl
    async def watch_devices(self, hint: Callable[[], None]) -> None:
        """Wait for the machine to say that something changed."""
        last = await anyio.to_thread.run_sync(self._event)
        while True:
            await anyio.sleep(_LOOK_EVERY)
            found = await anyio.to_thread.run_sync(self._event)
            if found != last:
                last = found
                hint()

    @hookimpl
    def check_device(self, device: Device) -> Health:
        """A partition or slot is no better than its GPU."""
        entry = self._entry(device)
        if not entry.exists():
            return Health(Condition.UNHEALTHY, "it fell off the bus")
        said = entry.text("health") or _gpu_of(entry).text("health")
        return Health(Condition.UNHEALTHY, said) if said else Health(Condition.HEALTHY)

    @hookimpl
    def describe_attributes(self) -> Iterator[AttributeInfo]:
        """Describe what a device says of itself."""
        for name, type_, meaning, file in _ATTRIBUTES:
            yield AttributeInfo(
                name=name, type=type_, meaning=meaning, source=f"/sys/class/{CLASS}/*/{file}"
            )

    @hookimpl
    def label_node(self) -> Mapping[str, str]:
        """Count the GPUs, divided ones too; a node without any earns nothing."""
        gpus = [e for e in self.node.entries(f"class/{CLASS}") if e.text("kind") == GPU]
        if not gpus:
            return {}
        products, drivers = ({gpu.text(f) for gpu in gpus} for f in ("product", "driver_version"))
        return {
            "gpu.count": str(len(gpus)),
            "gpu.product": _label(products),
            "gpu.driver": _label(drivers),
        }

    @hookimpl
    def deliver_device(self, device: Device) -> Delivery:
        """Give its GPU's node, and ``ACME_GPU_1F…`` with what programs call it."""
        variable = f"ACME_{device.name.upper().replace('-', '_')}"
        return Delivery(nodes=device.nodes, env={variable: str(device.attributes["visibleDevice"])})

    @hookimpl
    def prepare_device(self, device: Device, hold: Hold) -> None:
        """Write down whose it is, and in the log whether somebody else has it."""
        entry, user = self._entry(device), str(hold.claim)
        if not entry.exists():
            raise TryAgain(f"{device.name} fell off the bus")
        hold.remember(user=user)
        for other in _users(entry) - {user}:
            self._log(f"contended {device.name}: {other} has it, {user} comes")
        entry.write("user", user)
        self._log(f"prepared {device.name} for {user}")

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        """Write down that it is nobody's."""
        entry, user = self._entry(hold.device), hold.remembered.get("user")
        if user and entry.exists() and entry.text("user") == user:
            entry.write("user", "")
            self._log(f"unprepared {hold.device.name} of {user}")

    @hookimpl
    def release_device(self, device: Device, hold: Hold) -> None:
        """Scrub its memory, unless the machine says why it cannot."""
        if why := self._entry(device).text("scrub_fails"):
            raise TryAgain(why)
        self._log(f"scrubbed {device.name} after {hold.claim}")

    # -- what an entry is -------------------------------------------------------------------------

    def _describe(self, entry: Entry) -> Device:
        gpu, kind = _gpu_of(entry), entry.text("kind")
        bare = gpu.text("uuid").removeprefix("GPU-")
        own = entry.text("uuid") or gpu.text("uuid")
        topology = entry.pci.topology()
        short = bare if self.settings.full_names else bare[:8]
        suffix = entry.name.removeprefix(gpu.name)
        return Device(
            name=f"gpu-{short}{suffix}",
            kind=kind,
            nodes=_nodes(gpu, alone=kind == GPU),
            parts=_parts(entry, kind, bare, suffix),
            attributes={
                "uuid": own,
                "class": kind,
                "visibleDevice": own,
                "product": gpu.text("product"),
                "driverVersion": Version(gpu.text("driver_version")),
                **({} if topology.numa_node is None else {"numaNode": topology.numa_node}),
            },
            capacity={"memory": Capacity(value=entry.text("memory"))},
            topology=topology,
            origin={"entry": entry.name},
        )

    def _entry(self, device: Device) -> Entry:
        return self.node.entry(f"class/{CLASS}/{device.origin['entry']}")

    # -- below /run -------------------------------------------------------------------------------

    def _event(self) -> str:
        return self.node.run_text(f"{CLASS}/event")

    def _log(self, line: str) -> None:
        if self.node.recorded:
            raise PermissionError("a recorded machine is not written")
        at = self.node.run / CLASS / "log"
        at.parent.mkdir(parents=True, exist_ok=True)
        with at.open("a") as log:
            log.write(f"{line}\n")


_TEXT = AttributeType.STRING
_ATTRIBUTES = (
    ("uuid", _TEXT, "its UUID; of a slot, its GPU's", "uuid"),
    ("class", _TEXT, "what it is: gpu, gpu.mig or gpu.slot", "kind"),
    ("visibleDevice", _TEXT, "what a program calls it", "uuid"),
    ("product", _TEXT, "the maker's name of the GPU", "product"),
    ("driverVersion", AttributeType.VERSION, "version of its driver", "driver_version"),
    ("numaNode", AttributeType.INT, "NUMA node that it is near to", "device/numa_node"),
)


def _gpu_of(entry: Entry) -> Entry:
    """Return the GPU that a partition or slot lies in, or the GPU itself."""
    return entry if entry.text("kind") == GPU else next(entry.ancestors())


def _users(entry: Entry) -> set[str]:
    """Return whose a GPU is, in whole or in part; whose a part is, or all of its GPU."""
    gpu = _gpu_of(entry)
    parts = (each for each in gpu.children() if each.text("kind"))
    places = (entry, *parts) if entry.path == gpu.path else (entry, gpu)
    return {user for place in places if (user := place.text("user"))}


def _nodes(gpu: Entry, *, alone: bool) -> tuple[DeviceNode, ...]:
    node = gpu.device_node()
    return () if node is None else (node if alone else replace(node, shared=True),)


def _parts(entry: Entry, kind: str, uuid: str, suffix: str) -> tuple[Part, ...]:
    if kind == GPU:
        return (exclusive(f"gpu:{uuid}"), exclusive(entry.part), *entry.pci.whole())
    word = "mig" if kind == MIG else "slot"
    own = exclusive(f"{word}:{uuid}/{suffix.lstrip('-')}")
    return (own, exclusive(entry.part), shared(f"gpu:{uuid}"), *entry.pci.beside())


def _label(values: set[str]) -> str:
    """Return a label's value: what all GPUs are, or ``mixed``."""
    if len(values) > 1:
        return "mixed"
    return _UNFIT.sub("-", values.pop())[:_LONGEST_LABEL].strip("-._")


# -- the machine ----------------------------------------------------------------------------------


class FakeGpus:
    """The GPUs of a fake machine, as a test adds and breaks them."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine
        self.all: list[FakeGpu] = []
        (machine.sys / "class" / CLASS).mkdir(parents=True, exist_ok=True)

    def add(
        self,
        *,
        mig: int = 0,
        slots: int = 0,
        whole: bool | None = None,
        numa: int = 0,
        product: str = _PRODUCT,
        driver: str = _DRIVER,
        numbers: tuple[int, int] | None = None,
    ) -> FakeGpu:
        """Add a GPU, in so many partitions and slots; as a whole too, where it is in none.

        ``whole`` says otherwise: both is hardware that two devices contend for. ``numbers`` are
        those of its node, where a test needs one that the kernel opens.
        """
        index = len(self.all)
        gpu = FakeGpu(self, index, numbers or (MAJOR, index), numa=numa)
        divided = bool(mig or slots)
        offered = not divided if whole is None else whole
        gpu.device.set(product=product, driver_version=driver, whole="1" if offered else "")
        for number in range(mig):
            gpu.divide(f"gi{number + 1}-ci0", MIG, f"MIG-{_uuid(index, number + 1)}", "40Gi")
        for number in range(slots):
            gpu.divide(f"s{number}", SLOT, "", "80Gi")
        self.all.append(gpu)
        self.tell()
        return gpu

    def tell(self) -> None:
        """Let the driver look again, as a kernel event does."""
        self.machine.save()
        at = self.machine.run / CLASS / "event"
        told = int(at.read_text()) if at.exists() else 0
        put(at, told + 1)

    @property
    def log(self) -> list[str]:
        """What the driver did: ``prepared gpu-1f… for media/claim``, ``scrubbed …``."""
        at = self.machine.run / CLASS / "log"
        return at.read_text().splitlines() if at.exists() else []


class FakeGpu:
    """One GPU: what it is called, and what a test does to it."""

    def __init__(
        self, gpus: FakeGpus, index: int, numbers: tuple[int, int], *, numa: int = 0
    ) -> None:
        self._gpus = gpus
        self.uuid = f"GPU-{_uuid(index)}"
        """As its driver says it."""
        self.name = f"gpu-{self.uuid[4:12]}"
        """Of the device that it is as a whole."""
        self.parts: list[str] = []
        """Names of the devices that it is divided into."""
        bus = f"0000:{0x0A + index:02x}:00.0"
        self.pci = gpus.machine.pci(
            bus, vendor="10de", device="2330", klass="030200", driver=CLASS, numa_node=numa
        )
        self.device = self._directory(self.pci.path / CLASS / f"gpu{index}", GPU, self.uuid, "80Gi")
        self.device.is_node(f"acme/gpu{index}", *numbers, mode=0o666)
        link(self.device.path / "device", self.pci.path)

    @property
    def node(self) -> Path:
        """Its node on the machine; a real one only where a test made it."""
        return self._gpus.machine.dev / "acme" / self.device.name

    def divide(self, part: str, kind: str, uuid: str, memory: str) -> None:
        """Add a partition or slot."""
        self._directory(self.device.path / f"{self.device.name}-{part}", kind, uuid, memory)
        self.parts.append(f"{self.name}-{part}")

    def _directory(self, at: Path, kind: str, uuid: str, memory: str) -> FakeDevice:
        made = FakeDevice(self._gpus.machine, at).in_class(CLASS)
        return made.set(kind=kind, uuid=uuid, memory=memory, health="", user="", scrub_fails="")

    def fail(self, why: str, part: str = "") -> None:
        """Let it, or one of its parts by name, be unhealthy: ``xid 48``, ``row remap pending``."""
        self._at(part).set(health=why)
        self._gpus.tell()

    def mend(self, part: str = "") -> None:
        """Let it work again."""
        self.fail("", part)

    def fail_scrub(self, why: str, part: str = "") -> None:
        """Let ``release_device`` of it, or of one of its parts, fail; with ``""`` no more."""
        self._at(part).set(scrub_fails=why)

    def user(self, part: str = "") -> str:
        """Return which claim the driver has prepared it for, or one of its parts."""
        return (self._at(part).path / "user").read_text().strip()

    def remove(self) -> None:
        """Take it out of the machine."""
        self.pci.remove()
        self._gpus.tell()

    def _at(self, part: str) -> FakeDevice:
        if part in ("", self.name):
            return self.device
        name = f"{self.device.name}{part.removeprefix(self.name)}"
        at = self.device.path / name
        if not os.path.isdir(at):
            raise LookupError(f"{self.name} has no part {part}: {', '.join(self.parts) or 'none'}")
        return FakeDevice(self._gpus.machine, at)


def _uuid(index: int, part: int = 0) -> str:
    return str(uuid5(NAMESPACE_DNS, f"gpu{index}-{part}.acme.example.com"))
