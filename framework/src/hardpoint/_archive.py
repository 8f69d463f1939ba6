"""Unpack an archive that anybody may have made, without trusting a byte of it."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from hardpoint.errors import NotAMachine
from hardpoint.node import clean

LARGEST = 256 << 20
"""Bytes that an archive may hold, headers included: recorded machines have some 40 MiB."""
MOST_MEMBERS = 500_000
FILES = ("dev.json", "meta.json")


def unpack(archive: Path, root: Path, trees: Iterable[str]) -> None:
    """Unpack these trees, and ``dev.json``, into a new directory; other members are passed over.

    Links are made last, when no file can be written through them any more, and only those that
    stay inside. Raises ``NotAMachine`` for an archive that is broken, too large, or hostile.
    """
    root.mkdir()
    links: list[tuple[str, str]] = []
    try:
        with _Limited(_opened(archive)) as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
            for member in _members(tar, tuple(trees)):
                if member.issym():
                    links.append((member.name, member.linkname))
                else:
                    _put(tar, member, root)
        for name, target in links:
            _link(root, name, target)
    except _Refused as refusal:
        raise NotAMachine(str(archive), str(refusal)) from refusal
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, ValueError) as error:
        raise NotAMachine(str(archive), "it is no tar archive, or a damaged one") from error
    except OSError as error:
        what = f"it cannot be unpacked: {error.strerror or error}"
        raise NotAMachine(str(archive), what) from error


class _Refused(Exception):
    """Says what is wrong with a member."""


def _said(name: str) -> str:
    return clean(name.encode("utf-8", "surrogateescape"))[-100:]


def _opened(archive: Path) -> IO[bytes]:
    with archive.open("rb") as start:
        zipped = start.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.GzipFile(archive)) if zipped else archive.open("rb")


class _Limited(io.RawIOBase):
    """Reads a file, and refuses to read more than an honest archive has."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw, self._left = raw, LARGEST

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise _Refused(f"it holds more than {LARGEST >> 20} MiB")
        data = self._raw.read(size)
        self._left -= len(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()


def _members(tar: tarfile.TarFile, trees: tuple[str, ...]) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(tar):
        if count >= MOST_MEMBERS:
            raise _Refused(f"it has more than {MOST_MEMBERS} members")
        member.name = member.name.removeprefix("./")
        parts = member.name.split("/")
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise _Refused(f"the name {_said(member.name)} leads out of it")
        if member.issparse() or not (member.isreg() or member.isdir() or member.issym()):
            raise _Refused(f"{_said(member.name)} is no plain file, directory or symbolic link")
        if (parts[0] in trees and len(parts) > 1) or member.name in FILES:
            yield member


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    path = os.path.join(root, member.name)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    content = tar.extractfile(member)
    with open(path, "wb") as out:
        out.write(content.read() if content else b"")


def _link(root: Path, name: str, target: str) -> None:
    if not stays_inside(name, target):
        raise _Refused(f"the link {_said(name)} leads out of it")
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        raise _Refused(f"{_said(name)} is there twice")
    os.symlink(target, path)


def stays_inside(name: str, target: str) -> bool:
    """Say whether a link at ``name`` below a root climbs no higher than it.

    It may climb first and descend then. One that climbs again after it has descended might do so
    through another link, and is refused.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    climbs = 0
    while climbs < len(steps) and steps[climbs] == "..":
        climbs += 1
    depth = len([step for step in name.split("/")[:-1] if step not in ("", ".")])
    return not target.startswith("/") and ".." not in steps[climbs:] and climbs <= depth
