"""Files in the CDI directory under a name of ours, read when the ledger is lost.

Beside one that says anything there is one that the agent wrote: its claim is found again, whatever
the other says. What is held then is published, and the API server takes it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from broker_world import World
from fuzz.choices import Choices, mutated
from fuzz.world import DOMAIN, Stage, check_published

from hardpoint._core.offer.inventory import Facts, Listing, as_offer, build
from hardpoint.cdi import spec
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import BadValue
from hardpoint.model import Delivery, DeviceNode, Hook, Mount, Offer

UID = "22222222-2222-4333-8444-555555555555"
DELIVERY = Delivery(
    nodes=(DeviceNode(path="/dev/b", major=240, minor=1, mode=0o660, gid=44),),
    mounts=(Mount(host_path="/opt/x", container_path="/opt/x"),),
    env={"IMAGE": "fft"},
    annotations={"a.b/c": "d"},
    hooks=(Hook(name="createContainer", path="/bin/true", args=("true",), env=("A=b",)),),
    gids=(5,),
)
WRITTEN: dict[str, Any] = spec(
    "hardpoint.dev",
    [(f"{UID}-b", DELIVERY), (f"{UID}-card-gone", DELIVERY), (f"{UID}-b-s1:r1:sub", DELIVERY)],
)


class Fuzzed:
    """Loses the ledger and finds the holds again, with another file each time."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        self.stage.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        world = World(self.stage.fresh("world"))
        for minor, name in enumerate(("a", "b")):
            world.card(name, minor)
        world.hooks.drivers["cards"].unprepare_device = lambda hold: None
        files = CdiDirectory(world.cdi)
        node = DeviceNode(path="/dev/a", major=240, minor=0, mode=0o660, gid=44)
        files.write("hardpoint.dev", "uid-a", [("uid-a-a", Delivery(nodes=(node,)))])
        name = choices.pick((UID, "uid-a.x", "UID", "a" * 128, "-"))
        (world.cdi / f"hardpoint.dev-{name}.json").write_bytes(_document(choices))
        good, _ = files.claims(["hardpoint.dev"])
        assert "uid-a" in [file.uid for file in good]
        for file in good:
            _again(file.devices)
        self.stage.run(self._rebuild(world))
        shutil.rmtree(world.root)
        self.stage.quiet("\x1b", "\u202e")

    async def _rebuild(self, world: World) -> None:
        async with world.broker() as broker:
            await broker.restore()
            await broker.attend()
            holds = broker.holds()
            assert ("a", "uid-a") in [(hold.device.name, hold.claim.uid) for hold in holds]
            devices = tuple(offered.device for offered in world.devices.values())
            facts = Facts(domain_of=lambda _: DOMAIN, holds=holds, quarantined=broker.quarantined())
            built = build([Listing("cards").after(devices, 0.0)], facts)
            check_published(as_offer(built, Offer(generation=0), complete=True))


def _again(devices: Any) -> None:
    """What was read can be written again, or is refused by name."""
    try:
        spec("hardpoint.dev", [(f"x-{name}", delivery) for name, delivery in devices.items()])
    except BadValue as refusal:
        assert str(refusal)


def _document(choices: Choices) -> bytes:
    how = choices.below(8)
    if how == 0:
        return choices.rest()
    if how == 1:
        return b"[" * (50 * choices.byte())
    document = json.loads(json.dumps(WRITTEN))
    if how == 2:
        odd = ("", "-", ":", "b", "b-", "b:", "b--s1", "b:r", "b-:r", "A.b", "a" * 100, "b:r1:sub")
        for entry in document["devices"]:
            entry["name"] = f"{UID}-{choices.pick(odd)}"
    else:
        mutated(document, choices)
    return json.dumps(document).encode("utf-8", "surrogatepass")
