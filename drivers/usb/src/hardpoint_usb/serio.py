"""USB-CEC adapters: a serial line that the node attaches, and the CEC bus that comes of it.

The line carries the protocol of the whole adapter, so nobody may have it, or reset the device
through usbfs; what is handed out is ``/dev/cecN`` and the remote control's input node below it.
There is no device under the interface's own name, so that a claim on the serial line from before
the setting never silently becomes one on the CEC bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hardpoint import DeviceNode
from hardpoint_usb.ports import Interface, Port
from hardpoint_usb.settings import SerioAdapter

SUFFIXES = {"cec": "-cec", "input": "-input"}
"""Subsystem of the nodes to what their device is called after the interface's name."""


def matches(adapters: Iterable[SerioAdapter], port: Port) -> bool:
    """Say whether the settings name the adapter in this port."""
    return any(
        (one.vendor, one.product) == (port.vendor, port.product)
        and one.serial in (None, port.serial)
        for one in adapters
    )


def has_line(interface: Interface) -> bool:
    """Say whether this interface is the one with the serial line."""
    return any(node.subsystem == "tty" for node in interface.nodes)


def attached(interface: Interface) -> Iterator[tuple[str, tuple[DeviceNode, ...]]]:
    """Yield suffix and nodes of what came of attaching the line.

    Nothing until the CEC node is there: the input node alone is a half-made adapter.
    """
    by_kind = {kind: tuple(n for n in interface.nodes if n.subsystem == kind) for kind in SUFFIXES}
    if not by_kind["cec"]:
        return
    for kind, suffix in SUFFIXES.items():
        if by_kind[kind]:
            yield suffix, by_kind[kind]
