"""One call of ``publish_devices``, made so that one bad entry costs one entry.

A driver that walks with ``for entry in node.each(...)`` and raises at one of them is asked again
without that entry, until its budget is over; the entry is reported as unread.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from hardpoint._core.plugins.calling import bounded, check_bound
from hardpoint._core.plugins.wellformed import flaw
from hardpoint.attributes import text
from hardpoint.model import Device, Listed, Unread, Withheld
from hardpoint.node import Walk, from_entry, said, walking

_LONGEST_SUBJECT, _LONGEST_REASON = 253, 1000


def listing(publish: Callable[[], Iterable[Listed]]) -> tuple[Listed, ...]:
    """Return everything a driver lists, and an ``Unread`` for each entry that it fell over.

    Raises what the driver raises outside of a walk, and ``TypeError`` for what is no listing.
    """
    walk, unread = Walk(), list[Unread]()
    token = walking.set(walk)
    try:
        while True:
            walk.current = None
            try:
                return (*_items(publish(), walk), *unread)
            except Exception as error:
                entry = walk.current
                if entry is None or entry.key in walk.skip:
                    raise
                walk.skip.add(entry.key)
                if entry.exists():
                    unread.append(Unread(entry.key, said(error)))
    finally:
        walking.reset(token)


async def listing_async(publish: Callable[[], Any]) -> tuple[Listed, ...]:
    """Do the same for an ``async def``, which may return its listing or yield it."""
    answer = publish()
    if inspect.isawaitable(answer):
        answer = await cast("Awaitable[Iterable[Listed]]", answer)
    if isinstance(answer, AsyncIterable):
        items: list[Listed] = []
        async for item in answer:
            items.append(_checked(item))
            check_bound(len(items))
        return tuple(items)
    return listing(lambda: cast("Iterable[Listed]", answer))


def _items(answer: Iterable[Listed], walk: Walk) -> tuple[Listed, ...]:
    if answer is None or isinstance(answer, str | bytes | Device):
        raise TypeError(f"publish_devices answered {type(answer).__name__}, want a list of devices")
    items = []
    for item in bounded(answer):
        entry = walk.current
        if entry is None:
            items.append(_checked(item))
        elif entry.exists():  # else it vanished while it was read: half a device, and gone
            items.append(from_entry(_checked(item), entry.key))
    return tuple(items)


def _checked(item: object) -> Listed:
    """Return an item that is what its type says; a device that is not is withheld, alone."""
    if not isinstance(item, Device | Withheld | Unread):
        raise TypeError(f"publish_devices listed a {type(item).__name__}, want Device or Withheld")
    wanted = next(kind for kind in (Device, Withheld, Unread) if isinstance(item, kind))
    wrong = flaw(item, wanted)
    if wrong:
        return Withheld(_name_of(item), "bad-device", f"the driver answers {wrong}")
    if isinstance(item, Device):
        return item
    reason = text(item.reason, _LONGEST_REASON)
    if isinstance(item, Withheld):
        return replace(item, subject=text(item.subject, _LONGEST_SUBJECT), reason=reason)
    return replace(item, reason=reason)


def _name_of(item: Listed) -> str:
    name = getattr(item, "name", None) or getattr(item, "subject", None)
    return text(name, _LONGEST_SUBJECT) if isinstance(name, str) else "?"
