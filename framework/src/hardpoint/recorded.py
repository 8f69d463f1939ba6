"""Machines that are a tree of files: recorded ones, and those that tests build.

Sysfs and procfs are copied as they are; the nodes of /dev cannot be (making one needs root), so a
table says what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hardpoint.node import Node, NodeInfo


class RecordedNode(Node):
    """A machine below one directory, with a table in place of the nodes of /dev."""

    def __init__(
        self,
        root: str | Path,
        nodes: Mapping[str, NodeInfo],
        *,
        name: str = "recorded",
        recorded: bool = True,
    ) -> None:
        root = Path(root)
        super().__init__(
            name=name,
            sys=root / "sys",
            dev=root / "dev",
            proc=root / "proc",
            run=root / "run",
            recorded=recorded,
        )
        self._nodes = nodes

    def info(self, path: str) -> NodeInfo | None:
        """Return what the table says of ``/dev/…``; None where it does not know it."""
        return self._nodes.get(path)
