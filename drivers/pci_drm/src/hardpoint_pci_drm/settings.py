"""The section ``[driver.pci_drm]`` of the settings file."""

from __future__ import annotations

from pydantic import Field

from hardpoint.parameters import Settings


class PciDrmSettings(Settings):
    """Settings of the driver."""

    pci_ids: tuple[str, ...] = Field(
        default=("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids"),
        description="Where the names of vendors and devices are looked up; the first that exists",
    )
    compute: bool = Field(
        default=True,
        description="Deliver /dev/kfd beside the render node of an AMD GPU that computes",
    )
    smbus: bool = Field(
        default=False,
        description="Offer the board's management bus, which a wrong write can ruin for good",
    )
