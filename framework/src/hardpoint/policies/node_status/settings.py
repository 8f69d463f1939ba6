"""The section ``[policy.node_status]``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, field_validator

from hardpoint import Settings
from hardpoint.attributes import is_subdomain
from hardpoint.policies.node_status.taints import Taint, parse
from hardpoint.policies.node_status.words import is_key, is_value

_RENAMED = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,99}(/[A-Za-z][A-Za-z0-9_]{0,99})?")
KUBELETS = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}) | {
    "NetworkUnavailable"
}
"""Conditions that are the kubelet's and the network's: by them pods are scheduled and evicted."""


class NodeStatusSettings(Settings):
    """The section ``[policy.node_status]``."""

    prefix: str = "hardpoint.dev"
    """Domain of labels that drivers name without one, of ``node-id`` and ``site``, and of what the
    policy remembers on the Node."""
    node_id: str = ""
    """Label ``<prefix>/node-id``; none where empty."""
    site: str = ""
    """Label ``<prefix>/site``; none where empty."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels of your own, kept in step: ``{"example.com/pool" = "h100"}``. They win over all
    others. One that is taken out here is removed from the Node."""
    capabilities: tuple[str, ...] = ("binding.kubernetes",)
    """What the node says it is able to do, as ``<prefix>/cap.<name> = true``, while a grant source
    runs and the node has devices of its kinds. Add ``devices.limits`` where the node honours the
    limits of a grant."""
    capability_prefix: str = ""
    """Domain of these labels, where it is another than ``prefix``."""
    taints: tuple[str, ...] = ()
    """Taints that the node was registered with, ``key=value:Effect``. They are not set: where the
    Node has others, the condition ``TaintsDrift`` says the command that puts it right."""
    conditions: Mapping[str, str] = Field(default_factory=dict)
    """Other types for conditions, and other reasons:
    ``ReleaseStuck = "KubernetesReleaseStuck/PodsHoldDevices"``, or a type alone."""
    events: bool = True
    """Tell on the Node, as Kubernetes Events, which conditions begin and end, what is granted,
    refused and released, and which pods are spared."""
    no_schedule_taint: bool = False
    """Put the taint ``<prefix>/unusable:NoSchedule`` on the Node while a condition is true. It
    needs the right to patch ``nodes``; kubelets' own credentials may not."""
    advisory: tuple[str, ...] = ("TaintsDrift",)
    """Conditions that bring no such taint, by the type they have without ``conditions``."""

    @field_validator("prefix", "capability_prefix")
    @classmethod
    def _domain(cls, value: str) -> str:
        if value and not is_subdomain(value):
            raise ValueError("want a lower-case DNS subdomain, such as example.com")
        return value

    @field_validator("prefix")
    @classmethod
    def _said(cls, value: str) -> str:
        if not value:
            raise ValueError("want a domain, such as example.com")
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for key, text in value.items():
            if not is_key(key):
                raise ValueError(f"{key:.80} is no label's name: want example.com/name")
            if not is_value(text):
                raise ValueError(
                    f"{key} = {text:.80}: want at most 63 letters, digits, dashes, dots and "
                    "underscores that begin and end with a letter or digit"
                )
        return value

    @field_validator("capabilities")
    @classmethod
    def _capabilities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not is_key(f"cap.{name}") or "/" in name:
                raise ValueError(f"{name:.80} is no part of a label's name")
        return value

    @field_validator("taints")
    @classmethod
    def _taints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        seen = {parse(text).place for text in value}
        if len(seen) < len(value):
            raise ValueError("one key and effect twice: a node has each once")
        return value

    @field_validator("conditions")
    @classmethod
    def _conditions(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for type_, renamed in value.items():
            if not _RENAMED.fullmatch(renamed):
                raise ValueError(f"{type_:.80} = {renamed:.80}: want a type, or Type/Reason")
            if renamed.partition("/")[0] in KUBELETS:
                raise ValueError(f"{renamed:.80} is the kubelet's own condition")
        return value

    @property
    def registered(self) -> tuple[Taint, ...]:
        """The taints, understood."""
        return tuple(parse(text) for text in self.taints)

    def renamed(self, type_: str, reason: str) -> tuple[str, str]:
        """Return what a condition's type and reason are called on the Node."""
        new, _, why = self.conditions.get(type_, type_).partition("/")
        return new, why or reason
