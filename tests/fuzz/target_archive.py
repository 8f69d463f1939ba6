"""Recorded machines that anybody may have made: opened or refused in one way, never stepped out of.

The first byte says how the rest becomes a file: as it is, compressed, or as the members of a tar.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz.choices import Choices, mutated
from fuzz.target_sysfs import offered
from fuzz.world import Stage, check_published

from hardpoint.errors import NotAMachine
from hardpoint.recorded import open_machine

NAMES = (
    "sys/devices/pci0000:00/0000:00:02.0/vendor",
    "sys/bus/pci/devices/0000:00:02.0",
    "sys/bus/usb/devices/1-1",
    "sys/dev/char/226:0",
    "sys/dev/char/1:²/uevent",
    "sys/dev/char/8:1/uevent",
    "sys/devices/a/b/c",
    "sys/devices/a",
    "sys/bus/x/uevent",
    "sys",
    "proc/1/mountinfo",
    "proc/swaps",
    "run/udev/data/c1:3",
    "dev.json",
    "./sys/bus/y",
    "../outside",
    "/outside",
    "sys/../../outside",
    "sys/\udcff",
    "sys/" + "d/" * 200 + "f",
    "sys/bus/" + "n" * 300,
    "meta.json",
)
LINKS = (
    "../../../devices/pci0000:00/0000:00:02.0",
    "..",
    "../../../../outside",
    "/etc/passwd",
    "",
    "a/../../../../outside",
    "x\0y",
    ".",
    "loop",
)
KINDS = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
TABLE = {
    "nodes": {
        "/dev/dri/card0": {"type": "char", "major": 226, "minor": 0, "mode": "0660", "gid": 44},
        "/dev/sda": {"type": "block", "major": 8, "minor": 0},
    },
    "links": {"/dev/cdrom": "sr0", "/dev/disk/by-id/x": "../../sda"},
}


class Fuzzed:
    """Opens one archive after another in a directory that nothing else may appear in."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        self.stage.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        home = self.stage.fresh("home")
        archive = home / choices.pick(("m.tar", "m.tar.gz", "²\x1b.tgz", "m"))
        archive.write_bytes(_content(choices))
        before, tempfile.tempdir = tempfile.tempdir, str(home)
        try:
            with open_machine(archive) as node:
                _stays_inside(node.sys.parent)
                offer, _ = offered(node)
                check_published(offer)
        except NotAMachine as refusal:
            assert str(refusal).isprintable(), repr(str(refusal))
        except OSError as error:
            assert error.__traceback__ is not None
            where = str(error.filename or "")
            assert "/sys/" in where or where.endswith("/sys"), (
                error
            )  # sysfs as a whole is unreadable
        finally:
            tempfile.tempdir = before
        assert sorted(os.listdir(home)) == [archive.name]
        self.stage.quiet("no secret here")


def _content(choices: Choices) -> bytes:
    how = choices.below(5)
    if how == 4:
        return _tar(choices, _table(choices))
    if how == 0:
        return choices.rest()
    if how == 1:
        return gzip.compress(choices.rest(), 1, mtime=0)
    raw = _tar(choices)
    if how == 2:
        return gzip.compress(raw, 1, mtime=0)
    damaged = bytearray(raw)
    for _ in range(1 + choices.below(4)):
        damaged[choices.below(len(damaged))] = choices.byte()
    return bytes(damaged)


def _tar(choices: Choices, table: bytes = b"") -> bytes:
    out = io.BytesIO()
    form = choices.pick((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        _member(tar, "sys/bus", tarfile.DIRTYPE, b"", "")
        _member(tar, "sys/devices", tarfile.DIRTYPE, b"", "")
        if table:
            _member(tar, "dev.json", tarfile.REGTYPE, table, "")
        for _ in range(choices.below(8)):
            name = choices.pick(NAMES)
            content = _table(choices) if name == "dev.json" else choices.chunk(60)
            kind = KINDS[0] if name == "dev.json" else choices.pick(KINDS)
            _member(tar, name, kind, content, choices.pick(LINKS))
    return out.getvalue()


def _table(choices: Choices) -> bytes:
    table = json.loads(json.dumps(TABLE))
    return json.dumps(mutated(table, choices)).encode("utf-8", "surrogatepass")


def _member(tar: tarfile.TarFile, name: str, kind: bytes, content: bytes, link: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    member.size = len(content) if kind == tarfile.REGTYPE else 0
    tar.addfile(member, io.BytesIO(content))


def _stays_inside(root: Path) -> None:
    inside = os.path.realpath(root)
    for folder, _, _ in os.walk(inside):
        for entry in os.scandir(folder):
            if entry.is_symlink():
                led = os.path.realpath(entry.path)
                assert led == inside or led.startswith(f"{inside}/"), (entry.path, led)
