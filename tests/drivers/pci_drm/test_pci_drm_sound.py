"""Sound cards, whose numbers the kernel gives in the order of discovery."""

from __future__ import annotations

from pathlib import Path

import pytest
from pci_drm_look import look

from hardpoint.testing import FakeMachine

ONBOARD, GRAPHICS = "0000:00:1f.3", "0000:0a:00.1"


def _machine(root: Path, onboard: int, graphics: int) -> FakeMachine:
    machine = FakeMachine(root)
    for address, card, name in ((ONBOARD, onboard, "PCH"), (GRAPHICS, graphics, "HDMI")):
        function = machine.pci(address, klass="040300", driver="snd_hda_intel")
        function.sound(card, id=name, first=2 + 16 * card)
    return machine


def _controls(machine: FakeMachine) -> dict[str, list[str]]:
    nodes = look(machine.node()).nodes
    return {name: [path for path in paths if "controlC" in path] for name, paths in nodes.items()}


@pytest.mark.field_case("G21", "G22")
@pytest.mark.parametrize(("onboard", "graphics"), [(0, 1), (1, 0), (0, 2), (10, 9)])
def test_a_card_is_where_it_sits_whatever_its_number(
    tmp_path: Path, onboard: int, graphics: int
) -> None:
    assert _controls(_machine(tmp_path, onboard, graphics)) == {
        "pci-0000-00-1f-3": [f"/dev/snd/controlC{onboard}"],
        "pci-0000-0a-00-1": [f"/dev/snd/controlC{graphics}"],
    }
