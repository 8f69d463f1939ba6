"""``hardpoint attributes``: the reference for people who write DeviceClasses."""

from __future__ import annotations

import argparse

import anyio

from hardpoint._core.offline import described
from hardpoint.attributes import STANDARD
from hardpoint.cli.common import add_json, add_settings, settings_of, this_machine
from hardpoint.cli.output import as_json, fail, table
from hardpoint.model import AttributeInfo, AttributeType

EVERY_DEVICE = (
    AttributeInfo(
        name="kind",
        type=AttributeType.STRING,
        meaning="what sort of thing it is",
        source="the driver that publishes it",
        example="drm.render",
    ),
    AttributeInfo(
        name=f"{STANDARD}/numaNode",
        type=AttributeType.INT,
        meaning="NUMA node it is attached to; absent where the kernel does not know",
        source="sysfs numa_node (Documentation/ABI/testing/sysfs-bus-pci)",
        example="0",
    ),
    AttributeInfo(
        name=f"{STANDARD}/pcieRoot",
        type=AttributeType.STRING,
        meaning="PCIe root complex above it",
        source="host bridge in its path in /sys/devices",
        example="pci0000:00",
    ),
)
"""What the framework adds to every device, of whichever driver."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    parser.add_argument(
        "name", nargs="?", help="only attributes in whose name, or driver's name, this occurs"
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask every installed driver and print."""
    settings = settings_of(arguments)
    answers, faults = anyio.run(described, this_machine(settings), settings)
    rows = [
        (driver, info)
        for driver, infos in {"(every)": EVERY_DEVICE, **answers}.items()
        for info in sorted(infos, key=lambda info: info.name)
        if not arguments.name or arguments.name.lower() in f"{driver} {info.name}".lower()
    ]
    if arguments.json:
        as_json([{"driver": driver, **info_json(info)} for driver, info in rows])
    else:
        table(
            ("driver", "attribute", "type", "kinds", "meaning", "example"),
            [
                (
                    d,
                    i.name,
                    f"{i.type.value}{f' ({i.unit})' if i.unit else ''}",
                    " ".join(i.kinds),
                    i.meaning,
                    i.example,
                )
                for d, i in rows
            ],
            "No such attribute.",
        )
    for fault in faults:
        fail(f"{fault.source}: {fault.message}")
    return 0 if rows and not faults else 1


def info_json(info: AttributeInfo) -> dict[str, object]:
    """Return one line of the reference as JSON."""
    return {
        "name": info.name,
        "type": info.type.value,
        "unit": info.unit,
        "kinds": list(info.kinds),
        "meaning": info.meaning,
        "source": info.source,
        "example": info.example,
    }
