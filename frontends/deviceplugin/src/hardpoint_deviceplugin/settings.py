"""The section ``[frontend.deviceplugin]`` of the settings file, checked before anything is served.

What the kubelet would refuse, or what no device could ever match, is refused here, with the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

import hardpoint
from hardpoint.cel import Selector
from hardpoint_deviceplugin.names import check_resource, check_word
from hardpoint_deviceplugin.size import MOST_IDS


class ResourceSettings(hardpoint.Settings):
    """A resource that is made of the devices which a selector matches.

    A device is in one resource only: the first of these that matches and has room, else the one of
    its kind.
    """

    name: str
    """The extended resource: ``example.com/zigbee``. It holds what is selected here, nothing
    else."""
    selector: str
    """CEL over a device, as in a DeviceClass; needs the extra ``cel``. A device on which it fails
    is not selected, and that is said."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many devices of this node; all that match if unset."""
    replicas: int = Field(default=1, ge=1)
    """How many containers may have each device at once. Only shareable devices are offered more
    than once."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_resource(value)

    @field_validator("selector")
    @classmethod
    def _selector(cls, value: str) -> str:
        Selector(value)
        return value

    @model_validator(mode="after")
    def _fits(self) -> ResourceSettings:
        """Refuse what one message to the kubelet cannot hold, which takes 4 MiB at most."""
        ids = (self.limit or 1) * self.replicas
        if ids > MOST_IDS:
            raise ValueError(
                f"{ids} ids are more than one list to the kubelet holds: want at most {MOST_IDS} "
                "of limit times replicas"
            )
        return self


class DevicePluginSettings(hardpoint.Settings):
    """Section ``[frontend.deviceplugin]``."""

    kinds: tuple[str, ...] = ("*",)
    """Kinds that have a resource of their own, ``<resource_prefix>/<kind>``; patterns. None of them
    (``[]``) leaves the resources below."""
    names: Mapping[str, str] = Field(default_factory=dict)
    """Names for the resources of kinds, without a slash below the resource prefix:
    ``{"drm.render" = "render", usb = "example.com/usb"}``."""
    resources: tuple[ResourceSettings, ...] = ()
    """Resources made by selectors."""
    devices: Literal["cdi", "specs"] = "cdi"
    """How a container gets its devices: by CDI names, or, for container runtimes without CDI, as
    device nodes, mounts and variables in the kubelet's own words."""
    registration_silence: float = Field(default=30.0, gt=0)
    """Seconds that the kubelet may be away before that is said."""

    @field_validator("names")
    @classmethod
    def _names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name in value.values():
            (check_resource if "/" in name else check_word)(name)
        return value

    @model_validator(mode="after")
    def _once(self) -> DevicePluginSettings:
        """Refuse two resources of one name: which selector a device answers to must be plain."""
        named = Counter([one.name for one in self.resources] + sorted(set(self.names.values())))
        twice = [name for name, count in named.items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is defined twice: give each resource a name of its own")
        return self
