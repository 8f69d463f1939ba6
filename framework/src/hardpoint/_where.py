"""Tables that say which devices are meant: ``{kind = "usb", vendor = "10c4"}``."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from hardpoint.model import AttributeValue
from hardpoint.parameters import Settings

Where: TypeAlias = Mapping[str, str | int | bool]
"""``device`` (its name), ``kind``, ``plugin`` or an attribute, to a value; a pattern, if text."""


def fits(where: Where, facts: Mapping[str, AttributeValue]) -> bool:
    """Say whether a device with these facts is meant: every entry must match."""
    return all(_matches(facts.get(key), wanted) for key, wanted in where.items())


def _matches(found: AttributeValue | None, wanted: str | int | bool) -> bool:
    if found is None:
        return wanted is False
    if isinstance(wanted, str):
        return fnmatch.fnmatchcase(str(found), wanted)
    return type(found) is type(wanted) and found == wanted


class Share(Settings):
    """Which devices a frontend offers, for nodes that run more than one: in its own section.

    Each table is as ``where`` in a rule, of a device as it is offered; a device that two frontends
    offer is offered through neither.
    """

    only: tuple[Annotated[Where, Field(min_length=1)], ...] | None = None
    """What it offers: ``only = [{kind = "usb"}]``; every device if unset, none if empty."""
    without: tuple[Annotated[Where, Field(min_length=1)], ...] = ()
    """What it leaves to others."""

    @property
    def is_everything(self) -> bool:
        """True where it leaves nothing to others."""
        return self.only is None and not self.without

    @property
    def is_nothing(self) -> bool:
        """True where it offers no device at all."""
        return self.only == ()

    def wants(self, facts: Mapping[str, AttributeValue]) -> bool:
        """Say whether it offers a device with these facts."""
        meant = self.only is None or any(fits(where, facts) for where in self.only)
        return meant and not any(fits(where, facts) for where in self.without)


SHARE_KEYS = frozenset(Share.model_fields)
"""Keys of a frontend's section that are the agent's, and not the frontend's own."""


def share_in(section: Mapping[str, Any]) -> Share:
    """Read a frontend's share out of its section. Raises pydantic's ``ValidationError``."""
    return Share.model_validate({k: v for k, v in section.items() if k in SHARE_KEYS})
