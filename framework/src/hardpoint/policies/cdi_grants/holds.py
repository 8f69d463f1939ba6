"""Hold files: CDI specs in a directory, one for each allocation, that give devices to Kubernetes.

Root's word is a grant, and nobody else's. A file that is not understood is said to be bad; what it
granted before is not ended by that.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardpoint.errors import HardpointError
from hardpoint.policies.cdi_grants.documents import (
    LARGEST,
    SUFFIX,
    SUFFIXES,
    Bad,
    HoldFile,
    judged,
    named_allocation,
    not_ours,
    parsed,
)
from hardpoint.policies.cdi_grants.settings import CdiGrantsSettings
from hardpoint.reading import printable

MOST_FILES = 1024
_YOUNG = 2.0
"""Seconds in which a file may still be being written by somebody who does not rename."""
_OTHERS_WRITE = 0o022


class Unreadable(HardpointError):
    """The directory of hold files cannot be read: nothing is known of any grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadHold:
    """A file with a hold's name that cannot be read as one."""

    name: str
    allocation: str
    """As its name says, or what it stated when it was last read; empty where neither says."""
    reason: str
    young: bool = False
    """It may still be being written."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A file with a hold's name that is about somebody else."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """What one look at the directory found."""

    directory: tuple[int, int]
    """Device and inode: another one is another directory."""
    good: tuple[HoldFile, ...] = ()
    bad: tuple[BadHold, ...] = ()
    left: tuple[LeftAlone, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of a file, and what the file was then."""

    state: tuple[int, ...]
    hold: HoldFile | LeftAlone


def read_holds(
    settings: CdiGrantsSettings,
    known: Mapping[str, str] | None = None,
    seen: dict[str, Seen] | None = None,
) -> Holds:
    """Read every hold file. Raises ``Unreadable``.

    ``known`` are allocations by the names of files that are thought to be there: they are looked
    for by name too, since a list of a directory in which files are renamed may miss one. ``seen``
    is what was read before; a file that is the same still is not read again.
    """
    known, seen = known or {}, {} if seen is None else seen
    descriptor = _open_directory(settings.directory)
    try:
        status = os.fstat(descriptor)
        _check_directory(settings.directory, status)
        names = _names(settings, descriptor, known)
        found = list(_read_each(settings, descriptor, names, known, seen))
    except OSError as error:
        raise Unreadable(f"{settings.directory} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    good = [one for one in found if isinstance(one, HoldFile)]
    bad = [one for one in found if isinstance(one, BadHold)]
    good, twice = _alone(good, bad)
    return Holds(
        directory=(status.st_dev, status.st_ino),
        good=tuple(good),
        bad=tuple(bad + twice),
        left=tuple(one for one in found if isinstance(one, LeftAlone)),
    )


# -- the directory --------------------------------------------------------------------------------


def _open_directory(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        remedy = (
            "; it is not made here, since a mount that is missing looks the same: make it, or set "
            "policy.cdi_grants.directory"
        )
        missing = remedy if isinstance(error, FileNotFoundError) else ""
        raise Unreadable(f"{path} cannot be read: {error.strerror}{missing}") from error


def _check_directory(path: Path, status: os.stat_result) -> None:
    wrong = distrusted(status)
    if wrong:
        raise Unreadable(f"{path} {wrong}: what is in it is nobody's word; chown or chmod it")


def distrusted(status: os.stat_result) -> str:
    """Say why what a file says need not be what root wrote; empty where it must be."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"can be written by others than its owner (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _names(settings: CdiGrantsSettings, descriptor: int, known: Collection[str]) -> list[str]:
    prefix = settings.file_prefix
    listed = {
        name
        for name in os.listdir(descriptor)
        if name.startswith(prefix) and name.endswith(SUFFIXES)
    }
    if len(listed) > MOST_FILES:
        raise Unreadable(
            f"{settings.directory} has {len(listed)} files {prefix}*, at most {MOST_FILES} are read"
        )
    return sorted(listed.union(known))


def _read_each(
    settings: CdiGrantsSettings,
    directory: int,
    names: Iterable[str],
    known: Mapping[str, str],
    seen: dict[str, Seen],
) -> Iterator[HoldFile | BadHold | LeftAlone]:
    before = dict(seen)
    seen.clear()
    for name in names:
        young = False
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            young = abs(time.time() - status.st_mtime) < _YOUNG
            now = before.get(name)
            if now is None or now.state != _state(status):
                now = Seen(_state(status), _judged(read_spec(name, directory), name, settings))
        except FileNotFoundError:
            continue
        except (Bad, OSError) as error:
            stated = known.get(name) or named_allocation(name, settings)
            yield BadHold(name=name, allocation=stated, reason=_why(error), young=young)
            continue
        if abs(time.time() - status.st_ctime) > _YOUNG:
            seen[name] = now  # of a later change within one tick of its clock a file says nothing
        yield now.hold


def _judged(document: Any, name: str, settings: CdiGrantsSettings) -> HoldFile | LeftAlone:
    """Return what a file is to us. Raises ``Bad``."""
    return judged(document, name, settings) or LeftAlone(name, not_ours(document, settings))


def _state(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _why(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return shown(str(text or type(error).__name__))


def _alone(good: list[HoldFile], bad: list[BadHold]) -> tuple[list[HoldFile], list[BadHold]]:
    """Set apart the files that state an allocation which another one states too."""
    names: dict[str, list[str]] = {}
    stated = [(one.allocation, one.name) for one in good]
    stated += [(one.allocation, one.name) for one in bad if one.allocation]
    for allocation, name in stated:
        names.setdefault(allocation, []).append(name)
    twice = [
        BadHold(
            name=one.name,
            allocation=one.allocation,
            reason=f"{_and(names[one.allocation])} are of one allocation: leave one of them",
        )
        for one in good
        if len(names[one.allocation]) > 1
    ]
    return [one for one in good if len(names[one.allocation]) == 1], twice


def _and(names: Iterable[str]) -> str:
    return " and ".join(shown(name) for name in sorted(names))


def shown(name: str) -> str:
    """Return a file's name for people: it need not be UTF-8."""
    return printable(name.encode("utf-8", "backslashreplace").decode())


# -- one file -------------------------------------------------------------------------------------


def read_spec(name: str, directory: int) -> Any:
    """Read a file of a directory as JSON; only one that root or this user wrote, and no link.

    Raises ``Bad``, and ``OSError``. What is no file is not opened: a pipe would wait for a writer,
    and some devices do something when they are opened.
    """
    _check_file(os.stat(name, dir_fd=directory, follow_symlinks=False))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    with open(os.open(name, flags, dir_fd=directory), "rb") as file:
        before = os.fstat(file.fileno())
        _check_file(before)
        raw = file.read(LARGEST + 1)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Bad("it is being written: write another file and rename it")
    try:
        return parsed(raw)
    except Bad as error:
        if name.endswith(SUFFIX):
            raise
        raise Bad(f"{error}; holds are read as JSON alone, whatever their name") from None


def _check_file(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise Bad("it is a link: put the file itself there")
    if not stat.S_ISREG(status.st_mode):
        raise Bad("it is not a file: remove it")
    wrong = distrusted(status)
    if wrong:
        raise Bad(f"it {wrong}: chown or chmod it")
    if status.st_size > LARGEST:
        raise Bad(f"it has {status.st_size} bytes, at most {LARGEST} are read")
