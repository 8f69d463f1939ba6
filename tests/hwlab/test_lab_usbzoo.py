"""USB devices as sold: several lines in one, ids that change, descriptors that lie."""

from __future__ import annotations

import json

import pytest
from hwlab import kernel
from hwlab.live import Live, numbered, usb_name

pytestmark = pytest.mark.boots("usbzoo")

FOUR_LINES = ("0403", "6011")
ARDUINO = ("2341", "0043")
WEBCAM_MODULE = "uvcvideo"


def below(address: str) -> dict[str, tuple[int, int]]:
    return numbered(*kernel.nodes_below(kernel.usb(address)))


async def test_four_claims_have_the_four_lines_of_one_adapter(live: Live, boot: str) -> None:
    (address,) = kernel.usb_ports(*FOUR_LINES)
    lines = kernel.interfaces(address)
    claims = {one: await live.take(usb_name(one), kernel.usb(one)) for one in lines}
    assert len(claims) == 4
    for one, claimed in claims.items():
        await live.until_delivered(claimed, below, one)

    await kernel.ctl("unplug", "ft4232h")
    for claimed in claims.values():
        await live.until_held_back(claimed)
    await kernel.ctl("plug", "ft4232h")
    assert kernel.usb_ports(*FOUR_LINES) == [address]
    for one, claimed in claims.items():
        await live.until_delivered(claimed, below, one)
    assert live.witness.strays == {}


async def test_lines_bound_in_another_order_go_to_their_own_claims(live: Live, boot: str) -> None:
    (address,) = kernel.usb_ports(*FOUR_LINES)
    lines = kernel.interfaces(address)
    claims = {one: await live.take(usb_name(one), kernel.usb(one)) for one in lines}
    before = {one: below(one) for one in lines}
    for one in lines:
        await kernel.ctl("unbind", one)
    for claimed in claims.values():
        await live.until_held_back(claimed)
    for one in reversed(lines):
        await kernel.ctl("bind", one, "ftdi_sio")

    assert before != {one: below(one) for one in lines}
    for one, claimed in claims.items():
        await live.until_delivered(claimed, below, one)
    assert live.witness.strays == {}


async def test_a_device_that_comes_back_as_its_successor_stays_the_claims(
    live: Live, boot: str
) -> None:
    """A board whose firmware is loaded re-enumerates under other ids, in the same port."""
    first, then = "1209:5101", "1209:5102"
    await live.restart(f'[[driver.usb.successors]]\nfirst = "{first}"\nthen = "{then}"\n')
    board = {"like": "vendor", "vid": "1209", "serial": "BOARD-1"}
    await kernel.ctl("create", "board", json.dumps({"vusb": {**board, "pid": "5101"}}))
    try:
        address = kernel.serial_port("BOARD-1")
        name = usb_name(address)
        await live.until_offered(name)
        claimed = await live.take(name, kernel.usb(address))
        await kernel.ctl("unplug", "board")
        await live.until_held_back(claimed)
    finally:
        if (await kernel.plugged()).get("board"):
            await kernel.ctl("unplug", "board")
    await kernel.ctl("create", "running", json.dumps({"vusb": {**board, "pid": "5102"}}))
    try:
        assert kernel.serial_port("BOARD-1") == address
        await live.until_delivered(claimed, below, address)
        await live.until(lambda: name in live.free, "it is offered")
        assert live.published[name]["attributes"]["product"] == {"string": "5101"}
        assert live.published[name]["attributes"]["presentProduct"] == {"string": "5102"}
        await live.give_back(claimed)
    finally:
        await kernel.ctl("unplug", "running")


async def test_without_a_word_of_successors_it_is_another_device(live: Live, boot: str) -> None:
    board = {"like": "vendor", "vid": "1209", "serial": "BOARD-2"}
    await kernel.ctl("create", "board-2", json.dumps({"vusb": {**board, "pid": "5101"}}))
    address = kernel.serial_port("BOARD-2")
    await live.until_offered(usb_name(address))
    claimed = await live.take(usb_name(address), kernel.usb(address))
    await kernel.ctl("unplug", "board-2")
    await live.until_held_back(claimed)
    await kernel.ctl("create", "other-2", json.dumps({"vusb": {**board, "pid": "5102"}}))
    try:
        assert kernel.serial_port("BOARD-2") == address
        await live.quiet()
        assert live.delivered(claimed) == {}
        assert usb_name(address) not in live.free
    finally:
        await kernel.ctl("unplug", "other-2")


async def test_a_board_is_followed_to_another_number(live: Live, boot: str) -> None:
    (address,) = kernel.usb_ports(*ARDUINO)
    line = next(one for one in kernel.interfaces(address) if kernel.nodes_below(kernel.usb(one)))
    claimed = await live.take(usb_name(line), kernel.usb(address))
    before = live.delivered(claimed)
    await kernel.ctl("unplug", "arduino")
    await live.until_held_back(claimed)
    await kernel.ctl("plug", "acm")  # takes its number of ttyACM
    await kernel.ctl("plug", "arduino")

    assert kernel.usb_ports(*ARDUINO) == [address]
    await live.until_delivered(claimed, below, address)
    assert live.delivered(claimed) != before


async def test_the_webcam_is_held_through_the_removal_of_its_module(live: Live, boot: str) -> None:
    camera = next(
        one
        for port in kernel.ports()
        for one in kernel.interfaces(port)
        if kernel.driver("usb", one) == WEBCAM_MODULE and kernel.nodes_below(kernel.usb(one))
    )
    address = camera.partition(":")[0]
    claimed = await live.take(usb_name(camera), kernel.usb(address))
    await live.until_delivered(claimed, below, address)
    await kernel.run("modprobe", "-r", WEBCAM_MODULE)
    await live.until(
        lambda: not any("video" in path for path in live.delivered(claimed)), "no video node"
    )
    await kernel.run("modprobe", WEBCAM_MODULE)
    await live.until(lambda: kernel.nodes_below(kernel.usb(camera), "video4linux"), "it is back")
    await live.until_delivered(claimed, below, address)


async def test_eight_devices_pulled_at_once_leave_the_slice_at_once(live: Live, boot: str) -> None:
    await live.until_offered(*live.published)
    names = ["cp2102", "cp2102-twin", "ch340", "ch340-twin", "pl2303", "ft232r", "usbtmc", "dfu"]
    before = set(live.published)
    for name in names:
        await kernel.ctl("unplug", name, "--no-wait")
    await live.until(
        lambda: len(before - set(live.published)) == len(names),
        "all are gone",
        lambda: before - set(live.published),
    )
    for name in names:
        await kernel.ctl("plug", name, "--no-wait")
    await live.until(lambda: live.free == before, "as before", lambda: live.free ^ before)
