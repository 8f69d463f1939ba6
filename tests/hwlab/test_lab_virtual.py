"""Devices that no bus has: they come and go with their modules."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, numbered

pytestmark = pytest.mark.boots("virtual")

CARD, VIVID = "platform-snd-dummy-0", "platform-vivid-0"


@pytest.mark.parametrize(("name", "module"), [(CARD, "snd-dummy"), (VIVID, "vivid")])
async def test_a_claim_is_held_through_the_removal_of_its_module(
    live: Live, boot: str, name: str, module: str
) -> None:
    address = name.removeprefix("platform-")
    at = address.replace("snd-dummy-0", "snd_dummy.0").replace("vivid-0", "vivid.0")
    home = kernel.device("platform", at)
    claimed = await live.take(name, home)
    before = set(live.delivered(claimed))
    assert before
    await kernel.run("modprobe", "-r", module)
    await live.until_held_back(claimed)

    await kernel.run("modprobe", module)
    await live.until(lambda: kernel.exists("platform", at), "it is back")
    await kernel.ctl("settle")
    await live.until(
        lambda: len(live.delivered(claimed)) == len(before),
        "it is delivered",
        lambda: live.delivered(claimed),
    )
    await live.until_delivered(claimed, numbered, *live.delivered(claimed))
    assert live.witness.look() == []
