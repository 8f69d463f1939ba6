"""Tells a container which allocations its devices are of: in its environment and its annotations.

Under the device plugin API the frontend merges what several devices of a container say. A container
with devices of a ResourceClaim has the variables of its last device alone, so each device says the
allocations of all that the claim was given.
"""

from __future__ import annotations

import re

from pydantic import field_validator, model_validator

from hardpoint.cdi_rules import check_annotation
from hardpoint.contract import hookimpl
from hardpoint.errors import BadValue
from hardpoint.model import Addition, Claim, Device, Hold
from hardpoint.node import Node
from hardpoint.parameters import Settings

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TAKEN = re.compile(r"PATH|LD_.*|NVIDIA_.*")
"""Variables that change what a container runs or is given."""
_RUNTIMES = ("kubernetes.io", "k8s.io")
"""Domains whose annotations kubelets and runtimes act on: ``cdi.k8s.io`` injects devices."""


class ContainerFactsSettings(Settings):
    """The section ``[policy.container_facts]``."""

    variable: str = "HARDPOINT_ALLOCATION_IDS"
    """Name of the environment variable; with nothing there is none."""
    annotation: str = "hardpoint.dev/allocation-ids"
    """Name of the annotation that the runtime sees, under the device plugin API; with nothing there
    is none."""

    @field_validator("variable")
    @classmethod
    def _name(cls, value: str) -> str:
        if value and not _VARIABLE.fullmatch(value):
            raise ValueError("want letters, digits and _, and no digit first")
        if _TAKEN.fullmatch(value):
            raise ValueError("want another name: this one changes what a container runs or gets")
        return value

    @field_validator("annotation")
    @classmethod
    def _key(cls, value: str) -> str:
        if not value:
            return value
        try:
            check_annotation("annotation", value)
        except BadValue as error:
            raise ValueError(f"want {error.want}") from error
        domain = value.rpartition("/")[0].lower()
        if any(domain == one or domain.endswith(f".{one}") for one in _RUNTIMES):
            raise ValueError("want a domain of your own: runtimes act on annotations of this one")
        return value

    @model_validator(mode="after")
    def _something(self) -> ContainerFactsSettings:
        if not (self.variable or self.annotation):
            raise ValueError("want a variable or an annotation: with neither nothing is said")
        return self


class ContainerFacts:
    """Adds allocation ids to what a holder receives; nothing to what is held under no grant."""

    Settings = ContainerFactsSettings

    def __init__(self, node: Node, settings: ContainerFactsSettings) -> None:
        self.settings = settings

    @hookimpl
    def annotate_delivery(self, hold: Hold, device: Device, claim: Claim) -> Addition | None:
        """Say the allocations of the claim, in its own order, commas between."""
        if not hold.allocation:
            return None
        ids = dict.fromkeys(one.allocation for one in claim.allotments if one.allocation)
        value = ",".join(ids or (hold.allocation,))
        names = self.settings
        return Addition(
            env={names.variable: value} if names.variable else {},
            annotations={names.annotation: value} if names.annotation else {},
        )
