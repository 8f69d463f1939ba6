"""Files of the CDI directory: one per claim, replaced at once or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hardpoint import files
from hardpoint.cdi import NEWEST, delivery_of, kind, spec
from hardpoint.cdi_rules import check, check_vendor, number
from hardpoint.errors import BadValue
from hardpoint.model import Delivery

_SUFFIX = ".json"
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class ClaimFile:
    """A file of ours: its devices by name, without the claim's UID in front."""

    vendor: str
    uid: str
    path: Path
    modified: float
    devices: Mapping[str, Delivery]


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file with our name on it that cannot be read as one of ours."""

    path: Path
    reason: str


class CdiDirectory:
    """The directory that the runtime watches: ``/var/run/cdi``. Blocking.

    Whoever writes or removes a claim's file holds that claim's lock.
    """

    def __init__(self, path: Path, newest: str = NEWEST) -> None:
        number(newest)
        self.directory, self.newest = path, newest

    def file(self, vendor: str, uid: str) -> Path:
        """Return where a claim's file is. Raises ``BadValue`` for a UID that is no file name."""
        check_vendor(vendor)
        if not _UID.fullmatch(uid):
            raise BadValue("claim UID", uid, "letters, digits, dots and dashes")
        return self.directory / f"{vendor}-{uid}{_SUFFIX}"

    def write(self, vendor: str, uid: str, devices: Iterable[tuple[str, Delivery]]) -> bool:
        """Make a claim's file say exactly this; return whether it had to be written.

        Runtimes reload on a rename within the directory and may read a half-written file otherwise
        (kubernetes-sigs/dra-driver-cpu!31). Raises ``BadValue``, and ``OSError`` with the old file
        left as it was.
        """
        path = self.file(vendor, uid)
        document = spec(vendor, devices, self.newest)
        content = (json.dumps(document, indent=2) + "\n").encode()
        with suppress(OSError):
            if _content(path) == content:
                return False
        if not self.directory.is_dir():  # on tmpfs: gone after every boot
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.directory.chmod(0o755)
        files.replace(path, content, temporary=self._temporary(vendor, uid))
        return True

    def remove(self, vendor: str, uid: str) -> bool:
        """Remove a claim's file; return whether there was one."""
        return files.remove(self.file(vendor, uid))

    def claims(self, vendors: Collection[str]) -> tuple[list[ClaimFile], list[BadFile]]:
        """Return our own files, and those with our name that cannot be read; no one else's."""
        good, bad = [], []
        for vendor, uid, path in self._named(vendors, "", _SUFFIX):
            try:
                read = _read(vendor, uid, path)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - anything may stand in it, nested ever so deep
                bad.append(BadFile(path, str(error) or type(error).__name__))
                continue
            if read is not None:
                good.append(read)
        return good, bad

    def missing(self, wanted: Iterable[tuple[str, str]]) -> set[str]:
        """Return the UIDs of claims, given as vendor and UID, whose file is not there."""
        try:
            names = set(os.listdir(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        return {uid for vendor, uid in wanted if f"{vendor}-{uid}{_SUFFIX}" not in names}

    def leftovers(self, vendors: Collection[str]) -> list[tuple[str, str]]:
        """Return vendor and UID of temporary files of ours that a crash left behind."""
        return [(vendor, uid) for vendor, uid, _ in self._named(vendors, ".", ".tmp")]

    def remove_leftover(self, vendor: str, uid: str) -> None:
        """Remove a claim's temporary file."""
        self._temporary(vendor, uid).unlink(missing_ok=True)

    def _temporary(self, vendor: str, uid: str) -> Path:
        return self.directory / f".{vendor}-{uid}.tmp"

    def _named(
        self, vendors: Collection[str], start: str, end: str
    ) -> Iterable[tuple[str, str, Path]]:
        """Yield vendor, UID and path of files named as ours; the longest vendor that fits."""
        try:
            names = sorted(os.listdir(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            for vendor in sorted(vendors, key=len, reverse=True):
                uid = name.removeprefix(f"{start}{vendor}-").removesuffix(end)
                if name == f"{start}{vendor}-{uid}{end}" and _UID.fullmatch(uid):
                    yield vendor, uid, self.directory / name
                    break


def _read(vendor: str, uid: str, path: Path) -> ClaimFile | None:
    """Read a file; None for one that somebody else wrote under a name like ours."""
    document = json.loads(_content(path))
    check(document)
    names = [entry["name"] for entry in document["devices"]]
    if document["kind"] != kind(vendor) or not all(n.startswith(f"{uid}-") for n in names):
        return None
    devices = {e["name"].removeprefix(f"{uid}-"): delivery_of(e) for e in document["devices"]}
    return ClaimFile(vendor, uid, path, path.stat().st_mtime, devices)


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(_LONGEST)
