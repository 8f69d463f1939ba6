"""A container runtime's view of CDI: reads spec files, refuses what runtimes refuse, injects.

Written apart from ``hardpoint.cdi`` on purpose, so that it is a witness: an unknown field, a
version lower than the content needs or an empty edit makes the whole file unusable; one device in
two files of a directory makes both unusable; a directory named later wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardpoint.node import Node, NodeInfo

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_WORD = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATIONS = 256 << 10
_MOUNT: Mapping[str, type] = {
    "hostPath": str,
    "containerPath": str,
    "type": str,
    "options": list,
}
_HOOK: Mapping[str, type] = {
    "hookName": str,
    "path": str,
    "args": list,
    "env": list,
    "timeout": int,
}


class CdiError(Exception):
    """A container that the runtime would not create."""


class UnresolvableDevice(CdiError):
    """A name that no usable file defines; says why a file that would is unusable."""


class _Invalid(Exception):
    """Why a spec file is unusable."""


@dataclass(frozen=True, slots=True)
class Injected:
    """What a container receives."""

    env: tuple[str, ...] = ()
    nodes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    hooks: tuple[Mapping[str, Any], ...] = ()
    gids: tuple[int, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the device nodes, in order."""
        return tuple(str(node["path"]) for node in self.nodes)


@dataclass(slots=True)
class _Directory:
    devices: dict[str, tuple[Path, Mapping[str, Any], Mapping[str, Any]]] = field(
        default_factory=dict
    )
    conflicts: dict[str, str] = field(default_factory=dict)


class CdiRegistry:
    """The spec files of directories, read anew for every question.

    ``info`` finds a host's device node by path, for nodes whose numbers a file leaves out; the
    default looks at this machine.
    """

    def __init__(
        self,
        *directories: Path,
        info: Callable[[str], NodeInfo | None] | None = None,
    ) -> None:
        self.directories = directories
        self._info = info or Node(name="runtime").info

    def errors(self) -> dict[Path, str]:
        """Return the unusable files and why: unreadable, invalid, or in conflict."""
        return self._read()[1]

    def names(self) -> tuple[str, ...]:
        """Return every usable device name, ``vendor/class=name``."""
        return tuple(sorted(self._read()[0]))

    def inject(self, names: Sequence[str]) -> Injected:
        """Return what a container given these names receives, as the runtime would.

        Raises ``UnresolvableDevice``, and ``CdiError`` for a node that the host does not have.
        """
        devices, errors = self._read()
        missing = [name for name in names if name not in devices]
        if missing:
            said = "".join(f"; {path.name}: {why}" for path, why in errors.items())
            raise UnresolvableDevice(f"unresolvable CDI devices {', '.join(missing)}{said}")
        edits = []
        seen: set[Path] = set()
        for name in dict.fromkeys(names):
            path, common, device = devices[name]
            edits += [common] if path not in seen else []
            edits.append(device["containerEdits"])
            seen.add(path)
        return self._merge(edits)

    def _read(
        self,
    ) -> tuple[dict[str, tuple[Path, Mapping[str, Any], Mapping[str, Any]]], dict[Path, str]]:
        devices: dict[str, tuple[Path, Mapping[str, Any], Mapping[str, Any]]] = {}
        errors: dict[Path, str] = {}
        for directory in self.directories:
            found = _read_directory(directory, errors)
            for name in found.conflicts:
                devices.pop(name, None)
            devices |= found.devices
        return devices, errors

    def _merge(self, edits: Iterable[Mapping[str, Any]]) -> Injected:
        listed: dict[str, list[Any]] = {}
        for edit in edits:
            for key, value in edit.items():
                if isinstance(value, list):
                    listed.setdefault(key, []).extend(value)
        nodes = [self._node(node) for node in listed.get("deviceNodes", [])]
        return Injected(
            env=tuple(listed.get("env", ())),
            nodes=tuple({node["path"]: node for node in nodes}.values()),
            mounts=tuple({m["containerPath"]: m for m in listed.get("mounts", [])}.values()),
            hooks=tuple(listed.get("hooks", ())),
            gids=tuple(dict.fromkeys(gid for gid in listed.get("additionalGids", []) if gid)),
        )

    def _node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in what the file leaves out from the host, which must then have the node."""
        if node.get("type") and (node["type"] == "p" or node.get("major")):
            return dict(node)
        path = node.get("hostPath") or node["path"]
        info = self._info(path)
        if info is None:
            raise CdiError(f"failed to stat CDI host device {path}")
        return {"type": info.type.value, "major": info.major, "minor": info.minor, **node}


def _read_directory(directory: Path, errors: dict[Path, str]) -> _Directory:
    found = _Directory()
    for path in sorted(directory.glob("*")):
        if path.suffix not in (".json", ".yaml") or not path.is_file():
            continue
        try:
            spec = _spec(path)
        except (_Invalid, OSError, ValueError) as error:
            errors[path] = str(error)
            continue
        for device in spec["devices"]:
            _add(found, f"{spec['kind']}={device['name']}", path, spec, device, errors)
    return found


def _add(
    found: _Directory,
    name: str,
    path: Path,
    spec: Mapping[str, Any],
    device: Mapping[str, Any],
    errors: dict[Path, str],
) -> None:
    other = found.devices.pop(name, None)
    if other is None and name not in found.conflicts:
        found.devices[name] = (path, spec.get("containerEdits", {}), device)
        return
    found.conflicts[name] = f"device {name} is also defined in another file"
    for file in (path, other[0]) if other else (path,):
        errors[file] = found.conflicts[name]


# -- one file -------------------------------------------------------------------------------------


def _spec(path: Path) -> Mapping[str, Any]:
    spec = _load(path)
    _fields(
        spec,
        "spec",
        {
            "cdiVersion": str,
            "kind": str,
            "annotations": dict,
            "devices": list,
            "containerEdits": dict,
        },
        ("cdiVersion", "kind", "devices"),
    )
    vendor, _, word = spec["kind"].partition("/")
    _true(bool(_WORD.fullmatch(vendor) and _WORD.fullmatch(word)), f"kind {spec['kind']!r}")
    _annotations(spec.get("annotations", {}))
    _edits(spec.get("containerEdits", {}), "containerEdits")
    _true(bool(spec["devices"]), "no devices")
    for device in spec["devices"]:
        _device(device)
    names = [device["name"] for device in spec["devices"]]
    _true(len(set(names)) == len(names), "a device is defined twice")
    _version(spec)
    return spec


def _load(path: Path) -> Mapping[str, Any]:
    text = path.read_text()
    loaded = json.loads(text) if path.suffix == ".json" else _yaml(text)
    if not isinstance(loaded, dict):
        raise _Invalid("not an object")
    return loaded


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise _Invalid("reading YAML needs PyYAML") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _Invalid(str(error)) from error


def _device(device: Any) -> None:
    fields = {"name": str, "annotations": dict, "containerEdits": dict}
    _fields(device, "device", fields, ("name", "containerEdits"))
    name = device["name"]
    _true(bool(_DEVICE.fullmatch(name)), f"device name {name!r}")
    _annotations(device.get("annotations", {}))
    _edits(device["containerEdits"], name)
    _true(any(device["containerEdits"].values()), f"device {name} has no edits")


def _annotations(annotations: Mapping[str, Any]) -> None:
    _true(all(isinstance(value, str) for value in annotations.values()), "annotations")
    size = sum(len(key) + len(value) for key, value in annotations.items())
    _true(size <= _ANNOTATIONS, "annotations are larger than 256 KiB")


def _edits(edits: Mapping[str, Any], where: str) -> None:
    _fields(
        edits,
        where,
        {
            "env": list,
            "deviceNodes": list,
            "mounts": list,
            "hooks": list,
            "additionalGids": list,
            "intelRdt": dict,
            "netDevices": list,
        },
    )
    for variable in edits.get("env", []):
        _true(isinstance(variable, str) and variable.find("=") > 0, f"env {variable!r}")
    for node in edits.get("deviceNodes", []):
        _node(node)
    for mount in edits.get("mounts", []):
        _fields(mount, "mount", _MOUNT, ("hostPath", "containerPath"))
    for hook in edits.get("hooks", []):
        _fields(hook, "hook", _HOOK, ("hookName", "path"))
        _true(hook["hookName"] in HOOKS, f"hook {hook['hookName']!r}")
    for gid in edits.get("additionalGids", []):
        _true(isinstance(gid, int) and 0 <= gid < 1 << 32, f"gid {gid!r}")
    _rare_edits(edits)


def _rare_edits(edits: Mapping[str, Any]) -> None:
    if "intelRdt" in edits:
        fields = {
            "closID": str,
            "l3CacheSchema": str,
            "memBwSchema": str,
            "schemata": list,
            "enableMonitoring": bool,
        }
        _fields(edits["intelRdt"], "intelRdt", fields)
    for device in edits.get("netDevices", []):
        fields = {"hostInterfaceName": str, "name": str}
        _fields(device, "netDevice", fields, ("hostInterfaceName", "name"))


def _node(node: Any) -> None:
    numbers = ("major", "minor", "fileMode", "uid", "gid")
    words = ("path", "hostPath", "type", "permissions")
    fields: list[tuple[str, type]] = [(name, str) for name in words]
    fields += [(name, int) for name in numbers]
    _fields(node, "deviceNode", dict(fields), ("path",))
    _true(node.get("type", "") in ("", "b", "c", "u", "p"), f"type {node.get('type')!r}")
    permissions = node.get("permissions", "")
    _true(set(permissions) <= set("rwm"), f"permissions {permissions!r}")
    _true(all(node.get(name, 0) >= 0 for name in numbers), f"a negative number in {node['path']}")


def _fields(
    value: Any, where: str, fields: Mapping[str, type], required: Sequence[str] = ()
) -> None:
    _true(isinstance(value, dict), f"{where} is no object")
    unknown = [key for key in value if key not in fields]
    _true(not unknown, f"unknown field {', '.join(unknown)} in {where}")
    for key, item in value.items():
        wrong = not isinstance(item, fields[key]) or (
            isinstance(item, bool) and fields[key] is not bool
        )
        _true(not wrong, f"{where}.{key} is no {fields[key].__name__}")
    for key in required:
        _true(bool(value.get(key)), f"{where} has no {key}")


def _true(fact: bool, otherwise: str) -> None:
    if not fact:
        raise _Invalid(otherwise)


# -- the lowest version that a content allows -----------------------------------------------------


def _version(spec: Mapping[str, Any]) -> None:
    version = spec["cdiVersion"].removeprefix("v")
    _true(version in VERSIONS, f"cdiVersion {version!r} is not known")
    needed = minimum_version(spec)
    enough = VERSIONS.index(version) >= VERSIONS.index(needed)
    _true(enough, f"cdiVersion {version} is lower than its content needs: {needed}")


def minimum_version(spec: Mapping[str, Any]) -> str:
    """Return the lowest CDI version that may carry a spec's content."""
    devices = spec["devices"]
    edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in devices)]
    rdt = [edit.get("intelRdt", {}) for edit in edits]
    needs = {
        "1.1.0": any("netDevices" in edit for edit in edits)
        or any("schemata" in one or "enableMonitoring" in one for one in rdt),
        "0.7.0": any("intelRdt" in edit or "additionalGids" in edit for edit in edits),
        "0.6.0": "annotations" in spec
        or any("annotations" in device for device in devices)
        or "." in spec["kind"].partition("/")[2],
        "0.5.0": any("hostPath" in node for edit in edits for node in edit.get("deviceNodes", []))
        or any(device["name"][0].isdigit() for device in devices),
        "0.4.0": any("type" in mount for edit in edits for mount in edit.get("mounts", [])),
    }
    return next((version for version, needed in needs.items() if needed), "0.3.0")
