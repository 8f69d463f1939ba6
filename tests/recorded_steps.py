"""The hotplug steps of the recorded machines, carried out one after the other.

A conftest takes the fixture with ``from recorded_steps import scratch``.

for command, node in replay("desktop", tmp_path):
    ...                                     # first "" and the machine as it was recorded
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_machines import DATA

from hardpoint.model import NodeType
from hardpoint.node import Node, NodeInfo
from hardpoint.recorded import RecordedNode

_TYPES = {"char": NodeType.CHAR, "block": NodeType.BLOCK}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: a machine is some 20,000 small files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


def replay(name: str, root: Path) -> Iterator[tuple[str, Node]]:
    """Yield each step's command and the machine after it; the tree below ``root`` changes."""
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        files = {member.name: member for member in archive.getmembers()}
        for path, member in files.items():
            if not path.startswith("steps/"):
                _put(archive, member, root / path)
        yield "", _node(root, name)
        for head in _heads(archive):
            for path in head["gone"]:
                _clear(root / path)
            prefix = f"steps/{head['step']:02d}/"
            for path, member in files.items():
                if path.startswith(prefix):
                    _put(archive, member, root / path.removeprefix(prefix))
            yield head["command"].removeprefix("hwlab-ctl "), _node(root, name)


def _heads(archive: tarfile.TarFile) -> list[dict[str, Any]]:
    lines = archive.extractfile("events.jsonl")
    assert lines is not None
    events = [json.loads(line) for line in io.TextIOWrapper(lines)]
    return [event for event in events if "command" in event]


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    if member.issym():
        path.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    assert content is not None
    path.write_bytes(content.read())


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _node(root: Path, name: str) -> Node:
    """Open the tree as it is now, with the links of its /dev and a table of its nodes."""
    table = json.loads((root / "dev.json").read_text())
    _clear(root / "dev")
    for path, target in table["links"].items():
        at = root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, at)
    nodes = {
        path: NodeInfo(_TYPES[f["type"]], f["major"], f["minor"], int(f["mode"], 8), f["gid"])
        for path, f in table["nodes"].items()
        if f["type"] in _TYPES
    }
    return RecordedNode(root, nodes, name=name)
