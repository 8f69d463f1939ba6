"""The rules of the CDI format, as the runtime's own library applies them.

That library decodes strictly: one unknown key, one device without edits, or a version lower than
the content needs, and the whole file is ignored. So everything is checked before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hardpoint.errors import BadValue

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_VERSIONS = ("0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_HOOKS = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
_ANNOTATIONS_LIMIT = 256 << 10


class NotKnown(BadValue):
    """A key or a version that no format known here has: a later one may mean something by it."""


_Check: TypeAlias = Callable[[str, Any], None]


def check_vendor(vendor: str) -> None:
    """Raise ``BadValue`` unless a vendor starts with a letter and has only what CDI allows."""
    if not _VENDOR.fullmatch(vendor):
        raise BadValue(
            "CDI vendor", vendor, "a letter, then letters, digits, _ . - and no _ . - at the end"
        )


def check_name(field: str, name: str) -> None:
    """Raise ``BadValue`` unless this may be a device's name."""
    if not _NAME.fullmatch(name):
        raise BadValue(field, name, "letters, digits, _ . : - that begin and end with no sign")


def check_annotation(field: str, key: str) -> None:
    """Raise ``BadValue`` unless this may be an annotation's name: ``example.com/binding``."""
    prefix, slash, name = key.rpartition("/")
    if len(name) > 63 or not _ANNOTATION.fullmatch(name):
        raise BadValue(field, key, "a name of at most 63 letters, digits, _ . -")
    if slash and not _PREFIX.fullmatch(prefix.lower()):
        raise BadValue(field, key, "a DNS name before the slash")


def number(version: str) -> tuple[int, ...]:
    """Return a known version as numbers. Raises ``BadValue`` for another one."""
    if version not in _VERSIONS:
        raise NotKnown("CDI version", version, "one of " + ", ".join(_VERSIONS))
    return tuple(int(part) for part in version.split("."))


def needed_version(document: Mapping[str, Any]) -> str:
    """Return the lowest version that can say this: a runtime refuses one it does not know."""
    entries = [document, *document["devices"]]
    if any(entry.get("containerEdits", {}).get("additionalGids") for entry in entries):
        return "0.7.0"
    if any(entry.get("annotations") for entry in entries) or "." in document["kind"].split("/")[-1]:
        return "0.6.0"
    return "0.5.0"  # hostPath, and names that begin with a digit as a UID may


def check(document: Any) -> None:
    """Raise ``BadValue`` for a spec that the runtime would refuse, or that is no spec of ours."""
    _fields("spec", document, _SPEC, required=("cdiVersion", "kind", "devices"))
    if number(document["cdiVersion"]) < number(needed_version(document)):
        raise BadValue("cdiVersion", document["cdiVersion"], needed_version(document))
    names = [entry["name"] for entry in document["devices"]]
    if not names:
        raise BadValue("devices", names, "at least one")
    if len(set(names)) != len(names):
        raise BadValue("devices", names, "each name once")


def _fields(where: str, value: Any, known: Mapping[str, _Check], required: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise BadValue(where, value, "an object")
    for key in required:
        if key not in value:
            raise BadValue(where, sorted(value), f"the key {key}")
    for key, item in value.items():
        if key not in known:
            raise NotKnown(where, key, "one of " + ", ".join(known))
        known[key](f"{where}.{key}", item)


def _text(where: str, value: Any) -> None:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadValue(where, value, "text without NUL")
    _utf8(where, value)


def _utf8(where: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(where, value, "valid UTF-8") from None


def _path(where: str, value: Any) -> None:
    _text(where, value)
    if not value.startswith("/"):
        raise BadValue(where, value, "an absolute path")


def _word(*words: str) -> _Check:
    def check_word(where: str, value: Any) -> None:
        if value not in words:
            raise BadValue(where, value, "one of " + ", ".join(words))

    return check_word


def _int(most: int) -> _Check:
    def check_int(where: str, value: Any) -> None:
        if type(value) is not int or not 0 <= value <= most:
            raise BadValue(where, value, f"a number from 0 to {most}")

    return check_int


def _permissions(where: str, value: Any) -> None:
    _text(where, value)
    if not set(value) <= set("rwm"):
        raise BadValue(where, value, "letters of rwm")


def _env(where: str, value: Any) -> None:
    _text(where, value)
    name, equals, _ = value.partition("=")
    if not name or not equals:
        raise BadValue(where, value, "NAME=value")


def _list(check_item: _Check) -> _Check:
    def check_list(where: str, value: Any) -> None:
        if not isinstance(value, list):
            raise BadValue(where, value, "a list")
        for index, item in enumerate(value):
            check_item(f"{where}[{index}]", item)

    return check_list


def _object(known: Mapping[str, _Check], *required: str) -> _Check:
    def check_object(where: str, value: Any) -> None:
        _fields(where, value, known, required)

    return check_object


def _kind(where: str, value: Any) -> None:
    _text(where, value)
    vendor, slash, name = value.partition("/")
    check_vendor(vendor)
    if not slash or not _VENDOR.fullmatch(name):
        raise BadValue(where, value, "vendor/class")


def _annotations(where: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise BadValue(where, value, "an object")
    for key, text in value.items():
        check_annotation(where, key)
        if not isinstance(text, str):
            raise BadValue(f"{where}.{key}", text, "text")
        _utf8(f"{where}.{key}", text)
    if sum(len(k.encode()) + len(v.encode()) for k, v in value.items()) > _ANNOTATIONS_LIMIT:
        raise BadValue(where, "more than 256 KiB", "less")


def _name(where: str, value: Any) -> None:
    _text(where, value)
    check_name(where, value)


def _edits(where: str, value: Any) -> None:
    _fields(where, value, _EDITS, ())
    if not any(value.values()):
        raise BadValue(where, value, "at least one edit")


_NODE: dict[str, _Check] = {
    "path": _path,
    "hostPath": _path,
    "type": _word("b", "c"),
    "major": _int((1 << 32) - 1),
    "minor": _int((1 << 32) - 1),
    "fileMode": _int(0o7777),
    "permissions": _permissions,
    "uid": _int((1 << 32) - 1),
    "gid": _int((1 << 32) - 1),
}
_MOUNT: dict[str, _Check] = {
    "hostPath": _text,
    "containerPath": _path,
    "type": _text,
    "options": _list(_text),
}
_HOOK: dict[str, _Check] = {
    "hookName": _word(*sorted(_HOOKS)),
    "path": _path,
    "args": _list(lambda where, value: _text(where, value or "-")),
    "env": _list(_env),
    "timeout": _int((1 << 31) - 1),
}
_EDITS: dict[str, _Check] = {
    "env": _list(_env),
    "deviceNodes": _list(_object(_NODE, "path")),
    "mounts": _list(_object(_MOUNT, "hostPath", "containerPath")),
    "hooks": _list(_object(_HOOK, "hookName", "path")),
    "additionalGids": _list(_int((1 << 32) - 1)),
}
_DEVICE: dict[str, _Check] = {
    "name": _name,
    "annotations": _annotations,
    "containerEdits": _edits,
}
_SPEC: dict[str, _Check] = {
    "cdiVersion": _text,
    "kind": _kind,
    "annotations": _annotations,
    "devices": _list(_object(_DEVICE, "name", "containerEdits")),
    "containerEdits": _edits,
}
