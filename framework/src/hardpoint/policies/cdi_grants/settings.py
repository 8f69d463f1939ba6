"""The section ``[policy.cdi_grants]``: where hold files are, and what things are called in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from hardpoint.cdi_rules import check_annotation, check_vendor
from hardpoint.parameters import Settings

_Word = Annotated[str, Field(min_length=1)]


class CdiGrantsSettings(Settings):
    """The section ``[policy.cdi_grants]``: grants are CDI files in a directory of the host.

    What is left out of the annotations and of the file name follows from ``vendor``: with
    ``vendor = "bcd.dev"`` the files of bcd are read as they are.
    """

    directory: Path = Path("/etc/cdi")
    """Where the files are: one that the container runtime reads too, and not ``paths.cdi``."""
    vendor: str = "hardpoint.dev"
    """The vendor in their ``kind``; files of other vendors are left alone."""
    device_class: str = "gpu"
    """What follows the vendor in files that ``hardpoint grant`` writes; any is read."""
    prefix: str = ""
    """What the files' names begin with; the vendor's first word and a dash if unset: ``bcd-``."""
    kinds: Annotated[tuple[_Word, ...], Field(min_length=1)] = ("gpu", "gpu.*")
    """Kinds of devices that are offered under these grants alone; patterns."""
    binding: str = ""
    """The annotation that gives a file's devices to Kubernetes; ``<vendor>/binding`` if unset."""
    binding_value: str = "kubernetes"
    """What it says then; a file where it says anything else is left alone."""
    allocation: str = ""
    """The annotation with the allocation id, ``<vendor>/allocation`` if unset; where a file lacks
    it, the id is what stands between the prefix and ``.json`` in the file's name."""
    uuid: str = ""
    """The annotation of a device with its UUID, ``<vendor>/uuid`` if unset."""
    informational: tuple[_Word, ...] = ()
    """Other annotations of the vendor that ask for nothing; patterns. A file with one that is not
    known is refused."""
    reports: Path | None = None
    """Where it is said what became of each grant; ``grants`` in the state directory if unset."""
    keep_reports: Annotated[int, Field(ge=0)] = 7 * 24 * 3600
    """Seconds for which the report of a release is kept."""

    @field_validator("vendor")
    @classmethod
    def _vendor(cls, value: str) -> str:
        check_vendor(value)
        return value

    @field_validator("device_class")
    @classmethod
    def _class(cls, value: str) -> str:
        check_vendor(value)
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if "/" in value or "\0" in value or value.startswith("."):
            raise ValueError("want the beginning of a file's name, without / and no dot in front")
        return value

    @field_validator("binding", "allocation", "uuid")
    @classmethod
    def _annotation(cls, value: str) -> str:
        if value:
            check_annotation("annotation", value)
        return value

    @property
    def file_prefix(self) -> str:
        """What the files' names begin with."""
        return self.prefix or self.vendor.partition(".")[0] + "-"

    @property
    def binding_key(self) -> str:
        """The annotation that gives a file's devices to Kubernetes."""
        return self.binding or f"{self.vendor}/binding"

    @property
    def allocation_key(self) -> str:
        """The annotation with the allocation id."""
        return self.allocation or f"{self.vendor}/allocation"

    @property
    def uuid_key(self) -> str:
        """The annotation of a device with its UUID."""
        return self.uuid or f"{self.vendor}/uuid"
