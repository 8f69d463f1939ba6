"""What is special about a render node: memory of the GPU, and the way to compute on AMD's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from hardpoint import Capacity, DeviceNode, Entry, Node

_MINOR = re.compile(r"\bdrm_render_minor (\d{1,9})\b", re.ASCII)


def memory(owner: Entry) -> dict[str, Capacity]:
    """Return the memory of the GPU, in bytes, where its driver says (amdgpu does)."""
    vram = owner.get("mem_info_vram_total")
    return {"memory": Capacity(value=vram)} if re.fullmatch("[1-9][0-9]*", vram) else {}


def compute_node(node: Node, render: tuple[DeviceNode, ...]) -> DeviceNode | None:
    """Return /dev/kfd if one of these render nodes computes through it; None if not.

    All AMD GPUs share it, and it lets a process use those whose render node the process may open
    (drivers/gpu/drm/amd/amdkfd, kfd_devcgroup_check_permission): so it is shared, and safe to.
    """
    minors = {device.minor for device in render}
    if not minors & set(_compute_minors(node)):
        return None
    kfd = node.entry("class/kfd/kfd").device_node()
    return replace(kfd, shared=True) if kfd else None


def _compute_minors(node: Node) -> Iterator[int]:
    for member in node.entries("class/kfd/kfd/topology/nodes"):
        for minor in _MINOR.findall(member.get("properties")):
            yield int(minor)
