"""Corrected copies of holds, in the runtime's own directory, which it prefers to ``/etc/cdi``.

No claim's file can have their names: a vendor has no ``_`` in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hardpoint import files
from hardpoint.cdi_rules import check
from hardpoint.errors import BadValue
from hardpoint.policies.cdi_grants.documents import SUFFIX, Bad
from hardpoint.policies.cdi_grants.holds import read_spec, shown

_MARK = "grant_"
_TEMPORARY = ".tmp"


class Copies:
    """The copies of one source of grants. Blocking; only the writing agent writes."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory = directory
        self._start = f"{_MARK}{prefix}"

    def path(self, allocation: str) -> Path:
        """Return where the copy of an allocation's hold is."""
        return self.directory / f"{self._start}{allocation}{SUFFIX}"

    def read(self, allocation: str) -> Mapping[str, Any] | None:
        """Return a copy; None where there is none, and an empty one where it cannot be read."""
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return {}
        try:
            document = read_spec(self.path(allocation).name, descriptor)
            check(document)
        except FileNotFoundError:
            return None
        except (Bad, BadValue, OSError):
            return {}
        finally:
            os.close(descriptor)
        return dict(document)

    def put(self, allocation: str, document: Mapping[str, Any] | None) -> None:
        """Make a copy say exactly this, or remove it. Raises ``OSError`` and ``BadValue``."""
        path = self.path(allocation)
        if document is None:
            files.remove(path)
            return
        check(document)
        if not self.directory.is_dir():  # on tmpfs: gone after every boot
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.directory.chmod(0o755)
        content = (json.dumps(document, indent=2) + "\n").encode()
        files.replace(path, content, temporary=path.with_name(f".{path.name}{_TEMPORARY}"))

    def listed(self) -> frozenset[str]:
        """Return the names of copies, and of what a crash left half written of one."""
        try:
            names = os.listdir(self.directory)
        except OSError:
            return frozenset()  # not there: nothing is delivered from it
        return frozenset(name for name in names if self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        half = name.startswith(f".{self._start}") and name.endswith(_TEMPORARY)
        return half or (name.startswith(self._start) and name.endswith(SUFFIX))

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Remove all of them but the copies of these allocations.

        Return what could not be removed, each with the reason.
        """
        left = []
        for name in self.listed() - {self.path(allocation).name for allocation in keep}:
            try:
                files.remove(self.directory / name)
            except OSError as error:
                left.append(f"{self.directory}/{shown(name)}: {error.strerror}")
        return sorted(left)
