from __future__ import annotations

import pytest

from hardpoint import DeviceNode
from hardpoint_pci_drm.shapes import SOUND, shapes

Named = dict[str, list[str]]


def node(path: str, subsystem: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/{path}", subsystem=subsystem)


CARD, RENDER = node("dri/card1", "drm"), node("dri/renderD129", "drm")
WIRES = (node("i2c-4", "i2c-dev"), node("i2c-5", "i2c-dev"))
AUX, FB = node("drm_dp_aux0", "drm_dp_aux_dev"), node("fb0", "graphics")
SOUND_NODES = tuple(node(f"snd/{name}", "sound") for name in ("controlC1", "pcmC1D0p", "hwC1D2"))
JACK = node("input/event20", "input")


def named(*nodes: DeviceNode) -> Named:
    return {shape.suffix: [n.path for n in shape.nodes] for shape in shapes(nodes)}


def test_a_gpu_is_split_by_what_its_nodes_are_for() -> None:
    render, display, wires = shapes((CARD, RENDER, *WIRES))

    assert (render.suffix, render.kind, render.shareable) == ("", "drm.render", True)
    assert (display.suffix, display.kind, display.shareable) == ("-display", "drm.display", False)
    assert (wires.suffix, wires.kind, wires.shareable) == ("-i2c-dev", "i2c", False)
    assert (render.flags, display.flags, wires.flags) == (
        {"renderNode": True},
        {"displayNode": True},
        {},
    )
    assert [shape.whole for shape in (render, display, wires)] == [False] * 3


def test_an_aux_channel_becomes_a_fourth_device_and_changes_none_of_the_others() -> None:
    before, after = named(CARD, RENDER, *WIRES), named(CARD, RENDER, *WIRES, AUX)

    assert list(after) == ["", "-display", "-drm-dp-aux-dev", "-i2c-dev"]
    assert after == before | {"-drm-dp-aux-dev": ["/dev/drm_dp_aux0"]}
    assert shapes((RENDER, AUX))[1].kind == "drm.dp-aux"


def test_a_render_node_alone_is_one_device() -> None:
    assert named(RENDER) == {"": ["/dev/dri/renderD129"]}


def test_a_frame_buffer_is_in_no_device() -> None:
    assert named(CARD, RENDER, FB) == named(CARD, RENDER)
    assert named(FB) == {}


@pytest.mark.parametrize(
    ("stranger", "suffix", "kind"),
    [
        (node("hwrng", "misc"), "-misc", "misc"),
        (node("cec0", "cec"), "-cec", "cec"),
        (node("accel/accel0", "accel"), "-accel", "accel"),
        (node("odd", "never_seen"), "-never-seen", "never-seen"),
        (node("odd", ""), "-unknown", "unknown"),
        (node("odd", "___"), "-unknown", "unknown"),
    ],
)
def test_a_kind_nobody_examined_never_makes_the_render_node_exclusive(
    stranger: DeviceNode, suffix: str, kind: str
) -> None:
    made = shapes((CARD, RENDER, stranger))

    assert [(s.suffix, s.shareable) for s in made] == [
        ("", True),
        ("-display", False),
        (suffix, False),
    ]
    assert made[2].kind == kind


def test_a_gpu_that_only_displays_says_so() -> None:
    (display,) = shapes((CARD, FB))

    assert (display.suffix, display.kind) == ("-display", "drm.display")
    assert display.flags == {"displayNode": True}


def test_a_card_node_has_the_same_name_whether_its_gpu_renders_or_not() -> None:
    assert named(CARD)["-display"] == named(CARD, RENDER)["-display"]


def test_a_sound_card_keeps_its_jacks() -> None:
    (card,) = shapes((*SOUND_NODES, JACK))

    assert (card.kind, card.subsystem, card.shareable, card.whole) == (
        "sound.card",
        "sound",
        False,
        True,
    )
    assert card.flags == {SOUND: True, "soundNode": True, "inputNode": True}
    assert len(card.nodes) == 4


def test_sound_beside_a_stranger_is_a_mixture() -> None:
    (mixture,) = shapes((*SOUND_NODES, node("ttyS4", "tty")))

    assert (mixture.kind, mixture.subsystem, mixture.shareable) == ("mixed", "", False)
    assert mixture.flags == {"soundNode": True, "serialNode": True}


@pytest.mark.parametrize(
    ("made_of", "kind", "flags"),
    [
        ([("ttyS4", "tty"), ("ttyS5", "tty")], "tty", {"serialNode"}),
        ([("accel/accel0", "accel")], "accel", set()),
        ([("hidraw0", "hidraw"), ("input/event3", "input")], "hid", {"hidNode", "inputNode"}),
        (
            [("video0", "video4linux"), ("media0", "media"), ("input/event3", "input")],
            "video",
            {"captureNode", "inputNode"},
        ),
        ([("lp0", "printer"), ("parport0", "ppdev")], "parport", {"printerNode"}),
        ([("watchdog", "misc"), ("watchdog0", "watchdog")], "watchdog", set()),
        (
            [("infiniband/uverbs0", "infiniband_verbs"), ("infiniband/umad0", "infiniband_mad")],
            "rdma",
            set(),
        ),
    ],
)
def test_other_hardware_is_one_exclusive_device_that_says_what_it_has(
    made_of: list[tuple[str, str]], kind: str, flags: set[str]
) -> None:
    (device,) = shapes(node(path, subsystem) for path, subsystem in made_of)

    assert (device.kind, device.suffix, device.shareable, device.whole) == (kind, "", False, True)
    assert set(device.flags) == flags
    assert len(device.nodes) == len(made_of)


def test_nothing_makes_nothing() -> None:
    assert shapes(()) == ()
