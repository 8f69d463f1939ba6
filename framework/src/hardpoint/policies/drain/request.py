"""The file by which a node is asked to be handed back: ``hardpoint drain`` writes it.

That it is there is the request, whatever is in it. It is gone only where its directory says so: one
that cannot be looked at is no word on it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hardpoint import files
from hardpoint.reading import printable

_MOST = 4096
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a request says; empty for a file that somebody else has made."""

    id: str = ""
    by: str = ""
    why: str = ""
    since: float = 0.0
    """In seconds since 1970."""


def read(path: Path) -> Request | None:
    """Return the request, None where there is none. Raises ``OSError`` where that is not known."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        os.stat(path.parent)  # a directory that is missing, unmounted perhaps, says nothing
        return None
    if not stat.S_ISREG(found.st_mode):
        return Request(since=found.st_mtime)
    try:
        return _understood(files.read(path, _MOST), found.st_mtime)
    except FileNotFoundError:
        return read(path)
    except OSError:
        return Request(since=found.st_mtime)


def _understood(content: bytes, since: float) -> Request:
    try:
        said = json.loads(content)
        words = {key: printable(str(said[key]))[:_LONGEST] for key in ("id", "by", "why")}
        asked = float(said["since"])
        return Request(since=asked if math.isfinite(asked) else since, **words)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Request(since=since)


def write(path: Path, *, by: str, why: str) -> Request:
    """Ask, durably; return the request, that of before where there is one. Raises ``OSError``."""
    _make(path.parent)
    asked = Request(id=secrets.token_hex(8), by=by, why=why, since=time.time())
    try:
        files.create(path, json.dumps(asdict(asked)).encode(), mode=0o600)
    except FileExistsError:
        return read(path) or write(path, by=by, why=why)
    return asked


def _make(directory: Path) -> None:
    """Make a directory that is there after a power cut too: else what is in it would go with it."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in made:
        files.sync_directory(path.parent)


def remove(path: Path) -> bool:
    """Ask no more, durably; say whether anybody did.

    Raises ``OSError``, also for a directory of that name, which asks still.
    """
    removed = files.remove(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it asks for a drain and is no file: remove it", path)
    return removed
