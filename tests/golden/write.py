"""Write what `hardpoint devices --json` answers for each recorded machine: `make golden`.

Read the difference by hand against the machine before you commit it: a golden file that only
repeats the program's own output proves nothing. How each was reviewed is in README.md beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from hardpoint._core.offline import look
from hardpoint.cli.devices import document
from hardpoint.recorded import open_machine
from hardpoint.settings import AgentSettings

HERE = Path(__file__).parent
MACHINES = HERE.parent / "data/machines"

SETTINGS = AgentSettings(
    drivers=("pci_drm", "usb"),
    driver={"pci_drm": {"pci_ids": ()}},  # the names are the workstation's, which may have none
)


def answer(machine: Path) -> dict[str, Any]:
    """Return the answer for one recorded machine, with every driver that is installed."""
    with open_machine(machine) as node:
        found = anyio.run(look, node, SETTINGS)
    return document(found.offer, found.faults)


def text(machine: Path) -> str:
    """Return the golden file's text: a line for each device and for each that is not offered."""
    whole = answer(machine)
    parts = []
    for key, items in whole.items():
        lines = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in items)
        parts.append(
            f"  {json.dumps(key)}: [\n{lines}\n  ]" if items else f"  {json.dumps(key)}: []"
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    for archive in sorted(MACHINES.glob("*.tar.gz")):
        target = HERE / f"{archive.name.removesuffix('.tar.gz')}.json"
        target.write_text(text(archive), "utf-8")
        sys.stdout.write(f"{target.relative_to(HERE.parent.parent)}\n")
