"""The section ``[policy.drain]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from hardpoint import Settings
from hardpoint.attributes import is_subdomain


class DrainSettings(Settings):
    """The section ``[policy.drain]``."""

    request_file: Path | None = None
    """The node is handed back while this file exists; ``drain`` in the state directory if unset.
    ``hardpoint drain`` writes and removes it."""
    follow_annotation: bool = True
    """Also while the Node has the annotation ``<prefix>/drain``, whatever its value but
    ``false``."""
    prefix: str = "hardpoint.dev"
    """Domain of that annotation, and of ``<prefix>/cordoned``, which remembers whose cordon it
    is."""
    cordon: bool = True
    """Cordon the Node, and uncordon it on return where it was not cordoned before."""
    longest_grace_s: int = Field(default=30, ge=1, le=3600)
    """The most seconds that a pod gets to end, of those it asks for."""
    evict: bool = False
    """Evict pods, as disruption budgets allow, before they are deleted. Without it budgets are not
    asked: whoever takes the machine back does not wait for them."""
    evict_for_s: float = Field(default=300, ge=0, le=86400)
    """Seconds after which pods are deleted that could not be evicted; counted anew when the agent
    is started anew."""

    @field_validator("prefix")
    @classmethod
    def _domain(cls, value: str) -> str:
        if not is_subdomain(value):
            raise ValueError("want a lower-case DNS subdomain, such as example.com")
        return value

    @field_validator("request_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not (value.is_absolute() and "\0" not in str(value)):
            raise ValueError("want an absolute path")
        return value

    def file_in(self, state: Path) -> Path:
        """Return the request file of a state directory."""
        return self.request_file or state / "drain"

    @property
    def drain_annotation(self) -> str:
        """What asks for a drain."""
        return f"{self.prefix}/drain"

    @property
    def cordon_annotation(self) -> str:
        """What remembers that the cordon is ours."""
        return f"{self.prefix}/cordoned"
