"""Where a driver's two sockets are, for an instance that may overlap with another.

An instance has names of its own, so that two pods of a rolling update serve side by side. A name
that would make the path too long is shortened by a hash, in the forms that the Go library uses.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hardpoint.kubelet.sockets import fits, remove_left_behind, remove_stale

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True, slots=True)
class Directories:
    """The two directories below the kubelet's root that a driver uses."""

    root: Path
    driver: str

    @property
    def plugin(self) -> Path:
        """Ours alone: the service's socket, and what we keep."""
        return self.root / "plugins" / self.driver

    @property
    def registry(self) -> Path:
        """The kubelet's, shared with every plugin of the node: it watches it for sockets."""
        return self.root / "plugins_registry"

    def service(self, instance: str) -> Path:
        """Return the socket that serves the kubelet's calls."""
        if not instance:
            return self.plugin / "dra.sock"
        return _first_that_fits(self._services(instance))

    def registrar(self, instance: str) -> Path:
        """Return the socket that the kubelet finds."""
        if not instance:
            return self.registry / f"{self.driver}-reg.sock"
        return _first_that_fits(self._registrars(instance))

    def _services(self, instance: str) -> list[Path]:
        short = _hash(instance, 8)
        names = (f"dra-{instance}.sock", f"dra-{short}.sock", f"{short}.sock")
        return [self.plugin / name for name in names]

    def _registrars(self, instance: str) -> list[Path]:
        whole = self.registry / f"{self.driver}-{instance}-reg.sock"
        return [whole, *self._short_registrars(_hash(instance, 8))]

    def _short_registrars(self, short: str) -> list[Path]:
        both = _hash(f"{self.driver}\0{short}", 16)
        names = (f"{self.driver}-{short}-reg.sock", f"dra-{both}-reg.sock")
        return [self.registry / name for name in names]

    def remove_stale(self, instance: str) -> tuple[Path, ...]:
        """Unlink sockets of this driver's killed instances; a live one is never touched."""
        left = remove_left_behind(self.plugin) + remove_left_behind(self.registry)
        return left + remove_stale(dict.fromkeys(self._candidates(instance)))

    def _candidates(self, instance: str) -> Iterator[Path]:
        """Yield paths that only this driver's instances can have.

        A shortened registrar's name does not say whose it is: it is found through the service's
        socket beside it, which names the instance in the directory that is ours alone.
        """
        yield self.registrar("")
        yield from self._of_instance(instance) if instance else ()
        whole = re.compile(rf"{re.escape(self.driver)}-{_UUID}-reg\.sock")
        yield from (path for path in self.registry.glob("*.sock") if whole.fullmatch(path.name))
        for path in self.plugin.glob("*.sock"):
            yield path
            yield from self._of_instance(path.name.removeprefix("dra-").removesuffix(".sock"))

    def _of_instance(self, name: str) -> list[Path]:
        """Return the registrars of an instance whose service is known by its name or its hash."""
        found = [*self._registrars(name), *self._short_registrars(name)]
        return [path for path in found if fits(path)]


def _first_that_fits(paths: list[Path]) -> Path:
    return next((path for path in paths if fits(path)), paths[-1])


def _hash(text: str, length: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:length]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
