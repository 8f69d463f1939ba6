"""Whether a policy only took away from a delivery."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hardpoint.model import Delivery, DeviceNode, Mount


def widened(before: Delivery, after: Delivery) -> str:
    """Say what ``after`` has that ``before`` has not; ``""`` if it is as narrow or narrower.

    A node may lose permissions and a mount may become read-only; otherwise what is left is as it
    was.
    """
    for node in after.nodes:
        if not any(_narrower_node(node, old) for old in before.nodes):
            return f"node {node.path}"
    for mount in after.mounts:
        if not any(_narrower_mount(mount, old) for old in before.mounts):
            return f"mount {mount.container_path}"
    return (
        _added("environment variable", before.env, after.env)
        or _added("annotation", before.annotations, after.annotations)
        or _more("hook", [h.name for h in after.hooks if h not in before.hooks])
        or _more("group", set(after.gids) - set(before.gids))
        or _more("CDI device", set(after.cdi_devices) - set(before.cdi_devices))
    )


def _narrower_node(node: DeviceNode, old: DeviceNode) -> bool:
    fewer = bool(node.permissions) and set(node.permissions) <= set(old.permissions)
    return fewer and replace(node, permissions=old.permissions) == old


def _narrower_mount(mount: Mount, old: Mount) -> bool:
    if replace(mount, options=old.options) != old:
        return False
    return mount.options == old.options or set(mount.options) == {*old.options, "ro"} - {"rw"}


def _added(word: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return _more(word, [key for key, value in after.items() if before.get(key) != value])


def _more(word: str, found: Collection[object]) -> str:
    return f"{word} {sorted(map(str, found))[0]}" if found else ""
