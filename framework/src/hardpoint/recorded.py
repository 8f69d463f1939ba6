"""Machines that are a tree of files: recorded ones, and those that tests build.

Sysfs and procfs are copied as they are; the nodes of /dev cannot be (making one needs root), so a
table, ``dev.json``, says what they were::

    sys/  proc/  run/udev/      the trees, each optional but the first
    dev.json                    {"nodes": {"/dev/sda": {"type": "block", "major": 8, "minor": 0,
                                 "mode": "0660", "gid": 6}}, "links": {"/dev/cdrom": "sr0"}}

Nothing outside the tree is read: links that lead out of it are refused.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from hardpoint import _archive
from hardpoint.errors import NotAMachine
from hardpoint.model import NodeType, slug
from hardpoint.node import Node, NodeInfo, clean
from hardpoint.reading import decimal

TREES = ("sys", "proc", "run")
_TYPES = {"char": NodeType.CHAR, "block": NodeType.BLOCK}
_LARGEST_TABLE = 64 << 20


class RecordedNode(Node):
    """A machine below one directory, with a table in place of the nodes of /dev."""

    def __init__(
        self,
        root: str | Path,
        nodes: Mapping[str, NodeInfo],
        *,
        name: str = "recorded",
        dev: str | Path = "",
        recorded: bool = True,
    ) -> None:
        root = Path(root)
        super().__init__(
            name=name,
            sys=root / "sys",
            dev=dev or root / "dev",
            proc=root / "proc",
            run=root / "run",
            recorded=recorded,
        )
        self._nodes = nodes

    def info(self, path: str) -> NodeInfo | None:
        """Return what the table says of ``/dev/…``, links followed; None if it does not know it."""
        if path in self._nodes:
            return self._nodes[path]
        dev = os.path.realpath(self.dev)
        return self._nodes.get(f"/dev/{os.path.relpath(os.path.realpath(self.at_dev(path)), dev)}")


@contextmanager
def open_machine(path: str | Path) -> Iterator[Node]:
    """Open a recorded machine: a directory that holds ``sys``, or an archive of one.

    Archives are tar files, compressed with gzip or not, and are unpacked to a temporary directory
    for as long as the context lasts. Raises ``NotAMachine``, with a sentence, for anything else.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="hardpoint-", ignore_cleanup_errors=True) as scratch:
        try:
            node = _opened(path, Path(scratch))
        except OSError as error:
            raise NotAMachine(str(path), error.strerror or type(error).__name__) from error
        yield node


def _opened(path: Path, scratch: Path) -> Node:
    if path.is_dir():
        return _node(path, path, scratch / "dev")
    if not path.is_file():
        raise NotAMachine(str(path), "there is no such file or directory")
    _archive.unpack(path, scratch / "root", TREES)
    return _node(path, scratch / "root", scratch / "dev")


def _node(path: Path, root: Path, dev: Path) -> Node:
    _check_is_machine(path, root)
    for tree in TREES:
        _check_links(path, root, root / tree)
    table = _table(path, root)
    nodes = _nodes(path, table) if table else _nodes_of_sysfs(root)
    _lay_dev(dev, nodes, table.get("links", {}))
    return RecordedNode(root, nodes, name=_name(path), dev=dev)


def _name(path: Path) -> str:
    word = path.resolve().name
    for ending in (".tar.gz", ".tgz", ".tar"):
        word = word.removesuffix(ending)
    return slug(word)[:63].strip("-") or "recorded"


def _check_is_machine(path: Path, root: Path) -> None:
    if os.path.isdir(root / "sys/devices") or os.path.isdir(root / "sys/bus"):
        if _is_this_machine(root / "sys"):
            raise NotAMachine(
                str(path), "its sys is this machine's own, which is not a recorded one"
            )
        return
    if os.path.isdir(root / "devices") and os.path.isdir(root / "bus"):
        raise NotAMachine(str(path), "it looks like a sys itself: give the directory that holds it")
    raise NotAMachine(str(path), "it holds no sys with devices or bus in it")


def _is_this_machine(sys: Path) -> bool:
    return os.path.ismount("/sys") and os.stat(sys).st_dev == os.stat("/sys").st_dev


# -- links ----------------------------------------------------------------------------------------


def _check_links(path: Path, root: Path, tree: Path) -> None:
    """Refuse links out of the tree, and what is neither file, directory nor link.

    Each link may climb first and descend then, no higher than the root. What it descends through
    is a directory, or again such a link; so none of them can lead out.
    """
    base = str(root)
    pending = [str(tree)] if os.path.lexists(tree) else []
    if pending and os.path.islink(tree):
        raise NotAMachine(str(path), f"{tree.name} is a link")
    while pending:
        with os.scandir(pending.pop()) as scan:
            for entry in scan:
                if entry.is_symlink():
                    _check_link(path, os.path.relpath(entry.path, base), os.readlink(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                    raise NotAMachine(str(path), f"{_said(entry.path)} is not a plain file")


def _check_link(path: Path, where: str, target: str) -> None:
    if not _archive.stays_inside(where, target):
        raise NotAMachine(str(path), f"the link {_said(where)} leads out of it")


def _said(name: str) -> str:
    return clean(os.fsencode(name))[-100:]


# -- /dev -----------------------------------------------------------------------------------------


def _table(path: Path, root: Path) -> dict[str, Any]:
    """Read ``dev.json``; empty where there is none."""
    file = root / "dev.json"
    if not os.path.lexists(file):
        return {}
    if os.path.islink(file) or not os.path.isfile(file) or os.path.getsize(file) > _LARGEST_TABLE:
        raise NotAMachine(str(path), "its dev.json is not a file of reasonable size")
    try:
        table = msgspec.json.decode(file.read_bytes())  # takes no half characters and no infinity
    except (ValueError, RecursionError) as error:
        raise NotAMachine(str(path), f"its dev.json is not JSON: {error!s:.80}") from error
    if not isinstance(table, dict) or not isinstance(table.get("nodes"), dict):
        raise NotAMachine(str(path), "its dev.json has no object named nodes")
    if not isinstance(table.setdefault("links", {}), dict):
        raise NotAMachine(str(path), "links in its dev.json is not an object")
    return table


def _nodes(path: Path, table: dict[str, Any]) -> dict[str, NodeInfo]:
    nodes = {}
    for name, facts in table["nodes"].items():
        try:
            nodes[name] = NodeInfo(
                _TYPES[facts["type"]],
                _number(facts["major"]),
                _number(facts["minor"]),
                int(facts.get("mode", "0600"), 8) & 0o7777,
                _number(facts.get("gid", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAMachine(
                str(path), f"dev.json does not say type, major and minor of {_said(name)}"
            ) from error
    return nodes


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError("not a number of 32 bits")
    return value


def _nodes_of_sysfs(root: Path) -> dict[str, NodeInfo]:
    """Take every node that sysfs names to be there, where nothing says what /dev was."""
    nodes = {}
    bare = Node(name="recorded", sys=root / "sys", dev=root / "no-dev", proc=root / "proc")
    for index, kind in (("char", NodeType.CHAR), ("block", NodeType.BLOCK)):
        for entry in bare.entries(f"dev/{index}"):
            try:
                name = entry.uevent().get("DEVNAME", "")
            except OSError:
                continue
            major, minor = (decimal(word) for word in entry.name.partition(":")[::2])
            if name and major is not None and minor is not None:
                nodes[f"/dev/{name}"] = NodeInfo(kind, major, minor, 0o600, 0)
    return nodes


def _lay_dev(dev: Path, nodes: Mapping[str, NodeInfo], links: Mapping[str, Any]) -> None:
    """Make a directory that can be listed as /dev is: empty files, and the links among them."""
    dev.mkdir()
    for name in nodes:
        at = _below(dev, name)
        if at is not None:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.touch()
    for name, target in links.items():
        at = _below(dev, name)
        inside = at is not None and isinstance(target, str) and "\0" not in target
        if at is None or not inside or os.path.lexists(at):
            continue
        if _archive.stays_inside(os.path.relpath(at, dev), target):
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(target)


def _below(dev: Path, name: str) -> Path | None:
    """Return where a path of /dev lies below another directory; None for one that strays."""
    parts = name.split("/")
    if parts[:2] != ["", "dev"] or "\0" in name or {"", ".", ".."} & set(parts[2:]):
        return None
    at = dev.joinpath(*parts[2:])
    above = [parent for parent in at.parents if parent.is_relative_to(dev)]
    strays = any(parent.is_symlink() or parent.is_file() for parent in above) or at.is_dir()
    return None if strays or at == dev else at
