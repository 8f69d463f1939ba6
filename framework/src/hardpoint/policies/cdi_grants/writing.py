"""Hold files written by hand: what ``hardpoint grant`` and ``hardpoint revoke`` do. Blocking."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardpoint import files
from hardpoint.cdi import NEWEST, resolve, spec
from hardpoint.cdi_rules import check, needed_version, number
from hardpoint.errors import HardpointError
from hardpoint.model import Delivery, Device
from hardpoint.node import Node
from hardpoint.policies.cdi_grants.documents import (
    ALLOCATION,
    SUFFIX,
    HoldFile,
    find_device,
    grant_of,
)
from hardpoint.policies.cdi_grants.holds import Holds, read_holds, shown
from hardpoint.policies.cdi_grants.settings import CdiGrantsSettings


class NotGranted(HardpointError):
    """What was asked for was not done; the text says why, and what would do."""


def governed(settings: CdiGrantsSettings, kind: str) -> bool:
    """Say whether devices of a kind are granted by these files."""
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in settings.kinds)


def composed(
    settings: CdiGrantsSettings,
    devices: Sequence[Device],
    node: Node,
    *,
    known: Iterable[Device] = (),
    newest: str = NEWEST,
) -> dict[str, Any]:
    """Return the spec that grants these devices. Raises ``NotGranted`` and ``BadValue``.

    It has the devices' nodes, and sets no variable: a pod may get a part of it alone. A UUID that
    another one of ``known`` has too is left out: a slot's may be its GPU's.
    """
    whole = spec(settings.vendor, [(one.name, _delivery(one, node)) for one in devices], newest)
    counts = Counter(one.attributes.get("uuid") for one in known)
    own = {one.name: one.attributes.get("uuid") for one in devices}
    uuids = {name: uuid for name, uuid in own.items() if counts[uuid] <= 1}
    document = {
        "cdiVersion": "",
        "kind": f"{settings.vendor}/{settings.device_class}",
        "annotations": {settings.binding_key: settings.binding_value},
        "devices": [
            _with_uuid(entry, settings.uuid_key, uuids.get(entry["name"]))
            for entry in whole["devices"]
        ],
    }
    needed = needed_version(document)
    if number(needed) > number(newest):
        raise NotGranted(
            f"a hold needs CDI {needed}, and cdi_version is {newest}: set it to what the container "
            "runtime reads"
        )
    document["cdiVersion"] = needed
    check(document)
    return document


def _delivery(device: Device, node: Node) -> Delivery:
    return resolve(Delivery(nodes=device.nodes), node)


def _with_uuid(entry: Mapping[str, Any], key: str, uuid: object) -> dict[str, Any]:
    if not isinstance(uuid, str):
        return dict(entry)
    rest = {name: value for name, value in entry.items() if name != "name"}
    return {"name": entry["name"], "annotations": {key: uuid}, **rest}


def file_of(settings: CdiGrantsSettings, allocation: str) -> Path:
    """Return where the file of an allocation would be. Raises ``NotGranted``."""
    if not ALLOCATION.fullmatch(allocation):
        raise NotGranted(
            f"{shown(allocation)!r} is no allocation id: want 1 to 128 letters and digits, with "
            "dots, _ and - between"
        )
    return settings.directory / f"{settings.file_prefix}{allocation}{SUFFIX}"


def grant(settings: CdiGrantsSettings, allocation: str, document: Mapping[str, Any]) -> Path:
    """Write a hold file where there is none. Raises ``NotGranted`` and ``OSError``."""
    path = file_of(settings, allocation)
    try:
        files.create(path, (json.dumps(document, indent=2) + "\n").encode())
    except FileExistsError:
        raise NotGranted(
            f"{path} is there already; revoke {allocation} first, or take another id"
        ) from None
    return path


def check_free(
    holds: Holds, settings: CdiGrantsSettings, wanted: Sequence[Device], known: Sequence[Device]
) -> None:
    """Raise ``NotGranted`` where a device, or a part of it, is granted already or wanted twice."""
    taken = [
        (device, f"granted under allocation {hold.allocation}")
        for hold in holds.good
        for device in _granted(hold, settings, known)
    ]
    for index, one in enumerate(wanted):
        for other, how in [*taken, *((two, "wanted too") for two in wanted[:index])]:
            if one.name == other.name:
                raise NotGranted(f"device {one.name} is {how}")
            if any(p.contends(q) for p in one.all_parts for q in other.all_parts):
                raise NotGranted(
                    f"device {one.name} is one with device {other.name}, which is {how}"
                )


def _granted(hold: HoldFile, settings: CdiGrantsSettings, known: Sequence[Device]) -> list[Device]:
    """Return the devices that a file grants, as far as they are on this node."""
    entries = grant_of(hold, settings).devices
    found = (find_device(entry, known) for entry in entries)
    return [device for device in found if device is not None]


def find(settings: CdiGrantsSettings, allocation: str) -> Path:
    """Return the file of an allocation that is granted. Raises ``NotGranted`` and ``Unreadable``.

    One that is not understood is nobody's to remove but a person's who has looked at it.
    """
    path, holds = file_of(settings, allocation), read_holds(settings)
    for bad in holds.bad:
        if bad.allocation == allocation or bad.name == path.name:
            raise NotGranted(
                f"{settings.directory / shown(bad.name)} is left as it is: {bad.reason}; look at "
                "it and remove it yourself"
            )
    for hold in holds.good:
        if hold.allocation == allocation:
            return settings.directory / hold.name
    granted = ", ".join(sorted(hold.allocation for hold in holds.good)) or "none"
    raise NotGranted(
        f"no file in {settings.directory} grants allocation {allocation}; granted are: {granted}"
    )
