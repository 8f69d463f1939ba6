"""Several GPUs, two and two alike: their cards' numbers change, their claims do not."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, numbered

pytestmark = pytest.mark.boots("graphics")

TWINS = ("0000:00:02.0", "0000:00:03.0")


def name_of(address: str, suffix: str = "") -> str:
    return "pci-" + address.replace(":", "-").replace(".", "-") + suffix


def drm(address: str, what: str) -> dict[str, tuple[int, int]]:
    found = kernel.nodes_below(kernel.pci(address), "drm")
    return numbered(*(path for path in found if what in path))


async def test_two_equal_gpus_change_their_numbers_and_keep_their_claims(
    live: Live, boot: str
) -> None:
    renders = [await live.take(name_of(one), kernel.pci(one)) for one in TWINS]
    cards = [await live.take(name_of(one, "-display"), kernel.pci(one)) for one in TWINS]
    before = [drm(one, "renderD") for one in TWINS]
    for one in TWINS:
        await kernel.ctl("unbind", one)
    for claimed in (*renders, *cards):
        await live.until_held_back(claimed)
    order = TWINS if min(before[1].values()) < min(before[0].values()) else tuple(reversed(TWINS))
    for one in order:
        await kernel.ctl("bind", one, "virtio-pci")

    await live.until(lambda: all(drm(one, "renderD") for one in TWINS), "both have nodes")
    assert [drm(one, "renderD") for one in TWINS] != before
    for one, render, card in zip(TWINS, renders, cards, strict=True):
        await live.until_delivered(render, drm, one, "renderD")
        await live.until_delivered(card, drm, one, "/card")
    assert live.witness.strays == {}


async def test_the_file_has_the_groups_of_a_gpu_that_was_found_again(live: Live, boot: str) -> None:
    """udev gives a node its group after the kernel has told of it."""
    address = TWINS[0]
    claimed = await live.take(name_of(address), kernel.pci(address))
    await kernel.ctl("remove", address)
    await live.until_held_back(claimed)
    await kernel.ctl("rescan")
    await live.until(lambda: drm(address, "renderD"), "it is found again")
    await kernel.ctl("settle")
    (path,) = drm(address, "renderD")
    wanted = kernel.group(path)

    def groups() -> dict[str, int]:
        found = live.injected(claimed)
        return {node["path"]: node.get("gid", 0) for node in found.nodes} if found else {}

    assert wanted != 0
    await live.until(lambda: groups() == {path: wanted}, f"group {wanted}", groups)


async def test_a_render_node_has_two_holders_and_a_card_one(live: Live, boot: str) -> None:
    one = await live.take(name_of(TWINS[0]))
    two = await live.take(name_of(TWINS[0]))
    assert live.delivered(one) == live.delivered(two) == drm(TWINS[0], "renderD")

    await live.take(name_of(TWINS[0], "-display"))
    await live.is_refused(name_of(TWINS[0], "-display"), "claim-")


async def test_a_display_controller_is_plugged_in(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "gpu")
    await live.until(lambda: len(live.free) == len(before) + 1, "one more")
    (name,) = set(live.published) - before
    assert name.endswith("-display")
    await kernel.ctl("unplug", "gpu")
    await live.until(lambda: set(live.published) == before, "as before")
