"""What policies say of themselves, and sources of grants: a stranger's word, so it may be anything.

What is no answer is never taken for an empty one: a source whose ``kinds`` cannot be told would
govern nothing, and everything would be granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hardpoint._core.plugins.calling import said
from hardpoint.errors import HardpointError
from hardpoint.grants import Grant
from hardpoint.reading import printable

_ALLOCATION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LONGEST = 512
"""Bytes of a name: what CDI, udev and the API call a device is far shorter."""
_LONGEST_REASON = 1000
MOST_DEVICES = 8192
"""Devices that one source's grants name together: a node has hundreds, with slots thousands."""


# -- itself ---------------------------------------------------------------------------------------


def kinds_of(instance: object) -> tuple[str, ...]:
    """Return the patterns of kinds that a policy names; none where it does not say.

    Raises ``HardpointError`` for what are no patterns.
    """
    try:
        found = getattr(instance, "kinds", ())
    except Exception as error:
        raise HardpointError(f"its kinds cannot be read: {said(error)}") from error
    listed = isinstance(found, tuple | list | set | frozenset)
    if not listed or not all(isinstance(one, str) and one for one in found):
        raise HardpointError(
            f"its kinds are of type {type(found).__name__}: want a tuple of patterns of text, such "
            'as ("gpu", "gpu.*")'
        )
    return tuple(str(one) for one in found)


def governed_by(instance: object) -> tuple[str, ...]:
    """Return the patterns of kinds that a source of grants governs.

    Raises ``HardpointError``, also where there are none: everything would be granted.
    """
    found = kinds_of(instance)
    if not found:
        raise HardpointError(
            "it grants devices and names no kinds: want an attribute kinds, patterns such as "
            '("gpu", "gpu.*")'
        )
    return found


def is_not_applicable(instance: object) -> bool:
    """Say whether a source of evidence says that it cannot be asked on this node."""
    try:
        return bool(getattr(instance, "not_applicable", ""))
    except Exception:  # noqa: BLE001 - as above; it is asked, and says itself what is wrong
        return False


def unread_of(instance: object) -> str:
    """Return what a source of grants says that it cannot read, in a sentence; empty for nothing."""
    try:
        found = getattr(instance, "unread", "")
    except Exception as error:  # noqa: BLE001 - what cannot be told is not nothing
        return f"what it cannot read cannot be told: {said(error)}"
    return sentence(found) if isinstance(found, str) else "something, and it does not say what"


# -- grants ---------------------------------------------------------------------------------------


def checked(source: str, found: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return what a source stated, as its own. Raises ``HardpointError`` for what is no answer."""
    grants = tuple(
        replace(one, source=source, unsupported=sentence(one.unsupported)) for one in found
    )
    seen: set[str] = set()
    for one in grants:
        if not _ALLOCATION.fullmatch(one.allocation):
            raise HardpointError(
                f"it states an allocation of {len(one.allocation)} characters that is no id: want "
                "1 to 128 letters, digits and -._"
            )
        if one.allocation in seen:
            raise HardpointError(f"it states allocation {one.allocation} twice")
        seen.add(one.allocation)
        for what, text in _texts(one):
            _check_text(one.allocation, what, text)
    count = sum(len(one.devices) for one in grants)
    if count > MOST_DEVICES:
        raise HardpointError(f"its grants name {count} devices, at most {MOST_DEVICES} are read")
    return grants


def _texts(grant: Grant) -> Iterator[tuple[str, str]]:
    for entry in grant.devices:
        yield "device", entry.name
        yield "uuid", entry.uuid
        yield "CDI name", entry.cdi_id
        for node in entry.nodes:
            yield "node", node.path
            yield "node", node.host_path


def _check_text(allocation: str, what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise HardpointError(
            f"in allocation {allocation} it states a {what} that is no UTF-8 text"
        ) from None
    if size > _LONGEST:
        raise HardpointError(
            f"in allocation {allocation} it states a {what} of {size} bytes, at most {_LONGEST} "
            "are read"
        )


def sentence(text: str, longest: int = _LONGEST_REASON) -> str:
    """Return what a stranger says as text that every log, file and API takes."""
    return printable(text[:longest].encode("utf-8", "replace").decode())
