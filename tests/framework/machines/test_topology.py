"""Where a device sits in its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardpoint.node import Node


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("pci0000:00/0000:00:02.0", "pci0000:00"),
        ("platform/soc/40000000.pcie/pci0002:20/0002:20:00.0", "pci0002:20"),
        ("platform/serial8250", None),
    ],
)
def test_the_pcie_root_is_the_host_bridge_wherever_it_hangs(
    tmp_path: Path, path: str, root: str | None
) -> None:
    (tmp_path / "devices" / path).mkdir(parents=True)

    assert Node(name="n", sys=tmp_path).entry(f"devices/{path}").topology().pcie_root == root
