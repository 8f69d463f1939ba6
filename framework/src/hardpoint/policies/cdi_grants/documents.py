"""One hold: a CDI spec that gives its devices to Kubernetes, judged. Pure."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hardpoint.cdi import delivery_of
from hardpoint.cdi_rules import NotKnown, check, check_name
from hardpoint.errors import BadValue, HardpointError
from hardpoint.grants import Grant, GrantedDevice
from hardpoint.model import Device, DeviceNode
from hardpoint.policies.cdi_grants.settings import CdiGrantsSettings

SUFFIX = ".json"
SUFFIXES = (SUFFIX, ".yaml", ".yml")
"""What runtimes read; of these, JSON is what is understood here."""
LARGEST = 1 << 20
"""Bytes: a file that grants 64 devices has 40 KiB."""
MOST_DEVICES, LONGEST = 1024, 512
"""Devices of one file, and bytes of what one is called: the agent takes no answer with more."""
ALLOCATION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_REFUSED_ENV = ("NVIDIA_VISIBLE_DEVICES", "CGROUP_PARENT")
"""By the first a container gets more than its part of the allocation; the second is no runtime's to
honour for a pod."""


class Bad(HardpointError):
    """One file cannot be read as a hold; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFile:
    """A file that grants devices."""

    name: str
    allocation: str
    document: Mapping[str, Any]
    unsupported: str = ""
    """What it asks for and nobody here can honour, in a sentence."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Its devices, as CDI calls them."""
        return tuple(entry["name"] for entry in self.document["devices"])


# -- what a document is ----------------------------------------------------------------------------


def parsed(raw: bytes) -> Any:
    """Read JSON, strictly. Raises ``Bad``."""
    if len(raw) > LARGEST:
        raise Bad(f"it has more than {LARGEST} bytes")
    if not raw:
        raise Bad("it is empty")
    try:
        return json.loads(raw.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise Bad("it is not UTF-8") from None
    except RecursionError:
        raise Bad("it is nested too deep") from None
    except ValueError as error:
        raise Bad(f"it is not JSON: {error!s:.120}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def judged(document: Any, name: str, settings: CdiGrantsSettings) -> HoldFile | None:
    """Return the hold that a document is; None for one that is not about us. Raises ``Bad``."""
    if not_ours(document, settings):
        return None
    _, annotations = _identity(document)
    hold = HoldFile(
        name=name, allocation=_allocation(annotations, name, settings), document=document
    )
    try:
        check(document)
    except NotKnown as error:
        _check_names(document)
        _check_size(document)
        return replace(hold, unsupported=f"it asks for what is not known here: {error}")
    except BadValue as error:
        raise Bad(f"runtimes would refuse it: {error}") from None
    _check_size(document)
    _check_words(document, settings)
    return replace(hold, unsupported=_unsupported(document, settings))


def not_ours(document: Any, settings: CdiGrantsSettings) -> str:
    """Return why a document is about somebody else; empty for one that is not. Raises ``Bad``."""
    kind, annotations = _identity(document)
    if kind.partition("/")[0] != settings.vendor:
        return f"its kind is not of the vendor {settings.vendor}"
    if annotations.get(settings.binding_key) != settings.binding_value:
        return f"it has no annotation {settings.binding_key}: {settings.binding_value}"
    return ""


def _identity(document: Any) -> tuple[str, Mapping[str, Any]]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str):
        raise Bad("it is not a CDI spec: it has no kind")
    annotations = document.get("annotations", {})
    if not isinstance(annotations, dict):
        raise Bad("its annotations are not an object")
    return kind, annotations


def _allocation(annotations: Mapping[str, Any], name: str, settings: CdiGrantsSettings) -> str:
    found = annotations.get(settings.allocation_key, named_allocation(name, settings))
    if not isinstance(found, str) or not ALLOCATION.fullmatch(found):
        raise Bad(
            "it has no allocation id: 1 to 128 letters and digits, with dots, _ and - between"
        )
    return found


def _check_names(document: Mapping[str, Any]) -> None:
    """Raise ``Bad`` unless every device of a spec that is not understood has a name."""
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        raise Bad("it names no device")
    for entry in devices:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise Bad("it has a device without a name")
        try:
            check_name("device name", name)
        except BadValue as error:
            raise Bad(str(error)) from None


def _check_size(document: Mapping[str, Any]) -> None:
    """Raise ``Bad`` for more devices than one grant has, or names that are longer than any."""
    names = [f"{document['kind']}={entry['name']}" for entry in document["devices"]]
    if len(names) > MOST_DEVICES:
        raise Bad(f"it names {len(names)} devices, at most {MOST_DEVICES} are read")
    _check_length("device name", names)


def _check_words(document: Mapping[str, Any], settings: CdiGrantsSettings) -> None:
    entries = document["devices"]
    uuids = (entry.get("annotations", {}).get(settings.uuid_key, "") for entry in entries)
    _check_length("uuid", uuids)
    nodes = (node for entry in (document, *entries) for node in nodes_of(entry))
    _check_length("node's path", (path for one in nodes for path in (one.path, one.source)))


def _check_length(what: str, words: Iterable[str]) -> None:
    longest = max((len(word.encode()) for word in words), default=0)
    if longest > LONGEST:
        raise Bad(f"it has a {what} of {longest} bytes, at most {LONGEST} are read")


def _unsupported(document: Mapping[str, Any], settings: CdiGrantsSettings) -> str:
    """Say what a valid spec asks for that nobody here can honour; empty where it is nothing."""
    own = {settings.binding_key, settings.allocation_key}
    asked = [key for key in document.get("annotations", {}) if key not in own]
    for entry in document["devices"]:
        asked += [key for key in entry.get("annotations", {}) if key != settings.uuid_key]
    for key in asked:
        if _may_ask(key, settings):
            return f"it asks for {key}, which is not known here"
    for entry in (document, *document["devices"]):
        for pair in entry.get("containerEdits", {}).get("env", ()):
            variable = pair.partition("=")[0]
            if variable.endswith(_REFUSED_ENV):
                return f"it sets {variable}, which no file may that gives devices to Kubernetes"
    return ""


def _may_ask(key: str, settings: CdiGrantsSettings) -> bool:
    """Say whether an annotation is of the vendor, and not said to ask for nothing."""
    domain = key.rpartition("/")[0]
    ours = domain == settings.vendor or domain.endswith(f".{settings.vendor}")
    return ours and not any(fnmatch.fnmatchcase(key, one) for one in settings.informational)


def named_allocation(name: str, settings: CdiGrantsSettings) -> str:
    """Return the allocation in a file's name; empty where it cannot be one."""
    stem = name.removeprefix(settings.file_prefix)
    suffix = next((end for end in SUFFIXES if stem.endswith(end)), "")
    stem = stem.removesuffix(suffix)
    return stem if ALLOCATION.fullmatch(stem) else ""


# -- what it grants -------------------------------------------------------------------------------


def grant_of(hold: HoldFile, settings: CdiGrantsSettings) -> Grant:
    """Return the grant that a file states."""
    kind = hold.document["kind"]
    if hold.unsupported:
        named = tuple(GrantedDevice(name=entry) for entry in hold.entries)
        return Grant(allocation=hold.allocation, devices=named, unsupported=hold.unsupported)
    common = nodes_of(hold.document)
    return Grant(
        allocation=hold.allocation,
        devices=tuple(
            GrantedDevice(
                name=entry["name"],
                uuid=entry.get("annotations", {}).get(settings.uuid_key, ""),
                cdi_id=f"{kind}={entry['name']}",
                nodes=(*nodes_of(entry), *common),
            )
            for entry in hold.document["devices"]
        ),
    )


def nodes_of(entry: Mapping[str, Any]) -> tuple[DeviceNode, ...]:
    """Return the nodes of a device of a spec, or of the spec's common edits."""
    nodes = entry.get("containerEdits", {}).get("deviceNodes", ())
    return delivery_of({"containerEdits": {"deviceNodes": nodes}}).nodes


def find_device(entry: GrantedDevice, devices: Iterable[Device]) -> Device | None:
    """Return the device that an entry means: of its name, else the one with its UUID.

    A slot's UUID may be its GPU's: what several have names none.
    """
    known = tuple(devices)
    named = [one for one in known if entry.name in (one.name, one.origin.get("cdi"))]
    if not named and entry.uuid:
        named = [one for one in known if one.attributes.get("uuid") == entry.uuid]
    return named[0] if len(named) == 1 else None
