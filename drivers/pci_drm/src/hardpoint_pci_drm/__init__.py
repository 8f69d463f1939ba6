"""PCI functions and board devices: GPUs split by what their nodes are for, disks one by one."""

from __future__ import annotations

from hardpoint_pci_drm.driver import PciDrm

__all__ = ["PciDrm"]
