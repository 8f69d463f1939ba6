"""Small files that are there whole or not at all, also after a power cut. Blocking.

What stands at a temporary name is never written to: it may be a link to another file, another name
of one, or a pipe that nobody reads.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def replace(path: Path, content: bytes, *, temporary: Path, mode: int = 0o644) -> None:
    """Put a file in the place of what is there. Raises ``OSError`` with that left as it was.

    ``temporary`` is a name in the same directory that nobody else uses at the moment.
    """
    try:
        temporary.unlink(missing_ok=True)
        _write(temporary, content, mode)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def create(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Make a file where there is none. Raises ``FileExistsError``, and other ``OSError``."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(temporary, content, mode)
        os.link(temporary, path, follow_symlinks=False)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def read(path: Path, most: int) -> bytes:
    """Return the first bytes of a file. Raises ``OSError``, also for a link.

    It does not wait for who would write to a pipe in its place.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    with open(os.open(path, flags), "rb", buffering=0) as file:
        return file.read(most) or b""


def remove(path: Path) -> bool:
    """Remove a file for good; return whether there was one. A directory is not one."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    sync_directory(path.parent)
    return True


def sync_directory(directory: Path) -> None:
    """Make what was made, renamed and removed in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, _NEW, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask
        file.write(content)
        file.flush()
        os.fsync(descriptor)
